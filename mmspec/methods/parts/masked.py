"""Drafters that are masked diffusion models: of their own, or the target itself."""

from __future__ import annotations

from typing import Any, Literal

from ...errors import InputError
from ..options import Options, option
from ..part import Drafter, Preset, Role, Rule
from .blocks import StepsOptions
from .shared import CHAIN, ChainOptions, SiblingsOptions
from .trees import PATHS, BlockPathsOptions, WidthsOptions


class PlacesOptions(SiblingsOptions):
    block_length: int = option(
        8, "masked places that a draft model fills in a call", 1, 64, limits=("depth",)
    )

    def calls(self, depth: int) -> list[int]:
        """Tokens of each call: what was drafted or the last of the text, a separator, a block."""
        size = 1 + self.block_length
        return [max(1, count) + size for count in range(0, depth, self.block_length)]


class BlockLengthOptions(StepsOptions, PlacesOptions):
    def __post_init__(self) -> None:
        if (self.draft_steps or 1) > 1 and not self.ranks:
            raise InputError(
                "the law of a token that is drawn in several draft_steps is not known, so that it "
                "can't be judged; use siblings 'top' (the likeliest, without chance) or one step"
            )

    @property
    def ranks(self) -> bool:  # type: ignore[override]
        """True if the likeliest tokens are drafted."""
        return self.siblings == "top"

    def calls(self, depth: int) -> list[int]:
        """The same, and those of further steps."""
        first = super().calls(depth)
        return first + [2 + self.block_length] * (len(first) * ((self.draft_steps or 1) - 1))


class MaskedOptions(ChainOptions, BlockLengthOptions):
    """Options of chains of a masked model's blocks."""


class OwnBlocksOptions(ChainOptions, PlacesOptions):
    """Options of chains of the target's own blocks."""


class VerifyOptions(Options):
    """Options of a router that says which places of a block are verified."""

    verify_policy: Literal["score", "hysteresis", "span", "ucb", "always", "never"] = option(
        "score", "who says that a block's next places are verified"
    )
    verify_score: Literal["static", "dynamic"] = option(
        "static",
        "what is taken off the places that should stand: verify_cost, or so much a sure one",
    )
    verify_estimate: Literal["entropy", "margin"] = option(
        "entropy", "what tells how likely a place stands: its entropy, or its best token's lead"
    )
    verify_cost: float = option(1.0, "cost of verifying, in places", 0, 1e6)
    verify_entropy: float = option(1.0, "weight of a place's entropy", 0, 1e6)
    verify_threshold: float = option(
        0.0, "score from which on places are verified; more is faster and further off", -1e6, 1e6
    )
    verify_on: float = option(1.0, "score from which on a row begins to verify", -1e6, 1e6)
    verify_off: float = option(-5.0, "score below which it ceases", -1e6, 1e6)
    verify_span: int = option(2, "masked places in a row that are verified, at least", 1, 64)
    verify_explores: float = option(1.0, "weight of what a bandit is unsure of", 0, 1e6)
    fill_confidence: float = option(
        0.85, "how sure a place must be to be filled without a judge; less is faster", 0, 1
    )

    def __post_init__(self) -> None:
        if self.verify_on <= self.verify_off:
            raise InputError(
                f"verify_on must be above verify_off ({self.verify_off:g}), not {self.verify_on:g}"
            )


def _asking(options: Any, drafter: Drafter) -> str | None:
    """Why not: somebody has to be routed."""
    if drafter.asks:
        return None
    return (
        f"rule 'routed' judges where a router asks for it, and drafter {drafter.name!r} has none; "
        "use method 's2d2-routed', or rule 'token'"
    )


class MaskedTreeOptions(WidthsOptions, BlockLengthOptions):
    """Options of a tree of a masked model's block."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.tree_widths) > self.block_length:
            raise InputError(
                f"tree_widths has {len(self.tree_widths)} levels, and a block has "
                f"{self.block_length} places (block_length)"
            )


class MaskedPathsOptions(BlockPathsOptions):
    """Options of paths through a masked model's block, of as many places as are drafted."""

    def calls(self, depth: int) -> list[int]:
        return [2 + self.num_draft_tokens]  # the last of the text, a separator, the block


def _routed(
    name: str, policy: str, knob: str, sweep: tuple[float, ...], role: Role, summary: str
) -> Preset:
    """A masked model that judges itself where a router says so."""
    settings = {"block_length": 4, "verify_policy": policy}
    return Preset(
        name,
        "own-masked",
        "routed",
        summary,
        role=role,
        knob=knob,
        sweep=sweep,
        settings=settings,
        serves=("vlm",),
    )


_GIVEN: Any = {"steps": "draft_steps"}
_MASKED: Any = dict(needs=("drafter", "masked"), returns=True, paper="Cheng et al. 2025")

PARTS = (
    Drafter(
        "masked",
        ".masked:masked_chain",
        "a masked diffusion model of its own fills a block in one call",
        MaskedOptions,
        {**_GIVEN, "how": lambda options, offers: "top" if options.ranks else "drawn"},
        **_MASKED,
        **CHAIN,
    ),
    Drafter(
        "masked-tree",
        ".masked:masked_tree",
        "a masked diffusion model's block as a tree, a place a level",
        MaskedTreeOptions,
        {**_GIVEN, "widths": "tree_widths"},
        tree=True,
        one_law=lambda options: options.siblings == "independent",
        **_MASKED,
    ),
    Drafter(
        "masked-paths",
        ".masked:masked_paths",
        "the best paths through a masked diffusion model's block, by its laws and the text's own",
        MaskedPathsOptions,
        needs=("drafter", "masked"),
        returns=True,
        **PATHS,
    ),
    Drafter(
        "own-masked",
        ".masked:own_chain",
        "the target, a masked diffusion model, fills a block in one call",
        OwnBlocksOptions,
        {"how": lambda options, offers: "top" if options.siblings == "top" else "drawn"},
        needs=("masked-target",),
        paper="Han et al. 2026",
        asks=True,
        **CHAIN,
    ),
    Rule(
        "routed",
        ".routed:routed_rule",
        "a token stands with probability p / q where a router asks, elsewhere by confidence",
        VerifyOptions,
        {
            **{name: f"verify_{name}" for name in ("policy", "estimate", "score", "cost")},
            **{name: f"verify_{name}" for name in ("threshold", "on", "off", "explores")},
            "beta": "verify_entropy",
            "least": "verify_span",
            "confidence": "fill_confidence",
        },
        contract="lossy",
        soft=True,
        check=_asking,
        paper="Han et al. 2026",
    ),
    Drafter(
        "masked-rows",
        ".masked:masked_rows",
        "a masked transformer fills rows of the picture, a block in one call",
        MaskedOptions,
        {**_GIVEN, "how": lambda options, offers: "top" if options.ranks else "drawn"},
        needs=("row_drafter",),
        paper="Chang et al. 2022",
        **CHAIN,
    ),
    Preset(
        "deer",
        "masked",
        "token",
        "a masked diffusion model of its own drafts a block in one denoising step",
        settings={"num_draft_tokens": 8},
        serves=("vlm",),
    ),
    Preset(
        "deer-tree",
        "masked-tree",
        "recursive",
        "a masked diffusion model's block as a tree that is wide in front",
        settings={"tree_widths": (2, 2, 1, 1, 1, 1)},
        serves=("vlm",),
    ),
    Preset(
        "diffuspec-masked",
        "masked-paths",
        "recursive",
        "the best paths through a masked diffusion model's block, as a tree",
        settings={"num_draft_tokens": 8},
        serves=("vlm",),
    ),
    Preset(
        "s2d2",
        "own-masked",
        "token",
        "a masked diffusion model drafts a block, and judges it place by place",
        settings={"block_length": 4},
        serves=("vlm",),
    ),
    _routed(
        "s2d2-routed",
        "score",
        "verify_threshold",
        (-1.0, 0.0, 0.5, 1.0),
        "method",
        "a masked diffusion model fills blocks, and judges itself where a router expects it to pay",
    ),
    _routed(
        "block-diffusion",
        "never",
        "fill_confidence",
        (0.99, 0.95, 0.85, 0.7),
        "sceptic",
        "a masked diffusion model fills blocks, the sure places first, and nobody judges",
    ),
    Preset(
        "maskgit-rows",
        "masked-rows",
        "token",
        "a masked transformer drafts a row of the picture in four calls, from left to right",
        settings={"num_draft_tokens": 16, "block_length": 4},
        serves=("image",),
    ),
)
