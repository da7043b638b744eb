"""Recipe of block-causal video models: flow matching on clips of the clip world.

Every block of a clip gets a noise of its own and reads the clean ones before it (teacher forcing),
so a clip is as many examples as it has blocks; late in training it reads what the model itself
makes of those, as it does in use. The target learns with the caption encoder, a small T5, and
without captions too, for guidance. Its drafter, with the encoder as the target left it, begins as
the target and learns where the guided target's steps lead, in one step and without guidance
(Salimans and Ho 2022; Meng et al. 2023), which makes it cheap: not the true velocities, whose
chance no drafter can foresee. Clips come again, with another noise.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLWan
from torch import Tensor

from ...errors import InputError
from ...models.wan.sampler import FewStepSampler, guided, warp
from ...models.wan.transformer import TIMESTEPS, Memory, WanTransformer
from ...models.wan.vae import encode_block
from ...worlds.video_world.judge import judge
from ...worlds.video_world.prompts import sample_prompt
from ...worlds.video_world.vocabulary import KINDS, TIMING
from ..base import HELD_OUT_SEED, BaseRecipe, Captioned
from ..caption_encoder import TEXT_ENCODER, trained_encoder
from ..feature_cache import cache_folder
from ..tokenizers import PREFIX, clip_tokenizer
from ..trainer import Loss, TrainConfig
from .autoencoder import CHANNELS, PIPELINE, RESOLUTION, SIDE
from .clip_latents import (
    ClipBatch,
    captions_of,
    draw_cached,
    draw_clips,
    label_clips,
    latents_of,
    render_clips,
)
from .rollout import block_maker, rollout
from .watched import WatchedVideo, states_before_head

BLOCKS = 12  # of a training clip
FRAMES = TIMING.frames(BLOCKS)
SHIFT = 3.0  # of the noise that training asks for, and of the steps; see `warp`
GUIDANCE = 2.0  # of the target; its drafter learns what that gives
SHARED: dict[str, Any] = dict(
    text_len=PREFIX,
    in_dim=CHANNELS,
    out_dim=CHANNELS,
    dim=256,
    ffn_dim=896,
    num_heads=4,
    num_layers=8,
    patch_size=(1, 2, 2),
    window=4,
    sink=1,  # from how far it is a block knows when it is
    freq_dim=128,
    text_dim=TEXT_ENCODER["d_model"],
    num_frame_per_block=TIMING.latents,
    sample_height=SIDE,
    sample_width=SIDE,
    sample_frames=BLOCKS * TIMING.latents,
    sample_shift=SHIFT,
    sample_renoise=0.0,  # the flow is learned, and nothing distilled
)
SIZES: dict[str, dict[str, Any]] = {
    "transformer": dict(SHARED, sample_steps=8, sample_guidance=GUIDANCE),
    # the same layers, of one row in place of two, in an eighth of the calls: in one step the target
    # itself, untrained, is nearer to its own blocks than with fewer layers in more steps
    "drafter": dict(SHARED, sample_steps=1, sample_guidance=1.0),
}
# clips of a batch in turn: at first most are a first block alone, where all is drawn from the
# caption, while in whole clips eleven of twelve blocks have only to go on; whole clips come later
PARTS = (BLOCKS, BLOCKS, 4, BLOCKS, BLOCKS, 1)
TURNS_LATE = (5, 0, 2)  # of those above
TURNS_DRAFTED = (5, 2)  # as well, of a drafter, for a first block is the target's own
FIRST = 0.1  # the share that a first block's error therefore has in its loss
TAUGHT = 4  # steps of the target, at most, that teach one of the drafter's
# of a run's steps, where they begin, and the target reads its own blocks in half of them, as a
# drafter does from the first on
LATE = 0.6
KEPT = 167 * len(PARTS)  # batches, after which they come again, cut into as many parts
BLUR = 0.1  # at most so much noise in the clean blocks, which are the model's own in use
GUESSED = 0.7  # at most so much noise in what the model makes its own blocks of, by one step
CAPTION_DROPOUT = 0.1
PATCHES = SIDE // 2  # a side, in tokens of the transformer
# Of the loss of what patches show: its weight before a run is late, and then. And the share of the
# early batches of first blocks that are noise alone, so that the caption has to say all.
SHOWN, FROM_CAPTION = (0.2, 0.1), 0.5
OF_CAPTIONS = "text_embedding", "cross_attn"  # weights that read captions, see `settle`
# Clips of an evaluation. So few tell a run that learns from one that does not; which of two that
# learn is better `mmspec eval run --suite sdvg` judges.
ROLLOUTS = 10


def draw_whole_or_begun(
    folder: Path,
    seed: int,
    size: int,
    turns: tuple[int, ...],
    late: float,
    rng: np.random.Generator,
    step: int,
) -> ClipBatch:
    """Clips of a step: whole ones, or about as many frames of the beginnings of more, in turn.

    Args:
        turns: of `PARTS`, those that take turns from the step `late` on.
    """
    number = step
    if step >= late:
        number = len(PARTS) * (step // len(turns)) + turns[step % len(turns)]
    parts = PARTS[number % len(PARTS)]
    frames = TIMING.frames(BLOCKS // parts)
    return draw_cached(folder, seed, number % KEPT, size * parts, frames, RESOLUTION, PATCHES)


class VideoModelRecipe(BaseRecipe):
    """Trains `WanTransformer`, the target or its drafter.

    Args:
        config, rate: see `BaseRecipe`; a batch is of clips. Late is late by the run's steps, so
            they should be those that the time allows.
        pipeline: folder that holds `vae` and `text_encoder`, and for a drafter `transformer`.
        name: "transformer" or "drafter".
        init: component whose weights to start from; None: a target from nothing, a drafter from
            the target.
    """

    kind = PIPELINE

    def __init__(
        self,
        config: TrainConfig,
        pipeline: Path,
        name: str = "transformer",
        init: str | None = None,
        rate: float = 2e-3,
    ) -> None:
        super().__init__(config, pipeline, rate)
        self.name = name
        folder = cache_folder(pipeline, "latents", ["vae"])
        self.late = LATE * config.steps
        turns, since = (TURNS_DRAFTED, 0.0) if name == "drafter" else (TURNS_LATE, self.late)
        init = init or ("transformer" if name == "drafter" else None)
        self.draw = partial(
            draw_whole_or_begun, folder, config.seed, config.batch_size, turns, since
        )
        self.vae = self.component(AutoencoderKLWan, "vae")
        if self.vae.config.z_dim != CHANNELS:
            raise InputError(
                f"{pipeline} holds an autoencoder of {self.vae.config.z_dim} channels, and this "
                f"recipe is for the {CHANNELS} of `mmspec train video-autoencoder`"
            )
        self.tokenizer = clip_tokenizer()
        text_encoder = trained_encoder(pipeline)
        transformer = WanTransformer(**SIZES[name])
        if not self.start(init, transformer):
            transformer.init_weights()
        self.goes_on = init == name == "transformer"
        self.teacher: WanTransformer | None = None
        if name == "transformer":
            self.model = WatchedVideo(transformer, text_encoder)
        else:
            self.model = Captioned(transformer, text_encoder)
            self.teacher = self.component(WanTransformer, "transformer")

    def loss(self, batch: ClipBatch, rng: np.random.Generator, step: int) -> Loss:
        untold = CAPTION_DROPOUT if self.teacher is None else 0.0
        asked = ["" if rng.random() < untold else caption for caption in batch.captions]
        late = step >= self.late or self.teacher is not None
        if self.goes_on:
            self.model.settle(step, OF_CAPTIONS)
        clean = latents_of(self.vae, batch, self.config.device)
        first, coin = clean.shape[1] == TIMING.latents, rng.random()
        own, begun = late and coin < 0.5, first and not late and coin < FROM_CAPTION
        with states_before_head(self.model.transformer) as states:
            error = self._error(self.model, asked, clean, rng, self.teacher, own=own, begun=begun)
        if self.teacher is not None:
            error[:, : TIMING.latents] *= FIRST
            return error.mean(), {"error": float(error.detach().mean())}
        shown = self.model.shown(states[-1], batch.labels)
        figures = {"error": float(error.detach().mean()), "shown": float(shown.detach())}
        return error.mean() + SHOWN[late] * shown, figures

    def _error(
        self,
        model: Captioned,
        captions: list[str],
        clean: Tensor,
        rng: np.random.Generator,
        teacher: WanTransformer | None,
        own: bool = False,
        begun: bool = False,
    ) -> Tensor:
        """Squared errors of the velocity, by clip and frame `[R, F]`.

        Args:
            captions: of each clip; an empty one tells nothing.
            clean: latents `[R, F, C, h, w]`.
            teacher: whose steps are wanted; None: the true velocities.
            own: blocks read what the model makes of those before them, not those themselves.
            begun: frames are noise alone.
        """
        rows, frames = clean.shape[:2]
        told, untold = self._features(model, captions)
        anywhere = 0.5 if teacher is None else 0.0
        parts = self._parts(rows, frames // TIMING.latents, rng, anywhere).to(clean)
        if begun:
            parts = torch.ones_like(parts)
        parts = parts.repeat_interleave(TIMING.latents, 1)
        blur = torch.from_numpy(BLUR * rng.random((rows, 1))).to(clean)
        noise, other = (
            torch.from_numpy(rng.standard_normal(tuple(clean.shape))).to(clean) for _ in range(2)
        )
        read = _mixed(clean, other, blur) if frames > TIMING.latents else None  # nobody reads it
        if own and read is not None:
            guessed = torch.from_numpy(GUESSED * rng.random((rows, 1))).to(clean)
            with torch.no_grad():
                noisy, times = _mixed(clean, other, guessed), (TIMESTEPS * guessed)
                guess = model.transformer(noisy, times.expand(-1, frames), told, read).float()
            made = noisy - guessed[:, :, None, None, None] * guess
            # of a first block much noise leaves the mean of many pictures, which is none in use
            read = torch.cat([read[:, : TIMING.latents], made[:, TIMING.latents :]], dim=1)
        sigma = warp(parts, SHIFT)
        noisy, wanted = _mixed(clean, noise, sigma), noise - clean
        if teacher is not None:
            wanted = self._taught(teacher, noisy, parts, told, untold, read)
        velocity = model.transformer(noisy, TIMESTEPS * sigma, told, read)
        return F.mse_loss(velocity.float(), wanted, reduction="none").mean((2, 3, 4))

    @torch.no_grad()
    def _taught(
        self,
        teacher: WanTransformer,
        noisy: Tensor,
        parts: Tensor,
        told: Tensor,
        untold: Tensor,
        read: Tensor | None,
    ) -> Tensor:
        """The velocity by which one step `[R, F, C, h, w]` leads where the teacher's steps do.

        Args:
            noisy: frames before the step, of the clip and its noise.
            parts: how far back in time each is `[R, F]`, where one of the sampler's steps begins.
        """
        steps = SIZES[self.name]["sample_steps"]
        usual = FewStepSampler.usual(teacher)
        count = min(TAUGHT, max(1, round(len(usual.steps) / steps)))
        x, text = noisy, torch.cat([told, untold]) if usual.guided else told
        groups = 1 + usual.guided
        sigmas = [warp(parts - n / (count * steps), SHIFT).clamp_min(0) for n in range(count + 1)]
        clean = None if read is None else read.repeat(groups, 1, 1, 1, 1)
        memory: Memory = {}
        for before, after in pairwise(sigmas):
            times = (TIMESTEPS * before).repeat(groups, 1)
            velocity = teacher(x.repeat(groups, 1, 1, 1, 1), times, text, clean, memory).float()
            if usual.guided:
                velocity = guided(velocity, usual.guidance_scale)
            x = x + (after - before)[:, :, None, None, None] * velocity
        return (noisy - x) / (sigmas[0] - sigmas[-1])[:, :, None, None, None]

    def _parts(self, rows: int, blocks: int, rng: np.random.Generator, anywhere: float) -> Tensor:
        """Draw how far back in time blocks are, `[R, K]` in (0, 1]: where the sampler's few steps
        begin, but for the share `anywhere`.
        """
        steps = SIZES[self.name]["sample_steps"]
        part, coin = rng.random((2, rows, blocks))
        here = np.ceil(part * steps) / steps
        return torch.from_numpy(np.where(coin < anywhere, part, here))

    def _features(self, model: Captioned, captions: list[str]) -> tuple[Tensor, Tensor]:
        """Features `[R, T, D]` of captions, as the pipeline has them, and as many of none; zero
        where padded.
        """
        batch = self.tokenizer(
            [*captions, ""], max_length=PREFIX, padding=True, truncation=True, return_tensors="pt"
        ).to(self.config.device)
        ids, mask = batch["input_ids"], batch["attention_mask"]
        features = model.text_encoder(input_ids=ids, attention_mask=mask)[0] * mask[..., None]
        told, untold = features[:-1], features[-1:]
        return told, untold.expand_as(told)

    @torch.no_grad()
    def evaluate(self, model: Any) -> dict[str, float]:
        rng = self.held_out_rng()
        drawn = draw_clips(rng, self.config.batch_size, FRAMES, "held_out")
        pixels = render_clips(drawn, RESOLUTION).to(self.config.device)
        clean, _ = encode_block(self.vae, pixels)
        with states_before_head(model.transformer) as states:
            error = self._error(model, captions_of(drawn), clean, rng, self.teacher)
        asked = [sample_prompt(rng, KINDS[i % len(KINDS)], "held_out") for i in range(ROLLOUTS)]
        clips = self._clips(model, [prompt.prompt for prompt in asked])
        scores = [judge(clip, each).score for clip, each in zip(clips, asked, strict=True)]
        figures = {
            "held_out_error_first_block": float(error[:, : TIMING.latents].mean()),
            "held_out_error_later_blocks": float(error[:, TIMING.latents :].mean()),
            "held_out_score": float(np.mean(scores)),
        }
        if self.teacher is None:
            labels, first = label_clips(drawn, RESOLUTION, PATCHES), TIMING.latents
            shown = model.shown(states[-1][:, :first], labels[:, :first])
            figures["held_out_shown_first_block"] = float(shown)
        return figures

    def _clips(self, model: Captioned, captions: list[str]) -> np.ndarray[Any, Any]:
        """Clips of captions, see `rollout`; of a drafter behind a first block by the target."""
        texts = self._features(model, captions)
        further = first = block_maker(model.transformer, *texts, (SIDE, SIDE), BLOCKS)
        if self.teacher is not None:
            first = block_maker(self.teacher, *texts, (SIDE, SIDE), BLOCKS)
        shape = (len(captions), TIMING.latents, CHANNELS, SIDE, SIDE)
        return rollout(first, further, self.vae, shape, BLOCKS, HELD_OUT_SEED[0])

    def card(self, record: dict[str, Any]) -> dict[str, str]:
        steps = SIZES[self.name]["sample_steps"]
        return dict(
            title=f"Block-causal video model of the clip world ({self.name})",
            purpose=f"draws clips of {RESOLUTION} px from a caption, block by block of "
            f"{TIMING.latents} latent frames, in {steps} step{'s' * (steps > 1)} a block",
            limits="knows only captions of the clip world; other words are unknown to it",
            data=f"{KEPT} batches of clips of moving shapes, whole and begun, which come again",
        )


def _mixed(clean: Tensor, noise: Tensor, sigma: Tensor) -> Tensor:
    """Frames with the part `sigma [R, F or 1]` of noise."""
    part = sigma[:, :, None, None, None]
    return (1 - part) * clean + part * noise
