"""The command line: what it writes and prints, and one clear line for everything that is wrong."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file, save_file

from mmspec.cli.main import build_parser, main
from mmspec.eval.schema import MethodResult, Report
from mmspec.eval.suite import suite_names
from mmspec.methods import presets
from mmspec.pipelines.available_methods import first_method

ROOT = Path(__file__).resolve().parents[2]
PROMPT = "a photo of a red circle left of a blue square"
# of a method's row in report.json, as the issue names them
ROW = [
    "contract",
    "n",
    "nfe_per_sample",
    "target_tokens_per_sample",
    "mean_acceptance_length",
    "acceptance_by_position",
    "seconds_median",
    "speedup_median",
    "speedup_ci95",
    "ideal_speedup",
    "engine_efficiency",
]


@pytest.fixture
def run(capfd):
    """Runs a command: exit code, standard output, standard error (of any library too)."""

    def call(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stop:  # argparse
            code = stop.code
        return code, *capfd.readouterr()

    return call


@pytest.fixture
def generate(run, tiny_folder, tmp_path):
    """`mmspec generate` on the tiny model, into `tmp_path / "out"`."""
    options = ["--model", tiny_folder, "-o", tmp_path / "out"]
    return lambda *more: run("generate", PROMPT, *options, *more)


@pytest.fixture
def evaluate(run, tiny_folder, tmp_path):
    """`mmspec eval run` of the speed suite on the tiny model, into `tmp_path / "out"`."""
    options = ["--suite", "speed", "--model", tiny_folder, "-o", tmp_path / "out"]
    return lambda *more: run("eval", "run", *options, *more)


def refused(result, *parts: str) -> None:
    """Exit code 2, one line on standard error, nothing else."""
    code, out, err = result
    assert code == 2
    assert out == ""
    assert err.endswith("\n")
    assert len(err.splitlines()) == 1, err
    assert err.startswith("mmspec")
    for part in parts:
        assert part in err


# --- generate -------------------------------------------------------------------------------------


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
    assert len(json.loads(out)["methods"]["draft"]["acceptance_by_position"]) == 15
    out = generate("--json", "--method", "sjd", "--window", 2, "--jacobi-init", "uniform")[1]
    assert len(json.loads(out)["methods"]["sjd"]["acceptance_by_position"]) == 2
    parts = ("--drafter", "null", "--length", "heuristic", "--rule", "token")
    out = generate("--json", "--method", "draft", *parts)[1]
    assert json.loads(out)["methods"]["draft"]["drafted"] == 0


def every_option():
    """All options of all commands, with the command that they are of."""
    waiting = [build_parser()]
    while waiting:
        parser = waiting.pop()
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                waiting += action.choices.values()
            else:
                yield parser, action


def test_every_help_says_what_and_which_default():
    for parser, action in every_option():
        told = parser._get_formatter()._get_help_string(action)
        assert told.split("(default")[0].strip(), (parser.prog, action.dest)
        if isinstance(action.default, str | int | float | Path) and action.default is not False:
            assert "default" in told or action.default == argparse.SUPPRESS, (parser.prog, told)


def test_defaults_are_methods_that_gain(generate, run, tiny_folder, tmp_path):
    assert list(json.loads(generate("--json")[1])["methods"]) == ["scd"]
    assert first_method(tiny_folder, "continuous") == "reflection"
    home = tmp_path / "vlm"
    for parts, wanted in (("", "prompt-lookup"), ("drafter", "draft"), ("heads/eagle", "eagle")):
        (home / parts).mkdir(parents=True, exist_ok=True)
        (home / parts / "config.json").touch()
        assert first_method(home, "vlm") == wanted


# --- ls and eval ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "listed"),
    [
        (["ls", "models"], ["embedded-image", "embedded-mar", "embedded-video", "embedded-vlm"]),
        (["eval", "ls"], suite_names()),
        (["eval", "ls", "judges"], ["mask2former", "shapes"]),
        (["eval", "ls", "weights"], ["blip_vqa", "hpsv2", "inception-v3", "mask2former"]),
    ],
    ids=str,
)
def test_lists(run, command, listed):
    code, out, err = run(*command)
    assert (code, err) == (0, "")
    shown = [line.split(maxsplit=1) for line in out.splitlines()]
    assert all(text.strip() for _, text in shown)
    code, out, err = run(*command, "--json")
    assert (code, err) == (0, "")
    assert list(json.loads(out)) == [name for name, _ in shown]
    assert set(listed) <= set(json.loads(out))


def test_metrics_are_listed(run):
    code, out, err = run("eval", "ls", "metrics")
    assert (code, err) == (0, "")
    head, *lines = out.splitlines()
    assert head.split()[:5] == ["metric", "pipelines", "files", "needs", "values"]
    (fid,) = [line for line in lines if line.startswith("fid ")]
    assert all(told in fid for told in ("image, continuous", "images, reference", "0 to"))
    found = json.loads(run("eval", "ls", "metrics", "--json")[1])
    assert [line.split()[0] for line in lines] == [one["name"] for one in found]
    assert {"fid", "geneval", "accuracy", "vqav2"} <= {one["name"] for one in found}


def test_methods_are_listed_with_their_contracts(run):
    code, out, err = run("ls", "methods")
    assert (code, err) == (0, "")
    head, *lines = out.split("\n\n")[0].splitlines()
    assert head.split()[:5] == ["method", "image", "vlm", "continuous", "video"]
    rows = {line.split()[0]: line for line in lines}
    assert list(rows) == list(presets())
    assert all(presets()[name].summary in line for name, line in rows.items())
    facts = json.loads(run("ls", "methods", "--json")[1])
    at = {word: head.index(word) for word in ("image", "vlm", "continuous", "video")}
    for name, method in presets().items():
        assert set(facts[name]["contracts"]) == set(method.serves)
        for modality, column in at.items():
            promised = facts[name]["contracts"].get(modality, "")
            assert rows[name][column:].startswith(promised or " "), (name, modality)
    assert facts["eagle"]["needs"] == {"image": ["eagle"], "vlm": ["heads/eagle"]}
    assert facts["mulo-sd"]["contracts"] == {"image": "lossy"}
    assert facts["cool-sd"]["contracts"]["image"] == "bounded"


def test_eval_run(evaluate, tmp_path):
    code, out, _ = evaluate("--methods", "plain,draft,sjd", "--limit", "2")
    assert code == 0
    written = ["report.html", "report.json", "report.md", "run.json", "samples.jsonl"]  # no quality
    assert names(tmp_path / "out") == written
    data = json.loads((tmp_path / "out" / "report.json").read_text())
    assert list(data["methods"]) == ["plain", "draft", "sjd"]
    for name, row in data["methods"].items():
        assert set(ROW) <= row.keys() == {field.name for field in fields(MethodResult)}
        assert (row["contract"], row["n"]) == ("exact", 2)
        emitted = row["mean_acceptance_length"] * row["nfe_per_sample"]
        assert emitted == pytest.approx(16)
        assert row["target_tokens_per_sample"] >= row["nfe_per_sample"]
        assert all(0 <= share <= 1 for share in row["acceptance_by_position"])
        assert row["seconds_median"] >= row["decode_seconds_median"] > 0
        assert row["ideal_speedup"] > 0
        measured = 1.0 if name == "plain" else row["speedup_median"]
        assert row["engine_efficiency"] == pytest.approx(measured / row["ideal_speedup"])
        if name == "plain":
            assert row["speedup_median"] is row["speedup_ci95"] is None
            assert row["acceptance_by_position"] == []
        else:
            assert row["speedup_median"] > 0
            assert row["speedup_ci95"] is None  # two pairs prove nothing
    report = Report.read(tmp_path / "out" / "report.json")
    assert report.settings["speed_prompts"] == 2
    assert not report.for_reporting
    lines = (tmp_path / "out" / "samples.jsonl").read_text().splitlines()
    samples = [line for line in map(json.loads, lines) if line["kind"] == "speed"]
    assert [sample["seed"] for sample in samples] == [0, 0, 0, 1, 1, 1]
    order = [sample["method"] for sample in samples]
    assert sorted(order[:3]) == sorted(order[3:]) == ["draft", "plain", "sjd"]
    assert order[:3] != order[3:]  # they take turns
    assert [line.split()[0] for line in out.splitlines()[:4]] == ["method", *data["methods"]]


def test_eval_quality(run, tiny_folder, tmp_path):
    where = ("--model", tiny_folder, "-o", tmp_path / "out")
    command = ("eval", "run", "--suite", "geneval-shapes", "--methods", "sjd", "--limit", 6)
    code, out, _ = run(*command, *where)
    assert code == 0
    report = Report.read(tmp_path / "out" / "report.json")
    for row in report.methods.values():
        assert row.n == 6
        assert row.speedup_median is row.seconds_median is None
        assert 0 <= row.quality["geneval"].value <= 1
    assert any("too few samples" in note for note in report.notes)
    assert 0 < report.target_entropy < np.log(128)
    samples = (tmp_path / "out" / "samples.jsonl").read_text().splitlines()
    verdicts = [line for line in map(json.loads, samples) if line["kind"] == "quality"]
    assert len(verdicts) == 12
    assert all((line["scores"]["geneval"] == 1) == (line["reason"] == "") for line in verdicts)
    assert [line.split()[0] for line in out.splitlines()[1:3]] == ["plain", "sjd"]


def test_eval_adds_the_baseline_and_prints_json(evaluate, tmp_path):
    code, out, _ = evaluate("--methods", "sjd", "--limit", 1, "--size", 16, "--json")
    assert code == 0
    assert json.loads(out) == json.loads((tmp_path / "out" / "report.json").read_text())
    assert list(json.loads(out)["methods"]) == ["plain", "sjd"]
    assert json.loads(out)["methods"]["plain"]["nfe_per_sample"] == 4


def test_a_limit_over_a_longer_run_is_told(evaluate, tmp_path):
    """What is there counts, and no pictures are spoken of where none were drawn."""
    plain = ("--methods", "plain", "--size", 16)
    code, out, _ = evaluate(*plain, "--limit", 4)
    assert code == 0
    last = out.splitlines()[-1]
    where = tmp_path / "out"
    assert last == f"report.html, report.md, report.json and samples.jsonl are in {where}/"
    code, out, _ = evaluate(*plain, "--limit", 2)
    assert code == 0
    assert Report.read(where).methods["plain"].n_speed == 4
    assert "note: the folder held 4 samples already: all of them count, and --limit 2 drops" in out


def test_reports_are_drawn_again_and_compared(evaluate, run, tmp_path):
    assert evaluate("--methods", "sjd", "--limit", 2, "--size", 16)[0] == 0
    out = tmp_path / "out"
    before = {name: (out / name).read_bytes() for name in ("report.html", "report.md")}
    for name in before:
        (out / name).unlink()
    code, text, _ = run("eval", "report", out)
    assert code == 0
    assert {name: (out / name).read_bytes() for name in before} == before
    assert "report.html" in text
    code, text, _ = run("eval", "compare", out, out, "--json")
    assert code == 0
    rows = json.loads(text)["rows"]
    assert {row["method_a"] for row in rows} == {"plain", "sjd"}
    assert all((row["n"], row["ratio"], row["p"]) == (2, 1, 1) for row in rows)
    assert (
        len(json.loads(run("eval", "compare", out, out, "--methods", "plain:sjd", "--json")[1]))
        == 2
    )
    refused(run("eval", "report", tmp_path / "nothing"), "nothing")
    refused(run("eval", "compare", out, tmp_path / "nothing"), "nothing")


def test_validate(run, tmp_path):
    code, out, err = run("eval", "validate")
    assert (code, err) == (0, "")
    assert [line.partition(":")[0] for line in out.splitlines()] == suite_names()
    (tmp_path / "mine.yaml").write_text("summary: s\nsource: prompts\nspeed: x\n")
    refused(
        run("eval", "validate", tmp_path / "mine.yaml"),
        "speed: input should be a valid integer, not 'x'",
    )


# --- bad input ------------------------------------------------------------------------------------


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
        (["--num-draft-tokens", "4"], ["num_draft_tokens is a setting of", "jacobi_init, window"]),
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
def test_generate_refuses(generate, tmp_path, options, parts):
    refused(generate(*options), *parts)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("prompt", ["", "  \n"])
def test_empty_prompt(run, tiny_folder, tmp_path, prompt):
    refused(run("generate", prompt, "--model", tiny_folder, "-o", tmp_path / "out"), "empty")
    assert list(tmp_path.iterdir()) == []


def without_tensor(tiny_folder: Path, folder: Path, part: str, tensor: str) -> Path:
    shutil.copytree(tiny_folder, folder)
    (path,) = (folder / part).glob("*.safetensors")
    weights = load_file(path)
    del weights[tensor]
    save_file(weights, path, metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize(
    ("part", "tensor"),
    [
        ("transformer", "layers.1.attention.wo.weight"),
        ("vq_model", "quant_conv.bias"),
        ("text_encoder", "encoder.final_layer_norm.weight"),
    ],
)
def test_checkpoint_with_a_missing_tensor(run, tiny_folder, tmp_path, part, tensor):
    folder = without_tensor(tiny_folder, tmp_path / "model", part, tensor)
    result = run("generate", PROMPT, "--model", folder, "-o", tmp_path / "out")
    refused(result, f"missing tensor {tensor}", str(folder / part))
    assert names(tmp_path) == ["model"]


def test_unreadable_models(run, tmp_path):
    (tmp_path / "file").write_text("text")
    (tmp_path / "folder").mkdir()
    (tmp_path / "binary").mkdir()
    (tmp_path / "binary" / "model_index.json").write_bytes(b"\xff\xfe\x00")
    for model in ("nothing", "file", "folder", "binary"):
        path = tmp_path / model
        refused(run("generate", PROMPT, "--model", path, "-o", tmp_path / "out"), str(path))
        command = ("eval", "run", "--suite", "speed", "--model", path, "-o", tmp_path / "out")
        refused(run(*command), str(path))
    refused(run("generate", PROMPT, "--model", "nothing", "-o", tmp_path / "out"), "nothing")
    assert names(tmp_path) == ["binary", "file", "folder"]


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        (["generate", PROMPT, "--model", "empty"], ["can't read empty", "model_index.json"]),
        (["generate", PROMPT, "--model", "a-file"], ["can't read a-file", "no folder"]),
        (["generate", PROMPT, "--model", "embedded-none"], ["embedded-image, embedded-mar"]),
        (["generate", PROMPT, "--model", "image"], ["image;", "embedded-image, embedded-mar"]),
        (["generate", PROMPT, "--model", "embedded-vlm"], ["'llava' is no model that draws here"]),
        (["generate", PROMPT, "--iterations", "0"], ["--iterations is of --pipeline continuous"]),
        (["generate", PROMPT, "--method", "hydra"], ["a model that writes text", "ls methods"]),
        (["generate", PROMPT, "--method", "scd[window"], ["NAME[SETTING=VALUE"]),
        (["generate", PROMPT, "--rule", "no_module:Rule"], ["can't import rule", "PYTHONPATH"]),
        (["ask", "none.png", "what"], ["no picture none.png"]),
        (["ask", "a-file", "what"], ["can't read a-file: it is no picture"]),
        (["ask", "picture.png", " "], ["the question is empty"]),
        (["ask", "picture.png", "what", "--method", "hydra"], ["train vlm-head --method hydra"]),
        (["ask", "picture.png", "what", "--model", "embedded-image"], ["VlmPipeline can't open"]),
        (["ask", "picture.png", "what", "--model", "empty"], ["can't read empty", "config.json"]),
        (["ask", "picture.png", "what", "--max-new-tokens", "9999"], ["1024 positions"]),
        (["ask", "picture.png", "what", "--stream", "--json"], ["leave --json out"]),
        (["video", PROMPT, "--model", "embedded-image"], ["VideoPipeline can't open it"]),
        (["demo", "--model", "image=a-file"], ["no model folder at a-file"]),
        (["eval", "run", "-o", "r", "--suite", "vlm", "--pipeline", "image"], ["--pipeline vlm"]),
        (["eval", "report", "empty"], ["report.json"]),
        (["eval", "table", "a-file"], ["a-file: not JSON"]),
        (["eval", "validate", "a-file"], ["unknown suite 'a-file'"]),
        (["train", "vlm-head", "--pipeline", "empty"], ["empty/config.json"]),
    ],
    ids=str,
)
def test_faults_of_every_command_are_one_line(run, tmp_path, monkeypatch, command, parts):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "a-file").write_text("text")
    Image.new("RGB", (32, 32)).save(tmp_path / "picture.png")
    before = names(tmp_path)
    refused(run(*command), *parts)
    assert names(tmp_path) == before
    assert names(tmp_path / "empty") == []


def test_model_without_drafter(run, tiny_folder, tmp_path):
    folder = shutil.copytree(tiny_folder, tmp_path / "model")
    index = json.loads((folder / "model_index.json").read_text())
    (folder / "model_index.json").write_text(json.dumps({**index, "drafter": [None, None]}))
    where = ("--model", folder, "-o", tmp_path / "out")
    draft = ("generate", PROMPT, "--method", "draft", *where)
    refused(run(*draft), "needs the component 'drafter'", "'sjd'")
    refused(
        run("eval", "run", "--suite", "speed", "--limit", 1, *where),
        "needs the component 'drafter'",
    )
    assert names(tmp_path) == ["model"]
    assert run("generate", PROMPT, "--method", "sjd", *where)[0] == 0


def test_unwritable_folder(run, tiny_folder, tmp_path):
    (tmp_path / "file").write_text("text")
    for out in (tmp_path / "file", tmp_path / "file" / "a" / "b", "/proc/nothing"):
        refused(run("generate", PROMPT, "--model", tiny_folder, "-o", out), str(out))
        command = ("eval", "run", "--suite", "speed", "--limit", 1, "--model", tiny_folder)
        refused(run(*command, "-o", out), str(out))
    assert (tmp_path / "file").read_text() == "text"
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--limit", "0"], ["--limit", "0"]),
        (["--limit", "-2"], ["--limit", "-2"]),
        (["--limit", "all"], ["--limit", "'all'"]),
        (["--methods", "plain,sdj"], ["did you mean 'sjd'"]),
        (["--methods", " , "], ["--methods"]),
        (["--methods", "sjd[windw=4]"], ["setting of sjd", "did you mean 'window'"]),
        (["--methods", "sjd[window=0],plain"], ["sjd[window=0]: window", "from 1 to 256"]),
        (["--sweep", "draft"], ["draft has no knob", "sjd (window)"]),
        (["--suite", "sped"], ["did you mean 'speed'"]),
        (["--pipeline", "imag"], ["did you mean 'image'"]),
        (["--size", "7", "--limit", "1"], ["multiple of 8"]),
        (["--size", "64", "--limit", "1"], ["64×64"]),
        (["--seed", "-1", "--limit", "1"], ["--seed"]),
        (["--device", "gpu"], ["device 'gpu'"]),
        (["--max-samples", "0"], ["--max-samples", "0"]),
        (["--batch-sizes", "1,x"], ["--batch-sizes", "1,x"]),
        (["--batch-sizes", "0"], ["--batch-sizes", "0"]),
        (["--executor", "rai"], ["did you mean 'ray'"]),
        (["--workers", "2"], ["--executor ray"]),
        (["--metrics", "genval"], ["did you mean 'geneval'"]),
        (["--metrics", "fid"], ["--reference FOLDER"]),
        (["--prompts", "nothing.jsonl"], ["nothing.jsonl"]),
        (["--weights", "clip"], ["NAME=PATH"]),
    ],
    ids=str,
)
def test_eval_refuses(evaluate, tmp_path, options, parts):
    refused(evaluate(*options), *parts)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        ([], ["COMMAND"]),
        (["draw"], ["draw"]),
        (["ls", "colours"], ["colours"]),
        (["eval"], ["ACTION"]),
        (["eval", "run", "--suite", "speed"], ["--out"]),
        (["generate"], ["prompt"]),
        (["train", "image-tokeniser"], ["did you mean 'image-tokenizer'"]),
        (["train", "image-tokenizer", "--steps", "0"], ["--steps", "0"]),
        (["train", "image-tokenizer", "--batch-size", "-1"], ["--batch-size", "-1"]),
        (["train", "image-tokenizer", "--max-minutes", "nan"], ["--max-minutes", "nan"]),
        (["train", "image-tokenizer", "--precision", "int8"], ["int8"]),
        (["train", "image-target", "--steps", "1"], ["vq_model"]),
        (["train", "image-tokenizer", "--device", "gpu"], ["device 'gpu'"]),
    ],
    ids=str,
)
def test_commands_refused(run, tmp_path, monkeypatch, command, parts):
    monkeypatch.chdir(tmp_path)
    refused(run(*command), *parts)
    assert list(tmp_path.iterdir()) == []


def test_interrupt(monkeypatch, run, tiny_folder, tmp_path):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("mmspec.cli.main.open_pipeline", stop)
    code, out, err = run("generate", PROMPT, "-o", tmp_path / "out")
    assert (code, out, err) == (130, "", "mmspec: interrupted\n")


def test_as_a_process(tiny_folder, tmp_path):
    """No library says a word of its own, in a process that nobody has prepared."""
    tensor = "encoder.block.0.layer.0.layer_norm.weight"
    folder = without_tensor(tiny_folder, tmp_path / "model", "text_encoder", tensor)
    command = [sys.executable, "-m", "mmspec", "generate", PROMPT, "--model", str(folder)]
    done = subprocess.run(
        [*command, "-o", str(tmp_path / "out")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    refused((done.returncode, done.stdout, done.stderr), f"missing tensor {tensor}")
    assert names(tmp_path) == ["model"]
