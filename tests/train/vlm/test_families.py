"""Heads are trained on any vision-language model that is speculated for, not on ours alone."""

from __future__ import annotations

import pytest
import torch
from PIL import Image
from processors import PLACEHOLDER, processor
from vlms import made

from mmspec import VlmPipeline
from mmspec.train import recipes
from mmspec.train.heads import pool

NEW = 6


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(pool, "POOL", 2)
    monkeypatch.setattr(pool, "USES", 2)
    monkeypatch.setattr(pool, "TOGETHER", 2)


def folder_of(family, path):
    words = processor(family)
    ids = words.tokenizer.convert_tokens_to_ids
    model = made(family, vocab_size=len(words.tokenizer))
    model.config.image_token_id = ids(PLACEHOLDER.get(family, "<image>"))
    if family.startswith("qwen"):
        model.config.video_token_id = ids("<|video_pad|>")
        model.config.vision_start_token_id = ids("<|vision_start|>")
        model.config.vision_end_token_id = ids("<|vision_end|>")
    model.save_pretrained(path)
    words.save_pretrained(path)
    return path


@pytest.mark.parametrize("method", ["eagle3", "vispec", "dflash"])
@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_a_head_is_trained_and_drafts(tmp_path, quick, family, method):
    own = folder_of(family, tmp_path / "model")
    lines = tmp_path / "asked.jsonl"
    for n, size in enumerate([(20, 24), (16, 16), (30, 12), (18, 18)]):
        Image.effect_noise(size, 80).convert("RGB").save(tmp_path / f"{n}.png")
    lines.write_text(
        "".join(f'{{"image": "{n}.png", "question": "What is {n}?"}}\n' for n in range(4))
    )
    with torch.random.fork_rng():
        (record,) = recipes.train(
            "vlm-head", own, stage=method, steps=2, batch_size=2, max_new_tokens=NEW, data=lines
        )
    assert record["step"] == 2
    pipe = VlmPipeline.from_pretrained(own, dtype=torch.float64)
    picture = Image.open(tmp_path / "0.png")
    plain = pipe("What?", picture, max_new_tokens=12)
    pipe.enable_speculation(method)
    out = pipe("What?", picture, max_new_tokens=12)
    assert out.tokens == plain.tokens
    assert sum(out.stats.drafted) > 0
