"""Gemma 4 (Google 2026) as transformers has it, of whose pictures and sounds text knows nothing."""

from __future__ import annotations

import torch
from torch import Tensor

from .prompted import PromptedDecoder


class Gemma4Decoder(PromptedDecoder):
    """`Gemma4ForConditionalGeneration`, and the unified one.

    They read the tokens that stand for pictures, clips and sounds as padding where there are none.
    """

    def embed(self, ids: Tensor) -> Tensor:
        config = self.model.config
        kinds = config.image_token_id, config.video_token_id, config.audio_token_id
        stand_in = torch.tensor([n for n in kinds if n is not None], device=ids.device)
        return super().embed(
            ids.masked_fill(torch.isin(ids, stand_in), config.text_config.pad_token_id)
        )
