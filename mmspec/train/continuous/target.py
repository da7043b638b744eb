"""Recipe of MAR's target: masked tokens of the shapes world, predicted by a diffusion head.

Li et al. 2024, sections 3.2 to 3.4. The caption encoder is trained before. A linear readout of the
tokens from their conditions is trained along and not shipped: its squared error has none of the
diffusion loss's chance in it, and a short training that also has it follows captions sooner. So
does one that also reads what the tokens' patches show.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL
from torch import Tensor, nn
from transformers import T5EncoderModel

from ...models.mar.autoencoder import posterior, tokens_of
from ...models.mar.transformer import MarTransformer
from ...models.text_encoder import encode_captions
from ..base import BaseRecipe, Captioned
from ..batches import (
    SCENE_LABELS,
    Scenes,
    draw_labelled,
    draw_scenes,
    labelled_batch,
    scene_batch,
)
from ..caption_encoder import TEXT_ENCODER, trained_encoder
from ..patch_reader import EMPTY, PatchReader
from ..tokenizers import PHRASE, PREFIX, caption_tokenizer
from ..trainer import Draw, Loss, TrainConfig
from .autoencoder import PIPELINE, RESOLUTION
from .diffusion_loss import NoisyTokens, hybrid_loss


def halves(width: int, depth: int, heads: int) -> dict[str, int]:
    """Sizes of a transformer whose encoder and decoder are as large."""
    sizes = {"embed_dim": width, "depth": depth, "num_heads": heads}
    return {f"{half}_{name}": n for half in ("encoder", "decoder") for name, n in sizes.items()}


TRANSFORMER: dict[str, Any] = dict(
    token_dim=16,
    grid=8,
    buffer_size=PREFIX,
    **halves(256, 4, 4),
    diffloss_d=3,
    diffloss_w=512,  # so many weights that a call takes hardly longer of a few rows than of one
    # the published schedule, cosine, ends in a step whose mean is some 300 times the error of the
    # noise, in deviations, at 100 steps: long training copes with that, a short one does not
    noise_schedule="linear",
    condition="caption",
    caption_dim=TEXT_ENCODER["d_model"],
    # chosen on the prompts of `continuous-tuning`; outlines are crisper below temperature 1
    sample_guidance=5.0,
    sample_temperature=0.8,
)
CAPTION_DROPOUT = 0.1
REPEATS = 4  # steps that every token is seen at in a batch, as published
# A run's first part is for what only the caption tells, and what tokens tell of each other hides:
# in a share of its batches the caption alone is known. The rest is for the tokens themselves.
FIRST_PART, FROM_CAPTION = 0.7, 0.5
SHOWN = (0.3, 0.1)  # weights of the loss of what patches show, in the first part and in the rest
OF_CAPTIONS = ("caption_emb",)  # weights that read captions, see `settle`
LEAST_MASKED = 0.7  # of the tokens, in the published training


class CaptionedMar(Captioned):
    """The transformer and what reads its conditions, trained as one, and the caption encoder."""

    def __init__(self, transformer: MarTransformer, text_encoder: T5EncoderModel) -> None:
        super().__init__(transformer, text_encoder)
        config = transformer.config
        self.readout = nn.Linear(config.decoder_embed_dim, config.token_dim)
        self.reader = PatchReader(config.decoder_embed_dim, SCENE_LABELS, EMPTY)


class MarRecipe(BaseRecipe):
    """Base of MAR's recipes, which see pictures as tokens of the folder's `vae`.

    Args:
        config, pipeline, rate, init: see `BaseRecipe`.
    """

    kind = PIPELINE

    def __init__(
        self, config: TrainConfig, pipeline: Path, init: str | None = None, rate: float = 2e-3
    ) -> None:
        super().__init__(config, pipeline, rate)
        self.draw: Draw = partial(draw_scenes, config.batch_size, RESOLUTION)
        self.vae = self.component(AutoencoderKL, "vae")
        self.tokenizer = caption_tokenizer()
        self.prepare(init)

    def held_out_scenes(self) -> tuple[np.random.Generator, list[str], Tensor]:
        """Scenes of an evaluation, always the same, and the generator for what it does to them."""
        rng = self.held_out_rng()
        return rng, *scene_batch(rng, self.config.batch_size, RESOLUTION, "held_out")

    @abstractmethod
    def prepare(self, init: str | None) -> None:
        """Make the model, with the weights of `init`, if there is one."""


class MarTargetRecipe(MarRecipe):
    """Trains `MarTransformer` on captioned pictures; arguments as of `MarRecipe`.

    The folder holds `text_encoder` too.
    """

    name = "transformer"
    texts: ClassVar = dict(
        title=f"Masked autoregressive transformer of the shapes world, {RESOLUTION} px",
        purpose="draws {0}×{0} continuous tokens from a caption".format(TRANSFORMER["grid"]),
        limits="knows only shapes-world captions (GenEval's six forms over 8 shapes and 10 "
        "colours); other words are unknown to it",
    )

    def prepare(self, init: str | None) -> None:
        transformer = MarTransformer(**TRANSFORMER)
        self.goes_on = self.start(init, transformer)
        if not self.goes_on:
            transformer.init_weights()
        self.model = CaptionedMar(transformer, trained_encoder(self.pipeline))
        grid = transformer.config.grid
        self.draw = partial(draw_labelled, self.config.batch_size, RESOLUTION, grid)

    def loss(self, batch: Scenes, rng: np.random.Generator, step: int) -> Loss:
        captions = [c.removeprefix(PHRASE) if rng.random() < 0.1 else c for c in batch[0]]
        keep = rng.random(len(captions)) >= CAPTION_DROPOUT
        if self.goes_on:
            self.model.settle(step, OF_CAPTIONS)
        first = self.done < FIRST_PART
        share = 1.0 if first and rng.random() < FROM_CAPTION else None
        losses = self._losses(self.model, captions, batch[1], batch[2], keep, rng, share)
        figures = {name: float(loss.detach()) for name, loss in losses.items()}
        losses["shown"] = SHOWN[0 if first else 1] * losses["shown"]
        return sum(losses.values(), torch.zeros(())), figures

    def _losses(
        self,
        model: CaptionedMar,
        captions: list[str],
        pixels: Tensor,
        labels: Tensor,
        keep: np.ndarray[Any, Any],
        rng: np.random.Generator,
        share: float | None = None,
    ) -> dict[str, Tensor]:
        transformer = model.transformer
        tokens = scene_tokens(self.vae, pixels.to(self.config.device), rng)
        buffer = caption_buffer(transformer, model.text_encoder, self.tokenizer, captions, keep)
        rows, length = tokens.shape[:2]
        known, masked = random_masks(rng, rows, length, share)
        z, clean = masked_conditions(transformer, tokens, known, masked, buffer)
        noisy = NoisyTokens.draw(transformer.schedule, clean.repeat(REPEATS, 1), rng)
        noise, between = transformer.head(noisy.noisy, noisy.timesteps, z.repeat(REPEATS, 1))
        error, bits = hybrid_loss(noisy, noise, between)
        shown = labels.gather(1, masked[..., None].expand(-1, -1, labels.shape[-1]))
        return {
            "error": error,
            "bits": bits,
            "readout": F.mse_loss(model.readout(z), clean),
            "shown": model.reader.loss(z, shown.flatten(0, 1).to(z.device)),
        }

    @torch.no_grad()
    def evaluate(self, model: Any) -> dict[str, float]:
        figures: dict[str, float] = {}
        for name, kept in (("", True), ("_without_caption", False)):
            rng, size, grid = self.held_out_rng(), self.config.batch_size, TRANSFORMER["grid"]
            scenes = labelled_batch(rng, size, RESOLUTION, grid, "held_out")
            losses = self._losses(model, *scenes, np.full(size, kept), rng)
            figures |= {f"held_out_{k}{name}": float(v) for k, v in losses.items()}
            begun = self._losses(model, *scenes, np.full(size, kept), rng, share=1.0)
            figures[f"held_out_shown_from_nothing{name}"] = float(begun["shown"])
        return figures


@torch.no_grad()
def scene_tokens(vae: Any, pixels: Tensor, rng: np.random.Generator) -> Tensor:
    """Tokens `[B, L, C]` of pictures, drawn from the autoencoder's posterior."""
    law = posterior(vae, pixels)
    noise = torch.from_numpy(rng.standard_normal(tuple(law.mean.shape))).to(pixels)
    return tokens_of(vae, law.mean + law.std * noise)


def caption_buffer(
    model: MarTransformer,
    encoder: nn.Module,
    tokenizer: Any,
    captions: list[str],
    keep: np.ndarray[Any, Any],
) -> Tensor:
    """The buffer `[B, T, D]` of captions; those with `keep [B]` False are left out."""
    features, _ = encode_captions(tokenizer, encoder, captions, model.prefix_length)
    told = torch.from_numpy(keep).to(features.device)[:, None, None]
    return torch.where(told, model.captions(features), model.nothing(len(captions)))


def random_masks(
    rng: np.random.Generator, rows: int, length: int, share: float | None = None
) -> tuple[Tensor, Tensor]:
    """Known places `[B, n]` and masked ones `[B, L - n]`, random in every row; at least one masked.

    As many as a cosine schedule leaves at a random time, which is what generation asks for; in half
    of the batches 70 % or more, any share as often, where little but the caption is known. (The
    published training draws the share from N(1, 0.25²), cut to [0.7, 1], in every batch.)

    Args:
        share: of the tokens that are masked; None: a random one.
    """
    if share is None:
        share = math.cos(math.pi / 2 * rng.random())
        if rng.random() < 0.5:
            share = 1 - (1 - LEAST_MASKED) * rng.random()
    masked = max(1, math.ceil(length * share))
    order = torch.from_numpy(rng.random((rows, length))).argsort(-1)
    return order[:, masked:], order[:, :masked]


def masked_conditions(
    model: MarTransformer, tokens: Tensor, known: Tensor, masked: Tensor, buffer: Tensor
) -> tuple[Tensor, Tensor]:
    """Conditions `[N, E]` of all masked tokens of a batch, and the tokens `[N, C]` themselves."""
    known, masked = known.to(tokens.device), masked.to(tokens.device)
    shown, hidden = (
        tokens.gather(1, positions[..., None].expand(-1, -1, tokens.shape[-1]))
        for positions in (known, masked)
    )
    z: Tensor = model(shown, known, buffer, masked)
    return z.flatten(0, 1), hidden.flatten(0, 1)
