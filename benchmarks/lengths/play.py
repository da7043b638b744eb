"""Length policies of the engine on recorded acceptances; a table of costs is the clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from unittest.mock import patch

import numpy as np
import torch

from mmspec.engine.laws import Categorical
from mmspec.engine.length.constant import ConstantLength, HeuristicLength
from mmspec.engine.length.faser import FaserLength
from mmspec.engine.length.goodput import Experience, GoodputLength
from mmspec.engine.length.guard import GuardedLength
from mmspec.engine.length.speckv import SpecKvLength
from mmspec.engine.protocols import DraftLength
from mmspec.methods import SpecConfig
from mmspec.pipelines.load_switch import LoadSwitch

from .rounds import Machine, Played, RoundCost, play

MOST = 8  # tokens of a draft
FIXED = (0, 1, 2, 4, 8)  # lengths that a policy is compared with in hindsight
_NOW = "mmspec.engine.length.guard.now"
_AUTO = (4, 0, 8, 2)  # lengths that "auto" chooses from; the second is plain


SYNTHETIC = {
    "idle": RoundCost(1.0, 0.002, 0.03, 0.001),  # a card that waits for its memory
    "middle": RoundCost(1.0, 0.02, 0.05, 0.005),
    "busy": RoundCost(1.0, 0.1, 0.1, 0.02),  # a processor: every token costs
}


@dataclass
class Recorded:
    """Acceptances along an output, see `benchmarks.simulation.recorded.Trace`.

    Attributes:
        stands: chance of every token that a draft of it stands.
        laws: of every token, the largest probabilities of the drafter's law, and the rest as one.
    """

    stands: list[float]
    laws: list[list[float]]


@dataclass
class Compared:
    """Goodput of policies by one table of costs.

    Attributes:
        speedups: goodput over plain decoding's, by policy and batch size.
        regrets: seconds over those of the best fixed length in hindsight, less 1.
    """

    speedups: dict[str, dict[int, float]] = field(default_factory=dict)
    regrets: dict[str, dict[int, float]] = field(default_factory=dict)


POLICIES: dict[str, Callable[[Experience], DraftLength]] = {
    "heuristic": lambda known: HeuristicLength(4, MOST),
    "goodput (SmartSpec)": GoodputLength,
    "speckv": SpecKvLength,
    "faser": FaserLength,
}


def compare(
    texts: Sequence[Recorded],
    cost: RoundCost,
    batches: Sequence[int],
    calls: int,
    noise: float = 0.05,
    seed: int = 0,
    done: Callable[[], object] = lambda: None,
) -> Compared:
    """Play every policy on the same outputs, with the same coins, in batches of each size.

    Args:
        texts: that calls are made of.
        cost: of rounds.
        batches: sizes.
        calls: one after the other, from which policies learn; the first ones count.
        noise: deviation of the logarithm of a round's seconds.
        done: called after every policy and size.
    """
    found = Compared()
    for rows in batches:
        played = {}
        for name, call in _ways(cost, rows).items():
            machine = Machine(cost, noise, np.random.default_rng(seed))
            total = Played()
            with patch(_NOW, lambda machine=machine: machine.now):
                for number in range(calls):
                    which, coins = _drawn(texts, rows, seed + number)
                    call(machine, which, coins, total)
            played[name] = total
            done()
        best = min(total.pace for name, total in played.items() if name in _fixed())
        for name, total in played.items():
            found.speedups.setdefault(name, {})[rows] = played["plain"].pace / total.pace
            found.regrets.setdefault(name, {})[rows] = total.pace / best - 1
    return found


def ways() -> list[str]:
    """Names of what is compared."""
    return [*_fixed(), *POLICIES, "auto"]


Coins = Sequence[np.ndarray]
Call = Callable[[Machine, Sequence[Recorded], Coins, Played], None]


def _fixed() -> dict[str, int]:
    return {"plain" if not n else f"{n} tokens": n for n in FIXED}


def _ways(cost: RoundCost, rows: int) -> Mapping[str, Call]:
    profile = [cost.seconds(rows, depth) for depth in range(MOST + 1)]

    def by(policy: DraftLength) -> Call:
        def call(machine: Machine, texts: Sequence[Recorded], coins: Coins, total: Played) -> None:
            written(machine, policy, texts, coins, total)

        return call

    found = {name: by(ConstantLength(length)) for name, length in _fixed().items()}
    found |= {name: by(made(Experience(list(profile)))) for name, made in POLICIES.items()}
    switch, sizes = LoadSwitch(), [SpecConfig("draft", num_draft_tokens=n or 1) for n in _AUTO]
    sizes[1] = SpecConfig("plain")

    def auto(machine: Machine, texts: Sequence[Recorded], coins: Coins, total: Played) -> None:
        with switch.call(sizes, len(texts)) as (chosen, told):
            assert switch.guard is not None
            machine.now += cost.fixed / 100  # what is in front of the rounds
            inner = ConstantLength(_AUTO[sizes.index(chosen)])
            written(machine, GuardedLength(inner, switch.guard), texts, coins, total)
            told([len(text.stands) for text in texts])

    return {**found, "auto": auto}


def _drawn(texts: Sequence[Recorded], rows: int, seed: int) -> tuple[list[Recorded], Coins]:
    """Texts of a batch, and a coin for each of their tokens."""
    rng = np.random.default_rng(seed)
    chosen = [texts[int(n)] for n in rng.integers(len(texts), size=rows)]
    return chosen, [rng.random(len(text.stands)) for text in chosen]


def written(
    machine: Machine,
    policy: DraftLength,
    texts: Sequence[Recorded],
    coins: Coins,
    total: Played,
) -> None:
    """Write recorded texts together; adds what that took to `total`."""
    stood = [c < np.array(t.stands) for c, t in zip(coins, texts, strict=True)]

    def stands(row: int, at: int, depth: int) -> int:
        ahead = stood[row][at : at + depth]
        return len(ahead) if ahead.all() else int(ahead.argmin())

    lengths = [len(text.stands) for text in texts]
    play(machine, policy, lengths, stands, partial(_laws, texts), total)


def _laws(texts: Sequence[Recorded], base: Sequence[int], drafts: Sequence[int]) -> Categorical:
    """The drafter's laws of what is drafted `[B, N, K]`; filling has none."""
    width = max(len(text.laws[0]) for text in texts)
    probs = np.zeros((len(texts), max(drafts), width))
    for row, (text, at, depth) in enumerate(zip(texts, base, drafts, strict=True)):
        for n in range(depth):
            law = text.laws[at + n]
            probs[row, n, : len(law)] = law
    return Categorical(torch.from_numpy(probs))
