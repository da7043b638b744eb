"""Falcon drafts k tokens a call, in chains and in trees of blocks (Gao et al. 2025)."""

from __future__ import annotations

import torch
from torch import Tensor

from ...engine.accept.chain import pick
from ...engine.draft import Context, Draft
from ...models.call_masks import tree_mask
from ...models.heads.published.eagle_decoder import PublishedFalconDecoder
from .eagle import EagleModel


class FalconModel(EagleModel):
    """Falcon's head as a `BlockModel`, and as the draft model of trees; arguments of `EagleModel`.

    A call reads a block of k columns, each of which sees all of it, and says the laws of the next
    k tokens, one a column. The first block of a round ends with the last committed token wherever
    the round before was cut: its k columns are read again. Each next one is the k tokens drafted
    behind it, and in front of each the state that it was drawn from.

    In a tree, levels come in groups of k. The laws of a group's tokens are those of one block: the
    law behind a node depends on its ancestors up to where its group begins, and not on the others.
    """

    decoder: PublishedFalconDecoder
    _slots: Tensor  # [R, M, k, D]: states of the block behind root and nodes
    _said: Tensor  # [B, M, k, V]: its laws
    _path: Tensor  # [B, n]: tokens of a chain

    @property
    def size(self) -> int:
        """Tokens k of a block."""
        return self.decoder.network.block

    def block(self, context: Context, drafted: Tensor) -> Tensor:
        if drafted.shape[1]:
            self._follow(drafted, [base + drafted.shape[1] for base in context.base])
        else:
            self._read(context, context.last, [base - 1 for base in context.base])
        return self._said[:, 0]

    def _next(self, tokens: Tensor, start: list[int]) -> Tensor:
        if self.context is None:  # somebody looks at what a call costs
            return super()._next(tokens, start)
        for n in range(tokens.shape[1]):
            self._path = torch.cat([self._path, tokens[:, n : n + 1]], dim=1)
            if not self._path.shape[1] % self.size:
                self._follow(self._path, [first + n + 1 for first in start])
        return self._said[:, 0, self._path.shape[1] % self.size, None]

    def _follow(self, drafted: Tensor, ends: list[int]) -> None:
        """Read the last block of a chain; it is complete, and `ends` are the positions behind."""
        last = torch.tensor(ends, device=drafted.device)[:, None] + self.offset
        slots = last - self.size + self.keys[: self.size]
        length = max(ends) + self.offset
        mask = (self.keys[:length] < last[..., None]).expand(-1, self.size, -1)
        embedded = self._embedded(drafted[:, -self.size :], None)
        x = self.decoder.joined(embedded, self._slots[:, 0], self._context)
        self._keep(self._at(x, slots, slots, length, mask)[:, None])

    def _keep(self, states: Tensor) -> None:
        """Let `states [R, M, k, D]` be those of the blocks behind root and nodes."""
        laws = self._laws(states.flatten(1, 2))
        self._slots, self._said = states, laws.unflatten(1, (-1, self.size))

    def _read(self, context: Context | None, tokens: Tensor, start: list[int]) -> Tensor:
        assert context is not None
        ends = list(context.base)
        lacking = (end - known for end, known in zip(ends, self._settled, strict=True))
        width = max(self.size, *lacking)
        self._settled = ends
        # rows that lack fewer read some again; a prompt of fewer columns repeats its first one
        positions = context.lengths[:, None] - width + self.keys[:width]
        columns = torch.maximum(self._of_all_rows(positions) + self.offset, self.pads[:, None])
        given = columns - self.offset < 0
        embedded = self._embedded(context.tokens.gather(1, positions.clamp_min(0)), None)
        features = pick(self._features, (columns - self.offset).clamp_min(0))
        x = self.decoder.joined(embedded, features, self._context)
        if min(ends) < width:
            own = pick(self._inputs, columns.clamp_max(self.offset - 1))
            x = torch.where(given[..., None], own, x)
        length = max(ends) + self.offset
        seen = columns.clone()
        seen[:, -self.size :] = columns[:, -1:]
        mask = self.keys[:length] <= seen[..., None]
        states = self._at(x, columns, columns, length, mask)
        self._keep(states[:, None, -self.size :])
        self._path, self._drafted = context.tokens[:, :0], self._said[:, :, 0]
        return self._drafted.expand(-1, tokens.shape[1], -1)  # the last one is asked for

    def _grow(self, tokens: Tensor, start: list[int], draft: Draft) -> Tensor:
        """Laws of root and nodes; those that the tree has gained are of its last level."""
        assert draft.parents is not None
        known, level, size = self._drafted.shape[1], draft.levels, self.size
        if known == tokens.shape[1]:
            return self._drafted
        above = draft.parents[:, known - 1 :] + 1
        rows = self._of_all_rows(above)
        slots = pick(self._slots.flatten(2), rows).unflatten(2, (size, -1))
        if level % size:
            said = pick(self._said.flatten(2), above).unflatten(2, (size, -1))
        else:
            slots = self._read_nodes(tokens, start, draft, slots)
            said = self._laws(slots.flatten(1, 2)).unflatten(1, (-1, size))
        self._slots = torch.cat([self._slots, slots], dim=1)
        self._said = torch.cat([self._said, said], dim=1)
        self._drafted = torch.cat([self._drafted, said[:, :, level % size]], dim=1)
        return self._drafted

    def _read_nodes(self, tokens: Tensor, start: list[int], draft: Draft, slots: Tensor) -> Tensor:
        """States `[R, U, k, D]` of the blocks that end with the tree's last U nodes.

        Args:
            slots: the states `[R, U, k, D]` that the tokens of these blocks were drawn from.
        """
        assert draft.parents is not None
        size, count = self.size, slots.shape[1]
        node = self.keys[draft.nodes - count : draft.nodes].expand(len(tokens), -1)
        line: list[Tensor] = []
        for _ in range(size):
            line.insert(0, node + 1)  # 0 is the root
            node = draft.parents.gather(1, node)
        path = torch.stack(line, dim=2).flatten(1)  # [B, U k]
        root = torch.tensor(start, device=tokens.device)[:, None] + self.offset
        turns = root + draft.levels - size + 1 + self.keys[:size].repeat(count)
        length = max(start) + self.offset + 1 + draft.nodes
        family = tree_mask(draft, root, self.keys[:length])[:, -count:]
        embedded = self._embedded(tokens.gather(1, path), None)
        x = self.decoder.joined(embedded, slots.flatten(1, 2), self._context)
        states = self._at(x, root + path, turns, length, family.repeat_interleave(size, 1))
        return states.unflatten(1, (count, size))
