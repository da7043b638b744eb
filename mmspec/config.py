"""Every knob of speculation in one frozen, validated place; imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from .errors import InputError
from .registry import check_name


@dataclass(frozen=True)
class Method:
    """A named preset: which drafter, acceptance rule and length policy work together."""

    drafter: str
    rule: str
    length: str
    summary: str


METHODS: dict[str, Method] = {
    "plain": Method("null", "token", "constant", "one token a target call: the baseline"),
    "draft": Method("model", "token", "constant", "a smaller model of the same vocabulary drafts"),
    "tree": Method("tree", "recursive", "constant", "a smaller model drafts a tree"),
    "prompt-lookup": Method("lookup", "token", "constant", "copies what followed the same tokens"),
    "token-recycling": Method(
        "recycling", "recursive", "constant", "a tree of the target's earlier runners-up"
    ),
    "sjd": Method("jacobi", "token", "constant", "the target drafts a window itself (Jacobi)"),
    "scd": Method("coupled-jacobi", "token", "constant", "Jacobi whose tokens stay put (coupled)"),
    "scd-gumbel": Method(
        "gumbel-jacobi", "token", "constant", "Jacobi whose tokens stay put (one noise per place)"
    ),
}
DRAFTERS = (
    "null",
    "model",
    "tree",
    "lookup",
    "recycling",
    "jacobi",
    "coupled-jacobi",
    "gumbel-jacobi",
)
MODELS = ("model", "tree")  # these need a draft model
TREES = ("tree", "recycling")
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
        tree_widths: children of a tree's nodes, level by level: (3, 2) makes 3 + 6 nodes.
        siblings: how they come about, see `TreeDrafter`.
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
    tree_widths: tuple[int, ...] = (3, 2, 1, 1)
    siblings: Siblings = "without-replacement"
    confidence: float = 0.4
    rejection: float = 0.6

    def __post_init__(self) -> None:
        check_name("method", self.method, METHODS)
        for part, known in (("drafter", DRAFTERS), ("rule", RULES), ("length", LENGTHS)):
            if (name := getattr(self, part)) is not None:
                check_name(part, name, known)
        check_name("jacobi_init", self.jacobi_init, JACOBI_INITS)
        check_name("siblings", self.siblings, SIBLINGS)
        self._check_parts()
        for knob, most in (("num_draft_tokens", 64), ("max_draft_tokens", 64), ("window", 256)):
            value = getattr(self, knob)
            if not isinstance(value, int) or not 1 <= value <= most:
                raise InputError(f"{knob} must be an integer from 1 to {most}, not {value!r}")
        for knob in ("confidence", "rejection"):
            if not 0 <= getattr(self, knob) <= 1:
                raise InputError(f"{knob} must be from 0 to 1, not {getattr(self, knob)!r}")
        if self.num_draft_tokens > self.max_draft_tokens:
            raise InputError(
                f"num_draft_tokens ({self.num_draft_tokens}) is larger than max_draft_tokens "
                f"({self.max_draft_tokens})"
            )

    def _check_parts(self) -> None:
        widths: Any = self.tree_widths
        if not widths or not all(isinstance(w, int) and w >= 1 for w in widths):
            raise InputError(f"tree_widths must be integers of 1 or more, not {widths!r}")
        nodes = self.tree_nodes(len(widths))
        if nodes > 256:
            raise InputError(f"tree_widths make {nodes} nodes; at most 256 are drafted")
        preset = METHODS[self.method]
        rule, drafter = self.rule or preset.rule, self.drafter or preset.drafter
        if drafter in TREES and rule not in ("recursive", "k-seq"):
            raise InputError(
                f"rule {rule!r} judges chains and drafter {drafter!r} drafts trees; use 'recursive'"
            )
        if (self.length or preset.length) in STOPPING and drafter != "model":
            raise InputError(
                f"length {self.length!r} watches the tokens of a draft model, "
                f"and drafter {drafter!r} is none"
            )
        independent = drafter in ("model", *WINDOWED) or self.siblings == "independent"
        if rule == "k-seq" and (not independent or drafter in ("recycling", "lookup")):
            raise InputError(
                "rule 'k-seq' judges siblings that were drawn independently; use siblings "
                "'independent' with drafter 'tree', or rule 'recursive'"
            )

    def tree_nodes(self, levels: int) -> int:
        """Nodes in the first levels of a tree of `tree_widths`."""
        level, nodes = 1, 0
        for width in self.tree_widths[:levels]:
            level *= width
            nodes += level
        return nodes

    def nodes(self, depth: int) -> int:
        """Nodes of a draft that goes `depth` tokens ahead."""
        return self.tree_nodes(depth) if self.resolved().drafter in TREES else depth

    def resolved(self) -> SpecConfig:
        """The same with drafter, rule and length filled in from the preset."""
        preset = METHODS[self.method]
        return replace(
            self,
            drafter=self.drafter or preset.drafter,
            rule=self.rule or preset.rule,
            length=self.length or preset.length,
        )

    @property
    def most_drafted(self) -> int:
        """Nodes of the largest draft that this configuration can ask for."""
        return self.nodes(self.deepest)

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
        drafter = self.resolved().drafter
        if drafter in TREES:
            return len(self.tree_widths)
        return self.window if drafter in WINDOWED else self.num_draft_tokens
