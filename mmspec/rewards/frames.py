"""A reward of pictures as the judge of a clip's frames."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import reason as why
from .base import BlockReward, Reward

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)


class FrameJudge:
    """Rewards of frames in the light of their clip's prompt, all frames of a block at once.

    A reward that raises, or is no number, is NaN: whoever routes by it rejects the block. It is
    counted, and said the first time.

    Args:
        reward: of pictures, each by itself, or of blocks.
        prompts: one a clip.

    Attributes:
        failures: blocks with a frame that has no reward.
        reason: of the first; None: there was none.
    """

    def __init__(self, reward: Reward | BlockReward, prompts: Sequence[str]) -> None:
        self.reward, self.prompts = reward, prompts
        self.failures = 0
        self.reason: str | None = None

    def __call__(self, row: int, frames: Tensor, before: Tensor | None, number: int) -> Tensor:
        """Rewards `[T]` of the frames `[T, 3, H, W]` of a clip's block, in [-1, 1], on the CPU.

        Args:
            before: the last frame before the block `[3, H, W]`; None: it is the clip's first.
            number: of the block in its clip, from 0.
        """
        import torch

        from ..models.wan.vae import to_bytes

        failed = torch.full((len(frames),), torch.nan, dtype=torch.float64)
        if not frames.isfinite().all():
            return self._failed(failed, "the frames are no numbers")
        try:
            last = None if before is None else to_bytes(before)
            scores = self._score(self.prompts[row], to_bytes(frames), last, number)
            rewards = scores.double().cpu().view(len(frames))
        except Exception as error:  # a reward raises what its libraries raise
            return self._failed(failed, why(error))
        return self._failed(rewards, "it is no number") if rewards.isnan().any() else rewards

    def _score(self, prompt: str, frames: Tensor, before: Tensor | None, number: int) -> Tensor:
        if isinstance(self.reward, BlockReward):
            return self.reward.score_block(prompt, frames, before, number)
        return self.reward.score([prompt] * len(frames), frames)

    def _failed(self, rewards: Tensor, reason: str) -> Tensor:
        self.failures += 1
        if self.reason is None:
            self.reason = reason
            logger.warning(
                "reward %s failed, and the block is rejected: %s", self.reward.name, reason
            )
        return rewards
