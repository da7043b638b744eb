"""Every knob of speculation in one frozen, validated place; imports no torch."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Any

from .errors import InputError
from .methods import (
    BLOCK_HEADS,
    CHOICES,
    COMPRESSORS,
    CRITERIA,
    DEFAULTS,
    DRAFTERS,
    DYNAMIC,
    GAUSSIAN_RULES,
    GROWN,
    HEADS,
    JACOBI_INITS,
    LENGTHS,
    MERGEABLE,
    METHODS,
    NEEDS,
    ROWED,
    RULES,
    SELF,
    SIBLINGS,
    STEPPED,
    STOPPING,
    TREE_RULES,
    TREES,
    UPSAMPLERS,
    WINDOWED,
    Choice,
    Criterion,
    JacobiInit,
    Modality,
    Siblings,
    Upsampler,
)
from .registry import check_name

WHOLE: dict[str, tuple[int, int]] = {
    "num_draft_tokens": (1, 64),
    "max_draft_tokens": (1, 64),
    "window": (1, 256),
    "tree_depth": (1, 64),
    "tree_width": (1, 256),
    "tree_beam": (1, 256),
    "tree_nodes": (1, 256),
    "neighbours": (0, 65536),
    "group_size": (1, 65536),
    "local_radius": (0, 16),
    "local_window": (1, 256),
    "local_turns": (0, 65536),
    "local_advance": (1, 65536),
    "local_slips": (0, 65536),
    "draft_rows": (1, 64),
    "zipar_window": (1, 256),
    "cool_length": (1, 256),
}
_DOES: dict[Modality, str] = {"image": "draws pictures", "vlm": "writes text"}
REAL: dict[str, tuple[float, float]] = {
    "confidence": (0, 1),
    "rejection": (0, 1),
    "lantern_delta": (0, 1),
    "lantern_lambda": (1, 1e6),
    "group_probability": (0, 1),
    "group_distance": (0, 1e6),
    "cool_delta": (0, 1e6),
    "cool_nu": (0, 100),
    "local_threshold": (0, 1),
    "draft_guidance": (0, 100),
    "draft_temperature": (0, 100),
    "draft_keep": (0, 1),
    "target_keep": (0, 1),
    "softening": (1, 1e6),
}


@dataclass(frozen=True)
class SpecConfig:
    """How to speculate.

    Args:
        method: preset of drafter, rule and length policy; see `METHODS`.
        drafter, rule, length: one of the preset's parts by name, in place of the preset's.
        head: draft head in place of a draft model, by name.
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
        neighbours: nearest codes that rules "lantern", "lantern++" and "local" pool at most.
        lantern_delta: δ, most probability that the neighbours may add to a token's own.
        lantern_lambda: λ, a token may count for so many times its own probability at most.
        group_size: ranks G of a group of tokens.
        group_probability, group_distance: how far a group's tokens may be from the drafted one, in
            probability and in the codebook; None: anywhere.
        cool_delta, cool_nu, cool_length: δ, ν and L of the relaxed ratio, see `CoolRule`.
        local_threshold, local_radius, local_criterion: θ, l and the test of rule "local", see
            `LocalRule`.
        local_turns: most calls in which the fallen are drawn again after one scoring call; the rest
            stays as it was drawn at once.
        local_advance, local_slips: tokens that join the output in a round at least, and fallen ones
            that it passes over: those in front of the next join. The rest of the draft is judged
            again. An advance of None: all join.
        local_window: how the fallen tokens of rule "local" are drawn again: in an island, a row is
            so many tokens behind the one above it; a whole row or more: one by one.
        draft_rows: rows of the picture that "multiscale" and "spatial" draft at a time.
        upsampler: what scales the small picture up, see `MultiScaleDrafter`.
        draft_guidance, draft_temperature: under which the small picture is drawn.
        zipar_window: tokens that a row is behind the one above it.
        branch: how SpecVLM's head shortens pictures, see `SpecVlmHead`; None: as it was saved.
        draft_compressor: shortens the pictures that a draft model is shown, see `mmspec.compress`.
            The output stays exact.
        target_compressor: the same for the target: lossy, whatever the rule.
        draft_keep, target_keep: share of a picture's tokens that a compressor leaves; None: it
            chooses itself, which "prumerge" can.
        softening: κ, how much wider than they are rule "cspd-independent" takes the laws to be.
        stride: positions in a row of the picture; the pipeline fills it in.

    Raises:
        InputError: a name is unknown or a number out of range.
    """

    method: str = "draft"
    drafter: str | None = None
    rule: str | None = None
    length: str | None = None
    head: str | None = None
    num_draft_tokens: int | None = None
    max_draft_tokens: int = 16
    window: int = 16
    jacobi_init: JacobiInit = "previous"
    exit_layer: int | None = None
    tree_widths: tuple[int, ...] = (3, 2, 1, 1)
    tree_depth: int | None = None
    tree_width: int | None = None
    tree_beam: int | None = None
    tree_nodes: int | None = None
    siblings: Siblings | None = None
    merge: tuple[str, ...] = ("coupled-jacobi", "tree")
    confidence: float = 0.4
    rejection: float = 0.6
    neighbours: int | None = None
    lantern_delta: float = 0.1
    lantern_lambda: float = 2.0
    group_size: int = 14
    group_probability: float | None = 0.15
    group_distance: float | None = None
    cool_delta: float = 1.0
    cool_nu: float = 0.7
    cool_length: int = 8
    local_threshold: float | None = None
    local_radius: int | None = None
    local_criterion: Criterion | None = None
    local_window: int | None = None
    local_turns: int | None = None
    local_advance: int | None = None
    local_slips: int | None = None
    draft_rows: int | None = None
    upsampler: Upsampler = "learned"
    draft_guidance: float = 4.0
    draft_temperature: float = 0.7
    zipar_window: int = 4
    branch: Choice | None = None
    draft_compressor: str | None = None
    draft_keep: float | None = 0.5
    target_compressor: str | None = None
    target_keep: float | None = 0.5
    softening: float = 42.0
    stride: int = 1

    def __post_init__(self) -> None:
        check_name("method", self.method, METHODS)
        for knob in ("tree_widths", "merge"):  # lists will do
            object.__setattr__(self, knob, tuple(getattr(self, knob)))
        for name, known in (
            ("drafter", DRAFTERS),
            ("rule", RULES),
            ("length", LENGTHS),
            ("head", HEADS),
            ("siblings", SIBLINGS),
            ("local_criterion", CRITERIA),
            ("branch", CHOICES),
            ("draft_compressor", COMPRESSORS),
            ("target_compressor", COMPRESSORS),
        ):
            if (value := getattr(self, name)) is not None:
                check_name(name, value, known)
        check_name("jacobi_init", self.jacobi_init, JACOBI_INITS)
        check_name("upsampler", self.upsampler, UPSAMPLERS)
        for name in self.merge:
            check_name("drafter to merge", name, MERGEABLE)
        for knob, (least, most) in WHOLE.items():
            value = getattr(self, knob)
            if knob in DEFAULTS and value is None:
                continue
            if not isinstance(value, int) or not least <= value <= most:
                raise InputError(f"{knob} must be an integer from {least} to {most}, not {value!r}")
        for knob, (low, high) in REAL.items():
            number = getattr(self, knob)
            if number is not None and not low <= number <= high:
                raise InputError(f"{knob} must be from {low} to {high}, not {number!r}")
        exit_layer: Any = self.exit_layer
        if exit_layer is not None and not (isinstance(exit_layer, int) and exit_layer >= 1):
            raise InputError(f"exit_layer must be an integer of 1 or more, not {self.exit_layer!r}")
        for knob in ("draft_keep", "target_keep"):
            if getattr(self, knob) == 0:
                raise InputError(f"{knob} must be above 0: a picture keeps a token at least")
        widths: Any = self.tree_widths
        if not widths or not all(isinstance(w, int) and w >= 1 for w in widths):
            raise InputError(f"tree_widths must be integers of 1 or more, not {widths!r}")
        faults = []
        for modality in METHODS[self.method].serves:
            try:
                self.resolved(modality=modality)._check_parts()
                return
            except InputError as error:
                faults.append(error)
        raise faults[0]

    def serving(self, modality: Modality) -> SpecConfig:
        """The same, complete, as it works for a modality.

        Raises:
            InputError: the method does not serve it, or its parts do not go together there.
        """
        serves = METHODS[self.method].serves
        if modality not in serves:
            raise InputError(
                f"method {self.method!r} is for a model that {_DOES[serves[0]]}, and this one "
                f"{_DOES[modality]}; see `mmspec ls methods`"
            )
        if modality == "image" and (self.draft_compressor or self.target_compressor):
            raise InputError(
                "draft_compressor and target_compressor shorten pictures that a model sees, and "
                "this one draws them; leave them out"
            )
        parts = self.resolved(modality=modality)
        parts._check_parts()
        return parts

    def _check_parts(self) -> None:
        """Raise an `InputError` unless the parts of this complete configuration go together."""
        parts = self
        rule, drafter = str(parts.rule), str(parts.drafter)
        if self._number("num_draft_tokens") > self.max_draft_tokens:
            raise InputError(
                f"num_draft_tokens ({self.num_draft_tokens}) is larger than max_draft_tokens "
                f"({self.max_draft_tokens})"
            )
        self._check_head()
        if self.drafter_only and drafter != "null":
            raise InputError("method 'drafter-only' asks no target: nobody could judge a draft")
        if drafter in TREES and rule not in TREE_RULES:
            raise InputError(
                f"rule {rule!r} judges chains and drafter {drafter!r} drafts trees; use 'recursive'"
            )
        if rule == "block" and drafter in ("coupled-jacobi", "gumbel-jacobi"):
            raise InputError(
                f"rule 'block' lets later tokens weigh on earlier ones, and drafter {drafter!r} "
                "keeps them as if nobody had looked; use rule 'token', or drafter 'jacobi'"
            )
        if drafter != "null" and (rule in GAUSSIAN_RULES) != (drafter in STEPPED):
            raise InputError(
                f"rule {rule!r} and drafter {drafter!r} do not go together: rules "
                f"{', '.join(GAUSSIAN_RULES)} judge vectors, and drafters {', '.join(STEPPED)} "
                "draft them"
            )
        if rule == "cspd-independent" and drafter != "aligned":
            raise InputError(
                "rule 'cspd-independent' judges whole tokens each by itself, and drafter "
                f"{drafter!r} drafts steps of one; use 'aligned'"
            )
        if rule == "unverified" and drafter not in ("multiscale", "zipar"):
            raise InputError(
                f"rule 'unverified' keeps every token, and drafter {drafter!r} counts on a target "
                "that judges them; use 'multiscale' or 'zipar'"
            )
        if drafter == "zipar" and rule != "unverified":
            raise InputError(
                f"rule {rule!r} judges tokens that are drafted in order, and drafter 'zipar' draws "
                "rows side by side; use 'unverified'"
            )
        if rule == "local" and drafter not in ROWED:
            raise InputError(
                f"rule 'local' judges tokens by where they are in the picture, and drafter "
                f"{drafter!r} does not say; use {_or(ROWED)}"
            )
        if rule == "local" and drafter == "multiscale" and parts.local_criterion == "ratio":
            raise InputError(
                "local_criterion 'ratio' divides by the probability with which a token was "
                "drafted, and of a picture scaled up nobody knows it; use 'threshold'"
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
            drafter in ("tree", *DYNAMIC) and self.siblings == "independent"
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

    def _check_head(self) -> None:
        """Raise an `InputError` if head, drafter and what shortens pictures do not go together."""
        drafter = str(self.drafter)
        blocks = self.head in BLOCK_HEADS
        if self.head is None and drafter == "block":
            raise InputError(
                f"drafter 'block' needs a head that says several tokens a call: {_or(BLOCK_HEADS)}"
            )
        if self.head is not None and (drafter != "block" if blocks else drafter not in GROWN):
            fitting = ("block",) if blocks else GROWN
            raise InputError(
                f"drafter {drafter!r} has no use for head {self.head!r}; use {_or(fitting)}"
            )
        if self.branch is not None and self.head != "specvlm":
            raise InputError("branch is a setting of head 'specvlm'; leave it out")
        if self.draft_compressor is not None and "drafter" not in self.needs:
            raise InputError(
                "draft_compressor shortens what a draft model is shown, and method "
                f"{self.method!r} has none; use method 'draft'"
            )

    @property
    def drafters(self) -> tuple[str, ...]:
        """The drafters at work: of a merged tree all of them."""
        drafter = str(self.resolved().drafter)
        return self.merge if drafter == "merged" else (drafter,)

    @property
    def needs(self) -> tuple[str, ...]:
        """Components of the pipeline beside the target that the drafters need.

        A head is "heads/NAME".
        """
        head = self.resolved().head
        if head is not None:
            return (f"heads/{head}",)
        if self.method == "verdict":
            return ("experts",)
        found = [part for name in self.drafters for part in NEEDS.get(name, ())]
        if "multiscale" in self.drafters and self.upsampler == "learned":
            found.append("upsampler")
        if self.drafter_only:
            found.append("drafter")
        return tuple(dict.fromkeys(found))

    @property
    def ranks(self) -> bool:
        """Whether the likeliest tokens are drafted, more than one of a law."""
        drafts = set(self.drafters) & {"tree", *DYNAMIC}
        return bool(drafts) and self.resolved().siblings == "top"

    @property
    def unverified(self) -> bool:
        """Whether nobody judges what is drafted."""
        return self.resolved().rule == "unverified"

    @property
    def drafter_only(self) -> bool:
        """Whether the draft model draws and the target is not asked: lossy, whatever the rule."""
        return self.method == "drafter-only"

    @property
    def unasked(self) -> bool:
        """Whether the target takes no part: what comes out is a drafter's alone."""
        return self.drafter_only or (self.unverified and self.drafters == ("multiscale",))

    def resolved(self, stride: int | None = None, modality: Modality | None = None) -> SpecConfig:
        """The same with everything filled in that is None here, and `stride` if that is known.

        Parts and knobs are the method's own, or those of `DEFAULTS`. A method that is another for
        text is that for modality "vlm" alone.
        """
        preset = METHODS[self.method].of(modality)
        # not `replace`, which would check, and checking resolves
        parts = copy(self)
        for part, value in (
            ("drafter", self.drafter or preset.drafter),
            ("rule", self.rule or preset.rule),
            ("length", self.length or preset.length),
            ("head", self.head or preset.head),
            ("stride", stride or self.stride),
        ):
            object.__setattr__(parts, part, value)
        for knob, value in (DEFAULTS | preset.settings).items():
            if getattr(self, knob) is None:
                object.__setattr__(parts, knob, value)
        return parts

    # --- how far and how wide -------------------------------------------------------------------

    def nodes(self, depth: int) -> int:
        """Most nodes of a draft that goes `depth` tokens ahead."""
        total = sum(self._nodes(name, depth) for name in self.drafters)
        merged = self.resolved().drafter == "merged"
        return min(total, self._number("tree_nodes")) if merged else total

    def _nodes(self, drafter: str, depth: int) -> int:
        if drafter in ("tree", "recycling"):
            return self._fixed(depth)
        if drafter in DYNAMIC:
            return min(self._grown(depth), self._number("tree_nodes"))
        return depth

    def _drawn(self, drafter: str, depth: int) -> int:
        """Most nodes of a drafter's tree, with those that are drawn and not kept."""
        drops = drafter in DYNAMIC and self.resolved().siblings != "top"
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
        return sum(self._levels(depth))

    def _read(self, depth: int) -> int:
        """Those of them that may get children: the draft model reads no others."""
        beam = self._number("tree_beam")
        return sum(min(level, beam) for level in self._levels(depth))

    def _levels(self, depth: int) -> list[int]:
        """Nodes of each of a dynamic tree's first levels."""
        beam, width = self._number("tree_beam"), self._number("tree_width")
        levels: list[int] = []
        for _ in range(min(depth, self._number("tree_depth"))):
            levels.append(min(levels[-1] if levels else 1, beam) * width)
        return levels

    def _number(self, knob: str) -> int:
        """A whole number that a method may have a default of its own for."""
        value = getattr(self, knob)
        return int(getattr(self.resolved(), knob) if value is None else value)

    def draft_calls(self, depth: int) -> list[int]:
        """Tokens a row that every call of a draft model reads for a draft `depth` tokens deep.

        A tree takes one call a level; all but the first read the root and the tree so far, of a
        dynamic one the nodes that get children. Blocks are counted as one.
        """
        calls: list[int] = []
        for name in self.drafters:
            if name == "model":
                calls += [1] * depth
            if name == "block":
                calls.append(depth)
            if name in ("tree", *DYNAMIC):
                size = self._fixed if name == "tree" else self._read
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
        if parts.drafter in ("null", "zipar"):
            return 0
        if parts.length == "constant" or parts.drafter in TREES:
            return self.first_drafted
        if parts.length == "goodput" and parts.drafter in WINDOWED:
            return self.window
        return self.max_draft_tokens

    @property
    def first_drafted(self) -> int:
        """How far ahead the first round drafts: a window, rows, the tree's levels, or γ tokens."""
        return max(self._first(name) for name in self.drafters)

    def _first(self, drafter: str) -> int:
        if drafter in ("tree", "recycling"):
            return len(self.tree_widths)
        if drafter in DYNAMIC:
            return self._number("tree_depth")
        if drafter in ROWED:
            return int(self.resolved().draft_rows or 1) * self.stride
        return self.window if drafter in WINDOWED else self._number("num_draft_tokens")


def _or(names: tuple[str, ...]) -> str:
    return " or ".join(map(repr, names))
