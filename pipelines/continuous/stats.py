"""Counters of continuous tokens: rows are tokens, what they emit are denoising steps."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from ...engine.stats import BY_POSITION, SpecStats


@dataclass
class ContinuousStats(SpecStats):
    """Counters of a batch of pictures of continuous tokens.

    The counters of `SpecStats` are those of the diffusion head: one row per token of every picture,
    in the order of drawing; what it emits are denoising steps. Calls and phases of the backbone
    are counted apart.

    Attributes:
        pictures: drawn.
        backbone_calls, backbone_rows: calls of the target's backbone one after the other, and the
            rows in them (guidance doubles them).
        head_calls, head_rows: calls of the target's head one after the other, and the rows in them,
            of a token at one step (guidance doubles them).
        drafter_backbone_calls, drafter_head_calls: the drafter's, one after the other.
        drafter_head_rows: the rows in the latter.
        judged_by_step, stood_by_step: per denoising step, the noisiest first, how often a draft of
            it was judged, and stood.
    """

    pictures: int = 0
    backbone_calls: int = 0
    backbone_rows: int = 0
    head_calls: int = 0
    head_rows: int = 0
    drafter_backbone_calls: int = 0
    drafter_head_calls: int = 0
    drafter_head_rows: int = 0
    judged_by_step: list[int] = field(default_factory=list, metadata=BY_POSITION)
    stood_by_step: list[int] = field(default_factory=list, metadata=BY_POSITION)

    def observe(self, width: int, nodes: list[int], *more: Any, **named: Any) -> None:
        # drafts are chains, whose reach is not told where nodes stand each by itself: `nodes`
        _, accepted, counts, *_ = more
        for done, depth, kept, count in zip(self.emitted, nodes, accepted, counts, strict=True):
            judged = min(count, depth)
            grow = done + judged - len(self.judged_by_step)
            self.judged_by_step += [0] * grow
            self.stood_by_step += [0] * grow
            for n in range(judged):
                self.judged_by_step[done + n] += 1
                self.stood_by_step[done + n] += n < kept
        super().observe(width, nodes, nodes, *more[1:], **named)

    def observe_backbone(self, rows: int) -> None:
        """Count one call of the target's backbone."""
        self.backbone_calls += 1
        self.backbone_rows += rows

    def observe_plain(
        self, tokens: int, steps: int, groups: int, drafter: bool = False, prefilled: bool = False
    ) -> None:
        """Count tokens that were denoised together, step by step, G = `groups` rows a token.

        drafter: by the drafter in the target's place, after a call of its backbone.
        prefilled: in front of the first draft, as the method has it, so `alone` leaves them out.
        """
        self.emitted += [steps] * tokens
        for counts in (self.calls, self.target_tokens):
            counts += [0 if drafter else steps] * tokens
        for counts in (self.drafted, self.accepted):
            counts += [0] * tokens
        if drafter:
            self.drafter_backbone_calls += 1
            self.drafter_head_calls += steps
            self.drafter_head_rows += steps * tokens * groups
        else:
            self.rounds += [0] * steps
            self.alone += 0 if prefilled else steps
            self.scored += steps
            self.head_calls += steps
            self.head_rows += steps * tokens * groups

    def observe_loop(self, other: ContinuousStats, walked: int = 0) -> None:
        """Count what a run of the loop took, in front of which the target walked so many steps."""
        for name in ("calls", "emitted", "target_tokens"):
            setattr(other, name, [steps + walked for steps in getattr(other, name)])
        other.rounds = [0] * walked + other.rounds
        other.scored += walked
        for name in _STEPS:
            setattr(other, name, [0] * walked + getattr(other, name))
        self._add(other)

    @property
    def samples(self) -> int:
        return self.pictures

    @property
    def loop_seconds(self) -> float:
        return super().loop_seconds + self.seconds.get("backbone", 0.0)

    def of_sample(self, row: int) -> dict[str, Any]:
        return {}  # rows are no pictures

    def per_sample(self, shared: bool = False) -> dict[str, float]:
        means = super().per_sample(shared)
        for name in () if shared else _TOLD:
            means[f"{name}_per_sample"] = getattr(self, name) / self.pictures
        return means

    def as_dict(self) -> dict[str, Any]:
        own = (f.name for f in fields(self)[len(fields(SpecStats)) :])
        return {**super().as_dict(), **{name: getattr(self, name) for name in own}}


_STEPS = ("judged_by_step", "stood_by_step")
_TOLD = (
    *("head_calls", "head_rows", "backbone_calls"),
    *("drafter_head_calls", "drafter_backbone_calls"),
)
