"""EAGLE's head as a draft model: what it drafts from, checked against passes without a cache."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from toy_eagle import PADS, Oracle, generation, tiny_head
from toys import EXACT, distance, whole_loop
from watched_drafts import joint

from mmspec.draft.draft_model import ModelDrafter
from mmspec.draft.feature.eagle import EagleModel
from mmspec.draft.feature.feature_model import EagleDrafter
from mmspec.draft.null import NullDrafter
from mmspec.draft.tree.dynamic_tree import DynamicTreeDrafter
from mmspec.draft.tree.fixed_tree import TreeDrafter
from mmspec.engine.accept.greedy import GreedyRule
from mmspec.engine.accept.recursive import RecursiveRule
from mmspec.engine.accept.token import TokenRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.draft import Scores
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.loop import run
from mmspec.engine.protocols import Engine
from mmspec.engine.stats import SpecStats
from mmspec.engine.warp import Warp
from mmspec.errors import InputError
from mmspec.models.llamagen.eagle_head import EagleDecoder, EagleHead
from mmspec.models.target import TokenTarget
from mmspec.models.token_model import catch_up

KINDS = ["chain", "tree", "without-replacement", "top", "independent"]


# --- what the draft is made from ------------------------------------------------------------------


@pytest.mark.parametrize("scale", [2.0, None])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "top"])
def test_laws_are_those_of_passes_without_a_cache(tiny_llamagen, guided_rows, kind, scale):
    """Every node of every round, of rows that come differently far behind padded captions."""
    _, watched, stats = generation(tiny_llamagen, guided_rows, kind, scale=scale)
    assert watched.worst < 1e-10
    assert set(watched.behind) == {0, 1, 2}
    assert 0 < sum(stats.accepted) < sum(stats.drafted)


@pytest.mark.parametrize(
    ("sizes", "pads"),
    [({"n_kv_head": 2, "rotary_prefix": "zero"}, PADS), ({"prefix": 1}, [0, 0]), ({}, [2, 2])],
    ids=["grouped", "one-column", "all-padded"],
)
def test_other_targets(tiny_llamagen, guided_rows, sizes, pads):
    _, watched, _ = generation(
        tiny_llamagen,
        guided_rows,
        "without-replacement",
        sizes=sizes,
        pads=pads,
        warp=Warp(0.8, 9, 0.95),
    )
    assert watched.worst < 1e-10


def wrong_path(self, context, draft, scores, verdict):
    """The first nodes' states in place of the kept ones': those of rejected nodes among them."""
    kept = torch.arange(draft.nodes).expand(context.rows, -1)
    return RIGHT(self, context, draft, scores, replace(verdict, path=kept))


def one_ahead(self, context, draft, scores, verdict):
    """The state behind a token in place of the one in front of it: the future leaks in."""
    ahead = scores.hidden.roll(-1, 1)
    return RIGHT(self, context, draft, Scores(scores.probs, ahead), verdict)


def as_drafted(self, context, draft, scores, verdict):
    """The head's own reading of accepted tokens stays, unless a neighbour makes it read them."""
    before = self._settled
    RIGHT(self, context, draft, scores, verdict)
    self._settled = [
        min(b - 1, s + draft.nodes - 1) for b, s in zip(context.base, before, strict=True)
    ]


RIGHT = EagleModel.observe


@pytest.mark.parametrize(
    ("kind", "hazard"),
    [
        ("without-replacement", wrong_path),
        ("tree", wrong_path),
        ("tree", one_ahead),
        ("chain", one_ahead),
        ("chain", as_drafted),
    ],
)
def test_hazard_states_of_other_tokens(tiny_llamagen, guided_rows, monkeypatch, kind, hazard):
    monkeypatch.setattr(EagleModel, "observe", hazard)
    _, watched, _ = generation(tiny_llamagen, guided_rows, kind)
    assert watched.worst > 1e-3


# --- exactness ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "vocab", "limit"),
    [
        ("chain", 2, 4),
        ("chain", 3, 3),
        ("tree", 2, 3),
        pytest.param("top", 2, 4, marks=pytest.mark.slow),
        ("top", 3, 3),
        ("without-replacement", 2, 3),
        ("independent", 2, 3),
    ],
)
def test_joint_law_of_the_whole_loop(tiny_llamagen, guided_rows, kind, vocab, limit):
    """Of the shipped loop, target and head; what was rejected must not colour what comes."""
    model = tiny_llamagen(vocab=vocab, grid=2, prefix=3)
    guided, prefix, mask = guided_rows(model, [1], limit=limit, scratch=8)
    drafts = EagleModel(EagleDecoder(tiny_head(model), guided.decoder), guided)

    def drafter():
        if kind == "chain":
            return EagleDrafter(drafts, ModelDrafter(drafts))
        if kind == "tree":
            return EagleDrafter(drafts, TreeDrafter(drafts, (2, 1)))
        return EagleDrafter(drafts, DynamicTreeDrafter(drafts, 2, 2, 1, 4, kind))

    rule = TokenRule() if kind == "chain" else RecursiveRule()
    law = whole_loop(limit, TokenTarget(guided), drafter, rule, at_once=1)

    def plainly(text: list[int]) -> torch.Tensor:
        tokens = torch.tensor(text, dtype=torch.long).expand(2, -1)
        logits = model(tokens, prefix, mask)[:, -1]
        return (logits[1] + 2.0 * (logits[0] - logits[1])).softmax(-1)

    with torch.inference_mode():
        assert distance(law, joint(limit, vocab, plainly)) < EXACT


@pytest.mark.parametrize("kind", ["chain", "top", "without-replacement"])
def test_greedy_text_is_the_plain_one(tiny_llamagen, guided_rows, kind):
    make = {"warp": Warp(0.0), "watch": False, "rule": GreedyRule() if kind == "chain" else None}
    got, _, _ = generation(tiny_llamagen, guided_rows, kind, **make)
    plain, _, stats = generation(tiny_llamagen, guided_rows, kind, depth=0, **make)
    assert sum(stats.drafted) == 0
    assert torch.equal(got.tokens[:, :14], plain.tokens[:, :14])


# --- batches --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_row_equals_itself_alone(tiny_llamagen, guided_rows, kind):
    """Also where a neighbour's longer caption, or slower text, makes a row read more."""
    make = {"pads": [0, 3, 1, 2, 0, 1], "watch": False, "limit": 16}
    # drafts that often stand, short chains to their end
    make |= {"depth": 2 if kind == "chain" else 3, "warp": Warp(4.0)}
    together, drafted, stats = generation(tiny_llamagen, guided_rows, kind, **make)
    alone = [generation(tiny_llamagen, guided_rows, kind, rows=[r], **make) for r in range(6)]
    for row, (context, own, counters) in enumerate(alone):
        assert torch.equal(together.tokens[row, :16], context.tokens[0, :16])
        assert stats.calls[row] == counters.calls[0]
        for ours, theirs in zip(drafted.drafts, own.drafts, strict=False):
            assert torch.allclose(ours[row], theirs[0], atol=1e-10)
    assert len({counters.calls[0] for _, _, counters in alone}) > 1  # they come differently far


def test_hazard_accepted_tokens_read_as_neighbours_do(tiny_llamagen, guided_rows, monkeypatch):
    """Read again only where a neighbour needs it, a row's cache depends on the neighbour."""
    monkeypatch.setattr(EagleModel, "observe", as_drafted)
    with pytest.raises(AssertionError):
        test_row_equals_itself_alone(tiny_llamagen, guided_rows, "chain")


@pytest.mark.parametrize("kind", ["chain", "top"])
def test_behind_a_guard(tiny_llamagen, guided_rows, kind):
    """Which asks for no draft where there is no room for one."""
    context, _, _ = generation(tiny_llamagen, guided_rows, kind, limit=3, guard=True, watch=False)
    assert context.base == [3, 3, 3]


# --- how much is read -----------------------------------------------------------------------------


def test_a_tree_is_read_once(tiny_llamagen, guided_rows, monkeypatch):
    """A call reads what is new: committed tokens, then the nodes of one more level."""
    seen = []
    forward = EagleDecoder.forward
    monkeypatch.setattr(
        EagleDecoder,
        "forward",
        lambda self, x, *args, **kw: seen.append(x.shape[1]) or forward(self, x, *args, **kw),
    )
    generation(tiny_llamagen, guided_rows, "top", rows=[0], limit=6, watch=False)
    # the prefix but its last column, that one, and what gets children of two levels
    assert seen[:4] == [4, 1, 2, 2]
    assert set(seen[4:]) <= {1, 2, 3, 4, 6}


def test_model_reads_as_far_as_its_drafter_says(tiny_llamagen, guided_rows):
    """`extend` at committed tokens gives the laws that were asked for, whatever else it reads."""
    model = tiny_llamagen()
    head = tiny_head(model)
    guided, prefix, mask = guided_rows(model, PADS, scratch=24)
    drafts = EagleModel(EagleDecoder(head, guided.decoder), guided)
    oracle = Oracle(model, head, prefix, mask, 2.0, Warp())
    seen = []

    class Probe(NullDrafter):
        def start(self, context):
            super().start(context)
            drafts.start(context.rows)

        def propose(self, context, budget, coins):
            width = min(1 + context.round % 3, 1 + min(context.base))
            tokens, start = catch_up(context, [b - width for b in context.base])
            laws = drafts.extend(tokens, start)
            assert laws.shape[1] == width
            for row, (text, base) in enumerate(zip(tokens_of(context), context.base, strict=True)):
                for n in range(width):
                    law = oracle.law(row, text[: base - width + 1 + n], [])
                    seen.append(float((laws[row, n] - law).abs().max()))
            return super().propose(context, budget, coins)

    probe = EagleDrafter(drafts, Probe())
    coins = ProductionCoins([1, 2, 3])
    engine = Engine(TokenTarget(guided), probe, TokenRule(), ConstantLength(2), coins)
    run(engine, 3, 9, SpecStats())
    assert len(seen) == 3 * (1 + 2 + 3 + 1 + 2 + 3 + 1 + 2 + 3)
    assert max(seen) < 1e-10


def tokens_of(context) -> list[list[int]]:
    return [t[:b] for t, b in zip(context.tokens.tolist(), context.base, strict=True)]


def test_cost_of_a_call_outside_a_generation(tiny_llamagen, guided_rows):
    """Measured before the first one, it leaves no trace there."""
    model = tiny_llamagen()
    texts = []
    for measured in (False, True):
        guided = guided_rows(model, PADS, limit=9, scratch=24)[0]
        drafts = EagleModel(EagleDecoder(tiny_head(model), guided.decoder), guided)
        if measured:
            with torch.inference_mode():
                assert guided.seconds_per_call(3) > 0
                assert drafts.seconds_per_call(5) > 0
        drafter = EagleDrafter(drafts, ModelDrafter(drafts))
        coins = ProductionCoins([1, 2, 3])
        engine = Engine(TokenTarget(guided), drafter, TokenRule(), ConstantLength(2), coins)
        stats = SpecStats()
        texts.append((run(engine, 3, 9, stats).tokens[:, :9].tolist(), stats.accepted))
    assert texts[0] == texts[1]


# --- what can't be --------------------------------------------------------------------------------


def test_head_of_another_size(tiny_llamagen, guided_rows):
    guided = guided_rows(tiny_llamagen(), PADS)[0]
    with pytest.raises(InputError, match=r"dim \(16\) is not the target's \(32\)"):
        EagleDecoder(EagleHead(16, 4, None, 32), guided.decoder)


def test_target_without_hidden_states(tiny_llamagen, guided_rows):
    model = tiny_llamagen()
    guided = guided_rows(model, PADS)[0]
    drafts = EagleModel(EagleDecoder(tiny_head(model), guided.decoder), guided)
    assert guided.watched
    with pytest.raises(ValueError, match="hidden states"):
        drafts.observe(None, None, Scores(torch.zeros(1, 1, 4)), None)
