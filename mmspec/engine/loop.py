"""THE loop: propose → score → verify → commit → observe. Plain decoding is its null drafter."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .stats import SpecStats
from .types import Context, Draft, Engine, Verdict


@torch.inference_mode()
def run(
    engine: Engine,
    rows: int,
    limit: int,
    stats: SpecStats,
    on_round: Callable[[Context], bool] | None = None,
    device: torch.device | str = "cpu",
) -> Context:
    """Generate up to `limit` tokens for every row.

    Args:
        engine: target, drafter, rule, length policy and coins.
        rows: samples B; every row accepts its own length and finishes on its own.
        limit: output tokens per row.
        stats: counters to fill.
        on_round: called after every round; True interrupts, keeping what was emitted.
        device: where tokens live.

    Returns:
        The final context: tokens `[B, ≥ limit]`, of which row b has `lengths[b]`.
    """
    target, drafter, rule, length = engine.target, engine.drafter, engine.rule, engine.length
    context = Context.empty(rows, limit, device)
    stats.start(rows)
    length.start(rows)
    with stats.phase("prefill"):
        target.start(rows)
        drafter.start(context)
    while not all(context.finished):
        proposal, verification = engine.coins.round(context.round)
        with stats.phase("draft"):
            # one token of every round comes from the target itself, so a draft leaves room for it
            budget = [
                min(b, room - 1) for b, room in zip(length.budget(), context.room(), strict=True)
            ]
            draft = drafter.propose(context, [max(0, b) for b in budget], proposal)
        with stats.phase("target"):
            scores = target.score(context, draft)
        with stats.phase("verify"):
            verdict = rule.verify(draft, scores, verification)
        with stats.phase("update"):
            target.commit(context, draft, verdict)
            stats.observe(*advance(context, draft, verdict, engine.eos))
            drafter.observe(context, draft, scores, verdict)
            length.observe(draft, verdict)
        if on_round is not None and on_round(context):
            break
    return context


def advance(
    context: Context, draft: Draft, verdict: Verdict, eos: int | None = None
) -> tuple[list[int], list[int], list[int], list[int]]:
    """Append what was emitted; returns per row what `SpecStats.observe` counts.

    Nothing joins a finished row, and nothing after an end-of-sequence token. Emitted tokens beyond
    a row's count are filling that the next round overwrites.
    """
    counts, accepted = verdict.counts, verdict.accepted
    over = None
    if eos is not None:
        ends = verdict.emitted == eos
        first = torch.where(ends.any(1), ends.long().argmax(1) + 1, counts + 1)
        over = (first <= counts).long()
        counts = torch.minimum(counts, first)
        accepted = torch.minimum(accepted, counts)
    if any(context.finished):
        open_rows = torch.tensor([not f for f in context.finished], device=counts.device)
        counts, accepted = counts * open_rows, accepted * open_rows
    width = verdict.emitted.shape[1]
    context.reserve(width)
    places = context.lengths.unsqueeze(1)
    if width > 1:
        places = places + torch.arange(width, device=counts.device)
    context.tokens.scatter_(1, places, verdict.emitted)
    context.lengths, context.last = context.lengths + counts, verdict.last
    # the one synchronization of a round: how far each row came, and whether it is over
    told = [draft.lengths, draft.reach(), accepted, counts, context.lengths]
    nodes, reach, kept, emitted, context.base, *ended = torch.stack(
        told if over is None else [*told, over]
    ).tolist()
    for row, base in enumerate(context.base):
        if base >= context.limit or (ended and ended[0][row]):
            context.finished[row] = True
    context.round += 1
    return nodes, reach, kept, emitted
