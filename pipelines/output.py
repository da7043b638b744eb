"""Outputs of the pipelines, and counters of token ids; other counters lie beside their pipeline."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from diffusers.utils import BaseOutput
from torch import Tensor

from ..engine.stats import SpecStats
from ..models.wan.vae import to_bytes
from .continuous.stats import ContinuousStats
from .video.stats import VideoStats


@dataclass
class ImageStats(SpecStats):
    """Counters of a batch of pictures.

    Attributes:
        sibling_calls: calls of a smaller model that drew a small picture first, per row; empty:
            there is no such model.
    """

    sibling_calls: list[int] = field(default_factory=list)

    def per_sample(self, shared: bool = False) -> dict[str, float]:
        means = super().per_sample(shared)
        if self.sibling_calls:
            means["sibling_calls_per_sample"] = sum(self.sibling_calls) / len(self.sibling_calls)
        return means

    def as_dict(self) -> dict[str, Any]:
        return {"sibling_calls_per_sample": 0.0, **super().as_dict()}


@dataclass
class VlmStats(SpecStats):
    """Counters of a batch of answers.

    Attributes:
        prompt_tokens: of the target's prompt, pictures included, per row.
        visual_tokens: columns of pictures in the target's prompt, per row.
        draft_visual_tokens: those that a drafter reads which sees them, per row.
        cache_entries, draft_cache_entries: entries of the prompt that a cache compressor leaves in
            the target's cache and in the draft model's, per row; empty: there is none.
        lookahead_tokens: tokens that a draft model wrote ahead for it, per row.
        branches: weights by which a draft head's compressor chose among its branches, per row.
        judging_experts, drafting_experts: of a target with sparse experts, how many of a layer's
            were touched, the mean over layers: by every call behind the prompt, and by all calls in
            which its copy drafted for a round.
    """

    prompt_tokens: list[int] = field(default_factory=list)
    visual_tokens: list[int] = field(default_factory=list)
    draft_visual_tokens: list[int] = field(default_factory=list)
    cache_entries: list[int] = field(default_factory=list)
    draft_cache_entries: list[int] = field(default_factory=list)
    lookahead_tokens: list[int] = field(default_factory=list)
    branches: list[dict[str, float]] = field(default_factory=list)
    judging_experts: list[float] = field(default_factory=list)
    drafting_experts: list[float] = field(default_factory=list)

    def per_sample(self, shared: bool = False) -> dict[str, float]:
        means = super().per_sample(shared)
        if self.judging_experts:
            means["experts_per_call"] = fmean(self.judging_experts)
        if self.drafting_experts:
            means["experts_per_draft"] = fmean(self.drafting_experts)
        if self.cache_entries:
            means["cache_entries_per_sample"] = fmean(self.cache_entries)
        if self.draft_cache_entries:
            means["draft_cache_entries_per_sample"] = fmean(self.draft_cache_entries)
        if self.lookahead_tokens:
            means["lookahead_tokens_per_sample"] = fmean(self.lookahead_tokens)
        return means

    def as_dict(self) -> dict[str, Any]:
        rows = max(1, len(self.calls))
        return {
            **super().as_dict(),
            "visual_tokens_per_sample": sum(self.visual_tokens) / rows,
            "draft_visual_tokens_per_sample": sum(self.draft_visual_tokens) / rows,
            "branches": self.branches,
        }


@dataclass
class VlmOutput(BaseOutput):
    """Answers of one call.

    Attributes:
        text: the answers, a string per question.
        tokens: their token ids, a list per question, the end-of-sequence token included.
        stats: what the generation took.
    """

    text: list[str]
    tokens: list[list[int]]
    stats: VlmStats


@dataclass
class ImageOutput(BaseOutput):
    """Images of one call.

    Attributes:
        images: list of PIL images, an array `[B, H, W, 3]` in [0, 1] ("np"), a tensor
            `[B, 3, H, W]` in [0, 1] ("pt"), or token ids `[B, h * w]` ("tokens").
        stats: what the generation took.
    """

    images: Any
    stats: ImageStats


@dataclass
class ContinuousOutput(BaseOutput):
    """Images of one call of a model of continuous tokens.

    Attributes:
        images: list of PIL images, an array `[B, H, W, 3]` in [0, 1] ("np"), a tensor
            `[B, 3, H, W]` in [0, 1] ("pt"), or the tokens `[B, L, C]` ("latent").
        stats: what the generation took.
    """

    images: Any
    stats: ContinuousStats


@dataclass
class VideoBlock:
    """A finished block of a clip.

    Attributes:
        row: its clip.
        number: its place in the clip, from 0.
        frames: `[T, 3, H, W]` in [-1, 1].
        made_by: "drafter" or "target".
        rewards: of the frames that the drafter proposed for it; empty if nobody judged them.
        latents: `[F, C, h, w]`.
    """

    row: int
    number: int
    frames: Tensor
    made_by: str
    rewards: list[float]
    latents: Tensor

    @property
    def pictures(self) -> Tensor:
        """The frames as uint8 on the CPU."""
        return to_bytes(self.frames).cpu()


@dataclass
class VideoOutput(BaseOutput):
    """Clips of one call; of a resumed one what was made since.

    Attributes:
        frames: of every clip a list of PIL images, an array `[B, T, H, W, 3]` in [0, 1] ("np"), a
            tensor `[B, T, 3, H, W]` in [0, 1] ("pt"), latents `[B, L, C, h, w]` ("latent"), or None
            ("none").
        stats: what the generation took.
        made_by: of every block of every clip, "drafter" or "target".
        rewards: of the frames that the drafter proposed for each; empty where nobody judged.
    """

    frames: Any
    stats: VideoStats
    made_by: list[list[str]]
    rewards: list[list[list[float]]]
