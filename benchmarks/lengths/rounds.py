"""Rounds of drafts on a machine whose costs are a table, and whose clock they move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mmspec.engine.draft import Context, Draft, Verdict
from mmspec.engine.laws import Law
from mmspec.engine.protocols import DraftLength

Stands = Callable[[int, int, int], int]
"""How many of the first tokens stand, of a row's draft at a place with so many tokens."""
Laws = Callable[[Sequence[int], Sequence[int]], Law]
"""What is drafted was drawn from, given each row's place and the tokens of its draft."""


@dataclass(frozen=True)
class RoundCost:
    """Seconds of a round: a + b · rows · (1 + γ) + γ · (c + d · rows).

    Attributes:
        fixed, token: a and b, of the target's call, whose rows are all read as wide as the longest.
        call, row: c and d, of each call of the drafter.
    """

    fixed: float
    token: float
    call: float
    row: float

    def seconds(self, rows: int, depth: int) -> float:
        """Seconds where so many rows run, and the longest draft has so many tokens."""
        judged = self.fixed + self.token * rows * (1 + depth)
        return judged + depth * (self.call + self.row * rows)


@dataclass
class Machine:
    """A clock that rounds move.

    Attributes:
        cost: of rounds.
        noise: deviation of the logarithm of a round's seconds.
        now: seconds until now.
        longest: seconds of the longest round with drafts.
    """

    cost: RoundCost
    noise: float
    rng: np.random.Generator
    now: float = 0.0
    longest: float = 0.0

    def spend(self, rows: int, depth: int) -> float:
        """Seconds of a round, which are over then."""
        took = self.cost.seconds(rows, depth) * float(np.exp(self.noise * self.rng.normal()))
        self.now += took
        self.longest = max(self.longest, took if depth else 0.0)
        return took


@dataclass
class Played:
    """Seconds and tokens of some calls, their rounds, and how many of these drafted."""

    seconds: float = 0.0
    tokens: int = 0
    rounds: int = 0
    drafted: int = 0

    @property
    def pace(self) -> float:
        """Seconds a token."""
        return self.seconds / self.tokens

    def add(self, seconds: float, tokens: int, drafted: bool) -> None:
        """Count a round."""
        self.seconds, self.tokens = self.seconds + seconds, self.tokens + tokens
        self.rounds, self.drafted = self.rounds + 1, self.drafted + drafted


def play(
    machine: Machine,
    policy: DraftLength,
    lengths: Sequence[int],
    stands: Stands,
    laws: Laws,
    total: Played,
) -> None:
    """Write samples of so many tokens together, row by row; adds what that took to `total`.

    The last token of a sample is never drafted, since the target writes one in each round.
    """
    rows, context = len(lengths), Context.empty(len(lengths), max(lengths))
    policy.start(rows)
    while not all(context.finished):
        running = [n for n in range(rows) if not context.finished[n]]
        asked, drafts, kept = policy.budget(), [0] * rows, [0] * rows
        for row in running:
            at = context.base[row]
            drafts[row] = max(0, min(asked[row], lengths[row] - at - 1))
            kept[row] = stands(row, at, drafts[row])
        depth, law = max(drafts), laws(context.base, drafts)
        seconds = machine.spend(len(running), depth)
        context.emitted = [kept[n] + 1 if n in running else 0 for n in range(rows)]
        context.base = [at + more for at, more in zip(context.base, context.emitted, strict=True)]
        context.finished = [at >= end for at, end in zip(context.base, lengths, strict=True)]
        context.reached, context.accepted, context.seconds = drafts, kept, seconds
        total.add(seconds, sum(context.emitted), depth > 0)
        tokens = torch.zeros(rows, depth, dtype=torch.long)  # which they are is all one
        accepted = torch.tensor(kept)
        verdict = Verdict(accepted, tokens, tokens[:, :1], accepted + 1)
        policy.observe(context, Draft(tokens, torch.tensor(drafts), law), verdict)
