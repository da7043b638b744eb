"""A folder with a model, its drafter and its heads: in Python and on the command line."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from answering import model, picture, processor
from safetensors.torch import load_file
from toy_vlm import TRAINED, tiny_head

from mmspec import SpecConfig, VlmPipeline
from mmspec.cli.main import main
from mmspec.errors import InputError

ASKED = ["what is red", "what is the circle on the left", "a square"]
SEEN = [picture(0), [picture(1), picture(2)], None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("vlm")
    target = model(3, 0)
    heads = {name: tiny_head(name, target).float() for name in TRAINED}
    VlmPipeline(target, processor(), model(1, 1), heads=heads).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def pipe(folder):
    return VlmPipeline.from_pretrained(folder)


@pytest.fixture
def seen(tmp_path):
    path = tmp_path / "seen.png"
    picture(0).save(path)
    return str(path)


def test_a_folder_is_read_as_it_was_written(pipe, folder, tmp_path):
    drafters = {"drafter", "drafter_processor", "drafter_tokenizer"}
    beside = {"heads", "judge", "router", "advantage_router"}
    assert set(pipe.components) == {"model", "processor", *beside, *drafters}
    assert set(pipe.components["heads"]) == set(TRAINED)
    again = VlmPipeline(**pipe.components)
    again.save_pretrained(tmp_path)
    for name in TRAINED:
        first, second = (
            load_file(next((path / "heads" / name).glob("*.safetensors")))
            for path in (folder, tmp_path)
        )
        assert first.keys() == second.keys()
        assert all(torch.equal(first[key], second[key]) for key in first)
    again = VlmPipeline.from_pretrained(tmp_path, dtype=torch.float64)
    assert {p.dtype for p in again.heads["vispec"].parameters()} == {torch.float64}
    assert again.to(torch.float32).heads["vispec"].dtype == torch.float32


@pytest.mark.parametrize("name", [*TRAINED, "dynamic-tree"])
def test_greedy_answers_are_the_plain_ones(pipe, name):
    pipe.disable_speculation()
    plain = pipe(ASKED, SEEN, max_new_tokens=14)
    pipe.enable_speculation(SpecConfig(name))
    out = pipe(ASKED, SEEN, max_new_tokens=14)
    assert out.tokens == plain.tokens
    assert out.stats.fault is None
    assert min(out.stats.drafted) > 0
    assert out.stats.contract == ("exact-greedy" if name in TRAINED else "exact")
    assert out.stats.visual_tokens == [4, 8, 0]


@pytest.mark.parametrize("name", TRAINED)
def test_a_row_does_not_depend_on_its_neighbours(pipe, name):
    """Drawn answers, the same alone and in a batch, and others with other seeds."""
    pipe.enable_speculation(SpecConfig(name))
    seeds = [torch.Generator().manual_seed(n) for n in range(3)]
    how = dict(max_new_tokens=10, temperature=0.8, top_k=12)
    together = pipe(ASKED, SEEN, generator=seeds, **how)
    for row in range(3):
        alone = pipe(ASKED[row], SEEN[row], generator=torch.Generator().manual_seed(row), **how)
        assert alone.tokens == together.tokens[row : row + 1]
        assert alone.stats.calls == together.stats.calls[row : row + 1]
    assert together.stats.contract == "exact"
    other = pipe(ASKED, SEEN, generator=torch.Generator().manual_seed(9), **how)
    assert other.tokens != together.tokens


def test_a_head_that_is_not_there(pipe, folder, tmp_path):
    few = VlmPipeline(**{**pipe.components, "heads": {"eagle": pipe.heads["eagle"]}})
    with pytest.raises(InputError, match="train vlm-head --method vispec --pipeline FOLDER"):
        few.enable_speculation(SpecConfig("vispec"))
    few.enable_speculation(SpecConfig("eagle"))
    none = VlmPipeline(pipe.model, pipe.processor)
    assert none.components["heads"] is None
    with pytest.raises(InputError, match="train vlm-head --method eagle"):
        none.enable_speculation(SpecConfig("eagle"))
    with pytest.raises(InputError, match="the head 'msd' is one of 'eagle'"):
        VlmPipeline(pipe.model, pipe.processor, heads={"msd": pipe.heads["eagle"]})
    other = VlmPipeline(model(3, 5), pipe.processor, heads={"eagle": pipe.heads["eagle"]})
    with pytest.raises(InputError, match="other weights in its output layer"):
        other.enable_speculation(SpecConfig("eagle"))
    own = shutil.copytree(folder, tmp_path / "vlm")
    (own / "heads" / "vispec" / "config.json").write_text("{")
    with pytest.raises(InputError, match="not JSON"):
        VlmPipeline.from_pretrained(own)


def test_a_folder_says_that_its_head_is_msds(folder, tmp_path):
    """Its authors' files look like EAGLE-1's."""
    own = shutil.copytree(folder, tmp_path / "vlm")
    shutil.rmtree(own / "heads" / "msd")
    (own / "heads" / "eagle").rename(own / "heads" / "msd")
    config = own / "heads" / "msd" / "config.json"
    told = json.loads(config.read_text())
    config.write_text(json.dumps({k: v for k, v in told.items() if k != "draft_method"}))
    assert VlmPipeline.from_pretrained(own).heads["msd"].method == "msd"


def test_configurations_take_turns(pipe):
    """What one has prepared and learnt is still there when it comes again."""
    configs = [SpecConfig("eagle"), SpecConfig("plain"), SpecConfig("specvlm", branch="pooling")]
    at_work = []
    for config in configs * 2:
        pipe.enable_speculation(config)
        stats = pipe("what is red", picture(0), max_new_tokens=4).stats
        assert stats.branches == ([{"pooling": 1.0}] if config.options.get("branch") else [])
        at_work.append(pipe.prepared(config.resolve("vlm")))
    assert at_work[:3] == at_work[3:]
    for n in range(1, 12):
        pipe.enable_speculation(SpecConfig("prompt-lookup", num_draft_tokens=n))
    assert len(pipe._known) == 8


# --- the command line -----------------------------------------------------------------------------


def ask(folder, *words):
    return main(["ask", *words, "--model", str(folder), "--max-new-tokens", "9"])


def test_heads_on_the_command_line(folder, seen, capsys):
    assert ask(folder, seen, "what is red", "--method", "plain") == 0
    plain = capsys.readouterr().out
    methods = ["specvlm[branch=pooling]", "draft[draft_compressor=divprune,draft_keep=0.25]"]
    for method in methods:
        assert ask(folder, seen, "what is red", "--method", method, "--json") == 0
        record = json.loads(capsys.readouterr().out)
        assert record["answers"][method] == [plain.strip()]
        row = record["methods"][method]
        assert row["visual_tokens_per_sample"] == 4
        assert row["draft_visual_tokens_per_sample"] == 1
        assert row["branches"] == ([{"pooling": 1.0}] if "branch" in method else [])
    lossy = "prompt-lookup[target_compressor=divprune,target_keep=0.5]"
    assert ask(folder, seen, "what is red", "--method", lossy, "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)["methods"].values()
    assert row["contract"] == "lossy"
    assert row["visual_tokens_per_sample"] == 2


@pytest.mark.parametrize("method", ["plain", "vispec", "flash"])
def test_streaming(folder, seen, capsys, method):
    assert ask(folder, seen, "what is red", "--method", method) == 0
    whole = capsys.readouterr().out
    assert ask(folder, seen, "what is red", "--method", method, "--stream") == 0
    assert capsys.readouterr().out.split() == whole.split()


@pytest.mark.slow
def test_a_verdict(folder, seen, capsys, tmp_path):
    small = VlmPipeline(model(1, 1), processor())
    small.save_pretrained(tmp_path / "small")
    experts = ["--expert", str(folder), "--expert", str(tmp_path / "small")]
    verdict = ["--method", "verdict", *experts]
    assert ask(folder, seen, "what is red", *verdict, "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert [opinion["name"] for opinion in record["opinions"]] == experts[1::2]
    assert all(opinion["error"] is None for opinion in record["opinions"])
    assert record["contract"] == "lossy"
    assert record["total"]["calls"] == 3 + 3 + 1
    assert ask(folder, seen, "what is red", *verdict) == 0
    assert capsys.readouterr().out.strip() == record["text"]
    options = [*verdict, "--temperature", "0.9", "--json"]
    assert ask(folder, seen, "what is red", "--method", "verdict", "--json") == 0
    own = json.loads(capsys.readouterr().out)  # without --expert those of the folder
    assert [opinion["name"] for opinion in own["opinions"]] == ["drafter"]
    drawn = []
    for number in ("1", "1", "2"):
        assert ask(folder, seen, "what is red", *options, "--seed", number) == 0
        made = json.loads(capsys.readouterr().out)
        drawn.append([made["text"], *(opinion["path"] for opinion in made["opinions"])])
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_verdict_without_experts(seen, capsys, tmp_path):
    VlmPipeline(model(1, 1), processor()).save_pretrained(tmp_path)
    assert ask(tmp_path, seen, "what is red", "--method", "verdict") == 2
    assert "has none: give --expert FOLDER" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["a", "--method", "verdict", "--expert", "x", "--stream"], "leave --stream out"),
        (["a", "--method", "verdict", "--expert", "x", "--compare"], "leave --compare out"),
        (["a", "--method", "verdict", "--expert", "nowhere"], "no model folder at nowhere"),
        (["a", "--method", "verdict", "--expert", "x", "--temperature", "-1"], "temperature must"),
        ([" ", "--method", "verdict", "--expert", "x"], "the question is empty"),
        (["a", "--expert", "x"], "--expert is for --method verdict"),
        (["a", "--stream", "--json"], "leave --json out"),
        (["a", "--stream", "-n", "2"], "leave --num-answers out"),
        (["a", "--method", "spatial-sd"], "draws pictures, and this one writes text"),
        (["a", "--method", "specvlm[branch=poling]"], "did you mean 'pooling'"),
    ],
)
def test_bad_options(folder, seen, capsys, args, said):
    assert ask(folder, seen, *args) == 2
    (line,) = [s for s in capsys.readouterr().err.splitlines() if s.startswith("mmspec")]
    assert said in line
