"""Drafters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ...errors import InputError
from ..options import option
from ..part import Drafter, DraftOptions

_HERE = "mmspec.draft"
JacobiInit = Literal["uniform", "previous", "above"]
Siblings = Literal["without-replacement", "independent", "top"]
Upsampler = Literal["learned", "pixels", "nearest"]


def _drafter(options: Any) -> tuple[str, ...]:
    """The component of those that have a draft model."""
    return ("drafter",)


@dataclass(frozen=True)
class NullOptions(DraftOptions):
    """Of drafters that draft nothing in front of a judge."""

    def first(self, stride: int) -> int:
        return 0


@dataclass(frozen=True)
class ChainOptions(DraftOptions):
    """Of chains."""

    num_draft_tokens: int = option(4, "how many are drafted before the target checks", 1, 64)


@dataclass(frozen=True)
class ModelOptions(ChainOptions):
    """Of a draft model that says one token a call."""

    def calls(self, depth: int) -> list[int]:
        return [1] * depth


@dataclass(frozen=True)
class SiblingsOptions(DraftOptions):
    """Of those whose tokens are drawn or chosen."""

    siblings: Siblings = option("without-replacement", "how a node's children come about")


@dataclass(frozen=True)
class BlockOptions(ChainOptions, SiblingsOptions):
    """Of a head that says several tokens a call."""

    def calls(self, depth: int) -> list[int]:
        return [depth]  # as one


@dataclass(frozen=True)
class ExitOptions(ChainOptions):
    """Of an early exit."""

    exit_layer: int | None = option(None, "layers that draft; none: chosen as it runs", 1)

    def check_layers(self, layers: int) -> None:
        check_layers(layers)
        if self.exit_layer is not None and self.exit_layer >= layers:
            raise InputError(
                f"exit_layer must be below the target's {layers} layers, not {self.exit_layer}"
            )


@dataclass(frozen=True)
class SkipOptions(ChainOptions):
    """Of layer skipping."""

    def check_layers(self, layers: int) -> None:
        check_layers(layers)


def check_layers(layers: int) -> None:
    """Raise an `InputError` if a target has no layer to leave out."""
    if layers < 2:
        raise InputError("a target that drafts with some of its layers needs two of them or more")


@dataclass(frozen=True)
class WidthsOptions(DraftOptions):
    """Of trees of a fixed shape."""

    tree_widths: tuple[int, ...] = option(
        (3, 2, 1, 1), "children of a node, level by level: 3,2 makes 3 + 6 nodes", 1
    )

    def first(self, stride: int) -> int:
        return len(self.tree_widths)

    def nodes(self, depth: int) -> int:
        level, nodes = 1, 0
        for width in self.tree_widths[:depth]:
            level *= width
            nodes += level
        return nodes


@dataclass(frozen=True)
class TreeOptions(WidthsOptions, SiblingsOptions):
    """Of a draft model's tree of a fixed shape."""

    @property
    def ranks(self) -> bool:  # type: ignore[override]
        """Whether the likeliest tokens are drafted."""
        return self.siblings == "top"

    def calls(self, depth: int) -> list[int]:
        """One a level; all but the first read the root and the tree so far."""
        return [1 + self.nodes(level) for level in range(min(depth, self.first(1)))]


@dataclass(frozen=True)
class NodesOptions(DraftOptions):
    """Of trees that are cut to size."""

    tree_nodes: int = option(48, "drafts in the tree", 1, 256)


@dataclass(frozen=True)
class DynamicTreeOptions(NodesOptions, SiblingsOptions):
    """Of a tree that grows where it is likely."""

    tree_depth: int = option(5, "how far ahead the tree of drafts goes", 1, 64)
    tree_width: int = option(4, "children of a node", 1, 256)
    tree_beam: int = option(4, "nodes of a level that get children", 1, 256)

    @property
    def ranks(self) -> bool:  # type: ignore[override]
        """Whether the likeliest tokens are drafted."""
        return self.siblings == "top"

    def first(self, stride: int) -> int:
        return self.tree_depth

    def nodes(self, depth: int) -> int:
        return min(sum(self._levels(depth)), self.tree_nodes)

    def drawn(self, depth: int) -> int:
        """Nodes that are drawn and dropped count, too; of the likeliest ones none is."""
        return self.nodes(depth) if self.ranks else sum(self._levels(depth))

    def calls(self, depth: int) -> list[int]:
        """One a level; all but the first read the root and the nodes that get children."""
        levels = self._levels(min(depth, self.tree_depth))
        read = [min(level, self.tree_beam) for level in levels]
        return [1 + sum(read[:level]) for level in range(len(levels))]

    def _levels(self, depth: int) -> list[int]:
        """Nodes of each of the first levels."""
        levels: list[int] = []
        for _ in range(min(depth, self.tree_depth)):
            levels.append(min(levels[-1] if levels else 1, self.tree_beam) * self.tree_width)
        return levels


@dataclass(frozen=True)
class MergedOptions(NodesOptions):
    """Of several drafters under one root; `nodes` and others are those of its drafters together."""

    merge: tuple[str, ...] = option(
        ("coupled-jacobi", "tree"), "drafters of the tree; the first one's nodes are tried first"
    )

    def first(self, stride: int) -> int:
        return 0

    def nodes(self, depth: int) -> int:
        return 0


@dataclass(frozen=True)
class WindowOptions(DraftOptions):
    """Of Jacobi windows."""

    window: int = option(16, "positions that are drafted at a time", 1, 256)
    jacobi_init: JacobiInit = option("previous", "the law of a position that enters the window")

    def first(self, stride: int) -> int:
        return self.window


@dataclass(frozen=True)
class RowsOptions(DraftOptions):
    """Of rows of the picture."""

    draft_rows: int = option(1, "rows of the picture that are drafted at a time", 1, 64)

    def first(self, stride: int) -> int:
        return self.draft_rows * stride


@dataclass(frozen=True)
class MultiscaleOptions(RowsOptions):
    """Of a small picture that is scaled up."""

    upsampler: Upsampler = option("learned", "what scales the small picture up")
    draft_guidance: float = option(4.0, "guidance of the small picture", 0, 100)
    draft_temperature: float = option(0.7, "temperature of the small picture", 0, 100)

    def needs(self) -> tuple[str, ...]:
        """The small picture's network, and what scales it up."""
        return ("sibling", "upsampler") if self.upsampler == "learned" else ("sibling",)


@dataclass(frozen=True)
class ZipArOptions(NullOptions):
    """Of rows side by side."""

    zipar_window: int = option(
        4, "tokens that a row waits for the one above; fewer is faster", 1, 256
    )


@dataclass(frozen=True)
class StepsOptions(DraftOptions):
    """Of the network that drafts blocks of video."""

    draft_steps: int | None = option(
        None,
        "denoising steps of a drafted block; none: as many as its network was made for",
        1,
        1000,
    )


@dataclass(frozen=True)
class BlockVideoOptions(StepsOptions):
    """Of blocks of video."""

    forced_blocks: int = option(1, "first blocks of a clip that the target makes", 0, 65536)
    draft_ahead: bool | None = option(
        None, "whether the next block is drafted while the last is judged; none: on a GPU"
    )
    ranks: ClassVar[bool] = False


def _window(name: str, module: str, kind: str, summary: str, **more: Any) -> Drafter:
    """A Jacobi window."""
    reference = f"{_HERE}.jacobi.{module}:{kind}"
    given = {"init": "jacobi_init", "row": "stride"}
    both: Any = dict(depth="window", knob="window", window=True, one_law=lambda options: True)
    return Drafter(name, reference, summary, WindowOptions, given, **both, **more)


_CHAIN: Any = dict(depth="num_draft_tokens", knob="num_draft_tokens")
_LAW: Any = dict(one_law=lambda options: True)
_GROWN: Any = dict(tree=True, model="token", one_law=lambda o: o.siblings == "independent")
_DYNAMIC: Any = dict(
    options=DynamicTreeOptions,
    arguments={name: f"tree_{name}" for name in ("depth", "width", "beam", "nodes")},
    knob="tree_depth",
    paper="Li et al. 2024",
    **_GROWN,
)
_VECTORS: Any = dict(tokens="vectors", depth="num_draft_tokens")

PARTS = (
    Drafter(
        "null",
        f"{_HERE}.null:NullDrafter",
        "nothing is drafted",
        NullOptions,
        drafts=False,
        **_LAW,
    ),
    Drafter(
        "model",
        f"{_HERE}.draft_model:ModelDrafter",
        "a smaller model of the same vocabulary drafts token by token",
        ModelOptions,
        needs=_drafter,
        model="token",
        watched=True,
        paper="Leviathan et al. 2023",
        **_CHAIN,
        **_LAW,
    ),
    Drafter(
        "block",
        f"{_HERE}.feature.block:BlockDrafter",
        "a head drafts several tokens a call",
        BlockOptions,
        {"how": lambda options, offers: "top" if options.siblings == "top" else "drawn"},
        model="block",
        **_CHAIN,
    ),
    Drafter(
        "early-exit",
        f"{_HERE}.self_speculation:early_exit",
        "the target's first layers draft",
        ExitOptions,
        own_layers=True,
        paper="Liu et al. 2024",
        **_CHAIN,
        **_LAW,
    ),
    Drafter(
        "layer-skip",
        f"{_HERE}.self_speculation:layer_skip",
        "the target drafts with the layers that it needs least",
        SkipOptions,
        own_layers=True,
        paper="Xia et al. 2024",
        **_CHAIN,
        **_LAW,
    ),
    Drafter(
        "tree",
        f"{_HERE}.tree.fixed_tree:TreeDrafter",
        "a smaller model drafts a tree of a fixed shape",
        TreeOptions,
        {"widths": "tree_widths"},
        needs=_drafter,
        merges=True,
        **_GROWN,
    ),
    Drafter(
        "dynamic-tree",
        f"{_HERE}.tree.dynamic_tree:DynamicTreeDrafter",
        "a smaller model drafts a tree that grows where it is likely",
        needs=_drafter,
        merges=True,
        **_DYNAMIC,
    ),
    Drafter(
        "eagle",
        f"{_HERE}.tree.dynamic_tree:DynamicTreeDrafter",
        "a head on the target's features drafts a tree that grows where it is likely",
        needs=lambda options: ("eagle",),
        **_DYNAMIC,
    ),
    Drafter(
        "merged",
        f"{_HERE}.tree.merged:MergedDrafter",
        "several drafters' trees under one root",
        MergedOptions,
        {"nodes": "tree_nodes"},
        tree=True,
        knob="tree_nodes",
        paper="Zbib et al. 2026",
    ),
    Drafter(
        "recycling",
        f"{_HERE}.tree.token_recycling:RecyclingDrafter",
        "the target's own runners-up draft a tree",
        WidthsOptions,
        {"widths": "tree_widths"},
        tree=True,
        merges=True,
        paper="Luo et al. 2024",
    ),
    Drafter(
        "lookup",
        f"{_HERE}.prompt_lookup:PromptLookupDrafter",
        "what followed the last tokens the time before",
        ChainOptions,
        merges=True,
        paper="Saxena 2023",
        **_CHAIN,
    ),
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
        "multiscale",
        f"{_HERE}.image.multiscale:MultiScaleDrafter",
        "a small picture of the same family, scaled up",
        MultiscaleOptions,
        {"picture": "scaled_up"},
        needs=MultiscaleOptions.needs,
        depth="draft_rows",
        positions=True,
        unjudged="maybe",
        known=False,
        paper="Peruzzo et al. 2026",
    ),
    Drafter(
        "spatial",
        f"{_HERE}.image.spatial:SpatialDrafter",
        "heads on the target's features look below and to the right",
        RowsOptions,
        {"heads": "spatial", "row": "stride", "rule": "relaxed"},
        needs=lambda options: ("spatial",),
        depth="draft_rows",
        positions=True,
    ),
    Drafter(
        "zipar",
        f"{_HERE}.image.zipar:ZipArDrafter",
        "rows of the picture are drawn side by side",
        ZipArOptions,
        {"model": "target", "window": "zipar_window"},
        unjudged="always",
        paper="He et al. 2024",
    ),
    Drafter(
        "frozen",
        f"{_HERE}.denoising.frozen:FrozenDrafter",
        "the target's own last prediction drafts denoising steps",
        ChainOptions,
        paper="De Bortoli et al. 2025",
        **_VECTORS,
    ),
    Drafter(
        "denoiser",
        f"{_HERE}.denoising.small_head:DenoisingDrafter",
        "a smaller head drafts denoising steps",
        ChainOptions,
        {"denoiser": "small"},
        needs=_drafter,
        **_VECTORS,
    ),
    Drafter(
        "aligned",
        f"{_HERE}.denoising.aligned:AlignedDrafter",
        "a smaller model drafts whole tokens with the target's noises",
        ChainOptions,
        needs=_drafter,
        fixed=True,
        whole=True,
        paper="Wang et al. 2024",
        **_VECTORS,
    ),
    Drafter(
        "block-video",
        f"{_HERE}.video.block_video:BlockVideoDrafter",
        "a small block-causal model drafts the next block of a clip",
        BlockVideoOptions,
        tokens="blocks",
        needs=_drafter,
    ),
)
