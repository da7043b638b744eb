"""Presets: the methods by name, each a drafter, an acceptance rule and a length policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from .parts.drafters import StepsOptions
from .parts.pipelines import MODALITIES, Modality

Role = Literal["baseline", "method", "sceptic"]
_OF_IDS: tuple[Modality, ...] = ("image", "vlm")


@dataclass(frozen=True)
class Preset:
    """A method by name: which drafter, acceptance rule and length policy work together.

    Attributes:
        name: what users call it.
        drafter, rule, length: the parts, by name.
        summary: what it does, in a few words.
        role: what a report calls its row: the baseline, a method, or the cheap alternative that a
            sceptic asks for.
        knob: the option that trades speed for quality, or speed alone.
        sweep: values of the knob that draw its frontier, from safe to fast.
        settings: options whose defaults are this method's own.
        serves: modalities that it works for; "vlm" is text, with pictures in front of it or none;
            tokens of "continuous" are vectors, of "video" blocks of latent frames.
        head: the draft head that takes the place of a draft model, by name.
        of: what it is for a modality, if that is another.
        answers: who makes the output: the target, the draft model alone, or several experts.
        options: of the method itself, by modality.
    """

    name: str
    drafter: str
    rule: str
    summary: str
    length: str = "constant"
    role: Role = "method"
    knob: str | None = None
    sweep: tuple[float, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    serves: tuple[Modality, ...] = _OF_IDS
    head: str | None = None
    of: Mapping[Modality, Preset] = field(default_factory=dict)
    answers: Literal["target", "drafter", "experts"] = "target"
    options: Mapping[Modality, type] = field(default_factory=dict)
    kind = "method"


def _of_head(head: str, summary: str, length: int, drafter: str = "model") -> Preset:
    """A head over a language model that drafts chains.

    What a good head draws stands as often at temperature 1 as its likeliest token does greedily,
    and on a processor a tree's further nodes take longer than they gain.
    """
    settings = {"num_draft_tokens": length}
    return Preset(head, drafter, "token", summary, settings=settings, serves=("vlm",), head=head)


def _of_steps(name: str, rule: str, summary: str) -> Preset:
    """Denoising steps of a vector, drafted by the target's last prediction and judged."""
    return Preset(
        name,
        "frozen",
        rule,
        summary,
        knob="num_draft_tokens",
        sweep=(2, 4, 8, 16),
        settings={"num_draft_tokens": 8},
        serves=("continuous",),
    )


def _of_blocks(
    name: str, rule: str, summary: str, role: Role = "method", **knob: tuple[float, ...]
) -> Preset:
    """Blocks of video, drafted by a cheap model and routed by a rule with a knob."""
    ((option, sweep),) = knob.items()
    more: Any = dict(role=role, knob=option, sweep=sweep, serves=("video",))
    return Preset(name, "block-video", rule, summary, **more)


PRESETS = (
    Preset(
        "plain",
        "null",
        "token",
        "one token a target call: the baseline",
        role="baseline",
        serves=MODALITIES,
    ),
    Preset("draft", "model", "token", "a smaller model of the same vocabulary drafts"),
    Preset("tree", "tree", "recursive", "a smaller model drafts a tree"),
    Preset(
        "early-exit",
        "early-exit",
        "token",
        "the target's first layers draft; it finds out how many",
    ),
    Preset(
        "layer-skip", "layer-skip", "token", "the target drafts with the layers that it needs least"
    ),
    Preset(
        "dynamic-tree", "dynamic-tree", "recursive", "a smaller model's tree, deep where it is sure"
    ),
    Preset(
        "eagle",
        "eagle",
        "recursive",
        "a one-layer head on the target's features drafts a tree",
        of={
            "vlm": _of_head("eagle", "a one-layer head on the target's features drafts a chain", 6)
        },
    ),
    _of_head("vispec", "eagle's head; a picture is a vector or two, and one for all text", 6),
    _of_head("specvlm", "eagle's head; the question chooses how a picture is shortened", 6),
    _of_head("msd", "eagle's head; pictures and text come in by ways of their own", 6),
    _of_head("hydra", "small heads, each in the light of the tokens drafted before it", 6),
    _of_head("flash", "a head with pooled pictures drafts several tokens a call", 5, "block"),
    _of_head("dflash", "a small network denoises a block of masked tokens", 7, "block"),
    Preset("merged", "merged", "recursive", "several drafters' trees, fused"),
    Preset("prompt-lookup", "lookup", "token", "copies what followed the same tokens"),
    Preset(
        "token-recycling", "recycling", "recursive", "a tree of the target's earlier runners-up"
    ),
    Preset(
        "sjd",
        "jacobi",
        "token",
        "the target drafts a window itself (Jacobi)",
        knob="window",
        sweep=(4, 8, 16, 32),
    ),
    Preset(
        "scd",
        "coupled-jacobi",
        "token",
        "Jacobi whose tokens stay put (coupled)",
        knob="window",
        sweep=(4, 8, 16, 32),
    ),
    Preset(
        "scd-gumbel", "gumbel-jacobi", "token", "Jacobi whose tokens stay put (one noise per place)"
    ),
    Preset(
        "lantern",
        "dynamic-tree",
        "lantern",
        "a token stands if its nearest codes are likely enough with it, by δ",
        knob="lantern_delta",
        sweep=(0.02, 0.05, 0.1, 0.2),
        serves=("image",),
    ),
    Preset(
        "lantern++",
        "tree",
        "lantern++",
        "lantern's test by λ times the token's own probability, on a fixed tree",
        knob="lantern_lambda",
        sweep=(1.5, 2.0, 5.0, 20.0),
        serves=("image",),
    ),
    Preset(
        "gsd",
        "jacobi",
        "grouped",
        "tokens of about the same probability are judged as a group",
        knob="group_size",
        sweep=(3, 10, 20, 50),
    ),
    Preset(
        "cool-sd",
        "jacobi",
        "cool",
        "the ratio test is relaxed, and less so further into the draft",
        knob="cool_delta",
        sweep=(0.5, 1.0, 2.0, 4.0),
    ),
    Preset(
        "mulo-sd",
        "multiscale",
        "local",
        "a small picture is scaled up; what the target doubts is drawn again island by island",
        knob="local_threshold",
        sweep=(0.7, 0.5, 0.3, 0.1),
        settings={"draft_rows": 16},
        serves=("image",),
    ),
    Preset(
        "spatial-sd",
        "spatial",
        "local",
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
    Preset(
        "drafter-only",
        "null",
        "token",
        "the draft model in place of the target",
        role="sceptic",
        serves=MODALITIES,
        answers="drafter",
        options={"video": StepsOptions},
    ),
    Preset(
        "zipar",
        "zipar",
        "unverified",
        "rows in parallel, each some tokens behind the one above, nobody verifies",
        role="sceptic",
        knob="zipar_window",
        sweep=(8, 4, 2, 1),
        serves=("image",),
    ),
    Preset(
        "upsample-only",
        "multiscale",
        "unverified",
        "a small picture scaled up, nobody verifies",
        role="sceptic",
        serves=("image",),
    ),
    _of_steps(
        "gamma-maximal",
        "gamma-maximal",
        "the last prediction drafts denoising steps; what falls is drawn from the residual",
    ),
    _of_steps(
        "gaussian-block",
        "gaussian-block",
        "gamma-maximal whose drafted steps are judged together",
    ),
    _of_steps(
        "reflection",
        "reflection",
        "gamma-maximal whose fallen steps are mirrored, not drawn anew: less work a step",
    ),
    Preset(
        "cspd",
        "aligned",
        "gamma-maximal",
        "a smaller model with the same noises, judged at the last noisy step; saves no calls",
        settings={"num_draft_tokens": 1},
        serves=("continuous",),
    ),
    Preset(
        "cspd-independent",
        "aligned",
        "cspd-independent",
        "iterations of a smaller model with the same noises, none taken back, by a softened test",
        knob="softening",
        sweep=(1.0, 4.0, 16.0, 42.0),
        settings={"num_draft_tokens": 8},
        serves=("continuous",),
    ),
    Preset(
        "verdict",
        "null",
        "token",
        "small experts answer and reason, the model gives the verdict",
        serves=("vlm",),
        answers="experts",
    ),
    _of_blocks(
        "sdvg",
        "reward-threshold",
        "a small model drafts each block, which stands if its worst frame scores enough",
        tau=(34.0, 32.0, 30.0, 28.0),
    ),
    _of_blocks(
        "sdvg-adaptive",
        "reward-rank",
        "sdvg with a target share of drafts, speed-up or mean score in place of a fixed threshold",
        draft_share=(0.25, 0.5, 0.75, 0.9),
    ),
    _of_blocks(
        "random-routing",
        "random-routing",
        "a small model drafts each block, which stands by chance, nobody looks at it",
        role="sceptic",
        draft_share=(0.25, 0.5, 0.75, 1.0),
    ),
)
