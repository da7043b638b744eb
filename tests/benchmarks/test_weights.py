"""Rounded weights are measured: every form, its bytes, and distances that are none to itself."""

from __future__ import annotations

import json

import pytest
import torch
from answering import model, processor
from mars import captioned_pipeline
from sizes import SMALL
from transformers import LlamaConfig, LlamaForCausalLM
from wans import tiny_pipeline

from benchmarks.__main__ import main
from benchmarks.weights import text, video
from benchmarks.weights.continuous import variation
from benchmarks.weights.measure import ROWS, measure_weights
from benchmarks.weights.page import weights_markdown, weights_table
from benchmarks.weights.subject import subject_of
from mmspec import ImagePipeline, TextPipeline, VlmPipeline
from mmspec.train.tokenizers import caption_tokenizer


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(text, "LENGTH", 6)


@pytest.fixture
def text_pipe():
    tokenizer = caption_tokenizer()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = LlamaConfig(**SMALL | dict(vocab_size=len(tokenizer)))
        return TextPipeline(LlamaForCausalLM(config).eval(), tokenizer)


def measured(pipe, samples):
    return measure_weights(subject_of(pipe), samples, "tiny", "text")


def check(record, linears, laws=True):
    count = sum(linear.weight.numel() for linear in linears)
    assert list(record.forms) == ["float32", "float16", "int8", "int8-high4"]
    for row, size in zip(record.forms.values(), (4, 2, 1, 1), strict=True):
        assert row.megabytes == pytest.approx(count * size / 1e6)
        assert list(row.milliseconds) == list(ROWS)
        assert row.maps > 0
    assert "float16" in weights_table(record).aligned()
    assert weights_markdown(record).startswith("# Rounded weights: tiny (text), ")
    if not laws:
        return
    for row in record.forms.values():
        assert 0 <= row.variation <= row.most_variation <= 1
    unrounded, half, eight, high = record.forms.values()
    assert unrounded.variation == 0
    assert 0 < half.variation < eight.variation < 0.2
    assert eight.variation < high.variation < 0.6
    assert half.variation < 0.01


def test_texts(short, text_pipe):
    linears = [m for m in text_pipe.model.modules() if isinstance(m, torch.nn.Linear)]
    record = measured(text_pipe, 2)
    assert 0 < record.laws <= 12
    check(record, linears)


def test_pictures(tiny_folder):
    pipe = ImagePipeline.from_pretrained(tiny_folder)
    pipe.set_progress_bar_config(disable=True)
    network = pipe.transformer
    linears = [m for m in network.layers.modules() if isinstance(m, torch.nn.Linear)]
    record = measured(pipe, 1)
    assert record.laws == network.grid**2
    check(record, [*linears, network.output])


def test_continuous_pictures():
    pipe = captioned_pipeline()
    model = pipe.transformer
    parts = [*model.blocks, *model.head.blocks, model.head.final_layer.modulation]
    linears = [m for part in parts for m in part.modules() if isinstance(m, torch.nn.Linear)]
    record = measured(pipe, 1)
    assert record.laws == 16 * 24  # tokens, and steps that have a law
    check(record, linears)
    assert record.forms["int8"].flips is None


def test_answers_about_pictures(short):
    pipe = VlmPipeline(model(3, 0), processor())
    record = measured(pipe, 2)
    assert 0 < record.laws <= 12
    check(record, [m for m in pipe.model.modules() if isinstance(m, torch.nn.Linear)])


def test_clips(monkeypatch):
    """Their steps follow a flow: nothing is drawn, so there are no laws."""
    monkeypatch.setattr(video, "REPEATS", 2)
    pipe = tiny_pipeline()
    linears = [m for m in pipe.transformer.blocks.modules() if isinstance(m, torch.nn.Linear)]
    record = measured(pipe, 1)
    assert record.laws == 0
    assert record.forms["int8"].variation is None
    assert record.forms["int8"].flips is None
    check(record, linears, laws=False)


def test_the_variation_of_normal_laws():
    """Beside the closed form where deviations are equal: 2 Φ(d / 2) − 1."""
    mean, std = torch.zeros(1, 3), torch.ones(1, 3)
    apart = [float(variation((mean, std), (mean + d / 3**0.5, std))) for d in (0.0, 1.0, 30.0)]
    assert apart[0] == 0
    assert apart[1] == pytest.approx(0.383, abs=0.15)  # of few draws
    assert apart[2] == pytest.approx(1)


def test_command(short, text_pipe, tmp_path, capsys):
    text_pipe.save_pretrained(tmp_path / "model")
    command = ["weights", "--model", str(tmp_path / "model"), "--samples", "1"]
    assert main(command) == 0
    assert "variation" in capsys.readouterr().out
    assert main([*command, "--json", "-o", str(tmp_path / "out")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told["forms"]) == {"float32", "float16", "int8", "int8-high4"}
    assert json.loads((tmp_path / "out" / "weights.json").read_text()) == told
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files == {"weights.json", "weights.md", "weights.svg"}
    page = (tmp_path / "out" / "weights.md").read_text()
    assert page.startswith("# Rounded weights: model (text), ")
    assert "*1 prompt, " in page
    assert main(["weights", "--samples", "0"]) == 2
