"""LongSpec drafts over the target's last keys and values (Yang et al. 2025)."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ...engine.draft import Context, Draft, Scores, Verdict
from ...models.guided import GuidedDecoder
from ...models.heads.published.longspec import attended
from ...models.heads.published.longspec_decoder import PublishedLongSpecDecoder
from .feature_model import TokenFeatureModel, still_known


class LongSpecModel(TokenFeatureModel):
    """A LongSpec head as the draft model of chains and trees.

    Its own cache is a ring: column c of a row lies in slot c mod M, of M = the window and what a
    call may add, however long the text. Entries depend on a token and its place alone, so to roll
    back is to read other slots. What a round drafts is held beside the ring until the next begins.
    Drafted tokens attend to the target's entries in front of the last committed token, which is all
    that the target has read.

    Args:
        head: the network.
        target, warp: see `FeatureModel`.
    """

    decoder: PublishedLongSpecDecoder

    def __init__(
        self,
        head: PublishedLongSpecDecoder,
        target: GuidedDecoder,
        warp: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        of, decoder = target.setting, head.target
        positions = decoder.places()
        head.place(positions.expand(*positions.shape[:-2], len(of.prefix), -1))
        super().__init__(head, of.prefix, of.mask, target, warp)
        self.window = head.network.window
        self._known: list[int] = []  # per row, positions in front of it are in the ring
        self._root = torch.zeros(0, dtype=torch.long)  # [B], position of the last committed token
        self._length = 0  # columns in front of the rows' last committed tokens
        self._own: Tensor = torch.zeros(0)  # [2, R', kv, m, dim], entries of root and nodes
        self._depths = self._root  # [B, m], theirs
        self._drafted = torch.zeros(0)  # [B, m, V], the laws behind them

    @property
    def columns(self) -> int:
        """M, slots of the ring."""
        return self.window + self.setting.scratch + 1

    def cache_bytes(self, scratch: int) -> int:
        """Bytes of the ring, if a call may add so many tokens, however long the text."""
        return (self.window + scratch + 1) * self.decoder.ring(len(self.prefix), 1).nbytes

    def _start(self, rows: int, before: Tensor) -> None:
        self.cache = self.decoder.ring(len(self.prefix), self.columns)
        self.cache.contained = True
        self._known = [-1] * rows
        self._write(slice(None))

    def _begin(self, rows: list[int], before: Tensor) -> None:
        for row in rows:
            self._known[row] = -1
            self._narrow([row])
            self._write(self.running.lines(row))

    def _write(self, lines: slice) -> None:
        """Store the prefix's last columns, but its very last, of some rows."""
        assert self.cache is not None
        columns = self.keys[max(0, self.offset - 1 - self.window) : self.offset - 1]
        x = self.prefix[lines, columns]
        where = self.cache.lines(lines), (columns % self.columns).expand(len(x), -1)
        if len(columns):
            where[0].write(0, self.decoder.entries(x, self.rotary[columns]), where[1])

    def observe(self, context: Context, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        self._known = still_known(self._known, context)

    def _read(self, context: Context | None, tokens: Tensor, start: list[int]) -> Tensor:
        assert context is not None
        self._commit(context)
        self._begin_round([base - 1 for base in context.base])
        first = torch.zeros_like(context.last)
        law = self._behind(context.last, first, torch.ones_like(first[..., None], dtype=torch.bool))
        return law.expand(-1, tokens.shape[1], -1)  # the loop asks for the last one

    def _commit(self, context: Context) -> None:
        """Store committed tokens that the ring lacks, but the last one; none beyond the window."""
        assert self.cache is not None
        ends = [base - 1 for base in context.base]
        lacking = [
            end - max(k, end - self.window) for k, end in zip(self._known, ends, strict=True)
        ]
        width = max(lacking)
        self._known = ends
        if width <= 0:
            return
        # rows that lack fewer store some again
        positions = (context.lengths[:, None] - 1 - width + self.keys[:width]).clamp_min(-1)
        x = self._embedded(context.tokens.gather(1, positions.clamp_min(0)), positions < 0)
        columns = self._of_all_rows(positions + self.offset)
        entries = self.decoder.entries(x, self.rotary[columns])
        self.cache.write(0, entries, columns % self.columns)

    def _begin_round(self, root: list[int]) -> None:
        """Hold nothing beside the ring; the last committed tokens stand at `root`."""
        assert self.cache is not None
        self._root, self._length = self.keys.new_tensor(root), max(root) + self.offset
        nothing = self.cache.read(0, 0)
        self._own = torch.stack([self.target.running.of(x) for x in nothing])
        self._depths = self._root.new_zeros(len(root), 0)
        self._drafted = self.prefix.new_zeros(0)

    def _next(self, tokens: Tensor, start: list[int]) -> Tensor:
        if self.context is None:  # somebody looks at what a call costs
            if self.target.cache is None:
                self.target.start(self.target.running.rows)
            self._begin_round(start)
        known, n = self._depths.shape[1], tokens.shape[1]
        depths = (known + self.keys[:n]).expand(len(tokens), -1)
        chain = self.keys[: known + n] <= depths[..., None]
        return self._behind(tokens, depths, chain)[:, -n:]

    def _grow(self, tokens: Tensor, start: list[int], draft: Draft) -> Tensor:
        new = slice(self._depths.shape[1] - 1, None)  # nodes that the tree has gained
        family = F.pad(draft.ancestors()[:, new], (1, 0), value=True)
        return self._behind(draft.tokens[:, new], draft.depths()[:, new] + 1, family)

    def _behind(self, tokens: Tensor, depths: Tensor, family: Tensor) -> Tensor:
        """Laws `[B, m, V]` behind root and nodes, of which `tokens [B, n]` are new.

        Args:
            depths: of the new ones `[B, n]`; the root's is 0.
            family: which of root and nodes each new one descends from or is `[B, n, m]`.
        """
        assert self.cache is not None
        assert self.target.cache is not None
        of, head = self.target.running.of, self.decoder
        if not depths.numel():
            return self._drafted
        self._depths = torch.cat([self._depths, depths], dim=1)
        positions = self._root[:, None] + depths
        columns, root = positions + self.offset, self._root[:, None] + self.offset
        slots = torch.arange(self.columns, device=root.device)
        held = root - 1 - (root - 1 - slots) % self.columns  # [B, M], the column in each slot
        near = columns[..., None] - held[:, None] <= self.window  # [B, n, M]
        own = family & (depths[..., None] - self._depths[:, None] <= self.window)
        rows, copies = self._of_all_rows, (len(self.prefix) // len(tokens), 1, 1)
        real = rows(held) >= self.pads[:, None]
        seen = torch.cat([near.repeat(copies) & real[:, None], own.repeat(copies)], dim=2)
        length = self._length
        known = (self.keys[:length] >= self.pads[:, None]) & (self.keys[:length] < rows(root))
        seen, known = of(seen)[:, None], of(known)[:, None, None]

        ring = self.cache.read(0, self.columns)
        stored = head.last.read(self.target.cache, length)

        def within(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self._own = torch.cat([self._own, torch.stack([k, v]).nan_to_num(0.0, 0.0, 0.0)], dim=3)
            keys, values = (
                torch.cat([of(x), own], dim=2) for x, own in zip(ring, self._own, strict=True)
            )
            return attended(q, keys, values, seen)

        def across(q: Tensor) -> Tensor:
            return attended(head.last.ordered(q), *stored, known)

        x = self._embedded(tokens, positions < 0)
        cos, sin = head.turns(self.rotary[rows(columns)])
        hidden = head.network(of(x), (of(cos), of(sin)), within, across)
        laws = self._laws(self.target.running.of_all(hidden))
        before = self._drafted.to(laws).view(len(laws), -1, laws.shape[-1])
        self._drafted = torch.cat([before, laws], dim=1)
        return self._drafted
