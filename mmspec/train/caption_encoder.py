"""Recipe of caption encoders: small T5s that learn from captions alone which word stands where.

An encoder that learns beside pictures only may stay a bag of words. T5 tells places apart by biases
of its attention, which begin small; what words say soon outweighs them, and "a red circle and a
blue square" has the features of "a blue circle and a red square". No network behind it can draw
the difference. So the biases begin large, and before any picture is seen, which takes minutes, the
features learn a code: a word's own vector, and less of those around it, each turned by how far and
on which side it stands. A sum of known parts stays one where words were never said together, and
networks that learned from other captions can read it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase, T5Config, T5EncoderModel

from ..errors import InputError
from ..models.loading import load_component
from ..worlds.shapes import prompts as shapes_prompts
from ..worlds.shapes.prompts import mixed_caption
from ..worlds.shapes.scene import in_turn, sample_mixed
from ..worlds.shapes.vocabulary import TASKS, Split
from ..worlds.video_world import prompts as clip_prompts
from ..worlds.video_world.vocabulary import KINDS
from .base import BaseRecipe
from .card import ship, write_card
from .tokenizers import caption_tokenizer, clip_tokenizer
from .trainer import Loss, TrainConfig

World = Literal["shapes", "clips"]
TEXT_ENCODER: dict[str, Any] = dict(
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
REACH = 4  # words on either side whose vectors are in a word's features
NEXT = 0.5  # weight of the vector next to a word's own; of one n words away, that by the root of n
BIAS = 1.5  # deviation of the first relative biases; T5's own is d_model^-½
BIAS_RATE = 10  # of the biases' learning rate to the others'
BETAS = (0.9, 0.95)


class PlacedWords(nn.Module):
    """The code that a caption encoder learns; fixed, and not shipped.

    Args:
        dim: width D of the features.
        words: V of the vocabulary.
        reach: words on either side.
    """

    vectors: Tensor
    turns: Tensor

    def __init__(self, dim: int, words: int, reach: int = REACH) -> None:
        super().__init__()
        self.offsets = [*range(-reach, 0), *range(1, reach + 1)]
        chance = torch.Generator().manual_seed(0)
        vectors = torch.randn(words, dim, generator=chance)
        turns = torch.randn(len(self.offsets), dim, dim, generator=chance)
        self.register_buffer("vectors", F.normalize(vectors, dim=-1))
        self.register_buffer("turns", torch.linalg.qr(turns)[0])

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """The features `[B, T, D]` of words, with a mean square of 1, as T5 norms its own.

        Args:
            ids: of the words `[B, T]`; those with `mask [B, T]` False are padding, and nothing.
        """
        own = self.vectors[ids] * mask[..., None]
        code, length = own.clone(), ids.shape[1]
        for offset, turn in zip(self.offsets, self.turns, strict=True):
            here = slice(max(0, -offset), max(0, length - max(0, offset)))
            there = slice(max(0, offset), max(0, length + min(0, offset)))
            code[:, here] += NEXT / abs(offset) ** 0.5 * own[:, there] @ turn
        return F.normalize(code, dim=-1) * own.shape[-1] ** 0.5


class CodedCaptions(nn.Module):
    """A caption encoder and the code that its features are to have."""

    def __init__(self, encoder: T5EncoderModel) -> None:
        super().__init__()
        self.encoder = encoder
        self.code = PlacedWords(encoder.config.d_model, encoder.config.vocab_size)

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Features of all words `[N, D]`, and those that they should have."""
        features = self.encoder(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        return features[mask], self.code(ids, mask)[mask]


class CaptionEncoderRecipe(BaseRecipe):
    """Trains the `text_encoder` of a pipeline that draws, and adds its `tokenizer`.

    Args:
        config, pipeline, rate: see `BaseRecipe`; a batch is of captions.
        world: whose captions.
        kind: class of the pipeline.
        init: "text_encoder" goes on from the folder's; None: from nothing.
    """

    name = "text_encoder"
    texts: ClassVar = dict(
        title="Caption encoder",
        purpose="gives features of a caption's words that tell which words stand around them",
        limits="knows only the words of its world",
    )

    def __init__(
        self,
        config: TrainConfig,
        pipeline: Path,
        world: World = "shapes",
        kind: str = "ImagePipeline",
        init: str | None = None,
        rate: float = 1e-3,
    ) -> None:
        super().__init__(config, pipeline, rate)
        self.world, self.kind = world, kind
        self.tokenizer = TOKENIZERS[world]()
        self.draw = partial(draw_captions, world, config.batch_size)
        self.model = CodedCaptions(fresh_encoder(self.tokenizer))
        self.start(init, self.model.encoder)

    def optimizers(self) -> Sequence[torch.optim.Optimizer]:
        biases: list[nn.Parameter] = []
        rest: list[nn.Parameter] = []
        for name, weight in self.model.named_parameters():
            (biases if "relative_attention_bias" in name else rest).append(weight)
        groups: list[dict[str, Any]] = [
            {"params": rest},
            {"params": biases, "lr": self.rate * BIAS_RATE},
        ]
        return [torch.optim.AdamW(groups, self.rate, BETAS, weight_decay=0.0)]

    def loss(self, batch: list[str], rng: np.random.Generator, step: int) -> Loss:
        error = F.mse_loss(*self._features(self.model, batch))
        return error, {"error": float(error.detach())}

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        rng = self.held_out_rng()
        captions = draw_captions(self.world, 600, rng, 0, split="held_out")
        return {"held_out_error": float(F.mse_loss(*self._features(model, captions)))}

    def card(self, record: dict[str, Any]) -> dict[str, str]:
        told = {"shapes": "scenes of the shapes world", "clips": "clips of moving shapes"}
        return {
            **self.texts,
            "data": f"captions of {told[self.world]}, drawn afresh for every batch",
        }

    def export(self, model: nn.Module, record: dict[str, Any]) -> None:
        assert isinstance(model, CodedCaptions)
        ship(self.pipeline, "tokenizer", self.tokenizer, self.kind)
        folder = ship(self.pipeline, self.name, model.encoder.half(), self.kind)
        write_card(folder, record=record, **self.card(record))

    def _features(self, model: nn.Module, captions: list[str]) -> tuple[Tensor, Tensor]:
        read = self.tokenizer(captions, padding=True, return_tensors="pt").to(self.config.device)
        features, wanted = model(read["input_ids"], read["attention_mask"].bool())
        return features.float(), wanted


def fresh_encoder(tokenizer: PreTrainedTokenizerBase) -> T5EncoderModel:
    """A caption encoder from nothing, whose attention tells places apart from the first step on."""
    encoder = T5EncoderModel(T5Config(vocab_size=len(tokenizer), **TEXT_ENCODER))
    for name, weight in encoder.named_parameters():
        if "relative_attention_bias" in name:
            nn.init.normal_(weight, std=BIAS)
    return encoder


def trained_encoder(pipeline: Path) -> T5EncoderModel:
    """The caption encoder of a pipeline's folder, in float32.

    Raises:
        InputError: there is none yet.
    """
    folder = pipeline / "text_encoder"
    if not folder.is_dir():
        raise InputError(f"{pipeline} holds no text_encoder; train it first: --stage captions")
    return load_component(T5EncoderModel, folder, torch.float32)


def draw_captions(
    world: World,
    size: int,
    rng: np.random.Generator,
    step: int,
    split: Split = "train",
) -> list[str]:
    """Captions of a training step, their kinds in turn."""
    return [*CAPTIONS[world](rng, size, split)]


def _of_shapes(rng: np.random.Generator, size: int, split: Split) -> Iterator[str]:
    """Captions of pictures; of those to train on, some tell of mixed scenes."""
    for task in in_turn(rng, (*TASKS, *TASKS, None, None), size):
        if task is not None:
            yield shapes_prompts.sample_prompt(rng, task, split).prompt
        else:
            things = [(item.shape, item.color) for item in sample_mixed(rng, split).items]
            yield mixed_caption(rng, things)


def _of_clips(rng: np.random.Generator, size: int, split: Split) -> Iterator[str]:
    """Captions of clips."""
    for kind in in_turn(rng, KINDS, size):
        yield clip_prompts.sample_prompt(rng, kind, split).prompt


TOKENIZERS: dict[World, Callable[[], Any]] = {"shapes": caption_tokenizer, "clips": clip_tokenizer}
CAPTIONS: dict[World, Callable[[np.random.Generator, int, Split], Iterator[str]]] = {
    "shapes": _of_shapes,
    "clips": _of_clips,
}
