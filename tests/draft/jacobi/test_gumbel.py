"""Jacobi with one noise per place: exact by enumeration, and coupled as the closed form says."""

from __future__ import annotations

import itertools

import pytest
import torch
from toys import EXACT, Table, TableTarget, context_at, distance, outputs

import mmspec.engine.coins as coins_module
from mmspec.draft.jacobi.gumbel import GumbelJacobiDrafter
from mmspec.draft.jacobi.jacobi import JacobiDrafter
from mmspec.engine.accept.token import TokenRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.loop import run
from mmspec.engine.proof.enumeration import EnumeratingCoins, enumerate_law
from mmspec.engine.protocols import Engine
from mmspec.engine.stats import SpecStats


class CellCoins:
    """Enumerated coins that know the noise of two tokens, u and 1 − u, up to what matters of it.

    argmin of u / q(0) and (1 − u) / q(1) is token 0 where u < q(0); so only the cell of u between
    the probabilities that token 0 can have decides anything.
    """

    def __init__(self, coins: EnumeratingCoins, probabilities: set[float]) -> None:
        self.coins = coins
        self.edges = sorted({0.0, 1.0, *probabilities})
        self.known: dict[int, float] = {}

    def round(self, number):
        return self, self

    def accept(self, prob, lengths):
        return self.coins.accept(prob, lengths)

    def draw(self, weights, index=0):
        return self.coins.draw(weights, index)

    def exponential(self, positions, count):
        assert count == 2
        for place in positions[0].tolist():
            if place not in self.known:
                cells = list(itertools.pairwise(self.edges))
                cell = cells[self.coins._choose(0, [high - low for low, high in cells])]
                self.known[place] = sum(cell) / 2
        u = torch.tensor([[self.known[p] for p in positions[0].tolist()]], dtype=torch.float64)
        return torch.stack([u, 1 - u], -1)


def law_of(target: Table, limit: int, drafter_class, window: int = 2, init: str = "previous"):
    prefixes = [p for n in range(limit) for p in itertools.product(range(2), repeat=n)]
    probabilities = {target(prefix)[0] for prefix in prefixes} | {0.5}

    def shipped(coins, rows):
        drafter = drafter_class(2, init)
        cells = CellCoins(coins, probabilities)
        engine = Engine(TableTarget(target), drafter, TokenRule(), ConstantLength(window), cells)
        return outputs(run(engine, rows, limit, SpecStats()))

    return enumerate_law(shipped, at_once=1)


def worst(drafter_class, init: str = "previous") -> float:
    targets = [Table(2, seed) for seed in (1, 2, 3)]
    return max(distance(law_of(t, 3, drafter_class, init=init), t.joint(3)) for t in targets)


@pytest.mark.parametrize("init", ["previous", "uniform"])
def test_joint_law_of_the_whole_loop(init):
    assert worst(GumbelJacobiDrafter, init) < EXACT


class Unmoved(GumbelJacobiDrafter):
    """The hazard: the token follows the noise alone, and not the law it claims to come from."""

    def redraw(self, context, laws, index, coins):
        super().redraw(context, laws, index, coins)
        return self._noise.argmin(-1)


class Judging(CellCoins):
    """The hazard: the noise of the first place judges the drafts as well."""

    def accept(self, prob, lengths):
        return torch.tensor([[self.known[0]]]) < prob


def test_hazards_are_seen(monkeypatch):
    assert worst(Unmoved) > 1e-2
    monkeypatch.setitem(globals(), "CellCoins", Judging)
    assert worst(GumbelJacobiDrafter) > 1e-2


# --- the real noise -------------------------------------------------------------------------------


def pair_law(q: list[float], p: list[float], steps: int = 4000) -> torch.Tensor:
    """P(x, y) of x = argmin E/q and y = argmin E/p, `[V, V]`, from the joint density of E.

    For x = y it is 1 / Σ_k max(q_k / q_x, p_k / p_x). For x ≠ y, with E_x = a and E_y = t a, all
    other E_k exceed a max(q_k / q_x, t p_k / p_y), so that the integral over a leaves
    ∫ dt / (1 + t + Σ_k max(q_k / q_x, t p_k / p_y))² from q_y / q_x to p_y / p_x.
    """
    size = len(q)
    law = torch.zeros(size, size, dtype=torch.float64)
    for x, y in itertools.product(range(size), repeat=2):
        if x == y:
            law[x, x] = 1 / sum(max(a / q[x], b / p[x]) for a, b in zip(q, p, strict=True))
            continue
        low, high = q[y] / q[x], p[y] / p[x]
        if high <= low:
            continue
        width = (high - low) / steps
        for n in range(steps):
            t = low + (n + 0.5) * width
            others = sum(max(q[k] / q[x], t * p[k] / p[y]) for k in range(size) if k not in (x, y))
            law[x, y] += width / (1 + t + others) ** 2
    return law


def test_pair_law_has_the_right_margins():
    q, p = [0.1, 0.2, 0.7], [0.3, 0.3, 0.4]
    law = pair_law(q, p)
    assert torch.allclose(law.sum(1), torch.tensor(q).double(), atol=1e-6)
    assert torch.allclose(law.sum(0), torch.tensor(p).double(), atol=1e-6)


def test_the_real_noise_has_the_pair_law():
    """Rows draw from q, then from p with the noise of the same place."""
    rows = 40_000
    q, p = [0.1, 0.2, 0.0, 0.7], [0.3, 0.25, 0.05, 0.4]
    noise = (
        ProductionCoins(list(range(rows)))
        .round(0)[0]
        .exponential(torch.full((rows, 1), 5), 4)[:, 0]
    )
    x, y = ((noise / torch.tensor(law).double()).argmin(-1) for law in (q, p))
    seen = torch.zeros(4, 4, dtype=torch.float64).index_put_(
        (x, y), torch.ones(rows, dtype=torch.float64) / rows, accumulate=True
    )
    known = [0, 1, 3]  # q gives token 2 nothing
    expected = pair_law([q[k] + 1e-12 for k in range(4)], p)
    assert seen[2].sum() == 0
    # five deviations of a share of 40,000
    assert (seen[known] - expected[known]).abs().max() < 5 * 0.5 / rows**0.5


def test_noise_belongs_to_row_and_place():
    coins = ProductionCoins([3, 4, 3])
    first = coins.round(0)[0].exponential(torch.tensor([[0, 1, 2], [0, 1, 2], [1, 2, 3]]), 6)
    later = coins.round(9)[1].exponential(torch.tensor([[2, 1], [2, 1], [2, 1]]), 6)
    assert torch.equal(first[0, 1:], first[2, :2])
    assert torch.equal(first[0, 1:].flip(0), later[0])
    assert not torch.equal(first[0], first[1])
    assert len(first.unique()) == 6 * (3 + 3 + 1)
    assert (first > 0).all()


def test_noise_follows_the_window():
    """Ragged rows, windows that narrow at the end: always the noise that the coins would give."""

    class Checked(GumbelJacobiDrafter):
        checked = 0

        def redraw(self, context, laws, index, coins):
            tokens = super().redraw(context, laws, index, coins)
            positions = context.lengths[:, None] + torch.arange(laws.shape[1])
            noise = coins.exponential(positions, self.vocab_size)
            assert torch.equal(tokens, (noise / laws).argmin(-1))
            self.checked += 1
            return tokens

    class Wavering(ConstantLength):
        """Windows of changing width; none at all now and then."""

        def budget(self):
            self.gamma = (self.gamma * 3 + 2) % 7
            return super().budget()

    drafter = Checked(4)
    engine = Engine(
        TableTarget(Table(4, 3)),
        drafter,
        TokenRule(),
        Wavering(4),
        ProductionCoins([1, 2, 3]),
    )
    run(engine, 3, 40, SpecStats())
    assert drafter.checked > 10


def test_a_law_that_stays_keeps_its_tokens():
    """The window is redrawn as a whole: where laws hardly moved, hardly a token does."""
    context, coins = context_at((), 4, 30), ProductionCoins([1, 2, 3, 4])
    random = torch.Generator().manual_seed(0)
    law = torch.rand(4, 20, 50, generator=random, dtype=torch.float64)
    moved = law * torch.where(torch.rand(50, generator=random) < 0.5, 1.02, 0.98)
    kept = {}
    for kind in (GumbelJacobiDrafter, JacobiDrafter):
        drafter = kind(50)
        drafter.start(context)
        first, second = (
            drafter.redraw(context, laws, None, coins.round(number)[0])
            for number, laws in enumerate((law, moved))
        )
        kept[kind] = float((first == second).double().mean())
    assert kept[GumbelJacobiDrafter] > 0.8
    assert kept[JacobiDrafter] < 0.2


def test_no_noise_is_zero(monkeypatch):
    """The largest coin there is: a token of probability 0 must not win by 0 / 0."""
    monkeypatch.setattr(coins_module, "_mix", lambda x: torch.full_like(x, -1))
    noise = ProductionCoins([1]).round(0)[0].exponential(torch.tensor([[0]]), 3)
    assert (noise > 0).all()
    assert (noise / torch.tensor([0.0, 1.0, 0.0]).double()).argmin(-1).item() == 1
