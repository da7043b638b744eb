"""GLM-Image's autoregressive stage (Z.ai 2026), as transformers has it.

It first draws the tokens of a small picture, then those of the large one, and an end. Every token
has three rotary positions: its picture's, its row and its column.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...errors import InputError
from .prompted import EncodedPrompt, PromptedDecoder, refuse


class GlmImageDecoder(PromptedDecoder):
    """`GlmImageForConditionalGeneration`; its head has logits for image tokens alone.

    The model computes positions once a prompt and keeps them for the tokens to come; here they are
    read off and the model is left as it was.
    """

    method = "scd"
    modality = "image"
    guidable = False
    reads_text = False

    def prompt(self, ids: Tensor, mask: Tensor, limit: int, **inputs: Any) -> EncodedPrompt:
        """Embed a prompt; see `PromptedDecoder.prompt`.

        Args:
            ids: `[R, T]`, left-padded, with placeholders for the tokens of source pictures.
            inputs: what the processor gives: `image_grid_thw [pictures, 3]`, the grids of every
                row's source pictures and of those to draw, `images_per_sample [R]`; and what
                `generate` makes of source pictures.

        Raises:
            InputError: the grids are missing or too small for `limit` tokens.
        """
        inputs.pop("position_ids", None)  # generate's guess, which the model does not read either
        grids, counts = inputs.pop("image_grid_thw", None), inputs.pop("images_per_sample", None)
        sources = (inputs.pop("mm_encoder_outputs", None) or {}).get("image")
        if inputs:
            refuse(f"{', '.join(sorted(inputs))} of GLM-Image")
        if grids is None:
            raise InputError("GLM-Image needs image_grid_thw; its processor gives it with the ids")
        network: Any = self.model.get_submodule("model")
        if sources is not None:
            codes = network.get_image_tokens(sources.pooler_output).flatten().to(ids.device)
            ids = ids.masked_scatter(network.get_placeholder_mask(ids, codes), codes)
        positions, outputs = self._positions_of(network, ids, mask, grids, counts)
        if limit > outputs.shape[-1]:
            raise InputError(
                f"the pictures to draw have {outputs.shape[-1] - 1} tokens and an end; "
                f"max_new_tokens must be at most {outputs.shape[-1]}, not {limit}"
            )
        complete = int((ids[0] == self.model.config.image_end_token_id).sum())
        return EncodedPrompt(
            self.embed(ids),
            mask,
            torch.cat([positions, outputs[..., :limit]], dim=-1),
            stride=int(grids[complete, 2]),  # of the large picture, which comes first in the list
        )

    @staticmethod
    def _positions_of(
        network: Any, ids: Tensor, mask: Tensor, grids: Tensor, counts: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Positions of the prompt `[3, R, T]` and of the outputs `[3, R, tokens + 1]`."""
        kept = ("_cached_decode_position_ids", "_prefill_len")
        before = {name: getattr(network, name) for name in kept}
        try:
            positions, _ = network.get_rope_index(
                ids, image_grid_thw=grids, images_per_sample=counts, attention_mask=mask.long()
            )
            return positions, network._cached_decode_position_ids.permute(1, 0, 2)
        finally:
            for name, value in before.items():
                setattr(network, name, value)
