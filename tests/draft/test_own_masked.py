"""A masked model at block size 1: its laws as a target, its own blocks as drafts, what is off."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from masked_networks import PADS, PROMPT, SHORT, VOCAB, joint, network, slow, target
from toys import EXACT, distance, whole_loop
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from mmspec.draft.masked import OwnBlockDrafter, OwnMaskedBlocks, own_chain
from mmspec.draft.tree.fixed_tree import TreeDrafter
from mmspec.engine.accept.recursive import RecursiveRule
from mmspec.engine.accept.token import TokenRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.draft import Context, Draft
from mmspec.engine.laws import Categorical, OneHot
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.loop import run
from mmspec.engine.protocols import Engine
from mmspec.engine.stats import SpecStats
from mmspec.models.guided import GuidedDecoder
from mmspec.models.target import TokenTarget
from mmspec.models.transformers.masked_target import MaskedTarget, OwnBlocks

KINDS = [(LlamaForCausalLM, LlamaConfig), (Qwen3ForCausalLM, Qwen3Config)]


def check(laws, model, row, texts):
    for law, text in zip(laws, texts, strict=True):
        assert torch.allclose(law, slow(model, [*PROMPT[PADS[row] :], *text]), atol=1e-10)


TREE = [[-1, -1, 0, 2], [-1, 0, 0, -1], [-1, -1, 1, 1]]


def path(tokens, parents, node):
    return [] if node < 0 else [*path(tokens, parents, parents[node]), tokens[node]]


@torch.inference_mode()
@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize(("kind", "config"), KINDS)
def test_laws_are_those_of_one_mask_behind_the_text(kind, config, shifted):
    """In rows at different places, of chains, of trees, and behind a branch that was kept."""
    model = network(kind, config, shifted=shifted)
    guided = target(model, (0, 1, 2))
    assert isinstance(guided, MaskedTarget) == (not shifted)
    guided.start(3)
    new = torch.randint(15, (3, 14), generator=torch.Generator().manual_seed(1))
    text = new.tolist()
    first = guided.extend(torch.cat([new[:, :1], new[:, :2]], 1), [-1] * 3)  # the prompt's last
    for row in range(3):
        check(first[row], model, row, [text[row][:n] for n in range(3)])
    ends, nodes = [2, 1, 0], new[:, 5:9]
    inputs = torch.stack([new[row, max(0, end - 1)] for row, end in enumerate(ends)])[:, None]
    draft = Draft(nodes, torch.tensor([4, 4, 4]), OneHot(), torch.tensor(TREE))
    laws = guided.extend(torch.cat([inputs, nodes], 1), [end - 1 for end in ends], draft)
    for row, end in enumerate(ends):
        told = [path(nodes[row].tolist(), TREE[row], node) for node in range(-1, 4)]
        check(laws[row], model, row, [text[row][:end] + one for one in told])
    kept = torch.tensor([[0, 2], [0, 2], [1, 2]])
    guided.keep([end - 1 for end in ends], kept)
    after = guided.extend(new[:, 9:10], [end + 2 for end in ends])
    for row, end in enumerate(ends):
        own = [nodes[row, node].item() for node in kept[row].tolist()]
        check(after[row], model, row, [[*text[row][:end], *own, text[row][9]]])
    places = torch.tensor([[end + 2, end + 1] for end in ends])
    again = torch.stack([new[:, 9], nodes.gather(1, kept)[:, 1]], 1)
    laws = guided.extend_at(again, places, 4)
    assert torch.allclose(laws[:, :1], after, atol=1e-10)


@torch.inference_mode()
def test_the_cache_keeps_tokens_alone():
    """After a generation its entries are those of a plain reading of the text."""
    model = network()
    guided = target(model)
    coins = ProductionCoins([3], torch.device("cpu"))
    parts = TokenTarget(guided), own_chain(guided, 3, "drawn"), TokenRule(), ConstantLength(5)
    context = run(Engine(*parts, coins), 1, 12, SpecStats())
    plain = GuidedDecoder(guided.decoder, guided.setting)
    plain.start(1)
    plain.extend(torch.cat([torch.zeros(1, 1, dtype=torch.long), context.tokens[:, :11]], 1), [-1])
    known = guided.offset + 11
    ours, own = (cache.data[..., :known, :] for cache in (guided.cache, plain.cache))
    assert torch.allclose(ours, own, atol=1e-10)


@torch.inference_mode()
def test_blocks_over_the_targets_cache_are_those_over_their_own():
    model, rows = network(), (0, 1, 2)
    text = torch.randint(15, (3, 14), generator=torch.Generator().manual_seed(2))
    guided = target(model, rows)
    own, alone = OwnBlocks(guided, 3), OwnBlocks(target(model, rows), 3)
    for one in (own, alone):
        one.start(3)
    ends, read = [4, 3, 1], [3, 2, 0]
    guided.extend(torch.cat([text[:, :1], text[:, :3]], 1), [-1] * 3)  # the prompt's last in front
    assert torch.allclose(own.read(text, ends, read), alone.read(text, ends, [-1] * 3), atol=1e-10)


# --- exact, by enumeration ------------------------------------------------------------------------


def enumerated(model, make, limit, ahead, rule=None):
    def both(rows):
        guided = target(model, [0] * rows, limit, SHORT)
        return TokenTarget(guided), make(guided)

    with torch.inference_mode():
        return whole_loop(limit, both, None, rule, ConstantLength(ahead))


@pytest.mark.parametrize("how", ["drawn", "top"])
@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize(("size", "ahead", "limit"), [(2, 2, 3), (1, 2, 3)])
def test_joint_law(size, ahead, limit, shifted, how):
    """One block, and blocks behind drafted blocks."""
    model = network(vocab=VOCAB, shifted=shifted)
    law = enumerated(model, lambda guided: own_chain(guided, size, how), limit, ahead)
    with torch.inference_mode():
        assert distance(law, joint(model, limit)) < EXACT


def test_joint_law_of_trees():
    """As any target, it judges trees."""
    model, small = network(vocab=VOCAB), network(vocab=VOCAB, seed=4)
    del small.config.mask_token_id

    def tree(guided):
        made = target(small, [0] * guided.running.rows, 3, SHORT)
        made.drafts = True
        return TreeDrafter(made, (2, 1), "top")

    law = enumerated(model, tree, 3, 2, RecursiveRule())
    with torch.inference_mode():
        assert distance(law, joint(model, 3)) < EXACT


class Released(OwnBlockDrafter):
    """The likeliest token of each place, judged as if it were drawn: by its confidence."""

    def propose(self, context, budget, coins):
        draft = super().propose(context, budget, coins)
        if draft.nodes:
            law = self.model.model.read(
                context.tokens, context.base, [base - 1 for base in context.base]
            )
            draft.law = Categorical(law[:, : draft.nodes])
        return draft


def test_the_likeliest_tokens_judged_by_their_confidence_are_off():
    """S2D2's code with `do_sample=False`: x0 is the argmax, and the ratio divides by its share."""
    model = network(vocab=VOCAB)

    def released(guided):
        return Released(OwnMaskedBlocks(OwnBlocks(guided, 2)), 2, "top")

    law = enumerated(model, released, 2, 2)
    with torch.inference_mode():
        assert distance(law, joint(model, 2)) > 0.01


# --- what it counts -------------------------------------------------------------------------------


@torch.inference_mode()
def test_blocks_count_as_calls_of_the_target():
    """By hand: two blocks of two places for three tokens, in rows that still run."""
    guided = target(network(), (0, 1))
    drafter, context = own_chain(guided, 2, "drawn"), Context.empty(2, 9)
    guided.start(2)
    drafter.start(context)
    coins, _ = ProductionCoins([0, 1], torch.device("cpu")).round(0)
    draft = drafter.propose(context, [3, 1], coins)
    assert (draft.calls, draft.read) == (2, (1 + 2) + (2 + 2))
    stats = SpecStats()
    stats.start(2)
    verdict = SimpleNamespace(calls=[], target_tokens=[])
    stats.observe_calls(draft, verdict, [1, 0])
    assert (stats.calls, stats.target_tokens) == ([2, 0], [7, 0])


@torch.inference_mode()
def test_a_call_has_room_for_its_masks():
    """In the last slots, where calls are timed."""
    guided = target(network())
    assert guided.seconds_per_call(guided.room) > 0
    assert guided.slots - guided.offset - 1 <= 2 * guided.room <= guided.slots - guided.offset
