"""Heads with layers of attention read what was committed, beside the target's hidden states."""

from __future__ import annotations

import torch
from torch import Tensor

from ...engine.draft import Context, Draft, Scores, Verdict
from ...models.decoders import TokenHeadDecoder
from ...models.guided import GuidedDecoder
from ...models.token_model import catch_up
from .feature_model import TokenFeatureModel, still_known


class ReadingModel(TokenFeatureModel):
    """A `TokenFeatureModel` whose layers have a cache of committed tokens."""

    decoder: TokenHeadDecoder
    _inputs: Tensor  # [R, T', D]: the layers' at the prefix
    _context: Tensor | None  # [R, 1, D]: see `TokenHeadDecoder.read`
    _settled: list[int]  # per row, positions before it stand on the target's states

    def _start(self, rows: int, before: Tensor) -> None:
        self._settled = [-1] * rows
        prefix = self.running.of_samples(self.target.setting.prefix)
        inputs, self._context = self.decoder.read(prefix, before)
        self._inputs = inputs[:, -self.offset :]
        GuidedDecoder.start(self, rows)

    def _begin(self, rows: list[int], before: Tensor) -> None:
        self._narrow(rows)
        prefix = self.running.of_samples(self.target.setting.prefix)
        at = self.running.entries(rows)
        inputs, context = self.decoder.read(prefix[at], before[at])
        self._inputs[at] = inputs[:, -self.offset :]
        if self._context is not None and context is not None:
            self._context[at] = context
        for row in rows:
            self._settled[row] = -1
        self._read_rows(rows)

    def observe(self, context: Context, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        super().observe(context, draft, scores, verdict)
        self._settled = still_known(self._settled, context)

    def _prefilled(self, length: int) -> Tensor:
        return self._inputs[:, :length]

    def _committed(
        self, context: Context | None, tokens: Tensor, start: list[int]
    ) -> tuple[Tensor, list[int]]:
        """Read committed tokens, and those before them that have not been read as such yet.

        Rows that lack less than others read again, or a little past their end.

        Args:
            context: None outside a generation.
            tokens, start: see `TokenModel.extend`.

        Returns:
            The layers' states `[R, n, D]`, and the positions of the first ones `[B]`.
        """
        first = start
        if context is not None:
            known = [min(k, s) for k, s in zip(self._settled, start, strict=True)]
            tokens, first = catch_up(context, known)
            self._settled = list(context.base)
        features = self._columns(self._features, first, tokens.shape[1])
        x = self.decoder.joined(self._embedded(tokens, None), features, self._context)
        if min(first) < 0:
            begin = torch.tensor(first, device=tokens.device)[:, None]
            positions = self._of_all_rows(begin + self.keys[: tokens.shape[1]])
            x = torch.where((positions < 0)[..., None], self._inputs[:, -1:], x)
        return self._forward(x, first), first
