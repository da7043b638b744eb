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

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLWan
from torch import Tensor
from transformers import T5EncoderModel

from ...errors import InputError
from ...models.loading import load_component
from ...models.wan.sampler import Draw, FewStepSampler, denoise_block, guided, warp
from ...models.wan.transformer import TIMESTEPS, Memory, WanTransformer
from ...models.wan.vae import decode_block, encode_block, to_bytes
from ...worlds.video_world.judge import judge
from ...worlds.video_world.prompts import sample_prompt
from ...worlds.video_world.vocabulary import KINDS, TIMING
from ..base import BaseRecipe, Captioned
from ..caption_encoder import caption_encoder
from ..feature_cache import cache_folder
from ..image.target import TEXT_ENCODER
from ..tokenizers import PREFIX, clip_tokenizer
from ..trainer import Loss, TrainConfig
from .autoencoder import CHANNELS, PIPELINE, RESOLUTION, SIDE
from .clip_latents import ClipBatch, clip_batch, draw_cached, latents_of

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
ROLLOUTS = 10  # clips of an evaluation


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
    return draw_cached(folder, seed, number % KEPT, size * parts, frames, RESOLUTION)


class VideoModelRecipe(BaseRecipe):
    """Trains `WanTransformer`, the target or its drafter.

    Args:
        config, rate: see `BaseRecipe`; a batch is of clips. Late is late by the run's steps, so
            they should be those that the time allows.
        pipeline: folder that holds `vae`, and for a drafter `transformer` and `text_encoder`; it
            receives the component, and from a target that starts from nothing `text_encoder` and
            `tokenizer`.
        name: "transformer" or "drafter".
        init: component whose weights to start from, with the folder's text encoder; None: a target
            from nothing, a drafter from the target.
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
        self.name, self.teaches_encoder = name, name == "transformer"
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
        encoder = pipeline / "text_encoder"
        if encoder.is_dir():
            text_encoder = load_component(T5EncoderModel, encoder, torch.float32)
        elif name == "transformer":
            text_encoder = caption_encoder(self.tokenizer)
        else:
            raise InputError(f"{pipeline} holds no text_encoder; train its transformer first")
        transformer = WanTransformer(**SIZES[name])
        if not self.start(init, transformer):
            transformer.init_weights()
        self.model = Captioned(transformer, text_encoder)
        self.teacher: WanTransformer | None = None
        if name != "transformer":
            text_encoder.requires_grad_(False)
            self.teacher = self.component(WanTransformer, "transformer")

    def loss(self, batch: ClipBatch, rng: np.random.Generator, step: int) -> Loss:
        untold = CAPTION_DROPOUT if self.teacher is None else 0.0
        asked = ["" if rng.random() < untold else caption for caption in batch.captions]
        own = (step >= self.late or self.teacher is not None) and rng.random() < 0.5
        clean = latents_of(self.vae, batch, self.config.device)
        error = self._error(self.model, asked, clean, rng, self.teacher, own)
        if self.teacher is not None:
            error[:, : TIMING.latents] *= FIRST
        return error.mean(), {"error": float(error.detach().mean())}

    def _error(
        self,
        model: Captioned,
        captions: list[str],
        clean: Tensor,
        rng: np.random.Generator,
        teacher: WanTransformer | None,
        own: bool = False,
    ) -> Tensor:
        """Squared errors of the velocity, by clip and frame `[R, F]`.

        Args:
            captions: of each clip; an empty one tells nothing.
            clean: latents `[R, F, C, h, w]`.
            teacher: whose steps are wanted; None: the true velocities.
            own: blocks read what the model makes of those before them, not those themselves.
        """
        rows, frames = clean.shape[:2]
        told, untold = self._features(model, captions)
        anywhere = 0.5 if teacher is None else 0.0
        parts = self._parts(rows, frames // TIMING.latents, rng, anywhere).to(clean)
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
        captions, pixels = clip_batch(rng, self.config.batch_size, FRAMES, RESOLUTION, "held_out")
        clean, _ = encode_block(self.vae, pixels.to(self.config.device))
        error = self._error(model, captions, clean, rng, self.teacher)
        asked = [sample_prompt(rng, KINDS[i % len(KINDS)], "held_out") for i in range(ROLLOUTS)]
        clips = self._rollout(model, [prompt.prompt for prompt in asked])
        scores = [judge(clip, each).score for clip, each in zip(clips, asked, strict=True)]
        return {
            "held_out_error_first_block": float(error[:, : TIMING.latents].mean()),
            "held_out_error_later_blocks": float(error[:, TIMING.latents :].mean()),
            "held_out_score": float(np.mean(scores)),
        }

    def _rollout(self, model: Captioned, captions: list[str]) -> np.ndarray[Any, Any]:
        """Clips `[B, T, H, W, 3]` in 8 bits, every block drawn behind those drawn before it; of a
        drafter behind a first one by the target, as in use.
        """
        generator = torch.Generator().manual_seed(self.config.seed)
        shape = (len(captions), TIMING.latents, CHANNELS, SIDE, SIDE)

        def draw(_: int) -> Tensor:
            return torch.randn(shape, generator=generator).to(self.config.device)

        texts = self._features(model, captions)
        further = first = block_maker(model.transformer, *texts, (SIDE, SIDE))
        if self.teacher is not None:
            first = block_maker(self.teacher, *texts, (SIDE, SIDE))
        pieces, state, block = [], None, None
        for number in range(BLOCKS):
            block = (further if number else first)(draw(0), draw, block)
            pixels, state = decode_block(self.vae, block, state)
            pieces.append(pixels)
        return to_bytes(torch.cat(pieces, 1)).movedim(2, -1).cpu().numpy()

    def card(self, record: dict[str, Any]) -> dict[str, str]:
        steps = SIZES[self.name]["sample_steps"]
        return dict(
            title=f"Block-causal video model of the clip world ({self.name})",
            purpose=f"draws clips of {RESOLUTION} px from a caption, block by block of "
            f"{TIMING.latents} latent frames, in {steps} step{'s' * (steps > 1)} a block",
            limits="knows only captions of the clip world; other words are unknown to it",
            data=f"{KEPT} batches of clips of moving shapes, whole and begun, which come again",
        )


def block_maker(
    model: WanTransformer, told: Tensor, untold: Tensor, size: tuple[int, int]
) -> Callable[[Tensor, Draw, Tensor | None], Tensor]:
    """Make a function that draws the next block of clips, of noise, `draw` and the block before it.

    Args:
        told, untold: features of the captions and of none, `[R, T, D]` each.
        size: height and width of the latents.
    """
    sampler = FewStepSampler.usual(model)
    text = torch.cat([told, untold]) if sampler.guided else told
    cache = model.start(text, *size, BLOCKS)
    return lambda noise, draw, last: denoise_block(model, cache, noise, sampler, draw, last)


def _mixed(clean: Tensor, noise: Tensor, sigma: Tensor) -> Tensor:
    """Frames with the part `sigma [R, F or 1]` of noise."""
    part = sigma[:, :, None, None, None]
    return (1 - part) * clean + part * noise
