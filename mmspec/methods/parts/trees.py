"""Drafters of trees of token ids."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from ..draft_size import MOST_NODES
from ..options import option
from ..part import Drafter, DraftOptions, Preset
from ..static_trees import RECYCLING_WIDTHS, Children, StaticTree, children_of
from .heads import head_preset
from .shared import ChainOptions, LivingOptions, SiblingsOptions, living
from .windows import RefinedOptions, WindowOptions


class WidthsOptions(DraftOptions):
    tree_widths: tuple[int, ...] = option(
        (3, 2, 1, 1),
        "children of a node, level by level: 3,2 makes 3 + 6 nodes",
        1,
        limits=("depth", "width"),
    )

    def first(self, stride: int) -> int:
        return len(self.tree_widths)

    def nodes(self, depth: int) -> int:
        level, nodes = 1, 0
        for width in self.tree_widths[:depth]:
            level *= width
            nodes += level
        return nodes


class ProactiveOptions(WidthsOptions, WindowOptions):
    def first(self, stride: int) -> int:
        return self.window

    def nodes(self, depth: int) -> int:
        widths = self.tree_widths[:depth]
        return depth + super().nodes(depth) - len(widths)  # of every level one is the window's


class RefinedTreeOptions(ProactiveOptions, RefinedOptions):
    """Options of a window that is refined and has candidates in front."""


class RecyclingOptions(WidthsOptions, LivingOptions):
    """Options of a tree of remembered successors."""

    static_tree: StaticTree = option(
        "full", "nodes of the tree: all that tree_widths has room for, or the published 80 of those"
    )
    static_nodes: int = option(
        MOST_NODES,
        "of these nodes, those that stay, the ones with the most nodes behind them",
        1,
        MOST_NODES,
        limits=("nodes",),
    )

    def first(self, stride: int) -> int:
        return len(self._children)

    def nodes(self, depth: int) -> int:
        return sum(map(sum, self._children[:depth]))

    @property
    def _children(self) -> Children:
        return children_of(self.tree_widths, self.static_tree, self.static_nodes)


class BranchingOptions(SiblingsOptions):
    @property
    def ranks(self) -> bool:  # type: ignore[override]
        """True if the likeliest tokens are drafted."""
        return self.siblings == "top"


class TreeOptions(WidthsOptions, BranchingOptions):
    def calls(self, depth: int) -> list[int]:
        """Calls of a draft, one a level; all but the first read the root and the tree so far."""
        return [1 + self.nodes(level) for level in range(min(depth, self.first(1)))]


class NodesOptions(DraftOptions):
    tree_nodes: int = option(48, "drafts in the tree", 1, 256, limits=("nodes",))


class GrownOptions(NodesOptions):
    tree_depth: int = option(5, "how far ahead the tree of drafts goes", 1, 64, limits=("depth",))
    tree_width: int = option(4, "children of a node", 1, 256, limits=("width",))

    def first(self, stride: int) -> int:
        return self.tree_depth


class TrigramOptions(GrownOptions, LivingOptions):
    tree_search: Literal["best-first", "monte-carlo"] = option(
        "best-first", "how the tree is chosen: by shares along its paths, or as ADED has it"
    )

    def nodes(self, depth: int) -> int:
        return min(sum(self.tree_width**level for level in range(1, depth + 1)), self.tree_nodes)


class BlockPathsOptions(ChainOptions, LivingOptions):
    ranks: ClassVar[bool] = True

    path_beam: int = option(
        3, "paths through a block that a search keeps", 1, 16, limits=("width",)
    )
    path_weight: float = option(
        0.5, "share of the block's laws in a path's score; the rest is what the text expects", 0, 1
    )
    path_mass: float = option(0.8, "of a place's law, that its candidates have", 0, 1)

    def nodes(self, depth: int) -> int:
        return self.path_beam * depth

    def calls(self, depth: int) -> list[int]:
        return [depth]


class DynamicTreeOptions(GrownOptions, BranchingOptions):
    tree_beam: int = option(4, "nodes of a level that get children", 1, 256, limits=("width",))

    def nodes(self, depth: int) -> int:
        return min(sum(self._levels(depth)), self.tree_nodes)

    def drawn(self, depth: int) -> int:
        """Nodes that are drawn and dropped count, too; of the likeliest ones none is."""
        return self.nodes(depth) if self.ranks else sum(self._levels(depth))

    def calls(self, depth: int) -> list[int]:
        """Calls of a draft, one a level; all but the first read the root and all parents."""
        levels = self._levels(min(depth, self.tree_depth))
        read = [min(level, self.tree_beam) for level in levels]
        return [1 + sum(read[:level]) for level in range(len(levels))]

    def _levels(self, depth: int) -> list[int]:
        """Nodes of each of the first levels."""
        levels: list[int] = []
        for _ in range(min(depth, self.tree_depth)):
            levels.append(min(levels[-1] if levels else 1, self.tree_beam) * self.tree_width)
        return levels


class MergedOptions(NodesOptions):
    merge: tuple[str, ...] = option(
        ("coupled-jacobi", "tree"), "drafters of the tree; the first one's nodes are tried first"
    )

    def first(self, stride: int) -> int:
        return 0

    def nodes(self, depth: int) -> int:
        return 0


_PATH: Any = {name: f"path_{name}" for name in ("beam", "weight", "mass")}
PATHS: Any = dict(tree=True, knob="num_draft_tokens", paper="Li et al. 2025")
PATHS["arguments"] = _PATH | {"table": living("trigrams")}

_GROWN: Any = dict(tree=True, model="token", one_law=lambda o: o.siblings == "independent")

_DYNAMIC: Any = dict(
    options=DynamicTreeOptions,
    arguments={name: f"tree_{name}" for name in ("depth", "width", "beam", "nodes")},
    knob="tree_depth",
    paper="Li et al. 2024",
    **_GROWN,
)


# of the published tree as many nodes as a processor's call has room for beside the root
_RECYCLING: Any = dict(
    static_tree="recycling-80",
    static_nodes=15,
    tree_widths=RECYCLING_WIDTHS,
    table_lives=None,
)

PARTS = (
    Drafter(
        "tree",
        ".tree.fixed_tree:TreeDrafter",
        "a smaller model drafts a tree of a fixed shape",
        TreeOptions,
        {"widths": "tree_widths"},
        needs=("drafter",),
        merges=True,
        **_GROWN,
    ),
    Drafter(
        "dynamic-tree",
        ".tree.dynamic_tree:DynamicTreeDrafter",
        "a smaller model drafts a tree that grows where it is likely",
        needs=("drafter",),
        merges=True,
        **_DYNAMIC,
    ),
    Drafter(
        "eagle",
        ".tree.dynamic_tree:DynamicTreeDrafter",
        "a head on the target's features drafts a tree that grows where it is likely",
        needs=("eagle",),
        **_DYNAMIC,
    ),
    Drafter(
        "merged",
        ".tree.merged:MergedDrafter",
        "several drafters' trees under one root",
        MergedOptions,
        {"nodes": "tree_nodes"},
        tree=True,
        knob="tree_nodes",
        paper="Zbib et al. 2026",
    ),
    Drafter(
        "proactive-jacobi",
        ".jacobi.proactive:ProactiveDrafter",
        "a coupled window whose first positions have other candidates, too",
        ProactiveOptions,
        {"init": "jacobi_init", "row": "stride", "widths": "tree_widths"},
        tree=True,
        knob="window",
        depth="window",
        window=True,
        settled=True,
        paper="Kang et al. 2026",
    ),
    Drafter(
        "refined-proactive",
        ".jacobi.refined:RefinedJacobiDrafter",
        "a coupled window that a smaller model corrects, with other candidates in front",
        RefinedTreeOptions,
        {"init": "jacobi_init", "row": "stride", "widths": "tree_widths"},
        needs=("drafter",),
        tree=True,
        knob="window",
        depth="window",
        window=True,
        settled=True,
    ),
    Drafter(
        "recycling",
        ".tree.token_recycling:RecyclingDrafter",
        "the target's own runners-up draft a tree",
        RecyclingOptions,
        {
            "widths": "tree_widths",
            "tree": "static_tree",
            "nodes": "static_nodes",
            "table": living("table"),
        },
        tree=True,
        merges=True,
        nests=True,
        laws=False,
        paper="Luo et al. 2024",
    ),
    Drafter(
        "trigram",
        ".tree.trigram_tree:TrigramDrafter",
        "counts of what followed pairs of tokens draft a tree",
        TrigramOptions,
        {
            **{name: f"tree_{name}" for name in ("nodes", "depth", "width", "search")},
            "row": "stride",
            "table": living("trigrams"),
        },
        tree=True,
        merges=True,
        laws=False,
        paper="Liu et al. 2024",
    ),
    Drafter(
        "block-paths",
        ".tree.block_paths:BlockPathsDrafter",
        "a search takes the best paths through a block that a head drafts in a call",
        BlockPathsOptions,
        model="block",
        **PATHS,
    ),
    Preset("tree", "tree", "recursive", "a smaller model drafts a tree"),
    Preset(
        "dynamic-tree", "dynamic-tree", "recursive", "a smaller model's tree, deep where it is sure"
    ),
    Preset(
        "eagle",
        "eagle",
        "recursive",
        "a one-layer head on the target's features drafts a tree",
        of={
            "vlm": head_preset(
                "eagle", "a one-layer head on the target's features drafts a chain", 8
            )
        },
    ),
    Preset(
        "sjd-pac",
        "proactive-jacobi",
        "recursive",
        "the target guesses a window ahead, with several candidates at its first places",
        settings={"tree_widths": (3, 3)},
    ),
    Preset(
        "sjd-pac-refined",
        "refined-proactive",
        "recursive",
        "sjd-pac whose window a smaller model corrects as its tokens change",
        settings={"window": 32, "tree_widths": (4, 4), "refinements": 3},
    ),
    Preset(
        "diffuspec",
        "block-paths",
        "recursive",
        "the best paths through a block of dflash's head, by its laws and by the text's own",
        settings={"num_draft_tokens": 7, "path_beam": 6, "path_weight": 0.8},
        serves=("vlm",),
        head="dflash",
    ),
    Preset("merged", "merged", "recursive", "several drafters' trees, fused"),
    Preset(
        "token-recycling",
        "recycling",
        "recursive",
        "a tree of the target's earlier runners-up",
        of={
            "vlm": Preset(
                "token-recycling",
                "recycling",
                "recursive",
                "the first nodes of the published tree of the target's earlier runners-up",
                settings=_RECYCLING,
            )
        },
    ),
    Preset(
        "aded",
        "trigram",
        "recursive",
        "a tree of what followed the same two tokens before",
        settings={"tree_nodes": 24, "tree_depth": 4, "tree_width": 12},
    ),
)
