"""Jacobi windows."""

from __future__ import annotations

from typing import Any, Literal

from ..options import option
from ..part import Drafter, DraftOptions, Preset

JacobiInit = Literal["uniform", "previous", "above"]


class WindowOptions(DraftOptions):
    window: int = option(16, "positions that are drafted at a time", 1, 256, limits=("depth",))
    jacobi_init: JacobiInit = option("previous", "the law of a position that enters the window")

    def first(self, stride: int) -> int:
        return self.window


class RefinedOptions(WindowOptions):
    refinements: int = option(2, "times a drafter corrects the window before a target's call", 1, 8)
    trust: float = option(8.0, "most that it may multiply a probability by", 1, 1000)

    def calls(self, depth: int) -> list[int]:
        return [1 + depth] * (1 + self.refinements) if depth else []


def _window(name: str, module: str, kind: str, summary: str, **more: Any) -> Drafter:
    """A Jacobi window."""
    reference = f".jacobi.{module}:{kind}"
    given = {"init": "jacobi_init", "row": "stride"}
    both: Any = dict(depth="window", knob="window", window=True, one_law=lambda options: True)
    return Drafter(name, reference, summary, WindowOptions, given, **both, **more)


PARTS = (
    _window(
        "jacobi",
        "jacobi",
        "JacobiDrafter",
        "the target's own last laws draft a window",
        merges=True,
        paper="Teng et al. 2024",
    ),
    _window(
        "coupled-jacobi",
        "coupled",
        "CoupledJacobiDrafter",
        "a window whose tokens stay put, by a coupling",
        settled=True,
        merges=True,
        paper="So et al. 2025",
    ),
    _window(
        "gumbel-jacobi",
        "gumbel",
        "GumbelJacobiDrafter",
        "a window whose tokens stay put, by one noise per place",
        settled=True,
        paper="So et al. 2025",
    ),
    Drafter(
        "refined-jacobi",
        ".jacobi.refined:RefinedJacobiDrafter",
        "a coupled window; a smaller model corrects its laws as tokens change",
        RefinedOptions,
        {"init": "jacobi_init", "row": "stride"},
        needs=("drafter",),
        depth="window",
        knob="window",
        window=True,
        settled=True,
        one_law=lambda options: True,
    ),
    Preset(
        "sjd",
        "jacobi",
        "token",
        "the target drafts a window itself (Jacobi)",
        knob="window",
        sweep=(4, 8, 16, 32),
    ),
    Preset(
        "scd",
        "coupled-jacobi",
        "token",
        "the target guesses a window ahead and keeps its guesses as they settle (coupled Jacobi)",
        knob="window",
        sweep=(4, 8, 16, 32),
    ),
    Preset(
        "scd-refined",
        "refined-jacobi",
        "token",
        "scd whose window a smaller model corrects as its tokens change",
        knob="window",
        sweep=(8, 16, 32, 48),
    ),
    Preset(
        "scd-gumbel",
        "gumbel-jacobi",
        "token",
        "scd whose guesses settle by one noise for each place",
    ),
)
