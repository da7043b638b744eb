"""Rounded weights are measured: every form, its bytes, and distances that are none to itself."""

from __future__ import annotations

import json

import pytest
import torch
from sizes import SMALL
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks import weights
from benchmarks.__main__ import main
from benchmarks.weights import ROWS, measure_weights, weights_table
from mmspec import ImagePipeline, TextPipeline
from mmspec.train.tokenizers import caption_tokenizer


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(weights, "LENGTH", 6)


@pytest.fixture
def text_pipe():
    tokenizer = caption_tokenizer()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = LlamaConfig(**SMALL | dict(vocab_size=len(tokenizer)))
        return TextPipeline(LlamaForCausalLM(config).eval(), tokenizer)


def check(record, linears):
    count = sum(linear.weight.numel() for linear in linears)
    assert list(record.forms) == ["float32", "float16", "int8"]
    for row, size in zip(record.forms.values(), (4, 2, 1), strict=True):
        assert row.megabytes == pytest.approx(count * size / 1e6)
        assert list(row.milliseconds) == list(ROWS)
        assert 0 <= row.variation <= row.most_variation <= 1
    unrounded, half, eight = record.forms.values()
    assert unrounded.variation == 0
    assert 0 < half.variation < eight.variation < 0.2
    assert half.variation < 0.01
    assert "float16" in weights_table(record).aligned()


def test_texts(short, text_pipe):
    linears = [m for m in text_pipe.model.modules() if isinstance(m, torch.nn.Linear)]
    record = measure_weights(text_pipe, 2)
    assert 0 < record.tokens <= 12
    check(record, linears)


def test_pictures(tiny_folder):
    pipe = ImagePipeline.from_pretrained(tiny_folder)
    pipe.set_progress_bar_config(disable=True)
    network = pipe.transformer
    linears = [m for m in network.layers.modules() if isinstance(m, torch.nn.Linear)]
    record = measure_weights(pipe, 1)
    assert record.tokens == network.grid**2
    check(record, [*linears, network.output])


def test_command(short, text_pipe, tmp_path, capsys):
    text_pipe.save_pretrained(tmp_path / "model")
    command = ["weights", "--model", str(tmp_path / "model"), "--samples", "1"]
    assert main(command) == 0
    assert "variation" in capsys.readouterr().out
    assert main([*command, "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["forms"]) == {"float32", "float16", "int8"}
    assert main(["weights", "--samples", "0"]) == 2
