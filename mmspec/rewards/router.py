"""A video pipeline's own routers as rewards of blocks."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from .base import to_uint8
from .registry import RewardPart

if TYPE_CHECKING:
    from torch import Tensor

    from ..models.wan.frame_router import FrameRouter

ROUTER = RewardPart(
    "router", "mmspec.rewards.router:RouterReward", bounds=(0, 100), of_pipeline=True
)


class RouterReward:
    """Expected PSNR of drafted frames against what the target would have made, in decibels."""

    name = "router"

    def __init__(self, router: FrameRouter, tokenizer: Any) -> None:
        self.router, self.tokenizer = router, tokenizer
        self._read = lru_cache(maxsize=64)(self._read_prompt)  # a clip has many blocks

    def score_block(
        self, prompt: str, frames: Tensor, before: Tensor | None, number: int
    ) -> Tensor:
        import torch

        with torch.inference_mode():
            shown = self._pixels(frames)[None]
            last = torch.zeros_like(shown[:, 0]) if before is None else self._pixels(before[None])
            return self.router(shown, last, self._read(prompt), number)[0].float().cpu()

    def _pixels(self, pictures: Tensor) -> Tensor:
        """uint8 as the network reads it."""
        return to_uint8(pictures).to(self.router.device, self.router.dtype) / 127.5 - 1

    def _read_prompt(self, prompt: str) -> Tensor:
        """Features of a prompt `[1, text_dim]`."""
        ids = self.tokenizer(
            [prompt],
            padding="max_length",
            truncation=True,
            max_length=self.router.config.text_len,
            return_tensors="pt",
        ).input_ids
        return self.router.read(ids.to(self.router.device))


class AdvantageReward(RouterReward):
    """P(the target would do better) of a drafted block, the same number for each of its frames.

    It is the sigmoid of the mean of what the router says of the frames. Here less is better: see
    `AdvantageRule`.
    """

    name = "advantage"

    def score_block(
        self, prompt: str, frames: Tensor, before: Tensor | None, number: int
    ) -> Tensor:
        logits = super().score_block(prompt, frames, before, number)
        return logits.double().mean().sigmoid().expand(len(logits))
