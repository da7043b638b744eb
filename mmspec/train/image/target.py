"""Recipe of the text-to-image transformer: next-token prediction on shapes-world token grids.

Trained at 8×8 tokens first, which is cheap, then continued at 16×16: the 2-D rotary positions of
the small grid are a corner of the large one. The caption encoder, a small T5, is trained along.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import T5Config, T5EncoderModel

from ...errors import InputError
from ...models.llamagen.transformer import LlamaGenTransformer
from ...models.llamagen.vq import VQModel
from ...models.loading import load_component
from ...models.text_encoder import encode_captions
from ..base import BaseRecipe, Captioned
from ..batches import draw_scenes, scene_batch
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
TEXT_ENCODER = dict(
    d_model=192,
    d_kv=48,
    d_ff=384,
    num_layers=3,
    num_heads=4,
    feed_forward_proj="gated-gelu",
    dropout_rate=0.0,
    decoder_start_token_id=0,
    pad_token_id=0,
    eos_token_id=1,
)
CAPTION_DROPOUT = 0.1


class ImageTargetRecipe(BaseRecipe):
    """Trains `LlamaGenTransformer` at one resolution.

    Args:
        config, rate, init: see `BaseRecipe`.
        pipeline: folder that holds `vq_model`. A sibling that starts from nothing teaches a caption
            encoder too: the folder then receives `text_encoder` and `tokenizer` as well.
        name: the component to train, "sibling" or "transformer".
        resolution: side of the pictures in pixels; None: 64 for a sibling, 128 for a transformer.
    """

    def __init__(
        self,
        config: TrainConfig,
        pipeline: Path,
        name: str,
        resolution: int | None = None,
        init: str | None = None,
        rate: float = 2.5e-3,
    ) -> None:
        super().__init__(config, pipeline, rate)
        self.name = name
        self.resolution = resolution = resolution or RESOLUTIONS[name]
        self.draw = partial(draw_scenes, config.batch_size, resolution)
        self.vq: VQModel = self.component(VQModel, "vq_model")
        self.grid, rest = divmod(resolution, self.vq.downsample_factor)
        if rest or not self.grid:
            raise InputError(
                f"pictures are a multiple of {self.vq.downsample_factor} px, not {resolution}"
            )
        self.tokenizer = caption_tokenizer()
        size = {**TRANSFORMER, "block_size": self.grid**2}
        transformer = LlamaGenTransformer(**size)
        # the weights know no grid: those of the small one go on at the large one
        if self.start(init, transformer):
            text_encoder = load_component(T5EncoderModel, pipeline / "text_encoder", torch.float32)
        else:
            transformer.init_weights()
            text_encoder = T5EncoderModel(T5Config(vocab_size=len(self.tokenizer), **TEXT_ENCODER))
        # trained with the sibling only, until other networks of the pipeline read it
        read = init is not None and (pipeline / "transformer").exists()
        self.teaches_encoder = name == "sibling" and not read
        text_encoder.requires_grad_(self.teaches_encoder)
        self.model = Captioned(transformer, text_encoder.float())

    def loss(self, batch: Any, rng: np.random.Generator, step: int) -> Loss:
        captions, tokens = self.encoded(batch)
        captions = [c.removeprefix(PHRASE) if rng.random() < 0.1 else c for c in captions]
        keep = torch.from_numpy(rng.random(len(captions)) >= CAPTION_DROPOUT)
        return self.caption_loss(self.model, captions, tokens, keep), {}

    def encoded(self, batch: tuple[list[str], Tensor]) -> tuple[list[str], Tensor]:
        """Captions and token grids `[B, grid²]` of a batch of scenes."""
        captions, pixels = batch
        with torch.no_grad():
            return captions, self.vq.encode(pixels.to(self.config.device))

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        size, resolution = self.config.batch_size, self.resolution
        scenes = self.encoded(scene_batch(self.held_out_rng(), size, resolution, "held_out"))
        return {
            f"held_out_loss{name}": float(
                self.caption_loss(model, *scenes, torch.full((size,), keep))
            )
            for name, keep in (("", True), ("_without_caption", False))
        }

    def caption_loss(self, model: Any, captions: list[str], tokens: Tensor, keep: Tensor) -> Tensor:
        """Mean cross-entropy in nats per image token; captions with `keep` False are left out."""
        transformer = model.transformer
        embed, length = transformer.cls_embedding, transformer.prefix_length
        features, mask = encode_captions(self.tokenizer, model.text_encoder, captions, length)
        nothing = embed.get_buffer("uncond_embedding").to(features)
        features = torch.where(keep.to(features.device)[:, None, None], features, nothing)
        logits = transformer(tokens[:, :-1], embed(features), mask)
        return F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())

    def card(self, record: dict[str, Any]) -> dict[str, str]:
        return dict(
            title=f"Text-to-image transformer of the shapes world, {self.resolution} px",
            purpose=f"draws {self.grid}×{self.grid} image tokens from a caption",
            limits="knows only shapes-world captions (GenEval's six forms over 8 shapes and 10 "
            "colours); other words are unknown to it",
        )
