"""DFlash drafts a block of masked places in one call (Chen et al. 2026)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...engine.accept.chain import pick
from ...engine.draft import Context, Draft, Scores, Verdict
from ...errors import InputError
from ...models.decoders import BlockHeadDecoder
from ...models.guided import GuidedDecoder
from ...models.heads.columns import positions
from ...models.transformers.prompted import continued
from .feature_model import FeatureModel, still_known


class DFlashModel(FeatureModel):
    """DFlash's head as a `BlockModel`; it drafts one block a round.

    A slot of its cache holds what the layers made of the target's hidden state at that column, up
    to the last committed token; from there on, the block's own entries stand until the next round.

    Args:
        head: the network.
        target, warp: see `FeatureModel`.

    Raises:
        InputError: a block is larger than what one call of the target may add.
    """

    decoder: BlockHeadDecoder

    def __init__(
        self,
        head: BlockHeadDecoder,
        target: GuidedDecoder,
        warp: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        prefix, mask, _, _, limit, _, scratch, *_ = target.setting
        self.most = head.most
        if self.most > scratch:
            raise InputError(
                f"the head drafts blocks of {self.most} tokens, and a call takes {scratch}; raise "
                "num_draft_tokens"
            )
        head.place(continued(positions(mask), limit + scratch + 1))
        super().__init__(head, prefix, mask, target, warp)
        self._fed: list[int] = []  # per row, outputs in front of which the hidden state is read

    def _start(self, rows: int, before: Tensor) -> None:
        self.cache = self.cache or self.decoder.cache(len(self.prefix), self.slots)
        self._fed = [0] * rows
        length = self.offset - 1
        if length:
            known = before[:, -length:]  # behind a column: in front of the next one
            self.decoder.feed(known, self.rotary[:length], self.cache, 0)

    def _begin(self, rows: list[int], before: Tensor) -> None:
        assert self.cache is not None
        length = self.offset - 1
        for row in rows:
            self._fed[row] = 0
            if length:
                lines = self.running.lines(row)
                self._narrow([row])
                where = self.rotary[:length], self.cache.lines(lines), 0
                self.decoder.feed(before[lines, -length:], *where)

    def observe(self, context: Context, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        super().observe(context, draft, scores, verdict)
        self._fed = still_known(self._fed, context)

    def block(self, context: Context, drafted: Tensor) -> Tensor:
        assert not drafted.shape[1], "it drafts one block a round"
        return self._laws(self._denoised(context))

    def _denoised(self, context: Context) -> Tensor:
        """Hidden states `[R, K, H]` of the places that say the next K tokens."""
        self._feed(context)
        first = self._embedded(*self._in_front(context))[:, 0]
        laid_out = context.tokens, context.lengths, self.setting.grid
        x = self.decoder.masked(first, *laid_out)
        size = x.shape[1]
        slots = context.lengths[:, None] + (self.offset - 1) + self.keys[:size]
        length = self.offset - 1 + max(context.base) + size
        seen = self.keys[:length] <= slots[:, -1:, None]  # its own end bounds what a row reads
        hidden = self._at(x, slots, slots, length, seen.expand(-1, size, -1))
        return hidden[:, size - self.decoder.most :]

    def _in_front(self, context: Context) -> tuple[Tensor, Tensor]:
        """The last committed tokens `[B, 1]`, and where it is the prompt's last column, without id.

        Text has ids in front of the first output, too; a picture has none.
        """
        begins = context.lengths[:, None] == 0
        text = self.decoder.text_of(len(self.target.setting.prefix))
        if text is None:
            return context.last, begins
        last = self.running.of_samples(text[:, -1:])
        return torch.where(begins, last.clamp_min(0), context.last), begins & (last < 0)

    def _feed(self, context: Context) -> None:
        """Read the hidden states that the last rounds have brought."""
        assert self.cache is not None
        width = max(b - f for b, f in zip(context.base, self._fed, strict=True))
        if not width:
            return
        # rows that lack fewer read some again
        positions = context.lengths[:, None] - width + self.keys[:width]
        positions = self._of_all_rows(positions.clamp_min(0))
        slots = positions + self.offset - 1
        states = pick(self._features, positions)
        self.decoder.feed(states, self.rotary[slots], self.cache, slots)
        self._fed = list(context.base)
