"""Objectives are compared from one start over the same answers; the counts behind figures."""

from __future__ import annotations

import json
import shutil

import pytest
import texts
import torch

import mmspec
from benchmarks.__main__ import main
from benchmarks.objectives.measure import accepted_of
from mmspec.engine.stats import SpecStats
from mmspec.models.heads.loading import load_head
from mmspec.train.heads import pool
from mmspec.train.text import corpus as text_corpus
from mmspec.train.text import prompts as text_prompts
from mmspec.train.text import teacher as text_teacher
from mmspec.train.text.drafter import TextAlignRecipe
from mmspec.train.text.head import TextHeadRecipe
from mmspec.train.text.lessons import TextLessons


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A tiny Llama of random weights, and the smallest trainings."""
    path = tmp_path / "text"
    words = texts.tokenizer()
    with monkeypatch.context() as patch:
        patch.setattr(texts, "LAYERS", 4)
        texts.model(words).float().save_pretrained(path)
    words.save_pretrained(path)
    monkeypatch.setattr(text_prompts, "HELD_OUT", 6)
    monkeypatch.setattr(text_teacher, "ASKED", 6)
    for name in ("POOL", "USES", "TOGETHER"):
        monkeypatch.setattr(pool, name, 2)
    return path


@pytest.mark.slow
def test_heads_of_one_start_and_the_same_answers(folder, tmp_path, monkeypatch, capsys):
    """From the command: what differs is the loss; the folder stays; a second run trains nothing."""
    written, starts, losses = [], [], []
    real_lessons, real_start = TextLessons._written, TextHeadRecipe.ready
    real_loss = TextHeadRecipe.loss

    asked = {"trained": [], "judge": []}

    def started(self):
        real_start(self)
        judges = self.config.out.name == "judge"
        asked["judge" if judges else "trained"].append(self.config.precision)
        if not judges:  # it learns nothing
            starts.append({name: x.clone() for name, x in self.model.state_dict().items()})

    def lost(self, batch, rng, step):
        losses.append((step, batch))
        return real_loss(self, batch, rng, step)

    monkeypatch.setattr(
        TextLessons, "_written", lambda self, n: written.append(n) or real_lessons(self, n)
    )
    monkeypatch.setattr(TextHeadRecipe, "ready", started)
    monkeypatch.setattr(TextHeadRecipe, "loss", lost)
    before = sorted(path.name for path in folder.rglob("*"))
    out = tmp_path / "out"
    command = ["objectives", "--pipeline", str(folder), "--objectives", "tv,tokens", "--steps", "2"]
    command += ["--batch-size", "2", "--max-new-tokens", "6", "-o", str(out)]
    command += ["--precision", "bfloat16"]
    with torch.random.fork_rng():
        assert main(command) == 0
    assert sorted(path.name for path in folder.rglob("*")) == before
    printed = capsys.readouterr().out
    record = json.loads((out / "objectives.json").read_text())
    names = ["kl", "tv", "tokens", "kl, reference", "kl, places at random", "kl, twice the steps"]
    assert list(record["heads"]) == names
    assert all(name in printed and name in (out / "objectives.md").read_text() for name in names)
    assert (out / "objectives.svg").stat().st_size
    assert [head["steps"] for head in record["heads"].values()] == [2, 2, 2, 2, 2, 4]
    assert [head["steps_before"] for head in record["heads"].values()] == [0, 0, 0, 2, 0, 0]
    assert len(written) == len(set(written)) > 0
    precisions = {name: set(kinds) for name, kinds in asked.items()}
    assert precisions == {"trained": {"bfloat16"}, "judge": {"float32"}}
    first, *others = starts
    assert len(others) == 5
    assert all(torch.equal(first[name], other[name]) for other in others for name in first)
    runs = [losses[2 * n : 2 * n + 2] for n in range(5)]
    assert all(run == runs[0] for run in runs)
    assert losses[10:12] == runs[0]
    homes = ("kl-2", "tv-2", "tokens-2", "kl-reference-2", "kl-random-2", "kl-4")
    heads = [load_head(out / "trained" / home / "heads/eagle3").state_dict() for home in homes]
    for n, head in enumerate(heads):
        for other in heads[:n]:
            assert any(not torch.equal(head[name], other[name]) for name in head)
    assert record["heads"]["kl"]["greedy"]["gain"] == 0
    for head in record["heads"].values():
        for kind in ("greedy", "sampled"):
            low, high = head[kind]["tokens_per_call_ci95"]
            assert 1 <= low <= head[kind]["tokens_per_call"] <= high <= 7
    losses.clear()
    with torch.random.fork_rng():
        assert main(command) == 0
    assert losses == []
    again = json.loads((out / "objectives.json").read_text())["heads"]
    assert again["tv"]["greedy"] == record["heads"]["tv"]["greedy"]
    texts.model(texts.tokenizer(), seed=1).float().save_pretrained(folder)
    assert main(command) == 2
    assert "holds heads of another model" in capsys.readouterr().err


def test_small_models_and_fastdrafts_stages(folder, tmp_path, monkeypatch, capsys):
    """All from one start, but what has learned plain text: that goes on from there."""
    monkeypatch.setattr(text_corpus, "LENGTH", 12)
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("\n".join(json.dumps({"text": f"the dog saw {n} cats"}) for n in range(9)))
    starts = []
    real = TextAlignRecipe.__init__

    def made(self, config, pipeline, *given, **options):
        real(self, config, pipeline, *given, **options)
        if config.out.name != "judge":
            starts.append({name: x.clone() for name, x in self.model.state_dict().items()})

    monkeypatch.setattr(TextAlignRecipe, "__init__", made)
    out = tmp_path / "out"
    command = ["objectives", "--pipeline", str(folder), "--method", "drafter", "--steps", "2"]
    command += ["--objectives", "tokens", "--corpus", str(corpus), "--set", "layers=1"]
    command += ["--batch-size", "2", "--max-new-tokens", "6", "-o", str(out)]
    with torch.random.fork_rng():
        assert main(command) == 0
    heads = json.loads((out / "objectives.json").read_text())["heads"]
    last = ["kl, reference", "kl, places at random", "kl, twice the steps", "text, then tokens"]
    assert list(heads) == ["kl", "tokens", *last]
    assert [head["steps_before"] for head in heads.values()] == [0, 0, 2, 0, 0, 2]
    first, *others, taught = starts
    assert all(torch.equal(first[name], other[name]) for other in others for name in first)
    assert any(not torch.equal(first[name], taught[name]) for name in first)
    assert "text, then tokens" in capsys.readouterr().out
    seen = ["--pipeline", str(mmspec.embedded_folder("vlm")), "--method", "drafter"]
    assert main(["objectives", *seen, "-o", str(tmp_path / "other")]) == 2
    assert "no recipe trains a small model for it" in capsys.readouterr().err


def stats(emitted, calls, accepted, drafted) -> SpecStats:
    return SpecStats(calls=calls, drafted=drafted, accepted=accepted, emitted=emitted)


def test_figures_by_hand():
    one = stats([4, 6, 8, 4, 6, 8], [2] * 6, [2, 4, 6, 2, 4, 6], [8] * 6)
    two = stats([6, 8, 10, 6, 8, 10], [2] * 6, [4, 6, 8, 4, 6, 8], [8] * 6)
    found = accepted_of(two, one)
    assert found.tokens_per_call == 48 / 12
    assert found.acceptance == 36 / 48
    assert found.gain == pytest.approx(1.0)
    # prompts differ, and each gains one token a call: so does every resample
    assert found.gain_ci95 == pytest.approx((1.0, 1.0))
    low, high = found.tokens_per_call_ci95
    assert 3 <= low < 4 < high <= 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--objectives", "kll"], "did you mean 'kl'"),
        (["--method", "eagle33"], "did you mean 'eagle3'"),
        (["--steps", "0"], "--steps must be at least 1"),
        (["--set", "vocab=4"], "setting of eagle3"),
        (["--corpus", "none.jsonl"], "heads learn from answers alone; leave --corpus out"),
    ],
)
def test_options_that_cannot_be(folder, tmp_path, capsys, options, message):
    command = ["objectives", "--pipeline", str(folder), "-o", str(tmp_path / "out"), *options]
    assert main(command) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out" / "objectives.json").exists()
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
