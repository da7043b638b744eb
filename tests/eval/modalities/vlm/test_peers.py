"""transformers' own generation: its tokens, and its calls counted in another way."""

from __future__ import annotations

from functools import partial
from unittest.mock import patch

import pytest
import torch

from mmspec import SpecConfig
from mmspec.eval.modalities.vlm.inputs import inputs_of
from mmspec.eval.modalities.vlm.peers import Peer, peers

CALLS = {"greedy": {"temperature": 0.0}, "sampled": {"temperature": 1.0, "top_k": 20}}
PEERS = {
    "plain": (Peer(), {}),
    "prompt-lookup": (Peer(lookup=3), {"prompt_lookup_num_tokens": 3}),
    "assisted": (Peer(assisted=True, length=3), {}),
    "assisted-default": (Peer(assisted=True), {}),
}


def ask(peer, pipe, picture, question, seed, call):
    inputs = partial(inputs_of, pipe, picture, question)
    return peer.answer(pipe, pipe.processor.tokenizer, inputs, seed, call)


@pytest.mark.parametrize("how", CALLS)
@pytest.mark.parametrize("name", PEERS)
def test_tokens_and_calls_are_those_of_generate(pipe, items, name, how):
    peer, options = PEERS[name]
    picture, question, call = items[0].picture(64), items[0].prompt, CALLS[how]
    said = ask(peer, pipe, picture, question, 5, {"max_new_tokens": 24, **call})
    if peer.assisted:
        options = {"assistant_model": pipe.drafter}
        config = pipe.drafter.generation_config
        assert config.num_assistant_tokens is None  # as it was
        if peer.length is not None:
            config.num_assistant_tokens, config.assistant_confidence_threshold = 3, 0.0
            config.num_assistant_tokens_schedule = "constant"
    if how == "sampled":
        options = {**options, "do_sample": True, "temperature": 1.0, "top_k": 20, "top_p": 1.0}
    given, head = inputs_of(pipe, picture, question), pipe.model.lm_head
    torch.manual_seed(5)
    with patch.object(head, "forward", wraps=head.forward) as calls:
        rows = pipe.model.generate(**given, max_new_tokens=24, **options)
    assert said.tokens == [rows[0, given["input_ids"].shape[1] :].tolist()]
    assert said.stats.calls == [calls.call_count]
    assert said.stats.emitted == [len(said.tokens[0])]
    read = sum(call.args[0].shape[1] for call in calls.call_args_list)
    if name == "plain":
        assert said.stats.target_tokens == [read] == [len(said.tokens[0])]
    assert all(seconds >= 0 for seconds in said.stats.seconds.values())
    assert (said.stats.seconds["draft"] > 0) == peer.assisted
    assert not pipe.model._forward_hooks
    assert not pipe.model._forward_pre_hooks


def test_seeds_are_kept_apart(pipe, items):
    picture, question = items[0].picture(64), items[0].prompt
    call = {"max_new_tokens": 8, "temperature": 1.0}
    state = torch.get_rng_state()
    one, same, other = (
        ask(Peer(), pipe, picture, question, seed, call).tokens for seed in (1, 1, 2)
    )
    assert one == same != other
    assert torch.equal(torch.get_rng_state(), state)


def test_each_method_with_a_like_of_its_own_has_a_peer():
    assert list(peers({"plain": SpecConfig("plain")})) == ["transformers:plain"]
    methods = {"plain": "plain", "draft": "draft", "prompt-lookup": "prompt-lookup"}
    found = peers({name: SpecConfig(method) for name, method in methods.items()})
    assert found["transformers:assisted"] == Peer(assisted=True, length=4)
    assert found["transformers:assisted-default"] == Peer(assisted=True)
    assert found["transformers:prompt-lookup"] == Peer(lookup=4)


@pytest.mark.parametrize("length", ["goodput", "auto"])
def test_a_peer_drafts_where_a_policy_chooses_how_far(length):
    methods = "draft", "prompt-lookup"
    found = peers({name: SpecConfig(name, length=length) for name in methods})
    assert found["transformers:assisted"] == Peer(assisted=True, length=4)
    assert found["transformers:prompt-lookup"] == Peer(lookup=4)
    own = peers({"lookup": SpecConfig("prompt-lookup", num_draft_tokens=7)})
    assert own["transformers:prompt-lookup"] == Peer(lookup=7)
