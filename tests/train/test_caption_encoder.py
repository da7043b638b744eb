"""Caption encoders learn which word stands where, and what draws from them gets to know it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from transformers import T5Config, T5EncoderModel

from mmspec.train import caption_encoder, recipes
from mmspec.train.caption_encoder import (
    NEXT,
    REACH,
    TEXT_ENCODER,
    PlacedWords,
    draw_captions,
    fresh_encoder,
    trained_encoder,
)
from mmspec.train.tokenizers import caption_tokenizer, clip_tokenizer
from mmspec.worlds.shapes.prompts import sample_prompt
from mmspec.worlds.shapes.vocabulary import TASKS

SWAPPED = (
    ("a photo of a red circle and a blue square", "a photo of a blue circle and a red square"),
    ("a photo of a circle left of a square", "a photo of a square left of a circle"),
)


@torch.no_grad()
def heard(encoder, tokenizer, caption, other) -> float:
    """How far the features of words that both captions have in one place differ, to their length.

    0 of an encoder for which a caption is a bag of words, if both have the same words.
    """
    one, two = (tokenizer(text, return_tensors="pt") for text in (caption, other))
    shared = (one["input_ids"] == two["input_ids"])[0]
    first, second = (encoder(**read).last_hidden_state[0, shared] for read in (one, two))
    return float((first - second).norm() / first.norm())


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A small encoder behind its recipe, its tokenizer and the record."""
    folder = tmp_path_factory.mktemp("captions") / "image"
    small = {"d_model": 64, "d_kv": 16, "d_ff": 128}
    with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng():
        patch.setattr(caption_encoder, "TEXT_ENCODER", {**TEXT_ENCODER, **small})
        (record,) = recipes.train(
            "image-target", folder, stage="captions", steps=300, batch_size=48, rate=3e-3
        )
    return trained_encoder(folder), caption_tokenizer(), record


@pytest.mark.slow
def test_captions_never_seen_have_the_code(trained):
    """Of a small encoder's features, most of the variance; of chance's, none."""
    assert trained[2]["held_out"]["held_out_error"] < 0.2


def test_the_same_words_in_another_order_mean_something_else(trained):
    encoder, words, _ = trained
    assert min(heard(encoder, words, *pair) for pair in SWAPPED) > 0.1


def test_biases_begin_large_enough_to_count():
    """As T5 draws them, far less of an order is heard."""
    words = caption_tokenizer()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        usual = T5EncoderModel(T5Config(vocab_size=len(words), **TEXT_ENCODER))
        ours = fresh_encoder(words)
    for pair in SWAPPED:
        assert heard(ours, words, *pair) > 3 * heard(usual, words, *pair)


def test_the_code_is_a_sum_of_the_words_around():
    """Against a loop over places; padding is nobody's neighbour, and its own is nothing."""
    code = PlacedWords(16, 9)
    ids = torch.randint(9, (3, 7), generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1] * 7, [1, 1, 1, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0]]).bool()
    found = code(ids, mask)
    for row, place in itertools.product(range(3), range(7)):
        if not mask[row, place]:
            continue
        sums = code.vectors[ids[row, place]].clone()
        for turn, offset in zip(code.turns, [*range(-REACH, 0), *range(1, REACH + 1)], strict=True):
            other = place + offset
            if 0 <= other < 7 and mask[row, other]:
                sums += NEXT / abs(offset) ** 0.5 * code.vectors[ids[row, other]] @ turn
        assert torch.allclose(found[row, place], 4 * sums / sums.norm(), atol=1e-5)
    assert torch.allclose(found[mask].square().mean(-1), torch.ones(11))
    same = code.turns @ code.turns.mT
    assert torch.allclose(same, torch.eye(16).expand_as(same), atol=1e-5)


@pytest.mark.parametrize(
    ("world", "words"), [("shapes", caption_tokenizer()), ("clips", clip_tokenizer())]
)
def test_captions_have_words_that_are_known(world, words):
    rng = np.random.default_rng(0)
    captions = draw_captions(world, 200, rng, 0)
    assert len(captions) == 200
    assert not any(words.unk_token_id in words(caption)["input_ids"] for caption in captions)


def test_training_captions_tell_nothing_that_is_held_out():
    rng = np.random.default_rng(0)
    train = set(draw_captions("shapes", 2000, rng, 0))
    held_out = {
        sample_prompt(rng, task, "held_out").prompt for task in TASKS[1:] for _ in range(100)
    }
    assert not train & held_out
