"""Recipe of the text-to-image transformer: next-token prediction on shapes-world token grids.

Trained at 8×8 tokens first, which is cheap, then continued at 16×16: the 2-D rotary positions of
the small grid are a corner of the large one. The caption encoder, a small T5, is trained along.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from ...models.loading import load_component, load_model, load_strict, read_weights
from ...models.text_encoder import encode_captions
from ..batches import draw_scenes, scene_batch
from ..card import ship, write_card
from ..muon import Muon
from ..tokenizers import PHRASE, PREFIX, caption_tokenizer
from ..trainer import TrainConfig

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
# parts of names: matrices that Muon does not suit, such as those of the first and last layers
OUTER = (
    *("embed", "shared", "output", "relative_attention_bias"),
    *("z_proj", "input_proj", "final_layer", "time_projection", "head.head"),
)


class TextToImage(nn.Module):
    """The transformer and its caption encoder, trained as one."""

    def __init__(self, transformer: LlamaGenTransformer, text_encoder: T5EncoderModel) -> None:
        super().__init__()
        self.transformer = transformer
        self.text_encoder = text_encoder


class ImageTargetRecipe:
    """Trains `LlamaGenTransformer` at one resolution.

    Args:
        config: length, batch and device of the run.
        pipeline: folder that holds `vq_model`. A sibling that starts from nothing teaches a caption
            encoder too: the folder then receives `text_encoder` and `tokenizer` as well.
        name: the component to train, "sibling" or "transformer".
        resolution: side of the pictures in pixels; None: 64 for a sibling, 128 for a transformer.
        init: component whose weights to start from; None: from nothing.
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
        self.config, self.pipeline, self.name, self.rate = config, pipeline, name, rate
        self.origin = init and pipeline / init
        self.resolution = resolution = resolution or RESOLUTIONS[name]
        self.draw = partial(draw_scenes, config.batch_size, resolution)
        self.vq = load_model(VQModel, pipeline / "vq_model").to(config.device)
        self.grid, rest = divmod(resolution, self.vq.downsample_factor)
        if rest or not self.grid:
            raise InputError(
                f"pictures are a multiple of {self.vq.downsample_factor} px, not {resolution}"
            )
        self.words = caption_tokenizer()
        size = {**TRANSFORMER, "block_size": self.grid**2}
        transformer = LlamaGenTransformer(**size)
        if init is None:
            transformer.init_weights()
            text_encoder = T5EncoderModel(T5Config(vocab_size=len(self.words), **TEXT_ENCODER))
        else:
            # the weights know no grid: those of the small one go on at the large one
            load_strict(transformer, read_weights(pipeline / init), pipeline / init)
            text_encoder = load_component(T5EncoderModel, pipeline / "text_encoder", torch.float32)
        # trained with the sibling only, until other networks of the pipeline read it
        read = init is not None and (pipeline / "transformer").exists()
        self.teaches_encoder = name == "sibling" and not read
        text_encoder.requires_grad_(self.teaches_encoder)
        self.model = TextToImage(transformer.float(), text_encoder.float())

    def optimizers(self) -> Sequence[torch.optim.Optimizer]:
        return hybrid_optimizers(self.model, self.rate, self.config.precision)

    def loss(
        self, batch: Any, rng: np.random.Generator, step: int
    ) -> tuple[Tensor, dict[str, float]]:
        captions, tokens = self.encoded(batch)
        captions = [c.removeprefix(PHRASE) if rng.random() < 0.1 else c for c in captions]
        keep = torch.from_numpy(rng.random(len(captions)) >= CAPTION_DROPOUT)
        loss = caption_loss(self.model, self.words, captions, tokens, keep)
        return loss, {}

    def encoded(self, batch: tuple[list[str], Tensor]) -> tuple[list[str], Tensor]:
        """Captions and token grids `[B, grid²]` of a batch of scenes."""
        captions, pixels = batch
        with torch.no_grad():
            return captions, self.vq.encode(pixels.to(self.config.device))

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        assert isinstance(model, TextToImage)
        rng = np.random.default_rng([self.config.seed, 10**6])
        scenes = scene_batch(rng, self.config.batch_size, self.resolution, "held_out")
        captions, tokens = self.encoded(scenes)
        every, none = torch.ones(len(captions), dtype=torch.bool), torch.zeros(len(captions))
        return {
            "held_out_loss": float(caption_loss(model, self.words, captions, tokens, every)),
            "held_out_loss_without_caption": float(
                caption_loss(model, self.words, captions, tokens, none.bool())
            ),
        }

    def export(self, model: nn.Module, record: dict[str, Any]) -> None:
        assert isinstance(model, TextToImage)
        model = model.half()
        if self.teaches_encoder:
            ship(self.pipeline, "text_encoder", model.text_encoder)
            ship(self.pipeline, "tokenizer", self.words)
        write_card(
            ship(self.pipeline, self.name, model.transformer),
            title=f"Text-to-image transformer of the shapes world, {self.resolution} px",
            purpose=f"draws {self.grid}×{self.grid} image tokens from a caption",
            limits="knows only shapes-world captions (GenEval's six forms over 8 shapes and 10 "
            "colours); other words are unknown to it",
            record=record,
        )


def caption_loss(
    model: TextToImage, words: Any, captions: list[str], tokens: Tensor, keep: Tensor
) -> Tensor:
    """Mean cross-entropy in nats per image token; captions with `keep` False are left out."""
    logits = caption_logits(model, words, captions, tokens, keep)
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())


def caption_logits(
    model: TextToImage, words: Any, captions: list[str], tokens: Tensor, keep: Tensor
) -> Tensor:
    """Logits `[B, S, V]` of each image token given those before it."""
    embed = model.transformer.cls_embedding
    length = model.transformer.prefix_length
    features, mask = encode_captions(words, model.text_encoder, captions, length)
    nothing = embed.get_buffer("uncond_embedding").to(features)
    features = torch.where(keep.to(features.device)[:, None, None], features, nothing)
    logits: Tensor = model.transformer(tokens[:, :-1], embed(features), mask)
    return logits


def hybrid_optimizers(model: nn.Module, rate: float, precision: str) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the blocks, AdamW for embeddings, heads and vectors."""
    matrices: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for name, p in model.named_parameters():
        if not p.requires_grad:
            continue
        inner = p.ndim == 2 and not any(part in name for part in OUTER)
        (matrices if inner else rest).append(p)
    return [
        Muon(matrices, rate, weight_decay=0.01, dtype=getattr(torch, precision)),
        torch.optim.AdamW(rest, rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]
