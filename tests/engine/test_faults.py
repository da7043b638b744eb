"""Parts that fail: no wrong token, counters that add up, and one clear word about it."""

from __future__ import annotations

import logging
import re

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from toys import EXACT, Table, TableModel, TableTarget, composed, distance, outputs

from mmspec.draft.draft_model import ModelDrafter
from mmspec.draft.guarded import GuardedDrafter
from mmspec.draft.jacobi.jacobi import JacobiDrafter
from mmspec.draft.tree.dynamic_tree import DynamicTreeDrafter
from mmspec.draft.tree.fixed_tree import TreeDrafter
from mmspec.engine.accept.block import BlockRule
from mmspec.engine.accept.recursive import RecursiveRule
from mmspec.engine.accept.token import TokenRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.draft import Context, Scores
from mmspec.engine.laws import ContractError, TargetError
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.loop import run
from mmspec.engine.protocols import Engine
from mmspec.engine.stats import SpecStats
from mmspec.engine.warp import Warp

VOCAB, LIMIT, SEEDS = 4, 10, (1, 2, 3)
TARGET, MODEL = Table(VOCAB, 40), Table(VOCAB, 41)


def widened(x: torch.Tensor, by: int) -> torch.Tensor:
    return torch.cat([x, x[:, :1].expand(-1, by, *x.shape[2:])], 1)


def at_a_real_node(x: torch.Tensor, draft, value: int) -> torch.Tensor:
    """`x [B, N]` with `value` at the first node of the row that drafts most."""
    return x.index_put((draft.lengths.argmax(), torch.tensor(0)), torch.tensor(value))


def unknown_token(draft) -> None:
    draft.tokens = at_a_real_node(draft.tokens, draft, VOCAB)


def negative_token(draft) -> None:
    draft.tokens = at_a_real_node(draft.tokens, draft, -1)


def too_few_rows(draft) -> None:
    draft.tokens = draft.tokens[:1]


def lengths_of_another_batch(draft) -> None:
    draft.lengths = draft.lengths[:1]


def too_many_nodes(draft) -> None:
    draft.tokens = widened(draft.tokens, 100)


def laws_too_narrow(draft) -> None:
    draft.law.probs = draft.law.probs[..., 1:]


def laws_of_fewer_nodes(draft) -> None:
    draft.law.probs = draft.law.probs[:, 1:]


def parent_behind_its_child(draft) -> None:
    draft.parents = at_a_real_node(draft.parents, draft, draft.nodes - 1)


def own_parent(draft) -> None:
    draft.parents = at_a_real_node(draft.parents, draft, 0)


def parent_in_front_of_the_root(draft) -> None:
    draft.parents = at_a_real_node(draft.parents, draft, -7)


def orphans(draft) -> None:
    draft.parents = draft.parents[:, 1:]


def deeper_than_allowed(draft) -> None:
    draft.bounds = (50, 3)


def raises(draft) -> None:
    raise RuntimeError("out of order")


ANY = [
    unknown_token,
    negative_token,
    too_few_rows,
    lengths_of_another_batch,
    too_many_nodes,
    laws_too_narrow,
    laws_of_fewer_nodes,
    raises,
]
OF_TREES = [
    parent_behind_its_child,
    own_parent,
    parent_in_front_of_the_root,
    orphans,
    deeper_than_allowed,
]


def spoiled(kind, fault, at: int, method: str):
    """A drafter whose `method` has the fault in its round `at`."""

    class Spoiled(kind):
        round = 0

        def propose(self, context, budget, coins):
            draft = super().propose(context, budget, coins)
            self.round += 1
            if method == "propose" and self.round > at and draft.nodes:
                fault(draft)
            return draft

        def observe(self, context, draft, scores, verdict):
            super().observe(context, draft, scores, verdict)
            if method == "observe" and self.round > at:
                raises(draft)

        def start(self, context):
            super().start(context)
            if method == "start":
                raises(None)

    return Spoiled


def finish(drafter, rule, over: int = 0) -> tuple[Context, SpecStats]:
    """A whole generation, checked for what must hold whatever happens.

    `over`: by how much the last call may have run past the limit.
    """
    engine = Engine(
        TableTarget(TARGET), drafter, rule, ConstantLength(3), ProductionCoins(list(SEEDS))
    )
    stats = SpecStats()
    context = run(engine, len(SEEDS), LIMIT, stats)
    assert context.base == context.lengths.tolist() == stats.emitted == [LIMIT] * len(SEEDS)
    for accepted, calls, emitted in zip(stats.accepted, stats.calls, stats.emitted, strict=True):
        assert accepted + calls - emitted in (0, over)
    for out in outputs(context):
        assert all(TARGET(out[:n])[out[n]] > 0 for n in range(LIMIT))
    return context, stats


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), tree=st.booleans(), at=st.integers(0, 3))
def test_a_faulty_drafter_is_left_alone(data, tree, at, caplog):
    """One warning, no wrong token, and plain decoding from there on."""
    caplog.clear()
    method = data.draw(st.sampled_from(["propose", "propose", "propose", "observe", "start"]))
    fault = data.draw(st.sampled_from(ANY + OF_TREES if tree else ANY))
    model = TableModel(MODEL)
    drafter = (
        spoiled(TreeDrafter, fault, at, method)(model, (2, 1, 1))
        if tree
        else spoiled(ModelDrafter, fault, at, method)(model)
    )
    guarded = GuardedDrafter(drafter, VOCAB, 8)
    with caplog.at_level(logging.WARNING):
        finish(guarded, RecursiveRule() if tree else TokenRule())
    if guarded.fault is None:
        assert drafter.round <= at  # the generation ended before the fault
        assert not caplog.records
    else:
        assert [r.message for r in caplog.records] == [
            f"the drafter failed ({guarded.fault}); decoding goes on without it"
        ]


@pytest.mark.parametrize("fault", [*ANY, *OF_TREES])
def test_every_fault_is_noticed(fault):
    """In the first round already; so the test above does not pass by looking away."""
    tree = fault in OF_TREES
    kind = spoiled(TreeDrafter if tree else ModelDrafter, fault, 0, "propose")
    drafter = kind(TableModel(MODEL), (2, 1, 1)) if tree else kind(TableModel(MODEL))
    guarded = GuardedDrafter(drafter, VOCAB, 8)
    _, stats = finish(guarded, RecursiveRule() if tree else TokenRule())
    assert guarded.fault
    assert drafter.round == 1
    assert stats.calls == [LIMIT - a for a in stats.accepted]


@pytest.mark.parametrize("tree", [False, True])
def test_without_a_fault_nothing_changes(tree, caplog):
    def drafter():
        model = TableModel(MODEL)
        return TreeDrafter(model, (2, 1, 1)) if tree else ModelDrafter(model)

    plain, stats = finish(drafter(), RecursiveRule())
    guarded = GuardedDrafter(drafter(), VOCAB, 6 if tree else 3)  # just as many fit
    found, own = finish(guarded, RecursiveRule())
    assert torch.equal(plain.tokens[:, :LIMIT], found.tokens[:, :LIMIT])
    assert own.accepted == stats.accepted
    assert guarded.fault is None
    assert not caplog.records


@pytest.mark.parametrize("siblings", ["top", "independent"])
@pytest.mark.parametrize(
    ("kind", "sizes"), [(TreeDrafter, [(2, 1, 1)]), (DynamicTreeDrafter, [3, 2, 2, 6])]
)
def test_a_draft_model_with_more_tokens(kind, sizes, siblings):
    """Chosen ids, too, which no laws go with, are looked at."""
    drafter = kind(TableModel(Table(2 * VOCAB, 41)), *sizes, siblings=siblings)
    guarded = GuardedDrafter(drafter, VOCAB, 8)
    finish(guarded, RecursiveRule())
    assert guarded.fault


def test_a_broken_contract_is_not_hidden():
    class Broken(ModelDrafter):
        def propose(self, context, budget, coins):
            raise ContractError("these two don't go together")

    with pytest.raises(ContractError, match="go together"):
        finish(GuardedDrafter(Broken(TableModel(MODEL)), VOCAB, 8), TokenRule())


def test_a_draft_that_leaves_no_room_ends_at_the_limit():
    class Greedy(ModelDrafter):
        """Drafts three tokens wherever it stands."""

        def propose(self, context, budget, coins):
            return super().propose(context, [3] * len(budget), coins)

    _, stats = finish(Greedy(TableModel(MODEL)), TokenRule(), over=1)
    assert max(stats.accepted) > 0


class Gap(Table):
    """A table that has no numbers behind some prefixes."""

    def __init__(self, vocab: int, seed: int, share: float, lowest: int = 0) -> None:
        super().__init__(vocab, seed)
        self.share, self.lowest, self.without = share, lowest, list[list[int]]()

    def __call__(self, prefix):
        law = super().__call__(prefix)
        digits = sum((t + 1) * 7**i for i, t in enumerate(prefix)) * 2654435761 % 2**32
        if len(prefix) >= self.lowest and digits < self.share * 2**32:
            self.without.append(list(prefix))
            return [float("nan")] * self.vocab
        return law


@pytest.mark.parametrize("rule", [TokenRule, BlockRule, RecursiveRule])
def test_exact_although_the_drafter_has_no_numbers(rule):
    """Enumerated: behind some of all prefixes the draft model's law is no law."""
    for seed, share in ((0, 1 / 3), (2, 1 / 2), (4, 1 / 4)):
        target, model = Table(3, seed), Gap(3, seed + 1, share)
        law = composed(4, TableTarget(target), ModelDrafter(TableModel(model)), rule(), 3)
        assert model.without
        assert distance(law, target.joint(4)) < EXACT


@pytest.mark.parametrize("widths", [(2, 1), (1, 2)])
def test_exact_although_a_trees_drafter_has_no_numbers(widths):
    target, model = Table(3, 0), Gap(3, 1, 1 / 3)
    drafter = TreeDrafter(TableModel(model), widths)
    law = composed(3, TableTarget(target), drafter, RecursiveRule(), 2)
    assert model.without
    assert distance(law, target.joint(3)) < EXACT


def test_a_drafter_without_numbers_is_left_alone(caplog):
    guarded = GuardedDrafter(ModelDrafter(TableModel(Gap(VOCAB, 41, 0.5))), VOCAB, 8)
    finish(guarded, TokenRule())
    assert "laws that are none" in guarded.fault
    assert len(caplog.records) == 1


# --- the target -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [TokenRule, BlockRule, RecursiveRule])
@pytest.mark.parametrize("kind", ["jacobi", "model"])
def test_a_target_without_numbers_is_an_error(kind, rule):
    """The error names the row, and everything emitted before it was possible."""
    drafter = JacobiDrafter(VOCAB) if kind == "jacobi" else ModelDrafter(TableModel(MODEL))
    gap, seen = Gap(VOCAB, 40, 0.5, lowest=4), []
    engine = Engine(
        TableTarget(gap), drafter, rule(), ConstantLength(3), ProductionCoins([1, 2, 3])
    )
    stats = SpecStats()
    line = r"behind token (\d+) of row ([012]) are no numbers"
    with pytest.raises(TargetError, match=line) as error:
        run(engine, 3, LIMIT, stats, lambda context: seen.append((outputs(context), stats.emitted)))
    out, emitted = seen[-1]
    assert [len(o) for o in out] == emitted
    assert all(TARGET(o[:n])[o[n]] > 0 for o in out for n in range(len(o)))
    token, row = map(int, re.search(line, str(error.value)).groups())
    assert token == emitted[row] > 0
    assert list(out[row]) in [prefix[:token] for prefix in gap.without]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("warp", [Warp(), Warp(0.0), Warp(0.7, 2), Warp(1.0, 0, 0.5)])
def test_laws_of_such_logits_are_no_numbers(warp, bad):
    """The warpers must not turn them into a law: that would be a token made of nothing."""
    logits = torch.tensor([[1.0, bad, 0.0, -1.0], [1.0, 2.0, 0.0, -1.0]])
    laws = warp(logits)
    assert laws[0].sum().isnan()
    assert laws[1].sum() == pytest.approx(1)


def test_no_numbers_in_a_finished_row_do_not_matter():
    class Short(TableTarget):
        """Row 0 ends at once; what is computed for it then is rubbish."""

        def score(self, context, draft):
            probs = super().score(context, draft).probs
            for row, finished in enumerate(context.finished):
                if finished:
                    probs[row] = float("nan")
            return Scores(probs)

    engine = Engine(
        Short(TARGET),
        ModelDrafter(TableModel(MODEL)),
        TokenRule(),
        ConstantLength(2),
        ProductionCoins([1, 2, 3]),
        eos=2,
    )
    context = run(engine, 3, 30, SpecStats())
    assert len(set(context.base)) > 1
