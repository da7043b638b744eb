"""Training-free compressors of `mmspec.compress` over the pictures of a model's prompts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...compress.base import Compressed, compress
from ...compress.fastv import LAYER, last_token_attention
from ...compress.packed_tower import watch_packed
from ...compress.tower import TowerCues, watch
from ...errors import InputError
from ...methods.registry import COMPRESSORS
from ...models.call_masks import additive
from ...models.heads.columns import kept_columns
from ...models.transformers.chosen_layers import running
from ...models.transformers.prompted import EncodedPrompt, PromptedDecoder
from ...models.transformers.qwen_vl import QwenVlDecoder, deep_inputs
from ...models.transformers.vlm import VisualPrompt, VlmDecoder, spans

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

    Raises:
        InputError: the model sees no pictures, the compressor can't choose, or it reads attention
            of a layer that the model lacks, or of a vision tower whose tokens are not the
            pictures' columns.
    """

    def __init__(self, decoder: PromptedDecoder, name: str, share: float | None) -> None:
        kind = decoder.model.config.model_type
        if not isinstance(decoder, VlmDecoder):
            raise InputError(f"compressor {name!r} shortens pictures, and {kind} sees none")
        self.decoder, self.name, self.share = decoder, name, share
        self.method = COMPRESSORS.get(name)
        if share is None and not self.method.adaptive:
            raise InputError(
                f"compressor {name!r} doesn't choose how many tokens stay; give a share"
            )
        if name == "fastv" and len(decoder.layers) <= LAYER:
            raise InputError(
                f"compressor 'fastv' reads layer {LAYER + 1} of a language model, and this one has "
                f"{len(decoder.layers)}; use 'divprune' or 'tome'"
            )
        watched = {"attention", "keys"} & set(self.method.uses) and name != "fastv"
        self._tower = getattr(decoder.model.base_model, _TOWERS.get(kind, ""), None)
        if self._tower is None and "keys" in self.method.needs:
            raise InputError(
                f"compressor {name!r} reads the vision tower's attention, and {kind} puts other "
                "tokens in front of its language model; use 'divprune', 'tome' or 'fastv'"
            )
        if not watched:
            self._tower = None
        self._cues: TowerCues | list[TowerCues] | None = None

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

    def __call__(self, prompt: EncodedPrompt, inputs: Mapping[str, Any]) -> EncodedPrompt:
        """The prompt, made of a processor's `inputs`, with fewer columns."""
        if not isinstance(prompt, VisualPrompt) or not any(prompt.images):
            return prompt
        try:
            made = self._compressed(prompt, inputs)
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
        visual = prompt.visual.gather(1, order) & mask
        return replace(
            prompt,
            embedded=embedded.gather(1, order[..., None].expand(-1, -1, embedded.shape[-1])),
            mask=mask,
            positions=_placed(prompt.positions, order, prompt.mask.shape[1]),
            text=None if prompt.text is None else prompt.text.gather(1, order),
            visual=visual,
            images=spans(visual, sizes),
            deep=None if prompt.deep is None else prompt.deep[:, keep[prompt.visual]],
        )

    def _compressed(self, prompt: VisualPrompt, inputs: Mapping[str, Any]) -> list[Compressed]:
        """Compress every picture, one row each."""
        found = [(row, *span) for row, images in enumerate(prompt.images) for span in images]
        grids = self._grids(inputs, found)
        attention = _text_attention(self.decoder, prompt) if self.name == "fastv" else None
        made = []
        for n, (row, first, columns) in enumerate(found):
            given = self._seen(n, len(found), columns)
            if attention is not None:
                positions = torch.arange(first, first + columns, device=attention.device)[None]
                given["attention"] = last_token_attention(attention[row, None], positions)
            features = prompt.embedded[row, None, first : first + columns]
            keep = self._keep(columns, grids[n])
            made.append(compress(self.name, features, keep, grid=grids[n], **given))
        return made

    def _keep(self, columns: int, grid: tuple[int, int] | None) -> int | None:
        """Number of a picture's columns that stay; of a pooled one a full grid."""
        if self.share is None:
            return None
        if self.name == "pool":
            down, across = grid or (round(math.sqrt(columns)),) * 2
            side = math.sqrt(self.share)
            return max(1, round(down * side)) * max(1, round(across * side))
        return max(1, round(columns * self.share))

    def _grids(
        self, inputs: Mapping[str, Any], found: list[tuple[int, int, int]]
    ) -> list[tuple[int, int] | None]:
        """Rows and columns of every picture; None: a square."""
        grids = inputs.get("image_grid_thw")
        if grids is None:
            return [None] * len(found)
        merge = self.decoder.model.config.vision_config.spatial_merge_size
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


def _side(config: Any) -> int:
    """Rows and columns of a vision tower's tokens that the projector makes one column of."""
    ratio = getattr(config, "downsample_ratio", None)
    return round(1 / ratio) if ratio else int(getattr(config, "scale_factor", 1))


def _placed(positions: Tensor, order: Tensor, width: int) -> Tensor:
    """Positions of the columns `order [R, T']` of a prompt of `width`, and of the outputs."""
    index = order.expand(*positions.shape[:-1], -1)
    return torch.cat([positions[..., :width].gather(-1, index), positions[..., width:]], dim=-1)


@torch.inference_mode()
def _text_attention(decoder: VlmDecoder, prompt: VisualPrompt) -> Tensor:
    """Attention weights `[R, H, T, T]` of the language model's second layer, as FastV reads them.

    The layers behind it do not run.
    """
    width = prompt.mask.shape[1]
    place = torch.arange(width, device=prompt.mask.device)
    seen = (place <= place[:, None]) & (prompt.mask[:, None] | (place == place[:, None]))
    inputs = {} if prompt.deep is None else deep_inputs(prompt, place)
    weights: list[Tensor] = []
    blocks = decoder.blocks()
    layer: Any = blocks[LAYER]

    def look(module: Any, args: Any, out: tuple[Tensor, Tensor]) -> None:
        weights.append(out[1])

    config = decoder.config
    before = config._attn_implementation
    config._attn_implementation = "eager"  # the others tell none
    hook = layer.self_attn.register_forward_hook(look)
    try:
        with running(blocks, [n <= LAYER for n in range(len(blocks))]):
            decoder.body(
                inputs_embeds=prompt.embedded,
                attention_mask=additive(seen, prompt.embedded.dtype)[:, None],
                position_ids=prompt.positions[..., :width],
                use_cache=False,
                **inputs,
            )
    finally:
        hook.remove()
        config._attn_implementation = before
    return weights[0]
