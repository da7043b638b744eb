"""Two models of one tokenizer whose vocabularies are padded to different sizes."""

from __future__ import annotations

import pytest
import torch
from knobs import with_knobs
from sizes import SMALL
from transformers import LlamaConfig, LlamaForCausalLM

from mmspec import SpecConfig, disable_speculation, enable_speculation
from mmspec.engine.laws import Categorical
from mmspec.engine.proof.enumeration import enumerate_law
from mmspec.errors import InputError
from mmspec.models.transformers.tiny import randomized
from mmspec.pipelines.vlm import generate

WORDS, NEW = 32, 12
PROMPTS = torch.tensor([[3, 1, 4, 1, 5], [0, 0, 9, 2, 6]])
MASK = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])


def made(rows: int, seed: int = 0) -> LlamaForCausalLM:
    """A model of `WORDS` words and some rows more, which it likes to say."""
    config = LlamaConfig(vocab_size=rows, eos_token_id=None, pad_token_id=0, **SMALL)
    model = randomized(LlamaForCausalLM(config), torch.float64, seed)
    with torch.no_grad():
        model.lm_head.weight[WORDS:] *= 2
    return model


@pytest.fixture(scope="module")
def models():
    return {(rows, seed): made(rows, seed) for rows in (32, 33, 34) for seed in (0, 1)}


@pytest.mark.parametrize("method", ["draft", "tree", "dynamic-tree", "merged"])
@pytest.mark.parametrize("sizes", [(34, 32), (32, 34)], ids=str)
def test_greedy_texts(models, method, sizes):
    target, drafter = models[sizes[0], 0], models[sizes[1], 0]
    asked = dict(attention_mask=MASK, max_new_tokens=NEW, do_sample=False)
    theirs = target.generate(PROMPTS, **asked)
    assert sizes[0] == 32 or (theirs >= 32).any()  # it says what the drafter has no row for
    enable_speculation(target, with_knobs(method, "vlm", merge=("lookup", "tree")), drafter)
    ours = target.generate(PROMPTS, **asked)
    assert target.speculation_stats.fault is None
    disable_speculation(target)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("sizes", [(34, 32), (32, 34)], ids=str)
def test_sampled_texts_have_the_targets_law(models, monkeypatch, sizes):
    """The joint law of two tokens, every branch of the shipped call followed."""
    target, drafter = models[sizes[0], 0], models[sizes[1], 1]
    ids, warpers = torch.tensor([[3, 1, 4]]), dict(do_sample=True, top_k=3, temperature=3.0)

    def shipped(coins, rows):
        monkeypatch.setattr(generate, "ProductionCoins", lambda seeds, device: coins)
        out = target.generate(ids.repeat(rows, 1), max_new_tokens=2, **warpers)
        return [tuple(row) for row in out[:, 3:].tolist()]

    enable_speculation(target, SpecConfig("draft", num_draft_tokens=1), drafter)
    law = enumerate_law(shipped)
    disable_speculation(target)
    truth = {}
    for first, p in next_words(target, ids):
        after = torch.cat([ids, torch.tensor([[first]])], dim=1)
        truth |= {(first, second): p * q for second, q in next_words(target, after)}
    assert sum(law.values()) == pytest.approx(1, abs=1e-9)
    assert {pair for pair, p in law.items() if p > 1e-12} == set(truth)
    assert all(law[pair] == pytest.approx(p, abs=1e-9) for pair, p in truth.items())
    surplus = sum(p for pair, p in truth.items() if max(pair) >= WORDS)
    assert surplus > 0.05 or sizes[0] == 32


@torch.inference_mode()
def next_words(model, ids) -> list[tuple[int, float]]:
    logits = model(ids).logits[0, -1] / 3.0
    best = logits.topk(3)
    return list(zip(best.indices.tolist(), best.values.softmax(-1).tolist(), strict=True))


def test_drafted_laws_are_over_what_both_have(models, monkeypatch):
    laws, score = [], generate.ProcessedTarget.score

    def spy(self, context, draft):
        if isinstance(draft.law, Categorical):
            laws.append(draft.law.probs)
        return score(self, context, draft)

    monkeypatch.setattr(generate.ProcessedTarget, "score", spy)
    for sizes in ((34, 32), (33, 34)):
        target = models[sizes[0], 0]
        enable_speculation(target, SpecConfig("draft"), models[sizes[1], 1])
        target.generate(PROMPTS, attention_mask=MASK, do_sample=True, max_new_tokens=NEW)
        disable_speculation(target)
        assert laws
        for law in laws:
            assert law.shape[-1] == sizes[0]
            assert (law[..., min(sizes) :] == 0).all()
            assert torch.allclose(law.sum(-1), torch.ones(()).to(law))
        laws.clear()


def test_the_drafter_alone_has_its_own_words(models):
    target, drafter = models[34, 0], models[33, 1]
    asked = dict(attention_mask=MASK, max_new_tokens=NEW, do_sample=False)
    alone = drafter.generate(PROMPTS, **asked)
    enable_speculation(target, SpecConfig("drafter-only"), drafter)
    assert torch.equal(target.generate(PROMPTS, **asked), alone)
    disable_speculation(target)


def test_more_than_padding_is_refused(models):
    with pytest.raises(InputError, match="has 40 tokens and the model 34, which is more than padd"):
        enable_speculation(models[34, 0], SpecConfig("draft"), made(40))


def test_real_sizes():
    """Qwen2.5's 72B and 0.5B, LLaVA's and Llama's; GPT-2 is no drafter of Llama."""
    for one, other, fits in ((152064, 151936, True), (32064, 32000, True), (32000, 50257, False)):
        assert generate.Drafting.share_words(one, other) is fits
        assert generate.Drafting.share_words(other, one) is fits
