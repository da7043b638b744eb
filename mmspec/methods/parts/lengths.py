"""Draft-length policies."""

from __future__ import annotations

from ..options import Options, option
from ..part import Length


class MostOptions(Options):
    max_draft_tokens: int = option(
        16, "most tokens that a policy may ask for", 1, 64, limits=("depth",)
    )


class HeuristicOptions(MostOptions):
    num_draft_tokens: int = option(
        4, "how many are drafted before the target checks", 1, 64, limits=("depth",)
    )


class ConfidenceOptions(MostOptions):
    confidence: float = option(0.4, "below it, drafting stops", 0, 1)


class RejectionOptions(MostOptions):
    rejection: float = option(0.6, "above this probability of one, drafting stops", 0, 1)


class EosEmaOptions(MostOptions):
    least_share: float = option(0.67, "share of the most tokens that the shortest draft has", 0, 1)
    growth_share: float = option(
        0.33, "share of the most tokens that a draft grows by, where drafts stand whole", 0, 1
    )
    recency: float = option(0.5, "weight of the latest draft in the means over drafts", 0, 1)


PARTS = (
    Length(
        "constant",
        ".constant:ConstantLength",
        "always as far",
        arguments={"gamma": "first"},
        tokens=("ids", "vectors", "blocks"),
        paper="Leviathan et al. 2023",
    ),
    Length(
        "auto",
        ".constant:ConstantLength",
        "as far as a call was told, or not at all; calls go further or less far, as it pays",
        arguments={"gamma": "first"},
        tokens=("ids", "vectors", "blocks"),
        switches=True,
    ),
    Length(
        "heuristic",
        ".constant:HeuristicLength",
        "two tokens more after a draft that stood, one fewer after one that fell",
        HeuristicOptions,
        {"gamma": "num_draft_tokens"},
        depth="own",
        tokens=("ids", "vectors"),
    ),
    Length(
        "goodput",
        ".settled:goodput_length",
        "as far as expected tokens a second still grow",
        MostOptions,
        depth="window",
        paper="Liu et al. 2024",
    ),
    Length(
        "faser",
        ".faser:FaserLength",
        "every row as far as that pays, by the load of the batch",
        MostOptions,
        depth="window",
        paper="Chen et al. 2026",
    ),
    Length(
        "speckv",
        ".speckv:SpecKvLength",
        "as far as that pays, by how sure the draft before was",
        MostOptions,
        depth="own",
        recalls=True,
        soft=True,
        paper="Shukla 2026",
    ),
    Length(
        "eos-ema",
        ".eos_ema:EosEmaLength",
        "as far as drafts go before they end, and further where all of that stands",
        EosEmaOptions,
        depth="own",
        recalls=True,
        paper="Li et al. 2025",
    ),
    Length(
        "confidence",
        ".stopping:ConfidenceLength",
        "up to the first unsure token",
        ConfidenceOptions,
        {"threshold": "confidence"},
        depth="own",
        watches=True,
        soft=True,
        paper="Liu et al. 2024",
    ),
    Length(
        "specdec++",
        ".stopping:SpecDecLength",
        "until a rejection has become likely",
        RejectionOptions,
        {"threshold": "rejection"},
        depth="own",
        watches=True,
        soft=True,
        paper="Huang et al. 2024",
    ),
)
