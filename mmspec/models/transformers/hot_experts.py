"""A drafter's choice among the experts that its text has chosen most (ELMoE-3D, 2026)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ...engine.cache import KVCache
from ...errors import InputError
from ..repacked import Way
from .sparse_experts import Choices, SparseExperts, kept_in


class HotExperts(SparseExperts):
    """Experts of a copy of the target that drafts: a token chooses among the hot ones alone.

    Those are the experts of a layer that the target has chosen most often for the row's text so
    far, the prompt included. They are settled anew behind every call of the target, over the tokens
    that it has read and that the row's next one sees. So they follow from committed tokens: a draft
    has a law, and none depends on a row's neighbours. The router is the target's own; to the others
    it gives no weight. In ELMoE-3D hot experts lie in a nearer memory and in fewer bits, which is
    the copy's rounding, and are those of all requests; here each row has its own.

    Args:
        of: the target's.
        hot: experts of a layer that may be chosen; None: all.

    Attributes:
        touched: experts of a layer, the mean over layers, that the calls of every round touched.

    Raises:
        InputError: there are no experts, or not so many, or a token chooses more.
    """

    def __init__(self, of: SparseExperts, hot: int | None = None) -> None:
        self.layers, self._rounded = of.layers, [type(one)(one.experts) for one in of._rounded]
        self.of, self.hot, self.each = of, hot, of.each
        self.touched, self._round = list[Tensor](), list[Tensor]()
        self._seen, self._sure = -1, False
        self._cold: Tensor | None = None
        if hot is None:
            return
        if not self.layers:
            raise InputError("the target has no layers of sparse experts; leave out hot_experts")
        if not self.each <= hot <= min(self.counts):
            raise InputError(
                f"hot_experts must be from {self.each}, which a token chooses, to "
                f"{min(self.counts)}, which a layer has, not {hot}"
            )

    @property
    def per_call(self) -> list[float]:
        """`touched`, on the host, the last round included."""
        self._end_round()
        return super().per_call

    def forget(self) -> None:
        super().forget()
        self._round, self._seen = [], -1

    def _end_round(self) -> None:
        if self._round:
            super()._count(torch.stack(self._round).any(0))
        self._round = []

    def _restricted(self, cache: KVCache | None, slots: int | Tensor, mask: Tensor) -> list[Way]:
        if cache is None:
            return []
        if self._seen != self.of.calls:
            self._end_round()
            self._seen = self.of.calls
            self._cold = self._settled(cache, slots, mask)
        if self._cold is None:
            return []
        ways: list[Way] = []
        for layer, ((parent, _), count) in enumerate(zip(self.layers, self.counts, strict=True)):
            among = _Among(self._cold[:, layer, :count])
            ways.append((parent, "forward", partial(_routed, parent.forward, among)))
        return ways

    def _settled(self, cache: KVCache, slots: int | Tensor, mask: Tensor) -> Tensor | None:
        """Experts `[R, layers, experts]` that may not be chosen until the target's next call."""
        entries = kept_in(cache, len(self.layers))
        if self.hot is None or entries is None:
            return None
        first = slots[:, :1] if isinstance(slots, Tensor) else slots
        read = mask.shape[-1]
        seen = (mask[:, 0, 0] > -1) & (torch.arange(read, device=mask.device) < first)
        return ~hottest(entries.read(0, read)[0], seen, max(self.counts), self.hot)

    def _check(self, chosen: Choices) -> None:
        if self._sure or self._cold is None:
            return
        for layer, one in chosen.items():
            cold = self._cold[:, layer].repeat_interleave(len(one) // len(self._cold), 0)
            if bool(cold.gather(1, one.long().clamp_max(cold.shape[1] - 1)).any()):
                raise InputError(
                    "the target routes tokens in a way that leaves no choice among its experts; "
                    "leave out hot_experts"
                )
        self._sure = True

    def _keep(self, cache: KVCache, slots: int | Tensor, width: int, chosen: Choices) -> None:
        """Keep nothing: the target's next call chooses for these tokens itself."""

    def _count(self, touched: Tensor) -> None:
        self._round.append(touched)


def hottest(chosen: Tensor, seen: Tensor, experts: int, hot: int) -> Tensor:
    """Mask `[R, layers, experts]` of the `hot` experts that were chosen most; of two, the first.

    Args:
        chosen: by token the experts that it chose, plus 1 `[R, layers, n, K]`; 0: unknown.
        seen: tokens that count `[R or 1, n]`.
    """
    counted = seen.to(torch.long)[:, None, :, None].expand(chosen.shape)
    counts = torch.zeros(*chosen.shape[:2], experts + 1, dtype=torch.long, device=chosen.device)
    counts.scatter_add_(2, chosen.long().flatten(2), counted.flatten(2))
    order = counts[..., 1:] * experts - torch.arange(experts, device=chosen.device)
    found = torch.zeros_like(order, dtype=torch.bool)
    return found.scatter_(2, order.topk(hot).indices, True)


class _Among(TorchFunctionMode):
    """Lets routers choose among experts that are not `cold [R, experts]`.

    Routers are of many kinds, and all of them end with the largest of a token's scores. Some choose
    groups of experts first and leave the others out: a token whose groups hold too few that are not
    cold chooses among those of all groups.
    """

    def __init__(self, cold: Tensor) -> None:
        super().__init__()
        self.cold = cold
        self._ungrouped: Tensor | None = None  # scores [..., experts] before groups are chosen

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.topk, Tensor.topk):
            scores, experts = args[0], self.cold.shape[-1]
            if scores.shape[-1] == experts:
                args = self._left(scores, kwargs["k"] if "k" in kwargs else args[1]), *args[1:]
            elif scores.shape[-2:].numel() == experts:
                self._ungrouped = scores.flatten(-2)
        return func(*args, **kwargs)

    def _left(self, scores: Tensor, count: int) -> Tensor:
        """Scores `[..., experts]` of which `count` are chosen, without cold experts."""
        each = scores.shape[:-1].numel() // len(self.cold)
        cold = self.cold.repeat_interleave(each, 0).view(scores.shape)
        left, whole = scores.masked_fill(cold, -torch.inf), self._ungrouped
        self._ungrouped = None
        if whole is None:
            return left
        enough = (left > -torch.inf).sum(-1, keepdim=True) >= count
        return torch.where(enough, left, whole.view(scores.shape).masked_fill(cold, -torch.inf))


def _routed(forward: Callable[..., Any], among: _Among, *args: Any, **kwargs: Any) -> Any:
    with among:
        return forward(*args, **kwargs)
