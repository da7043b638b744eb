"""Hydra's sequentially dependent heads draft chains and trees (Ankner et al. 2024)."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ...engine.accept.chain import pick
from ...engine.draft import Context, Draft
from ...models.decoders import PathHeadDecoder
from ...models.guided import GuidedDecoder
from ...models.heads.columns import Images
from ...models.prefill import WHOLE
from .feature_model import TokenFeatureModel, less
from .reading import ReadingModel


class HydraModel(TokenFeatureModel):
    """Hydra's heads as the draft model of chains and trees; they have no cache.

    Every law of a round is made from the hidden state in front of the last committed token, that
    token, and the drafted ones on the way.

    Args:
        head: the network.
        target, warp: see `FeatureModel`.
        images: where the target's prefix has pictures.
    """

    reads_prefix = 1

    def __init__(
        self,
        head: PathHeadDecoder,
        target: GuidedDecoder,
        images: Images | None = None,
        warp: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        of = target.setting
        view = head.view(of.prefix, of.mask, images, of.limit + of.scratch + 1)
        super().__init__(head, *view, target, warp)
        self.head = head
        self.most = head.most
        self._first = self.prefix[:, :1]  # [R, 1, D]: in front of the prefix's last column
        self._before = self.prefix[:, :1]  # [R, 1, D]: in front of the last committed token
        self._path = self.prefix[:, :1, None]  # [R, 1, i, D]: of a chain
        self._drafted = torch.zeros(0)  # [B, 1 + N, V]: the laws of a tree

    def _start(self, rows: int, before: Tensor) -> None:
        self._first = self._before = before[:, -1:]

    def _begin(self, rows: list[int], before: Tensor) -> None:
        at = self.running.entries(rows)
        self._first = self._first.clone()
        self._first[at] = before[at, -1:]

    def _next(self, tokens: Tensor, start: list[int]) -> Tensor:
        if self.context is None:
            return self._read(None, tokens, start)
        self._path = torch.cat([self._path, self._embedded(tokens, None)[:, :, None]], dim=2)
        return self._laws(self.head.ahead(self._before, self._path))

    def _read(self, context: Context | None, tokens: Tensor, start: list[int]) -> Tensor:
        """The first head's laws behind committed tokens."""
        begin = torch.tensor(start, device=tokens.device)[:, None]
        positions = begin + self.keys[: tokens.shape[1]]
        embedded = self._embedded(tokens, positions < 0)[:, :, None]
        before = self._in_front(context, tokens, start)
        laws = self._laws(self.head.ahead(before, embedded))
        if context is not None:
            end = context.lengths[:, None] - 1 - begin
            root = self._of_all_rows(end)
            self._before = pick(before, root)
            self._path = pick(embedded.flatten(2), root)[:, :, None]
            self._drafted = pick(laws, end)
        return laws

    def _in_front(self, context: Context | None, tokens: Tensor, start: list[int]) -> Tensor:
        """Hidden states `[R, n, D]` in front of committed tokens, as the heads read them."""
        positions = torch.tensor(start, device=tokens.device)[:, None]
        positions = self._of_all_rows(positions + self.keys[: tokens.shape[1]])
        before = pick(self._features, positions.clamp_min(0))
        return torch.where((positions < 0)[..., None], self._first, before)

    def _grow(self, tokens: Tensor, start: list[int], draft: Draft) -> Tensor:
        """Laws of root and nodes; those that the tree has gained are of its last level."""
        assert draft.parents is not None
        known = self._drafted.shape[1]
        if known < tokens.shape[1]:
            node = self.keys[known - 1 : draft.nodes].expand(len(tokens), -1)
            line: list[Tensor] = []
            for _ in range(draft.levels):
                line.insert(0, node)
                node = draft.parents.gather(1, node)
            way = torch.stack(line, dim=2) + 1  # [B, n, i]; 0 is the root
            way = F.pad(way, (1, 0))
            embedded = self._embedded(tokens, None)
            rows = self._of_all_rows(way.flatten(1)).view(-1, *way.shape[1:])
            path = pick(embedded, rows)
            path[:, :, 0] = self._path[:, :, 0]  # the prefix's last column is no token
            before = self._before.expand(-1, path.shape[1], -1)
            laws = self._laws(self.head.ahead(before, path))
            self._drafted = torch.cat([self._drafted, laws], dim=1)
        return self._drafted


class PrefixHydraModel(ReadingModel, HydraModel):
    """Hydra's heads with a prefix layer, which reads the target's hidden states over a cache."""

    reads_prefix = WHOLE

    def _start(self, rows: int, before: Tensor) -> None:
        HydraModel._start(self, rows, before)
        ReadingModel._start(self, rows, before)

    def _begin(self, rows: list[int], before: Tensor) -> None:
        HydraModel._begin(self, rows, before)
        ReadingModel._begin(self, rows, before)

    def _in_front(self, context: Context | None, tokens: Tensor, start: list[int]) -> Tensor:
        hidden, first = self._committed(context, tokens, start)
        return self._columns(hidden, less(start, first), tokens.shape[1])
