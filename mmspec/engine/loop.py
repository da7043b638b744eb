"""THE loop: propose → score → verify → commit → observe. Plain decoding is its null drafter."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import torch
from torch import Tensor

from .accept.guess import verify_guessed
from .draft import Context, Draft, Interrupted, Scores, Verdict
from .laws import TargetError
from .protocols import DraftsAhead, Engine, Seatable, Stop, closing
from .seats import Seats
from .stats import SpecStats


@torch.inference_mode()
def run(
    engine: Engine,
    rows: int,
    limit: int,
    stats: SpecStats,
    on_round: Callable[[Context], bool] | None = None,
    device: torch.device | str = "cpu",
    first: Tensor | None = None,
    window: int | None = None,
    at_once: int | None = None,
) -> Context:
    """Generate up to `limit` tokens for every row.

    Args:
        engine: target, drafter, rule, length policy and coins.
        rows: samples; every row accepts its own length and finishes on its own.
        limit: output tokens per row.
        stats: counters to fill.
        on_round: called after every round; True interrupts, keeping what was emitted.
        device: where tokens live.
        first: what stands in front of the first token, see `Context.empty`.
        window: positions of the output that are kept; None: all.
        at_once: samples that have a row, where the others wait until one is over; `first` and
            `window` are for batches without. None: all.

    Returns:
        The final context of all samples: tokens `[B, ≥ limit]`, of which row b has `lengths[b]`.
    """
    target, drafter, rule, length = engine.target, engine.drafter, engine.rule, engine.length
    own = 0 if getattr(rule, "local", False) else 1
    context = Context.empty(min(rows, at_once or rows), limit, device, first, window)
    seats = Seats(engine, context, rows)
    stats.start(rows)
    length.start(context.rows)
    with closing(drafter):
        with stats.phase("prefill"):
            target.start(context.rows)
            drafter.start(context)
        ahead = drafter.ahead if isinstance(drafter, DraftsAhead) else None
        # interrupted within a round: what rounds before it emitted is kept
        with suppress(Interrupted):
            while not all(context.finished):
                started = time.perf_counter()
                proposal, verification = engine.coins.round(context.round)
                with stats.phase("draft"):
                    # a draft leaves room for the token that the target adds of its own
                    rooms = [room - own for room in context.room()]
                    budget = [min(b, room) for b, room in zip(length.budget(), rooms, strict=True)]
                    draft = drafter.propose(context, [max(0, b) for b in budget], proposal)
                    guessing = ahead and ahead(context, draft, proposal)
                with stats.phase("target"):
                    scores = target.score(context, draft)
                with stats.phase("draft"):
                    guess = guessing and guessing()
                with stats.phase("verify"):
                    if guess is None:
                        verdict = rule.verify(draft, scores, verification)
                    else:
                        verdict = verify_guessed(rule, draft, guess, scores, verification)
                if verdict.keep is not None:
                    with stats.phase("resample"):
                        verdict = target.sample_next(context, draft, verdict, verification)
                with stats.phase("update"):
                    target.commit(context, draft, verdict)
                    counts = advance(context, draft, scores, verdict, engine.eos, engine.stop)
                    told = scores.calls, scores.reread_tokens, context.samples, context.guessed
                    stats.observe(*counts, *told)
                    stats.observe_calls(draft, verdict, counts[-1], context.samples)
                    _wait(context, engine)
                    seats.told(context, stats)
                    drafter.observe(context, draft, scores, verdict)
                context.seconds = time.perf_counter() - started
                length.observe(context, draft, verdict)
                if on_round is not None and on_round(context):
                    break
                seats.fill(context, stats)
    return seats.whole(context)


def _wait(context: Context, engine: Engine) -> None:
    """Have rows that emitted nothing see the same coins in the next round: to them it is the same.

    So what a row draws depends on its own rounds, and not on how long others' took.
    """
    waiting = [r for r, n in enumerate(context.emitted) if not (n or context.finished[r])]
    if waiting:
        began = context.began or [0] * context.rows
        context.began = [one + (row in waiting) for row, one in enumerate(began)]
        if isinstance(engine.coins, Seatable):
            engine.coins.seat(context, waiting)


def advance(
    context: Context,
    draft: Draft,
    scores: Scores,
    verdict: Verdict,
    eos: int | tuple[int, ...] | None = None,
    stop: Stop | None = None,
) -> tuple[int, list[int], list[int], list[int], list[int]]:
    """Append what was emitted; returns per row what `SpecStats.observe` counts.

    Nothing joins a finished row, and nothing after a token that ends it or the limit. Emitted
    tokens beyond a row's count are filling that the next round overwrites.

    Raises:
        TargetError: the target's laws are no numbers; the context stays where it was.
    """
    counts, accepted = verdict.counts, verdict.accepted
    none = torch.zeros_like(counts)
    end = none
    if eos is not None or stop is not None:
        several = (eos,) if isinstance(eos, int) else eos or ()
        ends = torch.zeros_like(verdict.emitted, dtype=torch.bool)
        for token in several:
            ends |= verdict.emitted == token
        first = torch.where(ends.any(1), ends.long().argmax(1) + 1, counts + 1)
        if stop is not None:
            real = torch.minimum(counts, first)
            first = torch.minimum(first, stop(context, verdict.emitted, real))
        end = (first <= counts).long()
        counts = torch.minimum(counts, first)
        accepted = torch.minimum(accepted, counts)
    if any(context.finished):
        open_rows = torch.tensor([not f for f in context.finished], device=counts.device)
        counts, accepted = counts * open_rows, accepted * open_rows
    width = verdict.emitted.shape[1]
    context.reserve(width)
    positions = context.lengths.unsqueeze(1)
    if width > 1:
        positions = positions + torch.arange(width, device=counts.device)
    if context.window is not None:
        positions = positions % context.window
    shape = verdict.emitted.shape[2:]
    if shape:
        positions = positions.view(-1, width, *[1] * len(shape)).expand(-1, -1, *shape)
    context.tokens.scatter_(1, positions, verdict.emitted)
    lengths = context.lengths + counts
    undefined = scores.undefined()
    faulty = none if draft.faulty is None else draft.faulty
    guessed = none if verdict.guessed is None else verdict.guessed
    # what stands is no prefix: it says nothing of how far a draft may go
    reached = draft.reach() if verdict.keep is None else none
    # the one synchronization of a round: how far each row came, and whether it is over
    nodes, reach, kept, emitted, base, ended, wrong, faults, guesses = torch.stack(
        [draft.lengths, reached, accepted, counts, lengths, end, undefined, faulty, guessed]
    ).tolist()
    for row, finished in enumerate(context.finished):
        if wrong[row] and not finished and scores.undefined_where_drawn(verdict.accepted)[row]:
            sample = row if context.samples is None else context.samples[row]
            raise TargetError(
                f"the target's laws behind token {context.base[row]} of row {sample} are no numbers"
            )
        over = base[row] - context.limit  # a draft may not have left room for the target's token
        if over > 0:
            base[row], emitted[row] = context.limit, emitted[row] - over
            kept[row] = min(kept[row], emitted[row])
            lengths = lengths.clamp_max(context.limit)
        if base[row] >= context.limit or ended[row]:
            context.finished[row] = True
        if guesses[row] > 0 and emitted[row] == kept[row]:  # the row ends in front of it
            guesses[row] = -1
    context.base, context.lengths, context.last = base, lengths, verdict.last
    context.reached, context.accepted, context.emitted = reach, kept, emitted
    context.keep, context.faulty, context.guessed = verdict.keep, faults, guesses
    context.round += 1
    return draft.nodes, nodes, reach, kept, emitted
