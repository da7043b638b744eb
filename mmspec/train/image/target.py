"""Recipe of the text-to-image transformer: next-token prediction on shapes-world token grids.

Trained at 8×8 tokens first, which is cheap, then continued at 16×16: the 2-D rotary positions of
the small grid are a corner of the large one. The caption encoder is trained before. The
hidden states are also asked what the next token's patch shows, and the patch below it.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import T5EncoderModel

from ...errors import InputError
from ...models.llamagen.transformer import LlamaGenTransformer
from ...models.llamagen.vq import VQModel
from ...models.text_encoder import encode_captions
from ..base import BaseRecipe, Captioned
from ..batches import SCENE_LABELS, Scenes, draw_labelled, labelled_batch
from ..caption_encoder import trained_encoder
from ..patch_reader import PatchReader
from ..tokenizers import PHRASE, PREFIX, caption_tokenizer
from ..trainer import Loss, TrainConfig

RESOLUTIONS = {"sibling": 64, "transformer": 128}  # px
TRANSFORMER = dict(
    vocab_size=1024,
    dim=256,
    n_layer=10,
    n_head=4,
    multiple_of=64,
    ffn_dim_multiplier=0.75,
    caption_dim=192,
    cls_token_num=PREFIX,
    rotary_prefix="identity",
)
CAPTION_DROPOUT = 0.1
OF_CAPTIONS = ("cls_embedding",)  # weights that read captions, see `settle`


class CaptionedImages(Captioned):
    """The transformer, the caption encoder, and readers of the next patch and the one below."""

    def __init__(self, transformer: LlamaGenTransformer, text_encoder: T5EncoderModel) -> None:
        super().__init__(transformer, text_encoder)
        dim = transformer.config.dim
        self.next_patch, self.patch_below = (PatchReader(dim, SCENE_LABELS) for _ in range(2))


class ImageTargetRecipe(BaseRecipe):
    """Trains `LlamaGenTransformer` at one resolution.

    Args:
        config, rate, init: see `BaseRecipe`.
        pipeline: folder that holds `vq_model` and `text_encoder`.
        name: the component to train, "sibling" or "transformer".
        resolution: side of the pictures in pixels; None: 64 for a sibling, 128 for a transformer.
        shown: weight of the loss of what patches show.
    """

    def __init__(
        self,
        config: TrainConfig,
        pipeline: Path,
        name: str,
        resolution: int | None = None,
        init: str | None = None,
        rate: float = 2.5e-3,
        shown: float = 1.0,
    ) -> None:
        super().__init__(config, pipeline, rate)
        self.name, self.shown = name, shown
        self.resolution = resolution = resolution or RESOLUTIONS[name]
        self.vq: VQModel = self.component(VQModel, "vq_model")
        self.grid, rest = divmod(resolution, self.vq.downsample_factor)
        if rest or not self.grid:
            raise InputError(
                f"pictures are a multiple of {self.vq.downsample_factor} px, not {resolution}"
            )
        self.draw = partial(draw_labelled, config.batch_size, resolution, self.grid)
        self.tokenizer = caption_tokenizer()
        size = {**TRANSFORMER, "block_size": self.grid**2}
        transformer = LlamaGenTransformer(**size)
        # the weights know no grid: those of the small one go on at the large one
        if not self.start(init, transformer):
            transformer.init_weights()
        self.goes_on = init == name
        self.model = CaptionedImages(transformer, trained_encoder(pipeline))

    def loss(self, batch: Scenes, rng: np.random.Generator, step: int) -> Loss:
        captions, tokens, labels = self.encoded(batch)
        if self.goes_on:
            self.model.settle(step, OF_CAPTIONS)
        captions = [c.removeprefix(PHRASE) if rng.random() < 0.1 else c for c in captions]
        keep = torch.from_numpy(rng.random(len(captions)) >= CAPTION_DROPOUT)
        nats, shown = self.caption_losses(self.model, captions, tokens, labels, keep)
        return nats + self.shown * shown, {
            "nats": float(nats.detach()),
            "shown": float(shown.detach()),
        }

    def encoded(self, batch: Scenes) -> Scenes:
        """Captions, token grids `[B, grid²]` and labels of a batch of scenes."""
        captions, pixels, labels = batch
        device = self.config.device
        with torch.no_grad():
            return captions, self.vq.encode(pixels.to(device)), labels.to(device)

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        rng, size = self.held_out_rng(), self.config.batch_size
        drawn = labelled_batch(rng, size, self.resolution, self.grid, "held_out")
        scenes, figures = self.encoded(drawn), {}
        for name, kept in (("", True), ("_without_caption", False)):
            losses = self.caption_losses(model, *scenes, torch.full((size,), kept))
            figures[f"held_out_loss{name}"], figures[f"held_out_shown{name}"] = map(float, losses)
        return figures

    def caption_losses(
        self, model: Any, captions: list[str], tokens: Tensor, labels: Tensor, keep: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Mean cross-entropy in nats per image token, and of what patches show.

        Captions with `keep` False are left out.
        """
        transformer = model.transformer
        embed, length = transformer.cls_embedding, transformer.prefix_length
        features, mask = encode_captions(self.tokenizer, model.text_encoder, captions, length)
        nothing = embed.get_buffer("uncond_embedding").to(features)
        features = torch.where(keep.to(features.device)[:, None, None], features, nothing)
        hidden = transformer.hidden(tokens[:, :-1], embed(features), mask)
        hidden = transformer.norm(hidden[:, length - 1 :])
        nats = F.cross_entropy(transformer.output(hidden).flatten(0, 1).float(), tokens.flatten())
        below = model.patch_below.loss(hidden[:, : -self.grid], labels[:, self.grid :])
        return nats, model.next_patch.loss(hidden, labels) + below

    def card(self, record: dict[str, Any]) -> dict[str, str]:
        return dict(
            title=f"Text-to-image transformer of the shapes world, {self.resolution} px",
            purpose=f"draws {self.grid}×{self.grid} image tokens from a caption",
            limits="knows only shapes-world captions (GenEval's six forms over 8 shapes and 10 "
            "colours); other words are unknown to it",
        )
