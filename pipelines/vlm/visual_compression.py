"""Training-free compressors of `mmspec.compress` over the pictures of a model's prompts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...compress.base import Compressed, compress
from ...compress.draft_attention import QUESTION, grid_of, on_grid, question_attention
from ...compress.fastv import LAYER, last_token_attention
from ...compress.packed_tower import watch_packed
from ...compress.tower import TowerCues, watch
from ...errors import InputError
from ...methods.registry import COMPRESSORS
from ...models.heads.columns import kept_columns
from ...models.transformers.prompted import EncodedPrompt, PromptedDecoder
from ...models.transformers.qwen_vl import QwenVlDecoder
from ...models.transformers.vlm import VisualPrompt, VlmDecoder, spans
from .looking import look

Span = tuple[int, int, int]  # row of a picture, its first column, and how many there are

# vision towers whose tokens, or squares of them, are the pictures' columns, one by one
_TOWERS = {
    "llava": "vision_tower",
    "internvl": "vision_tower",
    "idefics3": "vision_model",
    "smolvlm": "vision_model",
    "qwen2_vl": "visual",
    "qwen2_5_vl": "visual",
    "qwen3_vl": "visual",
}


class PictureShortener:
    """Compressor of the pictures in a model's prompts, each by itself.

    What stays keeps its column's position, and what belongs to it in deeper layers.

    Args:
        name: a compressor's, see `mmspec.compress.base`.
        share: of a picture's columns that stay; None: the compressor chooses.
        looker: draft model, whose attention some read.

    Raises:
        InputError: the model sees no pictures, the compressor can't choose, or it reads attention
            of a layer that the model lacks, or of a vision tower whose tokens are not the
            pictures' columns.
    """

    def __init__(
        self,
        decoder: PromptedDecoder,
        name: str,
        share: float | None,
        looker: PromptedDecoder | None = None,
    ) -> None:
        kind = decoder.model.config.model_type
        if not isinstance(decoder, VlmDecoder):
            raise InputError(f"compressor {name!r} shortens pictures, and {kind} sees none")
        self.decoder, self.name, self.share = decoder, name, share
        self.method = COMPRESSORS.get(name)
        if share is None and not self.method.adaptive:
            raise InputError(
                f"compressor {name!r} doesn't choose how many tokens stay; give a share"
            )
        if self.method.through == "model" and len(decoder.layers) <= LAYER:
            raise InputError(
                f"compressor {name!r} reads layer {LAYER + 1} of a language model, and this one "
                f"has {len(decoder.layers)}; use 'divprune' or 'tome'"
            )
        if self.looks and not isinstance(looker, VlmDecoder):
            raise InputError(
                f"compressor {name!r} looks through a draft model that sees pictures, and "
                "there is none; use method 'draft' with one, or compressor 'fastv'"
            )
        self.looker = looker
        watched = {"attention", "keys"} & set(self.method.uses) and self.method.through == "tower"
        self._tower = getattr(decoder.model.base_model, _TOWERS.get(kind, ""), None)
        if self._tower is None and "keys" in self.method.needs:
            raise InputError(
                f"compressor {name!r} reads the vision tower's attention, and {kind} puts other "
                "tokens in front of its language model; use 'divprune', 'tome' or 'fastv'"
            )
        if not watched:
            self._tower = None
        self._cues: TowerCues | list[TowerCues] | None = None

    @property
    def looks(self) -> bool:
        """True if it looks at pictures through a draft model."""
        return self.method.through == "drafter"

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look at the vision tower as it runs in here."""
        watched: Any = nullcontext()
        if self._tower is not None:
            packed = isinstance(self.decoder, QwenVlDecoder)
            layer = self.method.layer
            watched = watch_packed(self._tower) if packed else watch(self._tower, layer)
        with watched as self._cues:
            yield

    def __call__(
        self,
        prompt: EncodedPrompt,
        inputs: Mapping[str, Any],
        looked: tuple[EncodedPrompt, Mapping[str, Any]] | None = None,
    ) -> EncodedPrompt:
        """The prompt, made of a processor's `inputs`, with fewer columns.

        Args:
            looked: the looker's own prompt and inputs; None: the same.
        """
        if not isinstance(prompt, VisualPrompt) or not any(prompt.images):
            return prompt
        try:
            made = self._compressed(prompt, inputs, looked or (prompt, inputs))
        except InputError as error:
            kind = self.decoder.model.config.model_type
            raise InputError(
                f"compressor {self.name!r} can't shorten these pictures of {kind}: {error}"
            ) from error
        keep, embedded, sizes = prompt.mask.clone(), prompt.embedded.clone(), []
        pictures = iter(made)
        for row, images in enumerate(prompt.images):
            for first, columns in images:
                one = next(pictures)
                left = first + one.index[one.mask]
                keep[row, first : first + columns] = False
                keep[row, left] = True
                embedded[row, left] = one.features[one.mask]
                sizes.append(len(left))
        order, mask = kept_columns(keep)
        visual, groups = prompt.visual.gather(1, order) & mask, prompt.both_ways
        return replace(
            prompt,
            embedded=embedded.gather(1, order[..., None].expand(-1, -1, embedded.shape[-1])),
            mask=mask,
            positions=_placed(prompt.positions, order, prompt.mask.shape[1]),
            text=None if prompt.text is None else prompt.text.gather(1, order),
            visual=visual,
            images=spans(visual, sizes),
            deep=None if prompt.deep is None else prompt.deep[:, keep[prompt.visual]],
            both_ways=None if groups is None else groups.gather(1, order).masked_fill(~mask, -1),
        )

    def _compressed(
        self,
        prompt: VisualPrompt,
        inputs: Mapping[str, Any],
        looked: tuple[EncodedPrompt, Mapping[str, Any]],
    ) -> list[Compressed]:
        """Compress every picture, one row each."""
        found = pictures_of(prompt)
        grids = self._grids(self.decoder, inputs, found)
        attention = None
        if self.method.through == "model":
            attention = self._last_attention(prompt)
        elif self.looks:
            attention = self._drafters_attention(*looked, found, grids)
        made = []
        for n, (row, first, columns) in enumerate(found):
            given = self._seen(n, len(found), columns)
            if attention is not None:
                given["attention"] = attention[n]
            features = prompt.embedded[row, None, first : first + columns]
            keep = self._keep(columns, grids[n])
            made.append(compress(self.name, features, keep, grid=grids[n], **given))
        return made

    def _last_attention(self, prompt: VisualPrompt) -> list[Tensor]:
        """Attention `[1, N]` that pictures get from the last token in FastV's layer."""
        (weights,) = look(self.decoder, prompt, [LAYER], lambda weights: weights[:, :, -1:])
        places = torch.arange(weights.shape[-1], device=weights.device)[None]
        return [
            last_token_attention(weights[row, None], places[:, first : first + columns])
            for row, first, columns in pictures_of(prompt)
        ]

    def _drafters_attention(
        self,
        prompt: EncodedPrompt,
        inputs: Mapping[str, Any],
        found: list[Span],
        grids: list[tuple[int, int] | None],
    ) -> list[Tensor]:
        """Attention `[1, N]` that the draft model's question pays to each picture."""
        assert isinstance(self.looker, VlmDecoder)
        own = pictures_of(prompt) if isinstance(prompt, VisualPrompt) else []
        alike = [row for row, *_ in own] == [row for row, *_ in found]
        if not isinstance(prompt, VisualPrompt) or not alike:
            raise InputError(
                f"the draft model sees {len(own)} pictures, the model {len(found)}, or they belong "
                "to other prompts"
            )
        asked = prompt.mask & ~prompt.visual
        asked &= asked.flip(1).cumsum(1).flip(1) <= QUESTION
        layers = range(len(self.looker.layers) // 3, len(self.looker.layers))

        see = partial(question_attention, asked=asked)
        paid = torch.stack(look(self.looker, prompt, layers, see)).amax(0)
        out = []
        seen = zip(own, self._grids(self.looker, inputs, own), found, grids, strict=True)
        for (row, first, columns), old, (_, _, wanted), new in seen:
            scores = paid[row, None, first : first + columns]
            out.append(on_grid(scores, grid_of(columns, old), grid_of(wanted, new)))
        return out

    def _keep(self, columns: int, grid: tuple[int, int] | None) -> int | None:
        """Number of a picture's columns that stay; of a pooled one a full grid."""
        if self.share is None:
            return None
        if self.name == "pool":
            down, across = grid or (round(math.sqrt(columns)),) * 2
            side = math.sqrt(self.share)
            return max(1, round(down * side)) * max(1, round(across * side))
        return max(1, round(columns * self.share))

    @staticmethod
    def _grids(
        decoder: VlmDecoder, inputs: Mapping[str, Any], found: list[Span]
    ) -> list[tuple[int, int] | None]:
        """Rows and columns of every picture; None: a square."""
        grids = inputs.get("image_grid_thw")
        if grids is None:
            return [None] * len(found)
        merge = decoder.model.config.vision_config.spatial_merge_size
        if len(grids) != len(found):
            raise InputError(f"{len(grids)} grids for {len(found)} pictures; copy no rows")
        return [(down // merge, across // merge) for _, down, across in grids.tolist()]

    def _seen(self, picture: int, pictures: int, columns: int) -> dict[str, Tensor]:
        """Attention and keys of a picture, as the compressor wants them."""
        if self._cues is None:
            return {}
        if isinstance(self._cues, list):
            alike = len(self._cues) == pictures
            inputs = self._cues[picture].inputs(self.name) if alike else {}
        else:
            side = _side(self.decoder.model.config)
            blocks = self._cues if side == 1 else self._cues.blocks(side)
            every = blocks.inputs(self.name)
            alike = all(len(value) == pictures for value in every.values())
            inputs = {n: value[picture, None] for n, value in every.items()} if alike else {}
        if not inputs or any(value.shape[1] != columns for value in inputs.values()):
            raise InputError("the vision tower's tokens are not their columns, one by one")
        return inputs


def pictures_of(prompt: VisualPrompt) -> list[Span]:
    """Row, place and size of all pictures of a prompt, row by row."""
    return [(row, *span) for row, images in enumerate(prompt.images) for span in images]


def _side(config: Any) -> int:
    """Rows and columns of a vision tower's tokens that the projector makes one column of."""
    ratio = getattr(config, "downsample_ratio", None)
    return round(1 / ratio) if ratio else int(getattr(config, "scale_factor", 1))


def _placed(positions: Tensor, order: Tensor, width: int) -> Tensor:
    """Positions of the columns `order [R, T']` of a prompt of `width`, and of the outputs."""
    index = order.expand(*positions.shape[:-1], -1)
    return torch.cat([positions[..., :width].gather(-1, index), positions[..., width:]], dim=-1)
