"""ToMe: similar tokens merged by bipartite soft matching (Bolya et al. 2023, section 3)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Compressed, check, complement, ranking, take, wide


def tome(features: Tensor, keep: int, keys: Tensor | None = None) -> Compressed:
    """Merge the most similar tokens, round by round, until `keep` are left.

    A round splits the tokens alternately into A and B, links each of A to its most similar of B by
    cosine, and merges along the closest links, by means weighted with the sizes; so half of the
    tokens may go in a round, and `Σ sizes · features` never changes. The paper merges once a layer;
    here the rounds follow each other behind the tower, keys merged as the features are.

    Args:
        features: `[B, N, C]`.
        keep: tokens K left.
        keys: `[B, N, K]`, what similarity is measured on (section 3, "token similarity": the mean
            over heads); None: the features themselves.

    Raises:
        InputError: the inputs don't fit each other.
    """
    check(features, keep, keys=keys)
    x = wide(features)
    metric = x if keys is None else wide(keys)
    rows, tokens = x.shape[:2]
    index = torch.arange(tokens, device=x.device).expand(rows, -1)
    sizes = torch.ones_like(x[..., :1])
    while index.shape[1] > keep:
        match = _Match(metric, min(index.shape[1] - keep, index.shape[1] // 2))
        x, metric = match.mean(x, sizes), match.mean(metric, sizes.to(metric.dtype))
        sizes = match.total(sizes)
        index = index.gather(1, match.stay)
    return Compressed.full(x.to(features.dtype), index, sizes[..., 0].long())


class _Match:
    """Pairs of `count` tokens of A (places 0, 2, …) with the tokens of B (1, 3, …) that they join.

    Attributes:
        stay: places of the tokens that are left, ascending `[B, N - count]`.
    """

    def __init__(self, metric: Tensor, count: int) -> None:
        unit = F.normalize(metric, dim=-1)
        alike = unit[:, ::2] @ unit[:, 1::2].transpose(1, 2)  # [B, A, B]
        best = alike.argmax(-1)  # of equals the first
        self._source = ranking(alike.amax(-1))[:, :count]  # of A
        target = best.gather(1, self._source)
        self._joins = F.one_hot(target, alike.shape[2]).transpose(1, 2)  # [B, B, count]
        self.stay = complement(2 * self._source, metric.shape[1])

    def total(self, x: Tensor) -> Tensor:
        """Sums over the groups: `[B, N, C]` to `[B, N - count, C]`."""
        # a product in place of a scattered sum, whose order is not fixed on CUDA
        gain = self._joins.to(x.dtype) @ take(x[:, ::2], self._source)
        x = x.clone()
        x[:, 1::2] += gain
        return take(x, self.stay)

    def mean(self, x: Tensor, sizes: Tensor) -> Tensor:
        """Means over the groups, weighted with `sizes [B, N, 1]`."""
        return self.total(x * sizes) / self.total(sizes)
