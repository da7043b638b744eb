"""The names of methods and of their parts, and what goes with what; imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Role = Literal["baseline", "method", "sceptic"]
Modality = Literal["image", "vlm", "continuous", "video"]
JacobiInit = Literal["uniform", "previous", "above"]
LanternVariant = Literal["paper", "released"]
Siblings = Literal["without-replacement", "independent", "top"]
Criterion = Literal["threshold", "ratio"]
FrameRule = Literal["worst", "mean"]
Upsampler = Literal["learned", "pixels", "nearest"]
Branch = Literal["pruning", "pooling", "convolution", "resampler", "text-only"]
Choice = Literal["gate", "sum", "whole", Branch]
MODALITIES: tuple[Modality, ...] = get_args(Modality)
OF_IDS: tuple[Modality, ...] = ("image", "vlm")  # tokens are ids; those of others are vectors
JACOBI_INITS: tuple[JacobiInit, ...] = get_args(JacobiInit)
LANTERN_VARIANTS: tuple[LanternVariant, ...] = get_args(LanternVariant)
SIBLINGS: tuple[Siblings, ...] = get_args(Siblings)
CRITERIA: tuple[Criterion, ...] = get_args(Criterion)
FRAME_RULES: tuple[FrameRule, ...] = get_args(FrameRule)
UPSAMPLERS: tuple[Upsampler, ...] = get_args(Upsampler)
BRANCHES: tuple[Branch, ...] = get_args(Branch)
CHOICES: tuple[Choice, ...] = get_args(Choice)


@dataclass(frozen=True)
class Method:
    """A named preset: which drafter, acceptance rule and length policy work together.

    Attributes:
        drafter, rule, length: the parts, by name.
        summary: in a few words.
        role: what a report calls its row: the baseline, a method, or the cheap alternative that a
            sceptic asks for.
        knob: the field of `SpecConfig` that trades speed for quality, or speed alone.
        sweep: values of the knob that draw its frontier, from safe to fast.
        settings: fields of `SpecConfig` whose defaults are this method's own.
        serves: modalities that it works for; "vlm" is text, with pictures in front of it or none;
            tokens of "continuous" are vectors, of "video" blocks of latent frames.
        head: the draft head that takes the place of a draft model, by name.
        of_text: what it is for "vlm", if that is another.
    """

    drafter: str
    rule: str
    length: str
    summary: str
    role: Role = "method"
    knob: str | None = None
    sweep: tuple[float, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    serves: tuple[Modality, ...] = OF_IDS
    head: str | None = None
    of_text: Method | None = None

    def of(self, modality: Modality | None) -> Method:
        """What it is for a modality; None: for the first that it serves."""
        return self.of_text if modality == "vlm" and self.of_text is not None else self


def serving(modality: Modality) -> dict[str, Method]:
    """The methods that work for a modality, by name."""
    return {name: method for name, method in METHODS.items() if modality in method.serves}


def _of_head(head: str, summary: str, length: int, drafter: str = "model") -> Method:
    """A head over a language model that drafts chains.

    What a good head draws stands as often at temperature 1 as its likeliest token does greedily,
    and on a processor a tree's further nodes take longer than they gain.
    """
    return Method(
        drafter,
        "token",
        "constant",
        summary,
        settings={"num_draft_tokens": length},
        serves=("vlm",),
        head=head,
    )


def _of_steps(drafter: str, rule: str, summary: str) -> Method:
    """Denoising steps of a vector, drafted and judged."""
    return Method(
        drafter,
        rule,
        "constant",
        summary,
        knob="num_draft_tokens",
        sweep=(2, 4, 8, 16),
        settings={"num_draft_tokens": 8},
        serves=("continuous",),
    )


def _of_blocks(rule: str, summary: str, role: Role = "method", **knob: tuple[float, ...]) -> Method:
    """Blocks of video, drafted by a cheap model and routed by a rule with a knob."""
    (name, sweep), *_ = knob.items()
    return Method(
        "block-video",
        rule,
        "constant",
        summary,
        role,
        knob=name,
        sweep=sweep,
        settings={"num_draft_tokens": 1},
        serves=("video",),
    )


# decibels that rule "reward-threshold" usually asks of the router; no other reward's scale has them
ROUTER_TAU = 32.0
ROUTER_TAUS = (34.0, 32.0, 30.0, 28.0)  # from safe to fast

# of fields of `SpecConfig` that methods may have defaults of their own for
DEFAULTS: dict[str, Any] = {
    "num_draft_tokens": 4,
    "tree_depth": 5,
    "tree_width": 4,
    "tree_beam": 4,
    "tree_nodes": 48,
    "siblings": "without-replacement",
    "local_threshold": 0.1,
    "local_radius": 0,
    "local_criterion": "threshold",
    "local_window": 2,
    "local_turns": None,
    "local_advance": None,
    "local_slips": 0,
    "draft_rows": 1,
    "neighbours": 20,
    "draft_steps": None,
    "tau": ROUTER_TAU,
}

METHODS: dict[str, Method] = {
    "plain": Method(
        "null",
        "token",
        "constant",
        "one token a target call: the baseline",
        "baseline",
        serves=MODALITIES,
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
    "eagle": Method(
        "eagle",
        "recursive",
        "constant",
        "a one-layer head on the target's features drafts a tree",
        of_text=_of_head("eagle", "a one-layer head on the target's features drafts a chain", 6),
    ),
    "vispec": _of_head(
        "vispec", "eagle's head; a picture is a vector or two, and one for all text", 6
    ),
    "specvlm": _of_head(
        "specvlm", "eagle's head; the question chooses how a picture is shortened", 6
    ),
    "msd": _of_head("msd", "eagle's head; pictures and text come in by ways of their own", 6),
    "hydra": _of_head("hydra", "small heads, each in the light of the tokens drafted before it", 6),
    "flash": _of_head(
        "flash", "a head with pooled pictures drafts several tokens a call", 5, "block"
    ),
    "dflash": _of_head("dflash", "a small network denoises a block of masked tokens", 7, "block"),
    "merged": Method("merged", "recursive", "constant", "several drafters' trees, fused"),
    "prompt-lookup": Method("lookup", "token", "constant", "copies what followed the same tokens"),
    "token-recycling": Method(
        "recycling", "recursive", "constant", "a tree of the target's earlier runners-up"
    ),
    "sjd": Method(
        "jacobi",
        "token",
        "constant",
        "the target drafts a window itself (Jacobi)",
        knob="window",
        sweep=(4, 8, 16, 32),
    ),
    "scd": Method(
        "coupled-jacobi",
        "token",
        "constant",
        "Jacobi whose tokens stay put (coupled)",
        knob="window",
        sweep=(4, 8, 16, 32),
    ),
    "scd-gumbel": Method(
        "gumbel-jacobi", "token", "constant", "Jacobi whose tokens stay put (one noise per place)"
    ),
    "lantern": Method(
        "dynamic-tree",
        "lantern",
        "constant",
        "a token stands if its nearest codes are likely enough with it, by δ",
        knob="lantern_delta",
        sweep=(0.02, 0.05, 0.1, 0.2),
        serves=("image",),
    ),
    "lantern++": Method(
        "tree",
        "lantern++",
        "constant",
        "lantern's test by λ times the token's own probability, on a fixed tree",
        knob="lantern_lambda",
        sweep=(1.5, 2.0, 5.0, 20.0),
        serves=("image",),
    ),
    "gsd": Method(
        "jacobi",
        "grouped",
        "constant",
        "tokens of about the same probability are judged as a group",
        knob="group_size",
        sweep=(3, 10, 20, 50),
    ),
    "cool-sd": Method(
        "jacobi",
        "cool",
        "constant",
        "the ratio test is relaxed, and less so further into the draft",
        knob="cool_delta",
        sweep=(0.5, 1.0, 2.0, 4.0),
    ),
    "mulo-sd": Method(
        "multiscale",
        "local",
        "constant",
        "a small picture is scaled up; what the target doubts is drawn again island by island",
        knob="local_threshold",
        sweep=(0.7, 0.5, 0.3, 0.1),
        settings={"draft_rows": 16},
        serves=("image",),
    ),
    "spatial-sd": Method(
        "spatial",
        "local",
        "constant",
        "heads on the target's features draft rows from the row above",
        knob="neighbours",
        sweep=(0, 4, 10, 20),
        settings={
            "local_criterion": "ratio",
            "local_threshold": 1.0,
            "local_radius": 0,
            "local_turns": 0,
            "local_advance": 1,
            "neighbours": 12,
            "draft_rows": 1,
        },
        serves=("image",),
    ),
    "drafter-only": Method(
        "null",
        "token",
        "constant",
        "the draft model in place of the target",
        "sceptic",
        serves=MODALITIES,
    ),
    "zipar": Method(
        "zipar",
        "unverified",
        "constant",
        "rows in parallel, each some tokens behind the one above, nobody verifies",
        "sceptic",
        knob="zipar_window",
        sweep=(8, 4, 2, 1),
        serves=("image",),
    ),
    "upsample-only": Method(
        "multiscale",
        "unverified",
        "constant",
        "a small picture scaled up, nobody verifies",
        "sceptic",
        serves=("image",),
    ),
    "gamma-maximal": _of_steps(
        "frozen",
        "gamma-maximal",
        "the last prediction drafts denoising steps; what falls is drawn from the residual",
    ),
    "gaussian-block": _of_steps(
        "frozen", "gaussian-block", "gamma-maximal whose drafted steps are judged together"
    ),
    "reflection": _of_steps(
        "frozen",
        "reflection",
        "gamma-maximal whose fallen steps are mirrored, not drawn anew: less work a step",
    ),
    "cspd": Method(
        "aligned",
        "gamma-maximal",
        "constant",
        "a smaller model with the same noises, judged at the last noisy step; saves no calls",
        settings={"num_draft_tokens": 1},
        serves=("continuous",),
    ),
    "cspd-independent": Method(
        "aligned",
        "cspd-independent",
        "constant",
        "iterations of a smaller model with the same noises, none taken back, by a softened test",
        knob="softening",
        sweep=(1.0, 4.0, 16.0, 42.0),
        settings={"num_draft_tokens": 8},
        serves=("continuous",),
    ),
    "verdict": Method(
        "null",
        "token",
        "constant",
        "small experts answer and reason, the model gives the verdict",
        serves=("vlm",),
    ),
    "sdvg": _of_blocks(
        "reward-threshold",
        "a small model drafts each block, which stands if its worst frame scores enough",
        tau=ROUTER_TAUS,
    ),
    "sdvg-adaptive": _of_blocks(
        "reward-rank",
        "sdvg with a wished share of drafts, speed-up or mean score in place of a fixed threshold",
        draft_share=(0.25, 0.5, 0.75, 0.9),
    ),
    "random-routing": _of_blocks(
        "random-routing",
        "a small model drafts each block, which stands by chance, nobody looks at it",
        "sceptic",
        draft_share=(0.25, 0.5, 0.75, 1.0),
    ),
}

# the defaults of commands and demo: of each modality the first that a model has the parts for
FIRST: dict[Modality, tuple[str, ...]] = {
    "image": ("scd",),
    "vlm": ("eagle", "draft", "prompt-lookup"),
    "continuous": ("reflection",),
    "video": ("sdvg",),
}

# a drafter's components of the pipeline beside the target; others need none
NEEDS: dict[str, tuple[str, ...]] = {
    "model": ("drafter",),
    "tree": ("drafter",),
    "dynamic-tree": ("drafter",),
    "eagle": ("eagle",),
    "multiscale": ("sibling",),
    "spatial": ("spatial",),
    "denoiser": ("drafter",),
    "aligned": ("drafter",),
    "block-video": ("drafter",),
}
COMPRESSORS = ("fastv", "visionzip", "divprune", "tome", "prumerge", "pool")
HEADS = tuple(name for name, method in METHODS.items() if method.of("vlm").head is not None)
BLOCK_HEADS = ("flash", "dflash")  # their calls say several tokens
GROWN = ("model", "tree", "dynamic-tree")  # a draft model grows these token by token
SELF = ("early-exit", "layer-skip")  # these take the target for a draft model
DYNAMIC = ("dynamic-tree", "eagle")  # trees whose shape is found as they grow
TREES = ("tree", *DYNAMIC, "merged", "recycling")
WINDOWED = ("jacobi", "coupled-jacobi", "gumbel-jacobi")
ROWED = ("multiscale", "spatial")  # these draft rows of the picture and say where nodes stand
# these draft vectors: the next denoising steps of a token, or whole tokens with shared noises
STEPPED = ("frozen", "denoiser", "aligned")
MERGEABLE = ("tree", "dynamic-tree", "lookup", "recycling", "jacobi", "coupled-jacobi")
DRAFTERS = (
    *("null", "model", "block", *SELF, *TREES, "lookup", *WINDOWED, *ROWED, "zipar"),
    *(*STEPPED, "block-video"),
)
TREE_RULES = ("recursive", "k-seq", "lantern", "lantern++")  # these judge chains as well
GAUSSIAN_RULES = ("reflection", "gamma-maximal", "gaussian-block", "cspd-independent")
REWARDED = ("reward-threshold", "reward-rank")  # these read what a block of video scores
ROUTING_RULES = (*REWARDED, "random-routing")
RULES = (
    *("token", "block", "greedy", *TREE_RULES, "grouped", "cool", "local", "unverified"),
    *(*GAUSSIAN_RULES, *ROUTING_RULES),
)
STOPPING = ("confidence", "specdec++")  # policies that look at the tokens as they are drafted
LENGTHS = ("constant", "heuristic", "goodput", *STOPPING)
