"""Setting of a generation: its condition, its length, how tokens are drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .prefill import PREFILL_CHUNK


class Setting(NamedTuple):
    """Arguments of a generation, for any network that takes part in it.

    Attributes:
        prefix: embedded condition `[S, T, D]` of N samples; S = 2 N with guidance, conditional ones
            first. It is left-padded; columns that are padding in every row are dropped.
        mask: `[S, T]`, False where padded; the last column is always real.
        scale: of guidance; None: no unconditional rows.
        warp: the warpers: laws of logits `[B, n, V]`.
        limit: output tokens per row.
        grid: side of the token grid; of text there is none.
        scratch: tokens that one call may add beyond the output.
        forced: `[limit]`, the token that a position must have, -1 where the network decides (see
            `TokenGrid.forced`). The law of a forced position is a point mass; tokens that only
            stand there have embeddings behind the others', and need no logits.
        at_once: samples that have a row; None: all.
        normalized: whether guidance combines log-probabilities, as transformers does, and not
            logits: the law is the same, and what is added to its logits may be told from it.
        both_ways: groups of the prefix's columns `[S, T]`: those of one group read each other, also
            those behind them; below 0: of none. None: there is no group.
        prefill_chunk: most columns of the prefix that a call reads, see `prefill.chunks`.
    """

    prefix: Tensor
    mask: Tensor
    scale: float | None
    warp: Callable[[Tensor], Tensor]
    limit: int
    grid: int
    scratch: int
    forced: Tensor | None = None
    at_once: int | None = None
    normalized: bool = False
    both_ways: Tensor | None = None
    prefill_chunk: int = PREFILL_CHUNK

    def guided(self, logits: Tensor) -> Tensor:
        """Logits `[B, n, V]` under guidance, of all rows' logits `[R, n, V]`."""
        if self.scale is None:
            return logits
        if self.normalized:
            logits = logits.log_softmax(-1, torch.promote_types(logits.dtype, torch.float32))
        conditional, unconditional = logits.chunk(2)
        return torch.lerp(unconditional, conditional, self.scale)

    def columns(self) -> tuple[int, Tensor, Tensor, Tensor]:
        """Number of columns that are padding in every row, and what stands behind them.

        That is the prefix `[S, T', D]`, columns of padding in front of each row `[S]`, and groups
        `[S, T']`, see `both_ways`.
        """
        blanks = ~self.mask
        blank = int(blanks.long().cumprod(1).sum(1).min())
        groups = self.both_ways
        if groups is None:
            groups = torch.full_like(blanks, -1, dtype=torch.long)
        return blank, self.prefix[:, blank:], blanks[:, blank:].sum(1), groups[:, blank:]


def with_forced(laws: Tensor, forced: Tensor, vocab: int) -> Tensor:
    """Laws over `vocab` tokens, of `laws [B, n, V]`; a point mass at `forced [B, n]`, -1: none."""
    point = F.one_hot(forced.clamp_min(0), vocab).to(laws)
    return point.where((forced >= 0)[..., None], F.pad(laws, (0, vocab - laws.shape[-1])))
