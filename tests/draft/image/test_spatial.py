"""Spatial heads as a drafter: exact by enumeration, what the heads read, rows on their own."""

from __future__ import annotations

import logging

import pytest
import torch
from toys import EXACT, distance, outputs, whole_loop

from mmspec.draft.guarded import GuardedDrafter
from mmspec.draft.image.spatial import SpatialDrafter
from mmspec.engine.accept.local import LocalRule
from mmspec.engine.accept.token import TokenRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.draft import Draft
from mmspec.engine.laws import Categorical
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.loop import run
from mmspec.engine.protocols import Engine
from mmspec.engine.stats import SpecStats
from mmspec.engine.warp import Warp
from mmspec.models.guided import GuidedDecoder
from mmspec.models.llamagen.spatial_heads import (
    SpatialDecoder,
    SpatialHeads,
    guided_states,
    mean_state,
)
from mmspec.models.target import TokenTarget

VOCAB = 16


def random_heads(seed: int = 0, **sizes) -> SpatialHeads:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        heads = SpatialHeads(**{"dim": 32, "cell_dim": 6, "hidden_dim": 10, **sizes})
        for weight in heads.parameters():
            torch.nn.init.normal_(weight, std=0.6)
    return heads.double().eval()


@pytest.fixture
def drafting(tiny_llamagen, guided_rows):
    """Builds target and drafter over one tiny network."""

    def build(
        pads, rows=None, grid=4, drafter=SpatialDrafter, turns=0, vocab=VOCAB, scale=2.0, warp=None
    ):
        network = tiny_llamagen(grid=grid, vocab=vocab)
        scratch = grid * grid
        model, *_ = guided_rows(network, pads, rows, scale=scale, warp=warp, scratch=scratch)
        heads = SpatialDecoder(random_heads(), model.decoder)
        return TokenTarget(model, grid, turns), drafter(heads, model, grid)

    return build


def rules(grid: int) -> dict:
    """Rules by name; those of the first two are exact."""
    return {
        "token": TokenRule,
        "advance-1": lambda: LocalRule(grid, 1.0, None, 0, "ratio", advance=1),
        "advance-row": lambda: LocalRule(grid, 1.0, None, 0, "ratio", advance=grid),
        "all": lambda: LocalRule(grid, 0.7, None, 0, "ratio"),
        "relaxed": lambda: LocalRule(grid, 0.7, None, 0, "ratio", advance=1, slips=1),
        "turns": lambda: LocalRule(grid, 1.0, None, 1, "ratio"),
    }


# --- exact by enumeration -------------------------------------------------------------------------


class Again:
    """Makes target and drafter anew for every run of the loop, over weights made once."""

    def __init__(self, drafting, drafter=SpatialDrafter, limit=4) -> None:
        self.target, shipped = drafting(
            [1],
            grid=2,
            vocab=2,
            drafter=drafter,
            warp=Warp(6.0),  # no token is a certain one
        )
        self.model, self.heads, self.kind = self.target.model, shipped.heads, drafter
        self.model.limit = limit

    def drafter(self):
        return self.kind(self.heads, self.model, 2)

    def joint(self, limit: int) -> dict:
        """The law of whole outputs, from plain calls of the network."""
        law = {(): 1.0}
        for place in range(limit):
            longer = {}
            for prefix, probability in law.items():
                self.model.start(1)
                tokens = torch.tensor([[0, *prefix]])
                for token, p in enumerate(self.model.extend(tokens, [-1])[0, place].tolist()):
                    longer[(*prefix, token)] = probability * p
            law = longer
        return law


@pytest.mark.parametrize(
    ("rule", "limit", "window"), [("token", 4, 2), ("token", 3, 3), ("advance-1", 3, 3)]
)
def test_joint_law_of_the_whole_loop(drafting, rule, limit, window):
    """The window is wider than a row of two cells, and may end inside one."""
    again = Again(drafting)
    with torch.inference_mode():
        truth = again.joint(limit)
    law = whole_loop(
        limit, again.target, again.drafter, rules(2)[rule](), ConstantLength(window), at_once=1
    )
    assert len(truth) == 2**limit
    assert distance(law, truth) < EXACT


class Abandoned(SpatialDrafter):
    """The hazard: a window is left because of a token in it."""

    carries = False


@pytest.mark.slow
@pytest.mark.parametrize("kind", [SpatialDrafter, pytest.param(Abandoned, marks=pytest.mark.slow)])
def test_joint_law_where_heads_have_no_numbers(drafting, kind, caplog):
    """Behind a token 1, which may be one that is judged in a later round alone."""
    again = Again(drafting, kind)
    for table in again.heads.tables:
        table[1] = float("nan")
    with torch.inference_mode():
        truth = again.joint(3)

    def drafter():
        return GuardedDrafter(kind(again.heads, again.model, 4), 2, 16)

    with caplog.at_level(logging.WARNING):
        law = whole_loop(
            3, again.target, drafter, rules(4)["advance-1"](), ConstantLength(3), at_once=1
        )
    if kind is SpatialDrafter:
        assert distance(law, truth) < EXACT
        assert {r.message for r in caplog.records} == {
            "the drafter has no laws in places; there it draws at random"
        }
    else:
        assert distance(law, truth) > 1e-4
        assert "laws that are none" in caplog.text


class Foresight(SpatialDrafter):
    """The hazard: a law that depends on a token drafted later, as with heads that look back."""

    def propose(self, context, budget, coins):
        draft = super().propose(context, budget, coins)
        if draft.nodes > 1 and not self._judged[0]:
            laws = draft.law.probs.clone()
            laws[:, 0] = torch.where(draft.tokens[:, 1:2] == 0, laws[:, 0], laws[:, 0].flip(1))
            draft.tokens = draft.tokens.clone()
            draft.tokens[:, 0] = coins.draw(laws[:, 0], 9)
            draft.law = Categorical(laws)
        return draft


class Unsaid(SpatialDrafter):
    """The hazard: laws as they would be had the row above other tokens than it has."""

    def _look_below(self, context, cells, window):
        below, skip = super()._look_below(context, cells, window)
        _, self._other = super()._look_below(context, cells, 1 - window)
        return below, skip

    def propose(self, context, budget, coins):
        draft = super().propose(context, budget, coins)
        law = draft.law.probs.clone()
        if draft.nodes > 2:
            law[:, 2] = self.target.warp(self._other[:, 0])
        return Draft(draft.tokens, draft.lengths, Categorical(law), positions=draft.positions)


@pytest.mark.slow
@pytest.mark.parametrize("hazard", [pytest.param(Foresight, marks=pytest.mark.slow), Unsaid])
def test_hazard(drafting, hazard):
    again = Again(drafting, hazard)
    with torch.inference_mode():
        truth = again.joint(3)
    rule = rules(2)["advance-1"]()  # it leaves room for drafts of all three
    law = whole_loop(3, again.target, again.drafter, rule, ConstantLength(3), at_once=1)
    assert distance(law, truth) > 1e-4


def test_a_row_forced_through_is_not_exact(drafting):
    """The contract says lossy, and it is."""
    again = Again(drafting)
    with torch.inference_mode():
        truth = again.joint(3)
    law = whole_loop(
        3, again.target, again.drafter, rules(2)["advance-row"](), ConstantLength(3), at_once=1
    )
    assert abs(sum(law.values()) - 1) < EXACT
    assert distance(law, truth) > 1e-4


# --- the fast path against an obvious one ---------------------------------------------------------


def slow_logits(heads, decoder, row, tokens, states, judged, place, summary):
    """The heads' logits of one cell, from plain lists of what stands in front of it."""
    r, c = divmod(place, row)
    cells = []
    for column in range(c - heads.config.reach, c + heads.config.reach + 1):
        above = place - row - c + column
        if r == 0 or not 0 <= column < row:
            cells.append(heads.outside)
            continue
        state = states[above] if above < judged else heads.unseen
        cells.append(heads.features(state, decoder.embeddings[tokens[above]]))
    below, skip = heads.look_below(torch.stack(cells)[None, None], heads.summary(summary)[None])
    left = torch.zeros(heads.config.hidden_dim, dtype=torch.float64)
    for k in range(heads.config.left):
        token = tokens[place - 1 - k] if c - 1 - k >= 0 else len(decoder.embeddings)
        left = left + heads.table(k, decoder.embeddings)[token]
    return decoder.logits(skip[0] + heads.look_right(below[0], left))[0]


class Watched(SpatialDrafter):
    """Keeps what was drafted, and what the heads knew then."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.seen = []

    def propose(self, context, budget, coins):
        base, judged, states = list(context.base), list(self._judged), self._states.clone()
        draft = super().propose(context, budget, coins)
        self.seen.append((base, judged, states, context.tokens.clone(), draft))
        return draft


@pytest.mark.parametrize("grid", [4, 3])
@pytest.mark.parametrize("rule", ["token", "advance-row", "all"])
def test_laws_of_new_cells_are_the_heads_own(drafting, rule, grid):
    """Ragged rows, edges of the grid, blocks of several rows: cell by cell to 1e-10."""
    pads = [0, 2, 1]
    target, drafter = drafting(pads, grid=grid, drafter=Watched)
    coins = ProductionCoins([5, 6, 7])
    engine = Engine(target, drafter, rules(grid)[rule](), ConstantLength(grid + 2), coins)
    run(engine, 3, grid * grid, SpecStats())
    heads, decoder, model = random_heads(), target.model.decoder, target.model
    checked = set()
    with torch.inference_mode():
        model.start(3)
        condition = guided_states(mean_state(model.hidden, model.pads), model.scale)[:, 0]
        for base, judged, states, tokens, draft in drafter.seen:
            for b in range(3):
                line = tokens[b, : base[b]].tolist() + draft.tokens[b].tolist()
                for n in range(int(draft.lengths[b])):
                    place = base[b] + n
                    if place < judged[b]:
                        continue
                    expected = slow_logits(
                        heads, decoder, grid, line, states[b], judged[b], place, condition[b]
                    )
                    law = draft.law.probs[b, n]
                    assert torch.allclose(law, model.warp(expected), atol=1e-10, rtol=0)
                    checked.add((place, place - grid < judged[b]))
    positions = {place for place, _ in checked}
    assert {place // grid for place in positions} == {
        place % grid for place in positions
    }  # all edges
    assert len({place // grid for place in positions}) == grid
    assert (grid + 1, False) in checked  # a second row, of whose row above only tokens are known
    assert any(seen and place >= grid for place, seen in checked)


def test_states_are_those_of_the_call_that_judged(drafting):
    """In front of every judged cell, behind the tokens that the call saw there."""
    target, drafter = drafting([0, 1])
    model = target.model
    other, _ = drafting([0, 1])
    alone = other.model
    alone.watched = True
    drafts, bases = [], [[0, 0]]

    class Recorded(TokenRule):
        def verify(self, draft, scores, coins):
            drafts.append(draft)
            return super().verify(draft, scores, coins)

    def look(context):
        for b, base in enumerate(bases[-1]):
            if base == 16:
                continue
            end = base + int(drafts[-1].lengths[b]) + 1
            assert drafter._judged[b] == end
            line = context.tokens[b, :base].tolist() + drafts[-1].tokens[b].tolist()
            alone.start(2)
            alone.extend(torch.tensor([[0, *line[: end - 1]]]).expand(2, -1), [-1, -1])
            expected = guided_states(alone.hidden, model.scale)[b, base:]
            assert torch.allclose(drafter._states[b, base:end], expected, atol=1e-9)
        bases.append(list(context.base))
        return False

    engine = Engine(target, drafter, Recorded(), ConstantLength(6), ProductionCoins([1, 2]))
    run(engine, 2, 16, SpecStats(), look)
    assert len(bases) > 3


# --- a relaxed rule in the window -----------------------------------------------------------------


def drafted(drafting, theta: float, relaxed: bool):
    """What the drafts of a generation held at every place, in turn; and the output."""
    target, drafter = drafting([0, 1], drafter=Watched)
    rule = LocalRule(4, theta, None, 0, "ratio", advance=1)
    drafter.rule = rule if relaxed else None
    engine = Engine(target, drafter, rule, ConstantLength(10), ProductionCoins([1, 2]))
    out = outputs(run(engine, 2, 16, SpecStats()))
    held: dict = {}
    for base, _, _, _, draft in drafter.seen:
        for b in range(2):
            for n in range(int(draft.lengths[b])):
                held.setdefault((b, base[b] + n), []).append(int(draft.tokens[b, n]))
    return out, held


def test_what_a_lenient_rule_lets_stand_stays_in_the_window(drafting):
    """With θ near 0 every token that can follow at all stands, here as there."""
    out, held = drafted(drafting, 1e-12, relaxed=True)
    assert all(len(set(tokens)) == 1 for tokens in held.values())
    assert all(out[b][place] == tokens[0] for (b, place), tokens in held.items())
    _, moving = drafted(drafting, 1.0, relaxed=False)
    assert any(len(set(tokens)) > 1 for tokens in moving.values())


def test_a_strict_rule_changes_nothing_in_the_window(drafting):
    assert drafted(drafting, 1.0, relaxed=True) == drafted(drafting, 1.0, relaxed=False)


# --- rows, limits, edges --------------------------------------------------------------------------


@pytest.mark.parametrize("window", [3, 9, 16])
@pytest.mark.parametrize("rule", ["token", "advance-1", "advance-row", "all", "turns", "relaxed"])
def test_row_equals_itself_alone(drafting, rule, window):
    pads, seeds = [0, 2, 1], [1, 2, 3]

    def emitted(rows):
        turns = None if rule == "turns" else 0
        target, drafter = drafting(pads, rows, turns=turns)
        drafter.rule = rules(4)["relaxed"]() if rule == "relaxed" else None
        coins = ProductionCoins([seeds[r] for r in rows])
        engine = Engine(target, drafter, rules(4)[rule](), ConstantLength(window), coins)
        stats = SpecStats()
        return outputs(run(engine, len(rows), 16, stats)), stats.calls

    together, calls = emitted([0, 1, 2])
    assert all(len(row) == 16 for row in together)
    for row in range(3):
        assert emitted([row]) == ([together[row]], [calls[row]])
    assert emitted([2, 0])[0] == [together[2], together[0]]


@pytest.mark.parametrize("limit", [1, 5, 6, 7, 15])
@pytest.mark.parametrize("rule", ["token", "advance-row"])
def test_limit_inside_a_block(drafting, rule, limit):
    target, drafter = drafting([0, 1])
    engine = Engine(target, drafter, rules(4)[rule](), ConstantLength(8), ProductionCoins([3, 4]))
    context = run(engine, 2, limit, SpecStats())
    assert context.base == [limit, limit]


@pytest.mark.parametrize("grid", [2, 3, 4])
def test_calls_grow_with_the_side(drafting, grid):
    """A row of the picture a call, whatever stands."""
    target, drafter = drafting([0], grid=grid)
    rule = LocalRule(grid, 1.0, None, 0, "ratio", advance=grid)
    engine = Engine(target, drafter, rule, ConstantLength(2 * grid), ProductionCoins([3]))
    stats = SpecStats()
    run(engine, 1, grid * grid, stats)
    assert stats.calls[0] <= grid


@pytest.mark.parametrize("scale", [None, 1.5])
def test_without_unconditional_rows(drafting, scale):
    target, drafter = drafting([0, 1], scale=scale)
    engine = Engine(target, drafter, TokenRule(), ConstantLength(8), ProductionCoins([3, 4]))
    assert run(engine, 2, 16, SpecStats()).base == [16, 16]


def test_a_prefix_of_one_column_has_no_summary(tiny_llamagen, guided_rows):
    network = tiny_llamagen(prefix=1)
    model, *_ = guided_rows(network, [0], scratch=16)
    drafter = SpatialDrafter(SpatialDecoder(random_heads(), model.decoder), model, 4)
    engine = Engine(
        TokenTarget(model, 4), drafter, TokenRule(), ConstantLength(8), ProductionCoins([3])
    )
    assert run(engine, 1, 16, SpecStats()).base == [16]


def test_heads_of_another_width_are_refused(tiny_llamagen, guided_rows):
    model, *_ = guided_rows(tiny_llamagen(), [0])
    assert isinstance(model, GuidedDecoder)
    with pytest.raises(ValueError, match="width 16"):
        SpatialDecoder(random_heads(dim=16), model.decoder)
