"""Block video drafts that are made while the last block is decoded and judged (SDVG)."""

from __future__ import annotations

from concurrent.futures import Future, wait
from functools import partial

from torch import Tensor

from ...engine.coins import RoundCoins
from ...engine.draft import Context, Draft, Scores, Verdict
from ...models.wan.clips import WanClips
from ...models.wan.target import Part
from ..side_thread import SideThread
from .block_video import BlockVideoDrafter


class AheadBlockVideoDrafter(BlockVideoDrafter):
    """Drafts the next block while the last is judged, as if that one stood.

    What it proposes is what a `BlockVideoDrafter` does, to the last bit: noise belongs to a block's
    place, and the clips stay as they are until a block that was foreseen is handed out
    (`WanClips.foresee`). If the block before it falls it is thrown away, and so is its error; an
    error of one that is needed is raised when it is asked for.

    Args:
        clips, steps, part: see `BlockVideoDrafter`; "draft" takes the time of waiting.
        side: works meanwhile.

    Attributes:
        wasted: blocks that were begun and thrown away.
    """

    def __init__(self, clips: WanClips, steps: int, part: Part, side: SideThread) -> None:
        super().__init__(clips, steps, part)
        self.wasted = 0
        self._side = side
        self._ahead: list[Future[Tensor] | None] = [None] * clips.rows

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        """Propose as `BlockVideoDrafter` does; behind the last block there is none to draft."""
        draft = super().propose(context, budget, coins)
        if draft.nodes and max(context.room()) > 1:
            noise = self.clips.noise(coins, self.steps, behind=1)
            self._ahead = [
                self._side.submit(
                    partial(self.clips.foresee, row, draft.tokens[row, 0], noise[row])
                )
                for row in range(self.clips.rows)
            ]
        return draft

    def observe(self, context: Context, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        """Append what was emitted to the clips; blocks behind those that fell are dropped."""
        self._keep(verdict.accepted.tolist())
        super().observe(context, draft, scores, verdict)

    def close(self) -> None:
        """Draft no more; what is left is thrown away."""
        self._keep([0] * self.clips.rows)
        self._side.close()

    def _block(self, row: int, noise: Tensor) -> Tensor:
        found, self._ahead[row] = self._ahead[row], None
        if found is None:
            return super()._block(row, noise)
        block = found.result()
        self.clips.adopt(row)
        return block

    def _keep(self, stands: list[int]) -> None:
        """Wait for the blocks behind those that stand; of the others none is begun any more."""
        pairs = list(zip(self._ahead, stands, strict=True))
        kept = [found if stood else None for found, stood in pairs]
        fallen = [found for found, stood in pairs if found is not None and not stood]
        begun = [found for found in fallen if not found.cancel()]
        if any(self._ahead):
            with self.part("draft"):
                wait([*begun, *filter(None, kept)])
        self._ahead, self.wasted = kept, self.wasted + len(begun)
