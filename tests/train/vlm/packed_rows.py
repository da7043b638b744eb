"""Rows of many questions against each question alone, as a processor lays it out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from mmspec.pipelines.verdict.folder import VerdictWords
from mmspec.pipelines.verdict.verdict import Opinion
from mmspec.train.vlm.data import SHORT_WEIGHT, VERDICT, hearsay, pack, sample_example
from mmspec.train.vlm.recipe import sizes_of, token_losses
from mmspec.train.vlm.turns import Turns
from mmspec.worlds.shapes.exchanges import LONG_KINDS, draw


def check_packed_rows(model: Any, processor: Any, verdict: bool = False) -> None:
    """Losses of answer tokens are those of each question alone; `verdict`: with hearsay before."""
    rng, turns, (side, places) = np.random.default_rng(3), Turns.of(processor), sizes_of(processor)
    drawn = [sample_example(rng) for _ in range(2)]
    rows = [(draw(picture, side), said) for picture, said in drawn]
    heard = [hearsay(rng, picture) if verdict else "" for picture, _ in drawn]
    with torch.no_grad():
        losses, weights, _ = token_losses(model, pack(turns, drawn, side, places, heard))
    expected, expected_weights = [], []
    for (picture, said), before in zip(rows, heard, strict=True):
        paths = before.split("\n")[:-1]
        opinions = [Opinion(str(n), path=path) for n, path in enumerate(paths)]
        for exchange in said:
            question = exchange.question
            if verdict:
                assert 2 <= len(paths) <= 3
                question = VerdictWords(**VERDICT).prompt(question, opinions)
            content = [{"type": "image"}, {"type": "text", "text": question}]
            ask = [{"role": "user", "content": content}]
            full = [*ask, {"role": "assistant", "content": exchange.answer}]
            texts = [
                processor.apply_chat_template(ask, add_generation_prompt=True),
                processor.apply_chat_template(full),
            ]
            image = Image.fromarray(picture)
            short, whole = (
                processor(images=image, text=text, return_tensors="pt") for text in texts
            )
            ids, start = whole["input_ids"][0], short["input_ids"].shape[1]
            end = ids[start:].tolist().index(processor.tokenizer.eos_token_id) + start + 1
            with torch.no_grad():
                logits = model(**whole).logits[0]
            loss = F.cross_entropy(logits[start - 1 : end - 1], ids[start:end], reduction="none")
            expected.append(loss)
            weight = 1.0 if exchange.kind in LONG_KINDS else SHORT_WEIGHT
            expected_weights += [weight] * len(loss)
    assert weights.tolist() == expected_weights
    assert torch.allclose(losses, torch.cat(expected), atol=1e-4)
