"""Jacobi windows."""

from __future__ import annotations

from typing import Any, Literal

from ..options import option
from ..part import Drafter, DraftOptions, Preset

JacobiInit = Literal["uniform", "previous", "above"]


class WindowOptions(DraftOptions):
    window: int = option(16, "positions that are drafted at a time", 1, 256)
    jacobi_init: JacobiInit = option("previous", "the law of a position that enters the window")

    def first(self, stride: int) -> int:
        return self.window


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
        "Jacobi whose tokens stay put (coupled)",
        knob="window",
        sweep=(4, 8, 16, 32),
    ),
    Preset(
        "scd-gumbel", "gumbel-jacobi", "token", "Jacobi whose tokens stay put (one noise per place)"
    ),
)
