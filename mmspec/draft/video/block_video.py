"""A small block-causal video model drafts the next block of every clip (SDVG)."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor

from ...engine.coins import RoundCoins
from ...engine.draft import Context, Draft, Scores, Verdict
from ...engine.laws import Opaque
from ...engine.protocols import Drafter
from ...models.wan.clips import WanClips
from ...models.wan.target import Part


class BlockVideoDrafter(Drafter):
    """Drafts one block a round, from the noise that the target would start from as well.

    Its own caches hold what was really emitted, the target's blocks as its own.

    Args:
        clips: of the small model; of as many blocks each.
        steps: of the target's, which is to find noise for all of them.
        part: is told what the time goes to, "draft".
    """

    def __init__(
        self, clips: WanClips, steps: int, part: Part = lambda name: nullcontext()
    ) -> None:
        self.clips, self.part = clips, part
        self.steps = max(steps, clips.steps)

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        """Tokens `[B, 1, F, C, h, w]`, noise `[B, 1, S, F, C, h, w]`; none without a budget."""
        lengths = torch.tensor(budget, device=context.lengths.device).clamp_max(1)
        if not any(budget):
            return Draft(context.last[:, :0], lengths, Opaque())
        with self.part("draft"):
            noise = self.clips.noise(coins, self.steps)
            rows = range(self.clips.rows)
            tokens = torch.stack([self._block(row, noise[row]) for row in rows])
        sound = tokens.flatten(1).isfinite().all(1)  # what is no numbers is not drafted
        return Draft(tokens[:, None], lengths * sound, Opaque(), noise=noise[:, None])

    def observe(self, context: Context, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        """Append what was emitted to the clips."""
        with self.part("commit"):
            for row in range(self.clips.rows):
                self.clips.join(row, verdict.last[row, 0])

    def _block(self, row: int, noise: Tensor) -> Tensor:
        """A clip's next block `[F, C, h, w]`."""
        return self.clips.make(row, noise)
