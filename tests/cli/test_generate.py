"""`mmspec generate`: what it writes and prints, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

PROMPT = "a photo of a red circle left of a blue square"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_generate(generate, tmp_path):
    code, out, err = generate("--method", "sjd", "--seed", 7, "-n", 2)
    assert code == 0
    assert "Traceback" not in err
    assert names(tmp_path / "out") == ["sjd-7.png", "sjd-8.png", "stats.json"]
    pictures = [np.asarray(Image.open(tmp_path / "out" / f"sjd-{seed}.png")) for seed in (7, 8)]
    assert pictures[0].shape == (32, 32, 3)
    assert not np.array_equal(*pictures)
    head, row, last = out.splitlines()
    titles = ["method", "contract", "n", "target calls", "tokens/call", "seconds", "speed-up"]
    assert [title for title in titles if title not in head] == []
    assert row.split()[:3] == ["sjd", "exact", "2"]
    assert str(tmp_path / "out") in last


def test_compare(generate, tmp_path):
    code, out, _ = generate("--method", "sjd", "--compare", "-n", 3)
    assert code == 0
    pictures = [f"{method}-{seed}.png" for method in ("plain", "sjd") for seed in range(3)]
    assert set(names(tmp_path / "out")) == {*pictures, "side-by-side.png", "stats.json"}
    sheet = Image.open(tmp_path / "out" / "side-by-side.png")
    assert sheet.width > 3 * 64
    assert sheet.height > 2 * 64

    stats = json.loads((tmp_path / "out" / "stats.json").read_text())
    assert (stats["prompt"], stats["seed"]) == (PROMPT, 0)
    assert stats["call"]["guidance_scale"] == 2.0
    assert {"torch", "processor", "threads"} <= stats["environment"].keys()
    plain, sjd = stats["methods"]["plain"], stats["methods"]["sjd"]
    assert (plain["n"], plain["nfe_per_sample"], plain["mean_acceptance_length"]) == (3, 16, 1)
    assert "speedup_median" not in plain
    assert sjd["nfe_per_sample"] < 16
    assert sjd["mean_acceptance_length"] == pytest.approx(16 / sjd["nfe_per_sample"])
    assert sjd["accepted"] + 3 * sjd["nfe_per_sample"] == pytest.approx(sjd["emitted"]) == 48
    low, high = sjd["speedup_ci95"]
    assert low <= sjd["speedup_median"] <= high
    rows = [line.split() for line in out.splitlines()[1:3]]
    assert rows[0][:5] == ["plain", "exact", "3", "16.0", "1.00"]
    assert rows[1][-2:] == [f"{sjd['speedup_median']:.2f}×", f"{low:.2f}–{high:.2f}"]
    assert "speed-up: plain's seconds over the row's, call by call" in out.splitlines()[3]


def test_one_pair_has_no_interval(generate, tmp_path):
    code, out, _ = generate("--method", "sjd", "--compare", "-n", 1)
    assert code == 0
    (row,) = (line.split() for line in out.splitlines() if line.startswith("sjd"))
    assert row[-1].endswith("×")
    stats = json.loads((tmp_path / "out" / "stats.json").read_text())
    assert stats["methods"]["sjd"]["speedup_ci95"] is None


def test_a_siblings_calls_are_told(run, tiny_folder, tmp_path):
    options = ("--model", tiny_folder, "--method", "upsample-only", "--compare", "-n", 2)
    code, out, err = run("generate", PROMPT, *options, "-o", tmp_path / "out")
    assert code == 0, err
    head, plain, small = out.splitlines()[:3]
    at = head.index("sibling's calls")
    assert plain[at:].split()[0] == "0.0"
    assert 1 <= float(small[at:].split()[0]) <= 4


def test_same_seed_same_file(generate, tmp_path):
    pictures = []
    for method in ("plain", "plain", "draft"):
        assert generate("--method", method, "--seed", 3)[0] == 0
        pictures.append((tmp_path / "out" / f"{method}-3.png").read_bytes())
    assert pictures[0] == pictures[1] != pictures[2]


def test_generate_json(generate, tmp_path):
    code, out, _ = generate("--json", "--temperature", "0", "--size", "16")
    assert code == 0
    assert json.loads(out) == json.loads((tmp_path / "out" / "stats.json").read_text())
    assert json.loads(out)["methods"]["scd"]["contract"].startswith("exact")
    assert Image.open(tmp_path / "out" / "scd-0.png").size == (16, 16)


def test_knobs_reach_the_engine(generate):
    out = generate("--json", "--method", "draft", "--num-draft-tokens", 20)[1]
    told = json.loads(out)["methods"]["draft"]
    assert told["drafted"] > 5 * told["nfe_per_sample"]  # up to 15 of what is left
    out = generate("--json", "--method", "sjd", "--window", 2, "--jacobi-init", "uniform")[1]
    assert len(json.loads(out)["methods"]["sjd"]["acceptance_by_position"]) == 2
    parts = ("--drafter", "null", "--length", "heuristic", "--rule", "token")
    out = generate("--json", "--method", "draft", *parts)[1]
    assert json.loads(out)["methods"]["draft"]["drafted"] == 0


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--method", "sdj"], ["'sdj'", "did you mean 'sjd'"]),
        (["--method", ""], ["unknown method ''"]),
        (["--drafter", "modle"], ["did you mean 'model'"]),
        (["--rule", "tokens"], ["did you mean 'token'"]),
        (["--length", "constnt"], ["did you mean 'constant'"]),
        (["--jacobi-init", "unifrm"], ["did you mean 'uniform'"]),
        (["--rule", "greedy"], ["temperature 0"]),
        (["--guidance", "-1"], ["guidance_scale", "-1"]),
        (["--guidance", "nan"], ["guidance_scale", "nan"]),
        (["--temperature", "-0.5"], ["temperature", "-0.5"]),
        (["--temperature", "1e-42"], ["temperature", "1e-42"]),
        (["--temperature", "inf"], ["temperature", "inf"]),
        (["--top-k", "-1"], ["top_k", "-1"]),
        (["--top-p", "0"], ["top_p", "0"]),
        (["--top-p", "1.5"], ["top_p", "1.5"]),
        (["--window", "0"], ["window", "0"]),
        (["--window", "257"], ["window", "256"]),
        (["--num-draft-tokens", "0"], ["num_draft_tokens"]),
        (
            ["--num-draft-tokens", "4"],
            ["num_draft_tokens is a setting of", "jacobi_init, memory_budget, window"],
        ),
        (["--method", "draft", "--window", "16"], ["'draft' does not read it"]),
        (
            ["--num-draft-tokens", "20", "--length", "heuristic"],
            ["num_draft_tokens (20)", "max_draft_tokens"],
        ),
        (["-n", "0"], ["--num-images", "0"]),
        (["-n", "1001"], ["--num-images", "1001"]),
        (["--size", "0"], ["0×0"]),
        (["--size", "-16"], ["-16"]),
        (["--size", "7"], ["multiple of 8"]),
        (["--size", "64"], ["16×16 or 32×32", "64×64"]),
        (["--seed", "-1"], ["--seed", "-1"]),
        (["--seed", "9" * 30], ["--seed"]),
        (["--device", "gpu"], ["device 'gpu'"]),
        (["--device", "meta"], ["device 'meta'"]),
        (["--device", "cuda:77"], ["device 'cuda:77'"]),
        (["--top-k", "many"], ["--top-k", "'many'"]),
        (["--temperature", "warm"], ["--temperature", "'warm'"]),
        (["--seed", "1.5"], ["--seed", "'1.5'"]),
        (["--colour", "red"], ["--colour"]),
    ],
    ids=str,
)
def test_generate_refuses(generate, tmp_path, options, parts, refused):
    refused(generate(*options), *parts)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("prompt", ["", "  \n"])
def test_empty_prompt(run, tiny_folder, tmp_path, prompt, refused):
    refused(run("generate", prompt, "--model", tiny_folder, "-o", tmp_path / "out"), "empty")
    assert list(tmp_path.iterdir()) == []


def test_budgets_lengths_and_pruning_by_options(generate, tmp_path):
    told = ("--memory-budget", "1.5MiB", "--length", "speckv", "--rule", "restricted")
    code, out, err = generate("--method", "draft", *told, "--prune-layers", 1)
    assert (code, "Traceback" in err) == (0, False)
    assert out.splitlines()[1].split()[1] == "exact"
    code, _, err = generate("--method", "draft", "--memory-budget", "1kB")
    assert code == 2
    assert "memory_budget of 1,000 bytes holds no draft of method 'draft'" in err
    code, _, err = generate("--method", "draft", "--memory-budget", "plenty")
    assert code == 2
    assert "memory_budget must be a number of bytes such as 64MB or 1.5GiB" in err
