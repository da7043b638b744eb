"""Drafters that know where tokens stand in the picture, and rules that ask them."""

from __future__ import annotations

from typing import Literal

from ..options import option
from ..part import Drafter, DraftOptions, Preset, Rule
from .shared import NearestOptions, NullOptions

Upsampler = Literal["learned", "pixels", "nearest"]


class RowsOptions(DraftOptions):
    draft_rows: int = option(
        1, "rows of the picture that are drafted at a time", 1, 64, limits=("depth",)
    )

    def first(self, stride: int) -> int:
        return self.draft_rows * stride


class MultiscaleOptions(RowsOptions):
    upsampler: Upsampler = option("learned", "what scales the small picture up")
    draft_guidance: float = option(4.0, "guidance of the small picture", 0, 100)
    draft_temperature: float = option(0.7, "temperature of the small picture", 0, 100)

    def needs(self) -> tuple[str, ...]:
        """The small picture's network, and what scales it up."""
        return ("sibling", "upsampler") if self.upsampler == "learned" else ("sibling",)


class ZipArOptions(NullOptions):
    zipar_window: int = option(
        4, "tokens that a row waits for the one above; fewer is faster", 1, 256
    )


class ParallelOptions(NullOptions):
    parallel_rows: int = option(3, "rows of the picture that are drawn side by side", 1, 64)
    parallel_window: int = option(3, "tokens that are guessed in each of them", 1, 256)
    parallel_lag: int = option(
        1, "tokens that a row is behind the one above at least; fewer is faster", 1, 256
    )


class LocalOptions(NearestOptions):
    local_threshold: float = option(
        0.1, "probability that a drafted token must reach; less is faster", 0, 1
    )
    local_radius: int = option(0, "how many tokens around a fallen one fall with it", 0, 16)
    local_criterion: Literal["threshold", "ratio"] = option(
        "threshold", "what is compared with the threshold: a probability, or a ratio of two"
    )
    local_window: int = option(
        2, "tokens that a row of an island is behind the one above it as it is drawn again", 1, 256
    )
    local_turns: int | None = option(
        None,
        "most calls in which fallen tokens are drawn again; none: as many as it takes",
        0,
        65536,
    )
    local_advance: int | None = option(
        None, "tokens that join the output in a round at least; none: all", 1, 65536
    )
    local_slips: int = option(0, "fallen tokens that are passed over before that", 0, 65536)


def _without_law(options: LocalOptions, drafter: Drafter) -> str | None:
    if options.local_criterion != "ratio" or drafter.known:
        return None
    return (
        "local_criterion 'ratio' divides by the probability with which a token was drafted, and "
        f"drafter {drafter.name!r} does not know it; use 'threshold'"
    )


PARTS = (
    Drafter(
        "multiscale",
        ".image.multiscale:MultiScaleDrafter",
        "a small picture of the same family, scaled up",
        MultiscaleOptions,
        {"picture": "scaled_up"},
        depth="draft_rows",
        positions=True,
        unjudged="maybe",
        known=False,
        laws=False,
        paper="Peruzzo et al. 2026",
    ),
    Drafter(
        "spatial",
        ".image.spatial:SpatialDrafter",
        "heads on the target's features look below and to the right",
        RowsOptions,
        {"heads": "spatial", "row": "stride", "rule": "relaxed"},
        needs=("spatial",),
        depth="draft_rows",
        positions=True,
        settled=True,
        paper="Xiang et al. 2026",
    ),
    Drafter(
        "zipar",
        ".image.zipar:ZipArDrafter",
        "rows of the picture are drawn side by side",
        ZipArOptions,
        {"model": "target", "window": "zipar_window"},
        unjudged="always",
        paper="He et al. 2024",
    ),
    Drafter(
        "parallel-jacobi",
        ".image.parallel_jacobi:ParallelJacobiDrafter",
        "rows of the picture are drawn side by side, each in a window",
        ParallelOptions,
        {
            "model": "target",
            **{name: f"parallel_{name}" for name in ("rows", "window", "lag")},
        },
        unjudged="always",
        paper="Liao et al. 2026",
    ),
    Rule(
        "local",
        ".local:LocalRule",
        "a set of tokens stands, and islands of the others are drawn again",
        LocalOptions,
        {
            "neighbours": lambda o, f: f["nearest"]()(o.neighbours) if o.neighbours else None,
            **{name: f"local_{name}" for name in ("threshold", "radius", "criterion")},
            **{name: f"local_{name}" for name in ("advance", "slips")},
        },
        contract="lossy",
        positions=True,
        check=_without_law,
        paper="Peruzzo et al. 2026",
    ),
    Rule(
        "unverified",
        ".unverified:UnverifiedRule",
        "all that is drafted stands",
        contract="lossy",
        judges=False,
    ),
    Preset(
        "mulo-sd",
        "multiscale",
        "local",
        "a small picture is scaled up; what the target doubts is drawn again island by island",
        knob="local_threshold",
        sweep=(0.7, 0.5, 0.3, 0.1),
        settings={"draft_rows": 16},
        serves=("image",),
    ),
    Preset(
        "spatial-sd",
        "spatial",
        "local",
        "heads on the target's features draft rows from the row above",
        knob="neighbours",
        sweep=(0, 4, 10, 20),
        settings={
            "local_criterion": "ratio",
            "local_threshold": 1.0,
            "local_radius": 0,
            "local_turns": 0,
            "local_advance": 1,
            "neighbours": 12,
            "draft_rows": 1,
        },
        serves=("image",),
    ),
    Preset(
        "spatial-exact",
        "spatial",
        "token",
        "heads on the target's features draft rows from the row above, with nothing let off",
        knob="draft_rows",
        sweep=(1, 2, 3),
        settings={"draft_rows": 1},
        serves=("image",),
    ),
    Preset(
        "zipar",
        "zipar",
        "unverified",
        "rows in parallel, each some tokens behind the one above, nobody verifies",
        role="sceptic",
        knob="zipar_window",
        sweep=(8, 4, 2, 1),
        serves=("image",),
    ),
    Preset(
        "pjd",
        "parallel-jacobi",
        "unverified",
        "the target guesses several rows at a time, each in a window of its own",
        knob="parallel_rows",
        sweep=(1, 2, 3, 4),
        serves=("image",),
    ),
    Preset(
        "upsample-only",
        "multiscale",
        "unverified",
        "a small picture scaled up, nobody verifies",
        role="sceptic",
        serves=("image",),
    ),
)
