"""Drafters with DFlash's head over a target of pictures; of text it is a head like others."""

from __future__ import annotations

from typing import Any

from ..options import option
from ..part import Drafter, Preset
from .chains import BlockOptions
from .heads import head_preset
from .shared import CHAIN, SiblingsOptions
from .trees import WidthsOptions
from .windows import WindowOptions


class BlockTreeOptions(WidthsOptions, SiblingsOptions):
    """Options of a tree of a block."""

    def calls(self, depth: int) -> list[int]:
        return [depth]  # as one


class ForeseenOptions(WindowOptions):
    """Options of a window whose new positions a head foresees."""

    head_places: int = option(
        0, "first positions of the window that follow the head in every round", 0, 256
    )

    def calls(self, depth: int) -> list[int]:
        return [depth]  # as one


_NEEDS: Any = dict(needs=("dflash",))
_HEAD: Any = dict(**_NEEDS, paper="Chen et al. 2026")

PARTS = (
    Drafter(
        "dflash",
        ".feature.block:BlockDrafter",
        "a head on the target's features denoises a block of the picture in a call",
        BlockOptions,
        {"how": lambda options, offers: "top" if options.siblings == "top" else "drawn"},
        model="block",
        **_HEAD,
        **CHAIN,
    ),
    Drafter(
        "dflash-tree",
        ".masked:CartesianDrafter",
        "the block of a head on the target's features as a tree, a place a level",
        BlockTreeOptions,
        {"widths": "tree_widths"},
        model="block",
        tree=True,
        one_law=lambda options: options.siblings == "independent",
        **_HEAD,
    ),
    Drafter(
        "dflash-jacobi",
        ".jacobi.foreseen:ForeseenJacobiDrafter",
        "a coupled window; a head on the target's features says what enters it",
        ForeseenOptions,
        {"init": "jacobi_init", "row": "stride", "places": "head_places"},
        depth="window",
        knob="window",
        window=True,
        settled=True,
        one_law=lambda options: True,
        paper="So et al. 2025",
        **_NEEDS,
    ),
    Preset(
        "dflash",
        "dflash",
        "token",
        "a head on the target's features denoises a block of the picture in a call",
        settings={"num_draft_tokens": 8},
        of={
            "vlm": head_preset(
                "dflash", "a small network denoises a block of masked tokens", 7, "block"
            )
        },
    ),
    Preset(
        "scd-dflash",
        "dflash-jacobi",
        "token",
        "scd whose window begins with what dflash's head says",
        knob="window",
        sweep=(4, 8, 16, 32),
        serves=("image",),
    ),
)
