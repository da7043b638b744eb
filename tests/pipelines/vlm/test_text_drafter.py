"""A language model drafts for one that sees: of the same words, and of others."""

from __future__ import annotations

import answering
import pytest
import texts
from PIL import Image
from processors import processor
from tokenizers_of_two_kinds import sentence_piece

import mmspec
from mmspec import SpecConfig
from mmspec.errors import InputError

ASKS = ["what is it?", "how many are there?"]
PICTURES = [Image.new("RGB", (20, 24), "red"), [Image.new("RGB", (16, 16), "blue")] * 2]


@pytest.fixture(scope="module")
def seeing():
    """A model that sees, and its processor, whose tokenizer knows bytes alone."""
    made = processor("llava")
    image = made.tokenizer.convert_tokens_to_ids("<image>")
    model = answering.model(2, 0, words=len(made.tokenizer), image=image)
    return model.double(), made


@pytest.fixture(params=["same words", "other words"])
def pipe(request, seeing):
    model, made = seeing
    if request.param == "same words":
        own = {"drafter": texts.model(made.tokenizer, seed=1)}
    else:
        words = sentence_piece(120)
        own = {"drafter": texts.model(words, seed=1), "drafter_tokenizer": words}
    return mmspec.VlmPipeline(model, made, **own)


@pytest.mark.parametrize("method", ["draft", "tree", "pearl"])
def test_greedy_answers_are_the_models_own(pipe, method):
    """About one picture and about two, and one at a time or together."""
    pipe.enable_speculation("plain")
    plain = pipe(ASKS, PICTURES, max_new_tokens=16)
    pipe.enable_speculation(method)
    for size in (None, 1):
        out = pipe(ASKS, PICTURES, max_new_tokens=16, batch_size=size)
        assert out.tokens == plain.tokens
        assert out.stats.fault is None
        assert out.stats.draft_visual_tokens == []
        assert sum(out.stats.drafted) > 0


def test_the_drafter_reads_the_question(pipe):
    """And nothing in the place of pictures."""
    pipe.enable_speculation(SpecConfig("draft"))
    drafting, read = pipe.prepared().drafting, []
    own = drafting.own
    drafting.own = lambda given, inputs: read.append(own(given, inputs)) or read[-1]
    pipe(ASKS, PICTURES, max_new_tokens=2)
    words = pipe.drafter_words or pipe.processor.tokenizer
    texts_ = [
        words.decode(row[keep.bool()], skip_special_tokens=True)
        for row, keep in zip(read[0]["input_ids"], read[0]["attention_mask"], strict=True)
    ]
    assert [text.strip() for text in texts_] == [f"User: {ask}Assistant:" for ask in ASKS]


def test_a_folder_brings_it_along(pipe, tmp_path):
    pipe.enable_speculation("draft")
    pipe.save_pretrained(tmp_path / "saved")
    again = mmspec.VlmPipeline.from_pretrained(tmp_path / "saved", dtype="float64")
    again.enable_speculation("draft")
    assert (again.drafter_tokenizer is None) == (pipe.drafter_tokenizer is None)
    one, other = (p(ASKS, PICTURES, max_new_tokens=6) for p in (pipe, again))
    assert one.tokens == other.tokens
    assert one.stats.drafted == other.stats.drafted


def test_a_drafter_that_sees_needs_its_processor(seeing):
    model, made = seeing
    pipe = mmspec.VlmPipeline(model, made, drafter=model, drafter_tokenizer=sentence_piece(120))
    pipe.enable_speculation("draft")
    with pytest.raises(InputError, match="of other words needs a drafter_processor"):
        pipe(ASKS[0], PICTURES[0], max_new_tokens=2)
