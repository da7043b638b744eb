"""FASER: drafts that are pruned within the target's call, and judged in chunks while others come.

Chen et al. 2026, see docs/methods.md. What a share of a device costs is measured as two processes
that share this machine's memory. How lengths are chosen by load: see `batches`.
"""

from __future__ import annotations

from .schedules import Process, Schedule, Text, World


def pruning(length: int, part: float) -> Schedule:
    """Draft on the target's device, and read what its first layers let through.

    Args:
        length: tokens of a draft.
        part: of the target's layers that read all of a draft.
    """

    def schedule(world: World, text: Text) -> Process:
        while text.going:
            drafted = min(length, text.room - 1)
            if drafted:
                yield from world.use(world.first, world.costs.drafting(drafted))
            yield from world.use(world.first, _call(world, text, drafted, part))
            yield from world.rest(drafted)
            text.at += text.accepted(drafted) + 1

    return schedule


def chunked(length: int, chunk: int, part: float) -> Schedule:
    """Judge a draft in chunks, each while the next one is drafted on the other share.

    The first token of a chunk is judged with the chunk before it, by the law behind that; so no
    call is spent on a token of the target's own that was drafted already. Where anything falls,
    what was drafted behind it is thrown away.

    Args:
        length: tokens of a draft.
        chunk: tokens that are drafted while others are judged, two or more.
        part: of the target's layers that read all of a chunk; 1: nothing is pruned.
    """
    if not 2 <= chunk <= length:
        raise ValueError(f"a chunk has from 2 to {length} tokens, not {chunk}")

    def schedule(world: World, text: Text) -> Process:
        ready = begun = 0  # tokens that are drafted and unjudged, and those of the draft so far
        told = world.costs.beside.wake + world.costs.beside.receive
        while text.going:
            if not ready:
                ready = begun = min(chunk, text.room - 1)
                if ready:
                    yield from world.use(world.second, told + world.costs.drafting(ready))
            more = max(0, min(chunk, length - begun, text.room - 1 - ready))
            yield from world.both(_call(world, text, ready, part), more)
            yield from world.rest(ready)
            accepted = text.accepted(ready)
            goes_on = more and accepted == ready and text.drafted(text.at + ready)
            ready, begun = (more - 1, begun + more) if goes_on else (0, 0)
            text.at += accepted + 1

    return schedule


def _call(world: World, text: Text, drafted: int, part: float) -> float:
    """Seconds of the target's call for a draft of which only some goes through all layers."""
    left = text.left(drafted)
    return part * world.costs.call(drafted) + (1 - part) * world.costs.call(left)
