"""Every knob of speculation in one frozen, validated place; imports no torch."""

from __future__ import annotations

from collections.abc import Collection
from copy import copy
from dataclasses import dataclass, fields
from math import inf
from numbers import Integral, Real
from typing import Any, Self

from .combinations import check_combination
from .errors import InputError
from .extent import Extent
from .knobs import check_read, knobs_of
from .methods import (
    CHOICES,
    COMPRESSORS,
    CRITERIA,
    DEFAULTS,
    DRAFTERS,
    DYNAMIC,
    FRAME_RULES,
    GAUSSIAN_RULES,
    HEADS,
    JACOBI_INITS,
    LANTERN_VARIANTS,
    LENGTHS,
    MERGEABLE,
    METHODS,
    NEEDS,
    REWARDED,
    ROUTING_RULES,
    RULES,
    SIBLINGS,
    UPSAMPLERS,
    Choice,
    Criterion,
    FrameRule,
    JacobiInit,
    LanternVariant,
    Modality,
    Siblings,
    Upsampler,
)
from .registry import check_name, is_reference

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
    "forced_blocks": (0, 65536),
    "draft_steps": (1, 1000),
}
_DOES: dict[Modality, str] = {
    "image": "draws pictures",
    "vlm": "writes text",
    "continuous": "draws pictures of continuous tokens",
    "video": "makes videos",
}
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
    "tau": (-inf, inf),
    "draft_share": (0, 1),
    "target_speedup": (1, 100),
    "target_quality": (-inf, inf),
}


@dataclass(frozen=True)
class SpecConfig:
    """How to speculate.

    Args:
        method: preset of drafter, rule and length policy; see `METHODS`.
        drafter, rule, length: one of the preset's parts by name, in place of the preset's. A rule
            of your own for tokens is "module:Class", a class that takes no arguments.
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
        lantern_variant: "paper", or "released": what the authors' code computes, for published
            figures (`ReleasedLanternRule`); it samples, and so is not for temperature 0.
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
        tau: reward τ that a drafted block of video must reach, on the reward's own scale. Left out
            it is the router's usual one, `ROUTER_TAU`; with another reward it must be given.
        frame_rule: whose reward a block's is: "worst" frame's, or the "mean" of all.
        reward: judges frames, a name of `mmspec.rewards.registry`, or "router": the pipeline's own.
        forced_blocks: first blocks of a clip that the target makes without a draft.
        draft_steps: denoising steps of a drafted block of video; None: what the drafter was made
            for. No more than the target's.
        draft_ahead: whether the next block of video is drafted while the last one is decoded and
            judged: the same clips, in less time where the hardware can do both. None: on a GPU; on
            a CPU it helps only if there are cores to spare.
        draft_share: share of the drafts that is to stand, of rules "reward-rank" and
            "random-routing".
        target_speedup: in place of a share, of rule "reward-rank": seconds of plain generation over
            those of a clip. The share follows what blocks are seen to take, so clips of a seed may
            differ from run to run.
        target_quality: in place of a share, of rule "reward-rank": mean reward that the drafts of a
            clip that stand have at least, on the reward's own scale.
        stride: positions in a row of the picture; the pipeline fills it in.

    Raises:
        InputError: a name is unknown, a value out of range, parts do not go together, or a knob is
            set that none of them reads.
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
    lantern_variant: LanternVariant = "paper"
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
    tau: float | None = None
    frame_rule: FrameRule = "worst"
    reward: str = "router"
    forced_blocks: int = 1
    draft_steps: int | None = None
    draft_ahead: bool | None = None
    draft_share: float = 0.5
    target_speedup: float | None = None
    target_quality: float | None = None
    stride: int = 1

    def __new__(cls, *_: Any, **knobs: Any) -> Self:
        """Names of knobs are looked at before their values: a slip is told the nearest."""
        for knob in knobs:
            check_name("setting", knob, (field.name for field in fields(cls)))
        return super().__new__(cls)

    def __post_init__(self) -> None:
        check_name("method", self.method, METHODS)
        for knob in ("tree_widths", "merge"):  # lists will do
            several: Any = getattr(self, knob)
            if not isinstance(several, list | tuple):
                raise InputError(f"{knob} must be a tuple, not {several!r}")
            object.__setattr__(self, knob, tuple(several))
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
            value = getattr(self, name)
            if value is not None and not (name == "rule" and is_reference(str(value))):
                check_name(name, value, known)
        check_name("jacobi_init", self.jacobi_init, JACOBI_INITS)
        check_name("lantern_variant", self.lantern_variant, LANTERN_VARIANTS)
        check_name("upsampler", self.upsampler, UPSAMPLERS)
        check_name("frame_rule", self.frame_rule, FRAME_RULES)
        for name in self.merge:
            check_name("drafter to merge", name, MERGEABLE)
        optional = {field.name for field in fields(self) if "None" in str(field.type)}
        for kind, word, ranges in ((Integral, "an integer ", WHOLE), (Real, "", REAL)):
            for knob, (low, high) in ranges.items():
                value = getattr(self, knob)
                if value is None and knob in optional:
                    continue
                number = isinstance(value, kind) and not isinstance(value, bool)
                if not number or not low <= value <= high:
                    raise InputError(f"{knob} must be {word}from {low} to {high}, not {value!r}")
        draft_ahead: Any = self.draft_ahead
        if draft_ahead is not None and not isinstance(draft_ahead, bool):
            raise InputError(f"draft_ahead must be True, False or None, not {draft_ahead!r}")
        exit_layer: Any = self.exit_layer
        if exit_layer is not None and not (isinstance(exit_layer, int) and exit_layer >= 1):
            raise InputError(f"exit_layer must be an integer of 1 or more, not {self.exit_layer!r}")
        for knob in ("draft_keep", "target_keep"):
            if getattr(self, knob) == 0:
                raise InputError(f"{knob} must be above 0: a picture keeps a token at least")
        widths: Any = self.tree_widths
        if not widths or not all(isinstance(w, int) and w >= 1 for w in widths):
            raise InputError(f"tree_widths must be integers of 1 or more, not {widths!r}")
        self.check()

    def check(self, given: Collection[str] = ()) -> None:
        """Raise an `InputError` unless parts and knobs go together for a modality that it serves.

        Args:
            given: knobs that must be read even if they are set to what they are anyway.
        """
        faults = []
        for modality in METHODS[self.method].serves:
            try:
                parts = self.resolved(modality=modality)
                check_combination(parts)
                check_read(parts, modality, given)
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
        if modality != "vlm" and (self.draft_compressor or self.target_compressor):
            raise InputError(
                "draft_compressor and target_compressor shorten pictures that a model sees, and "
                "this one draws them; leave them out"
            )
        parts = self.resolved(modality=modality)
        if modality != "continuous" and parts.rule in GAUSSIAN_RULES:
            raise InputError(
                f"rule {parts.rule!r} judges vectors, and this model {_DOES[modality]}, whose "
                "tokens are ids"
            )
        blocks = parts.drafter == "block-video" or parts.rule in ROUTING_RULES
        if blocks != (modality == "video") and (blocks or parts.drafter != "null"):
            raise InputError(
                f"drafter {parts.drafter!r} and rule {parts.rule!r} are not for a model that "
                f"{_DOES[modality]}; blocks of video are drafted by 'block-video' and routed by "
                f"{', '.join(ROUTING_RULES)}"
            )
        check_combination(parts)
        check_read(parts, modality)
        return parts

    @property
    def drafters(self) -> tuple[str, ...]:
        """The drafters at work: of a merged tree all of them."""
        drafter = str(self.resolved().drafter)
        return self.merge if drafter == "merged" else (drafter,)

    @property
    def needs(self) -> tuple[str, ...]:
        """Components of the pipeline beside the target that drafters and the reward need.

        A head is "heads/NAME". A reward that is given to the pipeline itself takes the router's
        place.
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
        if self.resolved().rule in REWARDED and self.reward == "router":
            found.append("router")
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

    @property
    def extent(self) -> Extent:
        """How far and how wide it drafts."""
        return Extent(self)

    def resolved(self, stride: int | None = None, modality: Modality | None = None) -> SpecConfig:
        """The same with everything filled in that is None here, and `stride` if that is known.

        Parts and knobs are the method's own, or those of `DEFAULTS`; knobs that no part reads stay
        None. A method that is another for text is that for modality "vlm" alone.
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
        read = knobs_of(parts)
        for knob, value in (DEFAULTS | preset.settings).items():
            if getattr(self, knob) is None and knob in read:
                object.__setattr__(parts, knob, value)
        return parts
