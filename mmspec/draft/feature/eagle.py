"""EAGLE: a head over the target's hidden states drafts (Li et al. 2024, section 4)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...engine.accept.chain import pick
from ...engine.draft import Context, Draft
from ...models.decoders import TokenHeadDecoder
from ...models.guided import GuidedDecoder
from ...models.heads.columns import Images
from .feature_model import columns_from, less
from .reading import ReadingModel


class EagleModel(ReadingModel):
    """An EAGLE head as the draft model of chains and trees, under the target's guidance.

    Its input at a token is the token and the hidden state that predicted it. For committed tokens
    that is the target's, which `observe` is told: before every draft the head reads again, with
    the target's hidden states, what it drafted on its own. For drafted ones it is the head's own
    output at the node above.

    A round's first call ends with the last committed token. From there a chain grows token by
    token; a tree grows with every call, and only its new nodes are read: the first ones are always
    those of the calls before.

    Args:
        head: the network.
        target, warp: see `FeatureModel`.
        images: where the target's prefix has pictures, which a head may shorten.
    """

    def __init__(
        self,
        head: TokenHeadDecoder,
        target: GuidedDecoder,
        images: Images | None = None,
        warp: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        of = target.setting
        view = head.view(of.prefix, of.mask, images, of.limit + of.scratch + 1)
        super().__init__(head, *view, target, warp)
        self._own = torch.zeros(0)  # [R, 1 + N, D]: the head's states behind root and nodes
        self._drafted = torch.zeros(0)  # [B, 1 + N, V]: the laws there

    def _start(self, rows: int, before: Tensor) -> None:
        self._own = before[:, :1]
        super()._start(rows, before)

    def _next(self, tokens: Tensor, start: list[int]) -> Tensor:
        last = self._own if self._own.shape[1] == 1 else self._own[:, -1:]
        self._own = self._behind(tokens, last, start)
        return self._laws(self._own)

    def _behind(
        self, tokens: Tensor, features: Tensor, start: list[int], draft: Draft | None = None
    ) -> Tensor:
        """The head's states `[R, n, D]` behind tokens with the given states in front of them."""
        embedded = self._embedded(tokens, None)
        if features.shape[1] < embedded.shape[1]:
            features = features.expand(-1, embedded.shape[1], -1)
        x = self.decoder.joined(embedded, features, self._context)
        return self._forward(x, start, draft)

    def _read(self, context: Context | None, tokens: Tensor, start: list[int]) -> Tensor:
        assert context is not None
        n = tokens.shape[1]
        hidden, first = self._committed(context, tokens, start)
        end = [base - 1 for base in context.base]
        self._own = self._columns(hidden, less(end, first))
        if n < hidden.shape[1]:
            hidden = self._columns(hidden, less(start, first), n)
        laws = self._laws(hidden)
        self._drafted = columns_from(laws, less(end, start))
        return laws

    def _grow(self, tokens: Tensor, start: list[int], draft: Draft) -> Tensor:
        assert draft.parents is not None
        known = self._own.shape[1] - 1
        above = pick(self._own, self._of_all_rows(draft.parents[:, known:] + 1))
        hidden = self._behind(tokens[:, 1 + known :], above, start, draft)
        self._own = torch.cat([self._own, hidden], dim=1)
        self._drafted = torch.cat([self._drafted, self._laws(hidden)], dim=1)
        return self._drafted
