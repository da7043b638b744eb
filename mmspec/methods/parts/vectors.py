"""Drafters and rules of continuous tokens, whose laws are normal."""

from __future__ import annotations

from typing import Any

from ..options import Options, option
from ..part import Drafter, Preset, Rule
from .shared import ChainOptions


class IndependentOptions(Options):
    softening: float = option(
        42.0, "how much the test is softened; more is faster and further off", 1, 1e6
    )


_VECTORS: Any = dict(tokens="vectors", depth="num_draft_tokens")


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


PARTS = (
    Drafter(
        "frozen",
        ".denoising.frozen:FrozenDrafter",
        "the target's own last prediction drafts denoising steps",
        ChainOptions,
        paper="De Bortoli et al. 2025",
        **_VECTORS,
    ),
    Drafter(
        "denoiser",
        ".denoising.small_head:DenoisingDrafter",
        "a smaller head drafts denoising steps",
        ChainOptions,
        {"denoiser": "small"},
        needs=("drafter",),
        **_VECTORS,
    ),
    Drafter(
        "aligned",
        ".denoising.aligned:AlignedDrafter",
        "a smaller model drafts whole tokens with the target's noises",
        ChainOptions,
        needs=("drafter",),
        fixed=True,
        whole=True,
        paper="Wang et al. 2024",
        **_VECTORS,
    ),
    Rule(
        "reflection",
        ".gaussian.reflection:ReflectionRule",
        "what falls is mirrored",
        tokens="vectors",
        paper="De Bortoli et al. 2025",
    ),
    Rule(
        "gamma-maximal",
        ".gaussian.gamma_maximal:GammaMaximalRule",
        "what falls is drawn from the residual",
        tokens="vectors",
        paper="De Bortoli et al. 2025",
    ),
    Rule(
        "gaussian-block",
        ".gaussian.block:GaussianBlockRule",
        "denoising steps are judged together",
        tokens="vectors",
        paper="Sun et al. 2024",
    ),
    Rule(
        "cspd-independent",
        ".gaussian.independent:IndependentRule",
        "each token by itself, none is taken back",
        IndependentOptions,
        contract="lossy",
        tokens="vectors",
        independent=True,
        paper="Wang et al. 2024",
    ),
    _of_steps(
        "gamma-maximal",
        "gamma-maximal",
        "the last prediction drafts denoising steps; what falls is drawn from the residual",
    ),
    _of_steps(
        "gaussian-block",
        "gaussian-block",
        "the last prediction drafts denoising steps, judged together: more stand",
    ),
    _of_steps(
        "reflection",
        "reflection",
        "the last prediction drafts denoising steps; what falls is mirrored: less work a step",
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
)
