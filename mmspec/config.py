"""Every knob of speculation in one frozen, validated place; imports no torch."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Any, Literal, get_args

from .errors import InputError
from .registry import check_name


@dataclass(frozen=True)
class Method:
    """A named preset: which drafter, acceptance rule and length policy work together.

    `role` is what a report calls its row: the baseline, a method, or the cheap alternative that a
    sceptic asks for.
    """

    drafter: str
    rule: str
    length: str
    summary: str
    role: Literal["baseline", "method", "sceptic"] = "method"


METHODS: dict[str, Method] = {
    "plain": Method(
        "null", "token", "constant", "one token a target call: the baseline", "baseline"
    ),
    "draft": Method("model", "token", "constant", "a smaller model of the same vocabulary drafts"),
    "tree": Method("tree", "recursive", "constant", "a smaller model drafts a tree"),
    "early-exit": Method(
        "early-exit", "token", "constant", "the target's first layers draft; it finds out how many"
    ),
    "layer-skip": Method(
        "layer-skip", "token", "constant", "the target drafts with the layers that it needs least"
    ),
    "dynamic-tree": Method(
        "dynamic-tree", "recursive", "constant", "a smaller model's tree, deep where it is sure"
    ),
    "merged": Method("merged", "recursive", "constant", "several drafters' trees, fused"),
    "prompt-lookup": Method("lookup", "token", "constant", "copies what followed the same tokens"),
    "token-recycling": Method(
        "recycling", "recursive", "constant", "a tree of the target's earlier runners-up"
    ),
    "sjd": Method("jacobi", "token", "constant", "the target drafts a window itself (Jacobi)"),
    "scd": Method("coupled-jacobi", "token", "constant", "Jacobi whose tokens stay put (coupled)"),
    "scd-gumbel": Method(
        "gumbel-jacobi", "token", "constant", "Jacobi whose tokens stay put (one noise per place)"
    ),
    "drafter-only": Method(
        "null", "token", "constant", "the draft model in place of the target", "sceptic"
    ),
}
DRAFTERS = (
    "null",
    "model",
    "early-exit",
    "layer-skip",
    "tree",
    "dynamic-tree",
    "merged",
    "lookup",
    "recycling",
    "jacobi",
    "coupled-jacobi",
    "gumbel-jacobi",
)
MODELS = ("model", "tree", "dynamic-tree")  # these need a draft model
SELF = ("early-exit", "layer-skip")  # these take the target for one
TREES = ("tree", "dynamic-tree", "merged", "recycling")
MERGEABLE = ("tree", "dynamic-tree", "lookup", "recycling", "jacobi", "coupled-jacobi")
WINDOWED = ("jacobi", "coupled-jacobi", "gumbel-jacobi")
RULES = ("token", "block", "recursive", "k-seq", "greedy")
STOPPING = ("confidence", "specdec++")  # policies that look at the tokens as they are drafted
LENGTHS = ("constant", "heuristic", "goodput", *STOPPING)
JacobiInit = Literal["uniform", "previous", "above"]
Siblings = Literal["without-replacement", "independent", "top"]
SIBLINGS: tuple[Siblings, ...] = get_args(Siblings)
JACOBI_INITS: tuple[JacobiInit, ...] = get_args(JacobiInit)


@dataclass(frozen=True)
class SpecConfig:
    """How to speculate.

    Args:
        method: preset of drafter, rule and length policy; see `METHODS`.
        drafter, rule, length: one of the preset's parts by name, in place of the preset's.
        num_draft_tokens: tokens drafted a round (γ) by a draft model; where the heuristic starts.
        max_draft_tokens: most tokens that a length policy may ask for.
        window: positions in a Jacobi window (W).
        jacobi_init: how a position enters the window, see `JacobiDrafter`.
        exit_layer: layers that an early exit drafts with; None: chosen as it runs.
        tree_widths: children of a tree's nodes, level by level: (3, 2) makes 3 + 6 nodes.
        tree_depth, tree_width, tree_beam: levels of a dynamic tree, children of a node, nodes of a
            level that get children.
        tree_nodes: most nodes of a dynamic tree, or of a merged tree.
        siblings: how a tree's siblings come about, see `draw_siblings`.
        merge: drafters of a merged tree; the first one's nodes are tried first, and are the first
            of the `tree_nodes`. ("lookup", "dynamic-tree"): what is looked up takes the places of
            the tree's least likely nodes.
        confidence: below it, length policy "confidence" stops drafting.
        rejection: above this probability of one, length policy "specdec++" stops drafting.

    Raises:
        InputError: a name is unknown or a number out of range.
    """

    method: str = "draft"
    drafter: str | None = None
    rule: str | None = None
    length: str | None = None
    num_draft_tokens: int = 4
    max_draft_tokens: int = 16
    window: int = 16
    jacobi_init: JacobiInit = "previous"
    exit_layer: int | None = None
    tree_widths: tuple[int, ...] = (3, 2, 1, 1)
    tree_depth: int = 5
    tree_width: int = 4
    tree_beam: int = 4
    tree_nodes: int = 48
    siblings: Siblings = "without-replacement"
    merge: tuple[str, ...] = ("coupled-jacobi", "tree")
    confidence: float = 0.4
    rejection: float = 0.6

    def __post_init__(self) -> None:
        check_name("method", self.method, METHODS)
        for knob in ("tree_widths", "merge"):  # lists will do
            object.__setattr__(self, knob, tuple(getattr(self, knob)))
        for part, known in (("drafter", DRAFTERS), ("rule", RULES), ("length", LENGTHS)):
            if (name := getattr(self, part)) is not None:
                check_name(part, name, known)
        check_name("jacobi_init", self.jacobi_init, JACOBI_INITS)
        check_name("siblings", self.siblings, SIBLINGS)
        for name in self.merge:
            check_name("drafter to merge", name, MERGEABLE)
        for knob, most in (
            ("num_draft_tokens", 64),
            ("max_draft_tokens", 64),
            ("window", 256),
            ("tree_depth", 64),
            ("tree_width", 256),
            ("tree_beam", 256),
            ("tree_nodes", 256),
        ):
            value = getattr(self, knob)
            if not isinstance(value, int) or not 1 <= value <= most:
                raise InputError(f"{knob} must be an integer from 1 to {most}, not {value!r}")
        for knob in ("confidence", "rejection"):
            if not 0 <= getattr(self, knob) <= 1:
                raise InputError(f"{knob} must be from 0 to 1, not {getattr(self, knob)!r}")
        exit_layer: Any = self.exit_layer
        if exit_layer is not None and not (isinstance(exit_layer, int) and exit_layer >= 1):
            raise InputError(f"exit_layer must be an integer of 1 or more, not {self.exit_layer!r}")
        if self.num_draft_tokens > self.max_draft_tokens:
            raise InputError(
                f"num_draft_tokens ({self.num_draft_tokens}) is larger than max_draft_tokens "
                f"({self.max_draft_tokens})"
            )
        self._check_parts()

    def _check_parts(self) -> None:
        widths: Any = self.tree_widths
        if not widths or not all(isinstance(w, int) and w >= 1 for w in widths):
            raise InputError(f"tree_widths must be integers of 1 or more, not {widths!r}")
        parts = self.resolved()
        rule, drafter = str(parts.rule), str(parts.drafter)
        if self.drafter_only and drafter != "null":
            raise InputError("method 'drafter-only' asks no target: nobody could judge a draft")
        if drafter in TREES and rule not in ("recursive", "k-seq"):
            raise InputError(
                f"rule {rule!r} judges chains and drafter {drafter!r} drafts trees; use 'recursive'"
            )
        if rule == "block" and drafter in ("coupled-jacobi", "gumbel-jacobi"):
            raise InputError(
                f"rule 'block' lets later tokens weigh on earlier ones, and drafter {drafter!r} "
                "keeps them as if nobody had looked; use rule 'token', or drafter 'jacobi'"
            )
        if parts.length in STOPPING and drafter != "model":
            raise InputError(
                f"length {parts.length!r} watches the tokens of a draft model, "
                f"and drafter {drafter!r} is none"
            )
        if drafter == "merged" and not self.merge:
            raise InputError("a merged tree needs drafters to merge")
        if drafter == "merged" and len(set(self.merge)) < len(self.merge):
            raise InputError("drafters to merge must differ: two of a kind draw the same tokens")
        # siblings of a merged tree come from several laws, and K-SEQ knows one
        one_law = drafter in ("model", "null", *SELF, *WINDOWED) or (
            drafter in ("tree", "dynamic-tree") and self.siblings == "independent"
        )
        if rule == "k-seq" and not one_law:
            raise InputError(
                "rule 'k-seq' judges siblings that were drawn independently; use siblings "
                "'independent' with drafter 'tree', or rule 'recursive'"
            )
        each = (self._drawn(name, self.deepest) for name in self.drafters)
        most = max(self.most_read - 1, *each)
        if most > 256:
            raise InputError(f"this tree has up to {most} nodes; at most 256 are drafted")

    @property
    def drafters(self) -> tuple[str, ...]:
        """The drafters at work: of a merged tree all of them."""
        drafter = str(self.resolved().drafter)
        return self.merge if drafter == "merged" else (drafter,)

    @property
    def needs_model(self) -> bool:
        """Whether a draft model drafts."""
        return any(name in MODELS for name in self.drafters)

    @property
    def drafter_only(self) -> bool:
        """Whether the draft model draws and the target is not asked: lossy, whatever the rule."""
        return self.method == "drafter-only"

    def resolved(self) -> SpecConfig:
        """The same with drafter, rule and length filled in."""
        preset = METHODS[self.method]
        # not `replace`, which would check, and checking resolves
        parts = copy(self)
        for part, value in (
            ("drafter", self.drafter or preset.drafter),
            ("rule", self.rule or preset.rule),
            ("length", self.length or preset.length),
        ):
            object.__setattr__(parts, part, value)
        return parts

    # --- how far and how wide -------------------------------------------------------------------

    def nodes(self, depth: int) -> int:
        """Most nodes of a draft that goes `depth` tokens ahead."""
        total = sum(self._nodes(name, depth) for name in self.drafters)
        return min(total, self.tree_nodes) if self.resolved().drafter == "merged" else total

    def _nodes(self, drafter: str, depth: int) -> int:
        if drafter in ("tree", "recycling"):
            return self._fixed(depth)
        if drafter == "dynamic-tree":
            return min(self._grown(depth), self.tree_nodes)
        return depth

    def _drawn(self, drafter: str, depth: int) -> int:
        """Most nodes of a drafter's tree, with those that are drawn and not kept."""
        drops = drafter == "dynamic-tree" and self.siblings != "top"
        return self._grown(depth) if drops else self._nodes(drafter, depth)

    def _fixed(self, depth: int) -> int:
        """Nodes in the first levels of a tree of `tree_widths`."""
        level, nodes = 1, 0
        for width in self.tree_widths[:depth]:
            level *= width
            nodes += level
        return nodes

    def _grown(self, depth: int) -> int:
        """Nodes in the first levels of a dynamic tree."""
        level, nodes = 1, 0
        for _ in range(min(depth, self.tree_depth)):
            level = min(level, self.tree_beam) * self.tree_width
            nodes += level
        return nodes

    def draft_calls(self, depth: int) -> list[int]:
        """Tokens a row that every call of a draft model reads for a draft `depth` tokens deep.

        A tree takes one call a level; all but the first read the root and the tree so far.
        """
        calls: list[int] = []
        for name in self.drafters:
            if name == "model":
                calls += [1] * depth
            if name in ("tree", "dynamic-tree"):
                size = self._fixed if name == "tree" else self._grown
                calls += [1 + size(level) for level in range(min(depth, self._first(name)))]
        return calls

    @property
    def most_drafted(self) -> int:
        """Nodes of the largest draft that this configuration can ask for."""
        return self.nodes(self.deepest)

    @property
    def most_read(self) -> int:
        """Most tokens a row in one call of the target or of a draft model."""
        return max(self.most_drafted + 1, *self.draft_calls(self.deepest), 0)

    @property
    def deepest(self) -> int:
        """How far ahead this configuration may draft."""
        parts = self.resolved()
        if parts.drafter == "null":
            return 0
        if parts.length == "constant" or parts.drafter in TREES:
            return self.first_drafted
        if parts.length == "goodput" and parts.drafter in WINDOWED:
            return self.window
        return self.max_draft_tokens

    @property
    def first_drafted(self) -> int:
        """How far ahead the first round drafts: a window, the tree's levels, or γ tokens."""
        return max(self._first(name) for name in self.drafters)

    def _first(self, drafter: str) -> int:
        if drafter in ("tree", "recycling"):
            return len(self.tree_widths)
        if drafter == "dynamic-tree":
            return self.tree_depth
        return self.window if drafter in WINDOWED else self.num_draft_tokens
