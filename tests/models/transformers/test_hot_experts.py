"""Sparse experts: those that a draft may choose, against counts and laws of transformers' own."""

from __future__ import annotations

import copy
from contextlib import ExitStack

import pytest
import torch
from toys import EXACT, distance, whole_loop
from transformers import DynamicCache

import mmspec
from mmspec import SpecConfig
from mmspec.draft.rounded_target import RoundedDrafter
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.warp import Warp
from mmspec.errors import InputError
from mmspec.models.guided import GuidedDecoder
from mmspec.models.rounded import linear
from mmspec.models.rounded_copy import RoundedCopy
from mmspec.models.setting import Setting
from mmspec.models.target import TokenTarget
from mmspec.models.transformers.hot_experts import HotExperts, hottest
from mmspec.models.transformers.probe import probed
from mmspec.models.transformers.tiny import tiny

EXPERTS, EACH, NEW = 6, 2, 14
PROMPTS = [[3, 1, 4, 1, 5, 9, 2], [6, 5, 3, 5], [8, 9, 7, 9, 3, 2, 3]]


def mixtral(dtype=torch.float64, **sizes):
    sizes = {"num_local_experts": EXPERTS, "num_hidden_layers": 2, **sizes}
    model = tiny("mixtral", dtype, **sizes)
    model.generation_config.eos_token_id = None
    return model


def padded():
    width = max(map(len, PROMPTS))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in PROMPTS])
    mask = torch.arange(width) >= torch.tensor([[width - len(p)] for p in PROMPTS])
    return {"input_ids": ids, "attention_mask": mask.long()}


def guided_pair(model, ids, limit, hot):
    """The target over a prompt, and its unrounded copy with hot experts."""
    decoder = probed(model)
    other = decoder.rounded(None, hot)
    prompt = decoder.prompt(ids, torch.ones_like(ids, dtype=torch.bool), limit)
    decoder.place(prompt)
    other.place(prompt)
    told = prompt.embedded, prompt.mask, None, Warp(1.0), limit, 0, 8
    target = GuidedDecoder(decoder, Setting(*told))
    return target, RoundedCopy(other, target)


def running(target, drafts):
    stack = ExitStack()
    stack.enter_context(target.decoder.repacked())
    stack.enter_context(drafts.decoder.repacked())
    return stack


@pytest.mark.parametrize("limit", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_joint_law(limit):
    """Of the shipped network, cache and loop: each branch of two rounds and more."""
    model = mixtral(vocab_size=2, pad_token_id=None, bos_token_id=None, eos_token_id=None)
    model.eval().requires_grad_(False)
    ids = torch.tensor([[1, 1, 0, 0, 1]])
    target, drafts = guided_pair(model, ids, limit, 2)
    with running(target, drafts), torch.inference_mode():
        laws = [
            whole_loop(
                limit, TokenTarget(target), lambda: RoundedDrafter(drafts), length=length, at_once=1
            )
            for length in (ConstantLength(0), ConstantLength(2))
        ]
    assert len(laws[0]) == 2**limit
    assert distance(*laws) < EXACT


def test_hot_experts_are_those_that_the_text_has_chosen_most():
    """And the draft's law is the model's, with a router that is written down here."""
    model, hot = mixtral(), 3
    ids = torch.tensor([PROMPTS[0] + PROMPTS[2]])
    said = torch.tensor([[7, 2, 7]])
    target, drafts = guided_pair(model, ids, 20, hot)
    with running(target, drafts), torch.inference_mode():
        target.start(1)
        drafts.start(1)
        # committed: the prompt and three tokens; the target has read all but the last, and drafts
        target.extend(torch.cat([ids[:, -1:], said, torch.tensor([[11, 12]])], 1)[:, :5], [-1])
        law = drafts.extend(said[:, -1:], [2])[0, 0]
    text = torch.cat([ids, said[:, :-1]], 1)
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        out = model(text, cache=cache, output_router_logits=True)
    settled = []
    for logits in out.router_logits:
        chosen = logits.topk(EACH).indices.flatten().tolist()
        order = sorted(range(EXPERTS), key=lambda e, chosen=chosen: (-chosen.count(e), e))
        settled.append(sorted(order[:hot]))
    cold = drafts.decoder.experts._cold[0]
    assert [(~one).nonzero().flatten().tolist() for one in cold] == settled

    def routed(gate, allowed):
        def forward(hidden):
            logits = hidden @ gate.weight.T
            best = sorted(allowed, key=lambda e: -float(logits[0, e]))[:EACH]
            weights = logits[:, best].softmax(-1)
            return logits, weights, torch.tensor([best])

        return forward

    alone = copy.deepcopy(model)
    for layer, allowed in zip(alone.model.layers, settled, strict=True):
        layer.mlp.gate.forward = routed(layer.mlp.gate, allowed)
    with torch.no_grad():
        theirs = alone(said[:, -1:], cache=cache).logits[0, -1].softmax(-1)
    assert torch.allclose(law, theirs, atol=1e-10)
    assert not torch.allclose(law, model(torch.cat([ids, said], 1)).logits[0, -1].softmax(-1))


def test_of_two_experts_chosen_as_often_the_first_is_hot():
    chosen = torch.tensor([[[[1, 3], [4, 3], [0, 0], [2, 1]]]], dtype=torch.int16)
    seen = torch.ones(1, 4, dtype=torch.bool)
    assert hottest(chosen, seen, 4, 2).tolist() == [[[True, False, True, False]]]
    seen[:, 3] = False  # chosen by none that counts
    assert hottest(chosen, seen, 4, 2).tolist() == [[[True, False, True, False]]]
    seen[:, 0] = False
    assert hottest(chosen, seen, 4, 2).tolist() == [[[False, False, True, True]]]


@pytest.fixture(scope="module")
def single():
    """In float32, which alone can be rounded."""
    return mixtral(torch.float32)


def answered(model, method, inputs, seeds=None, **call):
    mmspec.enable_speculation(model, method)
    try:
        vars(model)["generate"].__self__.seeds = seeds
        out = model.generate(**inputs, max_new_tokens=NEW, **call)
        return out, model.speculation_stats
    finally:
        mmspec.disable_speculation(model)


@pytest.mark.parametrize("method", ["specqd", "ml-specqd"])
def test_rows_do_not_depend_on_their_neighbours(single, method):
    """Each has hot experts of its own, and padding chooses none."""
    method = f"{method}[hot_experts=3,num_draft_tokens=3]"
    together, stats = answered(single, method, padded(), [3, 4, 5], do_sample=True)
    for row, prompt in enumerate(PROMPTS):
        inputs = {"input_ids": torch.tensor([prompt])}
        alone, own = answered(single, method, inputs, [3 + row], do_sample=True)
        assert alone[0, len(prompt) :].tolist() == together[row, -NEW:].tolist()
        assert (own.drafted, own.accepted) == ([stats.drafted[row]], [stats.accepted[row]])


# of several ways to route: by groups, by scores that are no law, with experts that all tokens share
KINDS = ["mixtral", "qwen3_moe", "deepseek_v3", "gpt_oss"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_text_is_the_targets_and_drafts_touch_fewer_experts(kind):
    model = tiny(kind, torch.float32)
    model.generation_config.eos_token_id = None
    inputs = {"input_ids": torch.tensor(PROMPTS[:1]), "do_sample": False}
    for rounded in ("", "target_weights=int8,draft_weights=int8-high4,"):
        plain = "plain[target_weights=int8]" if rounded else "plain"
        theirs, alone = answered(model, plain, inputs)
        counts = []
        for hot in (2, 4):
            method = f"specqd[{rounded}hot_experts={hot},num_draft_tokens=3]"
            ours, stats = answered(model, method, inputs)
            assert stats.fault is None
            assert ours.tolist() == theirs.tolist()
            told = stats.as_dict()
            counts.append(told["experts_per_draft"])
            assert told["experts_per_call"] > alone.as_dict()["experts_per_call"]
        assert alone.as_dict()["experts_per_call"] == 2  # one token, two experts
        assert "experts_per_draft" not in alone.as_dict()
        assert counts[0] == 2 < counts[1] <= 4


def test_a_batch_touches_as_many_experts_as_were_counted_by_hand(single):
    """Of plain decoding: a call reads the last token of each row."""
    out, stats = answered(single, "plain", padded(), do_sample=False)
    masks = torch.cat([padded()["attention_mask"], torch.ones(3, NEW, dtype=torch.long)], 1)
    with torch.no_grad():
        told = single(out, attention_mask=masks, output_router_logits=True).router_logits
    width, counted = out.shape[1], []
    for step in range(width - NEW - 1, width - 1):
        layers = [x.view(3, width, -1)[:, step].topk(EACH).indices for x in told]
        counted.append(sum(len(one.unique()) for one in layers) / len(layers))
    assert stats.judging_experts == pytest.approx(counted)


@pytest.mark.parametrize("weights", ["float16", "int8", "int8-high4"])
@pytest.mark.parametrize("kind", ["mixtral", "gpt_oss"])
def test_rounded_experts_are_the_model_s_with_rounded_weights(kind, weights):
    """Each expert of each token, one after the other, by the maps of the linear layers."""
    model = tiny(kind, torch.float32)
    decoder = probed(model)
    decoder.round_weights(weights)
    (forward,) = [way for _, _, way in decoder.experts.ways(weights)[:1]]
    experts = decoder.experts.layers[0][1]
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(
        5, experts.down_proj.shape[2 if kind == "gpt_oss" else 1], generator=generator
    )
    chosen = torch.tensor([[0, 3], [3, 1], [2, 0], [1, 0], [3, 2]])
    factors = torch.rand(5, 2, generator=generator)
    turn = (lambda w: w.T.contiguous()) if kind == "gpt_oss" else lambda w: w
    with torch.inference_mode():
        made = forward(hidden, chosen, factors)
        for token in range(5):
            out = 0
            for expert, factor in zip(chosen[token].tolist(), factors[token], strict=True):
                x = linear(turn(experts.gate_up_proj[expert]), weights)(hidden[token : token + 1])
                x = x + experts.gate_up_proj_bias[expert] if kind == "gpt_oss" else x
                x = linear(turn(experts.down_proj[expert]), weights)(experts._apply_gate(x))
                x = x + experts.down_proj_bias[expert] if kind == "gpt_oss" else x
                out = out + factor * x
            assert torch.allclose(made[token], out[0], atol=1e-5)
        own = experts(hidden, chosen, factors)
    off = float((made - own).norm() / own.norm())
    assert 0 < off < {"float16": 1e-2, "int8": 0.2, "int8-high4": 0.4}[weights]


def test_what_can_t_be_chosen_is_told_in_a_line(single):
    for hot in (1, 7):
        with pytest.raises(InputError, match=f"from 2, which a token chooses, to 6, .* not {hot}"):
            mmspec.enable_speculation(single, f"specqd[hot_experts={hot}]")
    dense = tiny("llama", torch.float32)
    with pytest.raises(InputError, match="no layers of sparse experts; leave out hot_experts"):
        mmspec.enable_speculation(dense, "specqd[hot_experts=2]")
    with pytest.raises(InputError, match="hot_experts is a setting of"):
        SpecConfig("draft", hot_experts=2)


def test_a_router_that_can_t_be_told_is_refused(single, monkeypatch):
    """One that takes the largest scores in a way of its own, and so goes on to cold experts."""
    monkeypatch.setattr(HotExperts, "_restricted", unmoved(HotExperts._restricted))
    with pytest.raises(InputError, match="leaves no choice among its experts"):
        answered(single, "specqd[hot_experts=2]", padded(), do_sample=False)


def unmoved(restricted):
    def none(self, *args):
        restricted(self, *args)
        return []

    return none


def test_a_copied_model_has_experts_of_its_own(single):
    model = copy.deepcopy(single)
    mmspec.enable_speculation(model, "specqd[hot_experts=3]")
    inputs = {"input_ids": torch.tensor(PROMPTS[:1])}
    theirs = model.generate(**inputs, max_new_tokens=NEW, do_sample=False)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.experts.down_proj.mul_(-1)
    assert other.generate(**inputs, max_new_tokens=NEW, do_sample=False).tolist() == theirs.tolist()
    changed = model.generate(**inputs, max_new_tokens=NEW, do_sample=False)
    drafted, stood = (sum(getattr(model.speculation_stats, n)) for n in ("drafted", "accepted"))
    mmspec.disable_speculation(model)
    plain = model.generate(**inputs, max_new_tokens=NEW, do_sample=False)
    assert changed.tolist() == plain.tolist() != theirs.tolist()
    assert 0 < stood <= drafted


def test_groups_leave_the_hot_experts_to_choose():
    """Of experts in groups, of which a token chooses one first."""
    model = tiny("deepseek_v3", torch.float32, n_routed_experts=8, n_group=4, topk_group=1)
    model.generation_config.eos_token_id = None
    inputs = {"input_ids": torch.tensor(PROMPTS[:1]), "do_sample": False}
    theirs, _ = answered(model, "plain", inputs)
    ours, stats = answered(model, "specqd[hot_experts=2,num_draft_tokens=3]", inputs)
    assert ours.tolist() == theirs.tolist()
    assert stats.as_dict()["experts_per_draft"] == 2
