"""Questions that wait until another's answer is done: answers are those of all at once."""

from __future__ import annotations

import folders
import pytest
import torch
from answering import model, picture, processor
from toy_vlm import TRAINED, tiny_head
from transformers import TextStreamer
from vlms import IMAGE, NEW, QWEN, VOCAB, asked, made, shorter

from mmspec import InputError, SpecConfig, VlmPipeline
from mmspec.methods.parts.heads import BRANCHES
from mmspec.models.heads.loading import load_head
from mmspec.pipelines.vlm.beside import Beside
from mmspec.pipelines.vlm.generate import SpeculativeGeneration

WITH_A_DRAFTER = ("draft", "easyspec", "s2d", "dynamic-tree")
PICTURES = [1, 0, 2, 1, 0]  # of every row
SPECVLM = [f"specvlm-{branch}" for branch in ("sum", *BRANCHES)]
TOLD = ("calls", "drafted", "accepted", "emitted", "visual_tokens", "draft_visual_tokens")


def in_double(model):
    """Inputs of rows with pictures, of several sizes where the family has them."""
    inputs = asked(model, PICTURES)
    return {n: x.double() if x.is_floating_point() else x for n, x in inputs.items()}


def answers(model, at_once, config, drafter=None, head=None, **how):
    speculation = SpeculativeGeneration(model, config, Beside(drafter, head))
    speculation.at_once, speculation.seeds = at_once, [*range(len(PICTURES))]
    how = {"max_new_tokens": NEW, "do_sample": True, "eos_token_id": [*range(0, VOCAB, 5)], **how}
    out = speculation.generate(**in_double(model), **how)
    return out, model.speculation_stats


def check_same(found, whole):
    (out, stats), (wanted, of_all) = found, whole
    assert torch.equal(out, wanted)
    for name in TOLD:
        assert getattr(stats, name) == getattr(of_all, name), name
    for row, wanted in zip(stats.branches, of_all.branches, strict=True):
        assert row == pytest.approx(wanted)
    assert stats.fault is None
    assert stats.visual_tokens == (out[:, : -max(stats.emitted)] == IMAGE).sum(1).tolist()
    assert min(stats.emitted) < max(stats.emitted)


@pytest.mark.parametrize("method", ["plain", "prompt-lookup", *WITH_A_DRAFTER])
@pytest.mark.parametrize("family", ["llava", "idefics3", *QWEN])
def test_answers_are_the_same(family, method):
    model = made(family).double()
    drafter = shorter(model).double() if method in WITH_A_DRAFTER else None
    whole = answers(model, None, method, drafter)
    for size in (1, 2):
        check_same(answers(model, size, method, drafter), whole)


@pytest.mark.parametrize("family", ["llava", "qwen3_vl"])
@pytest.mark.parametrize("name", [*TRAINED, *SPECVLM])
def test_heads(family, name):
    model = made(family).double()
    head = tiny_head(name, model).double().eval()
    # laws so flat that a head which knows nothing is sometimes right
    how = {"config": SpecConfig(head.method), "head": head, "temperature": 3.0}
    whole = answers(model, None, **how)
    for size in (1, 2):
        check_same(answers(model, size, **how), whole)
    assert sum(whole[1].accepted) > 0
    assert len(whole[1].branches) == (name.startswith("specvlm") * len(PICTURES))


@pytest.mark.parametrize("layout", ["eagle1", "eagle3", "dspark"])
def test_heads_that_read_the_prompts_ids(tmp_path, monkeypatch, layout):
    """By embeddings of their own, or for their first token: each row's are its prompt's."""
    folders.sized_for(VOCAB, monkeypatch)
    model = made("llava").double()
    own = {"kind": "rnn"} if layout == "dspark" else {"embeds": True}
    torch.manual_seed(0)
    head = load_head(getattr(folders, layout)(tmp_path / "head", **own)[0], torch.float64)
    how = {"config": SpecConfig(head.method), "head": head, "temperature": 3.0}
    whole = answers(model, None, **how)
    for size in (1, 2):
        check_same(answers(model, size, **how), whole)
    assert sum(whole[1].accepted) > 0


def test_prompts_that_end_on_a_picture():
    """Its last column is read by the call that says the first token, deep features and all."""
    model = made("qwen3_vl").double()
    inputs = in_double(model)
    ids = inputs["input_ids"].clone()
    end = int((ids[2] == IMAGE).nonzero()[-1]) + 1
    for name in ("input_ids", "attention_mask", "mm_token_type_ids"):
        inputs[name][2] = inputs[name][2].roll(ids.shape[1] - end)
    inputs["attention_mask"][2, : ids.shape[1] - end] = 0
    found = []
    for at_once in (None, 1, 2):
        speculation = SpeculativeGeneration(model, "prompt-lookup")
        speculation.at_once = at_once
        found.append(speculation.generate(**inputs, max_new_tokens=NEW, do_sample=False))
    assert torch.equal(found[1], found[0])
    assert torch.equal(found[2], found[0])


def test_pipeline():
    pipe = VlmPipeline(model(3, 0).double(), processor(), drafter=model(1, 1).double())
    size = pipe.model.config.text_config.vocab_size
    pipe.model.generation_config.eos_token_id = [*range(0, size, 4)]
    questions = ["what is red", "what is the circle on the left", "a square", "what is red"]
    seen = [picture(0), [picture(1), picture(2)], None, picture(3)]
    call = {"max_new_tokens": 20, "temperature": 1.0}

    def told(size):
        seeds = [torch.Generator().manual_seed(n) for n in range(4)]
        return pipe(questions, seen, generator=seeds, batch_size=size, **call)

    for method in ("plain", "draft"):
        pipe.enable_speculation(method)
        whole = told(None)
        for size in (1, 3, 4, 9):
            assert told(size).tokens == whole.tokens
        assert len({len(tokens) for tokens in whole.tokens}) > 1
    with pytest.raises(InputError, match="batch_size"):
        told(0)
    streamer = TextStreamer(pipe.processor.tokenizer)
    with pytest.raises(InputError, match="leave streamer or batch_size out"):
        pipe(questions, seen, streamer=streamer, batch_size=2)
