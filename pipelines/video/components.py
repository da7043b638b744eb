"""Parts of a video call: text features, samplers and sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ...errors import InputError
from ...methods import ResolvedConfig
from ...methods.parts.blocks import StepsOptions
from ...models.text_encoder import encode_prompt
from ...models.wan.clips import MOST_STEPS
from ...models.wan.sampler import FewStepSampler
from ...models.wan.transformer import WanTransformer
from ...models.wan.vae import spatial_factor, temporal_factor
from ..prompts import check_guidance


def told(
    tokenizer: Any, encoder: Any, prompts: list[str], untold: list[str] | None, length: int
) -> list[Tensor]:
    """Text features of every clip `[G, T, D]`, of `length` tokens at most: its prompt's, and under
    guidance behind them those of what its unconditional row is told (`untold`).
    """
    pairs = [*zip(prompts)] if untold is None else [*zip(prompts, untold, strict=True)]
    several = dict.fromkeys(text for texts in pairs for text in texts)
    read = {text: encode_prompt(tokenizer, encoder, text, length) for text in several}
    return [pad_sequence([read[text] for text in texts], batch_first=True) for texts in pairs]


def target_sampler(
    transformer: WanTransformer,
    num_inference_steps: int | None,
    timesteps: Sequence[float] | None,
    shift: float | None,
    guidance_scale: float | None,
) -> FewStepSampler:
    """Sampler of the target's blocks; the further arguments are those of a call."""
    made_for, usual = transformer.config, FewStepSampler.usual(transformer)
    shift = usual.shift if shift is None else shift
    check_guidance(guidance_scale)
    guidance_scale = usual.guidance_scale if guidance_scale is None else guidance_scale
    most = len(timesteps or ()) or num_inference_steps or 0
    if most > MOST_STEPS:
        raise InputError(f"a block is made in at most {MOST_STEPS} steps, not {most}")
    if timesteps:
        return FewStepSampler(tuple(timesteps), shift, guidance_scale, usual.renoise)
    count = made_for.sample_steps if num_inference_steps is None else num_inference_steps
    return FewStepSampler.even(count, shift, guidance_scale, usual.renoise)


def drafter_sampler(
    drafter: WanTransformer, sampler: FewStepSampler, config: ResolvedConfig
) -> FewStepSampler:
    """Sampler of the drafter's blocks: under the guidance and in as many steps as it was made
    for, or as `draft_steps` says, and in no more than the target's.
    """
    asked = config.of(StepsOptions).draft_steps
    if (asked or 0) > len(sampler.steps):
        raise InputError(f"draft_steps {asked} is more than the target's {len(sampler.steps)}")
    made_for, steps = drafter.config, sampler.steps
    count = asked or made_for.sample_steps
    if count < len(steps):
        steps = FewStepSampler.even(count, sampler.shift).steps
    guidance = made_for.sample_guidance
    return replace(
        sampler,
        steps=steps,
        guidance_scale=sampler.guidance_scale if guidance is None else guidance,
        renoise=made_for.sample_renoise,
    )


class VideoSizes:
    """Sizes of clips in pixels and in latents."""

    def __init__(self, transformer: WanTransformer, vae: Any) -> None:
        self.config = transformer.config
        self.space, self.time = spatial_factor(vae), temporal_factor(vae)

    def frames(self, blocks: int) -> int:
        """Picture frames of so many blocks: the first latent frame is one, the others several."""
        return 1 + self.time * (blocks * int(self.config.num_frame_per_block) - 1)

    def split(self, frames: list[Any], makers: list[str]) -> list[tuple[str, list[Any]]]:
        """A clip's frames block by block, each with its maker, of which there is one a block."""
        ends = [0, *(self.frames(n + 1) for n in range(len(makers)))]
        return [(maker, frames[a:b]) for maker, (a, b) in zip(makers, pairwise(ends), strict=True)]

    def blocks(self, num_frames: int | None) -> int:
        """Whole blocks of a clip; None: of one as the model was made for."""
        size = int(self.config.num_frame_per_block)
        if num_frames is None:
            return max(1, int(self.config.sample_frames) // size)
        blocks = (num_frames - 1 + self.time) // (self.time * size)
        if blocks < 1 or self.frames(blocks) != num_frames:
            near = [str(self.frames(n)) for n in (blocks, blocks + 1) if n >= 1]
            raise InputError(
                f"num_frames must be of whole blocks of {size} latent frames, such as "
                f"{' or '.join(near[:2] or [str(self.frames(1))])}, not {num_frames}"
            )
        return blocks

    def latents(self, height: int | None, width: int | None) -> tuple[int, int]:
        """Height and width of the latents, of whole tokens; None: as the model was made for."""
        config, (_, rows, columns) = self.config, self.config.patch_size
        return (
            self._side("height", height, config.sample_height, rows),
            self._side("width", width, config.sample_width, columns),
        )

    def _side(self, name: str, pixels: int | None, own: int, patch: int) -> int:
        unit = self.space * patch
        if pixels is None:
            return own
        if pixels < unit or pixels % unit:
            raise InputError(f"{name} must be a multiple of {unit} pixels, not {pixels}")
        return pixels // self.space
