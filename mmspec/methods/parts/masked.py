"""Drafters that are masked diffusion models: of their own, or the target itself."""

from __future__ import annotations

from typing import Any

from ...errors import InputError
from ..options import option
from ..part import Drafter, Preset
from .blocks import StepsOptions
from .shared import CHAIN, ChainOptions, SiblingsOptions
from .trees import WidthsOptions


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


class MaskedTreeOptions(WidthsOptions, BlockLengthOptions):
    """Options of a tree of a masked model's block."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.tree_widths) > self.block_length:
            raise InputError(
                f"tree_widths has {len(self.tree_widths)} levels, and a block has "
                f"{self.block_length} places (block_length)"
            )


_GIVEN: Any = {"steps": "draft_steps"}
_MASKED: Any = dict(needs=("drafter", "masked"), paper="Cheng et al. 2025")

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
        "own-masked",
        ".masked:own_chain",
        "the target, a masked diffusion model, fills a block in one call",
        OwnBlocksOptions,
        {"how": lambda options, offers: "top" if options.siblings == "top" else "drawn"},
        needs=("masked-target",),
        paper="Han et al. 2026",
        **CHAIN,
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
        "s2d2",
        "own-masked",
        "token",
        "a masked diffusion model drafts a block, and judges it place by place",
        settings={"block_length": 4},
        serves=("vlm",),
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
