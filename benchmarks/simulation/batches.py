"""Requests that arrive by chance and join a batch: latency by load, and by who chooses lengths.

The policies are those of the engine, on the simulated clock. A round takes the drafter's calls for
all rows, as many as the longest draft has tokens, and a call of the target for all tokens together,
as if they were one request's: that a row is read as wide as the longest one is left out, and so is
what a prompt takes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
import torch

from mmspec.engine.draft import Context, Draft, Verdict
from mmspec.engine.laws import OneHot
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.length.faser import FaserLength
from mmspec.engine.length.goodput import Experience, GoodputLength
from mmspec.engine.protocols import DraftLength, seatable

from .costs import Costs
from .schedules import Text
from .subject import LENGTH, Likely

SEATS = 8  # requests that run at a time
MOST = 8  # tokens of a draft
REQUESTS = 120
ARRIVALS = (0.5, 1.0, 2.0)  # in the time that plain decoding takes for one request alone
POLICIES: dict[str, Callable[[Experience], DraftLength]] = {
    "plain": lambda known: ConstantLength(0),
    f"draft, {LENGTH} tokens": lambda known: ConstantLength(LENGTH),
    "draft, goodput's length": GoodputLength,
    "draft, FASER's lengths": FaserLength,
}


def round_seconds(costs: Costs, drafts: Sequence[int]) -> float:
    """Seconds of a round whose rows draft so many tokens."""
    levels, others = max(drafts), len(drafts) + sum(drafts) - 1  # tokens judged beside the first
    drafting = costs.drafting(levels, len(drafts)) if levels else 0.0
    return drafting + costs.call(others) + costs.rest(others)


def batch_latency(
    texts: Sequence[Likely],
    made: Callable[[Experience], DraftLength],
    costs: Costs,
    gap: float,
    requests: int = REQUESTS,
) -> float:
    """Mean seconds from a request's arrival to its end, where up to `SEATS` run together.

    Args:
        texts: that requests are, each as likely.
        made: the policy, of a profile of one row.
        costs: seconds of calls.
        gap: mean seconds between arrivals, which know nothing of each other.
        requests: how many come.
    """
    coins = np.random.default_rng(0)
    arrivals = coins.exponential(gap, requests).cumsum()
    drawn = coins.integers(len(texts), size=requests)
    waiting = deque(
        (at, texts[n].drawn(k)) for k, (at, n) in enumerate(zip(arrivals, drawn, strict=True))
    )
    policy = made(Experience([round_seconds(costs, [n]) for n in range(MOST + 1)]))
    context, now, took = Context.empty(SEATS, 1), 0.0, list[float]()
    context.finished = [True] * SEATS
    policy.start(SEATS)
    _tell(policy, context, [0] * SEATS)  # nobody is there yet
    seats: list[tuple[float, Text] | None] = [None] * SEATS
    while waiting or any(seats):
        if not any(seats):
            now = max(now, waiting[0][0])
        for seat in (n for n in range(SEATS) if seats[n] is None):
            if waiting and waiting[0][0] <= now:
                seats[seat], context.finished[seat] = waiting.popleft(), False
                seatable(policy).seat(context, [seat])
        taken = [(seat, *held) for seat, held in enumerate(seats) if held is not None]
        asked, drafts, kept = policy.budget(), [0] * SEATS, [0] * SEATS
        for seat, _, text in taken:
            drafts[seat] = min(asked[seat], text.room - 1)
            kept[seat] = text.accepted(drafts[seat])
            text.at += kept[seat] + 1
        seconds = round_seconds(costs, [drafts[seat] for seat, *_ in taken])
        now += seconds
        for seat, arrived, text in taken:
            if not text.going:
                took.append(now - arrived)
                seats[seat], context.finished[seat] = None, True
        _tell(policy, context, drafts, kept, seconds)
    return float(np.mean(took))


def _tell(
    policy: DraftLength,
    context: Context,
    drafts: list[int],
    kept: list[int] | None = None,
    seconds: float = 0.0,
) -> None:
    """Let a policy see a round."""
    context.reached, context.accepted = drafts, kept or [0] * len(drafts)
    context.emitted = [n + 1 for n in context.accepted]
    context.seconds = seconds
    made = torch.zeros(len(drafts), max(drafts) + 1, dtype=torch.long)  # which they are is all one
    draft = Draft(made[:, 1:], torch.tensor(drafts), OneHot())
    accepted = torch.tensor(context.accepted)
    policy.observe(context, draft, Verdict(accepted, made, made[:, :1], accepted + 1))
