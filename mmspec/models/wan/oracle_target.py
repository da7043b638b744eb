"""Target of video that makes every block itself, too, to tell what asking it would have won."""

from __future__ import annotations

from torch import Tensor

from ...engine.draft import Context, Draft, Scores
from .target import Decoded, Judge, VideoTarget


class OracleTarget(VideoTarget):
    """Scores a draft by the target's advantage: reward of its own block less the draft's, by frame.

    Each draft costs the target a block, whether it stands or not, and all of them are counted: it
    is what routing could win at most, not a way to be fast. A block that the target made so is the
    one that replaces a draft which falls; it starts from the draft's own noise, as always.
    """

    _foreseen: dict[int, tuple[Tensor, Decoded]]

    def score(self, context: Context, draft: Draft) -> Scores:
        """Advantages of the drafted blocks' frames `[B, N, T]`."""
        self._foreseen = {}
        return super().score(context, draft)

    def _judged(self, row: int, judge: Judge, draft: Draft) -> Tensor:
        assert draft.noise is not None, "blocks are compared that start from one noise"
        block, _ = super()._own(row, draft.noise[row, 0])
        decoded = self._decode(row, block)
        self._foreseen[row] = block, decoded
        own = self._reward(row, judge, decoded[0])
        return own - super()._judged(row, judge, draft)

    def _own(self, row: int, noise: Tensor) -> tuple[Tensor, Decoded | None]:
        return self._foreseen.get(row) or super()._own(row, noise)
