"""A cache of what stateful layers read, and in which runs a call of such a layer goes over it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from ...engine.cache import KVCache, StaticCache

States = list[Tensor]  # of a layer, `[R, …]` each


@dataclass(frozen=True)
class Folding:
    """Rule by which entries go into a state.

    Attributes:
        least: entries that are worth a run of their own to move a state on.
        recent: last entries that may be taken back, where nothing says which ones are certain.
    """

    least: int = 8
    recent: int = 32


class EntryCache(StaticCache):
    """Cache of what stateful layers read, an entry a token, and of states as a shortcut.

    The inputs of a layer lie halved, as keys and values of one head do. A row's states are those
    behind its first entries; when one of these changes, they begin again.

    Args:
        layers: each one's states, of one row.
        rows, slots, width: of the entries.
        like: a tensor of their type, on their device.

    Attributes:
        folded: slots `[R]` in front of which every entry has gone into the row's states.
        certain: slots `[R]` in front of which none will be taken back, as far as calls tell.
        states: by layer.
    """

    def __init__(
        self, layers: Sequence[States], rows: int, slots: int, width: int, like: Tensor
    ) -> None:
        super().__init__(len(layers), rows, 1, slots, -(-width // 2), like.dtype, like.device)
        self.folded, self.certain, self._last = torch.zeros(
            3, rows, dtype=torch.long, device=like.device
        )
        self.states = [[s.new_zeros(rows, *s.shape[1:]) for s in layer] for layer in layers]
        self._whole = self.folded, self.certain, self._last, self.states

    @property
    def nbytes(self) -> int:
        return self.data.nbytes + sum(state.nbytes for state in self._states())

    def called(self, slots: Tensor) -> None:
        """Notice that a call is about to write at slots `[R, N]`.

        A target's calls stand behind what is certain. A draft model's do where they have gone back.
        """
        first = slots.amin(1)
        self._changed(first)
        back = first <= self._last if self.contained else first >= 0
        self.certain.copy_(first.where(back, self.certain))
        self._last.copy_(first)

    def restart(self) -> None:
        self._begin(torch.ones_like(self.folded, dtype=torch.bool))

    def _changed(self, first: Tensor) -> None:
        """Notice that entries change from slots `first [R]` on."""
        self._begin(self.folded > first)

    def gather(self, source: Tensor, target: Tensor) -> None:
        self._changed(target.masked_fill(source == target, self.slots).amin(1))
        super().gather(source, target)

    def take(self, other: KVCache, count: int) -> None:
        assert isinstance(other, EntryCache)
        super().take(other, count)
        self.folded.copy_(other.folded.expand_as(self.folded))
        for mine, theirs in zip(self._states(), other._states(), strict=True):
            mine.copy_(theirs.expand_as(mine))
        self._begin(self.folded > count)

    def select(self, rows: Sequence[int], length: int) -> None:
        super().select(rows, length)
        chosen = torch.tensor(rows, dtype=torch.long, device=self.folded.device)
        for every in self._by_row():
            every[: len(rows)] = every[chosen]
        self._cut(slice(len(rows)))

    @contextmanager
    def lent(self, first: int, count: int) -> Iterator[None]:
        """Lend slots, see `StaticCache`; states then are those of before."""
        held = [every.clone() for every in self._by_row()]
        try:
            yield
        finally:
            for every, before in zip(self._by_row(), held, strict=True):
                every.copy_(before)

    def restore(self) -> None:
        super().restore()
        self.folded, self.certain, self._last, self.states = self._whole
        self.restart()

    def lines(self, rows: slice) -> EntryCache:
        view = super().lines(rows)
        assert isinstance(view, EntryCache)
        view._cut(rows)
        return view

    def _begin(self, stale: Tensor) -> None:
        """Begin with rows `stale [R]` again."""
        if bool(stale.any()):
            for every in self._by_row():
                every[stale] = 0

    def _by_row(self) -> Iterator[Tensor]:
        yield from (self.folded, self.certain, self._last)
        yield from self._states()

    def _states(self) -> Iterator[Tensor]:
        for layer in self.states:
            yield from layer

    def _cut(self, rows: slice) -> None:
        self.folded, self.certain = self.folded[rows], self.certain[rows]
        self._last = self._last[rows]
        self.states = [[state[rows] for state in layer] for layer in self.states]


@dataclass(frozen=True)
class Run:
    """A run of a layer over lines of entries, or over trees of them.

    Attributes:
        rows: of the lines `[S]`.
        slots: of their entries `[S, T]`; behind a line's end some that nobody looks at.
        inputs: rows and numbers of the call's inputs that the run answers, `[M]` each.
        answers: lines and places where their answers are, `[M]` each.
        fresh: whether all lines are their rows' first entries.
        folds: whether the states behind the lines are kept: one a row, all of T entries.
        family: of trees, the entries on each one's path `[S, T, T]`; None: lines.
    """

    rows: Tensor
    slots: Tensor
    inputs: tuple[Tensor, Tensor]
    answers: tuple[Tensor, Tensor]
    fresh: bool
    folds: bool = False
    family: Tensor | None = None


def runs_of(
    seen: Tensor,
    slots: Tensor,
    folded: Tensor,
    certain: Tensor | None,
    folding: Folding,
    drafts: bool = False,
    packed: bool = False,
) -> tuple[list[Run], Tensor]:
    """The runs of a call, in their order, and the slots `[R]` that are folded behind them.

    An input sees all that its ancestors see. The last of every branch has a line; padding has none.
    Where a layer runs over whole trees, what isn't folded of a row is one.

    Args:
        seen: which entries an input may see `[R, N, length]`, itself included.
        slots: of the inputs `[R, N]`, ascending.
        folded, certain: see `EntryCache`; certain None: nothing is folded.
        folding: what is.
        drafts: whether entries that are not `recent` count as certain in every row, not only in
            those that begin.
        packed: whether the layer runs over whole trees.
    """
    sees = seen.gather(-1, slots[:, None].expand(-1, slots.shape[1], -1))
    last = ~sees.tril(-1).any(1)
    # what sees nothing but itself is padding, unless it is the first token and nothing is behind it
    some = seen.sum(-1) > 1
    alone = torch.zeros_like(some)
    alone[:, -1] = ~some.any(1)
    rows, number = (last & (some | alone)).nonzero().unbind(1)
    keys = torch.arange(seen.shape[-1], device=seen.device)
    lines = seen[rows, number] & (keys >= folded[rows, None])
    runs = []
    if certain is not None:
        shared = _shared(rows, lines, len(seen))
        behind = shared.sum(1, keepdim=True) - shared.cumsum(1)
        old = (behind >= folding.recent) & ((folded == 0) | drafts)[:, None]
        shared &= (keys < certain[:, None]) | old
        shared &= shared.sum(1, keepdim=True) >= folding.least
        for count in shared.sum(1).unique().tolist():
            if count:
                chosen = (shared.sum(1) == count).nonzero()[:, 0]
                runs.append(_run(chosen, shared[chosen], slots, folded, folds=True))
        folded = torch.maximum(folded, torch.where(shared, keys + 1, 0).amax(1))
        lines &= keys >= folded[rows, None]
    if bool(lines.any()):
        runs.append(_trees(rows, lines, slots) if packed else _run(rows, lines, slots, folded))
    return runs, folded


def _shared(rows: Tensor, lines: Tensor, count: int) -> Tensor:
    """The entries `[R, length]` that all lines `[S, length]` of a row begin with."""
    some = torch.zeros(count, lines.shape[1], dtype=torch.long, device=lines.device)
    place = rows[:, None].expand_as(lines)
    every = torch.ones_like(some).scatter_reduce_(0, place, lines.long(), "amin")
    some.scatter_reduce_(0, place, lines.long(), "amax")
    return every.bool() & ((some - every).cumsum(1) == 0)


def _run(rows: Tensor, lines: Tensor, slots: Tensor, folded: Tensor, folds: bool = False) -> Run:
    """The run over lines `[S, length]` of rows `[S]`; it answers the inputs `slots [R, N]`."""
    most = int(lines.sum(1).amax())
    order = lines.long().sort(dim=1, descending=True, stable=True).indices[:, :most]
    own, places = slots[rows], lines.long().cumsum(1) - 1
    line, number = lines.gather(1, own).nonzero().unbind(1)
    answers = line, places.gather(1, own)[line, number]
    fresh = not bool(folded[rows].any())
    return Run(rows, order, (rows[line], number), answers, fresh, folds)


def _trees(rows: Tensor, lines: Tensor, slots: Tensor) -> Run:
    """The run over the trees that lines `[S, length]` of `rows [S]` are branches of."""
    own, line = rows.unique(return_inverse=True)
    used = lines.new_zeros(len(own), lines.shape[1], dtype=torch.long)
    used.index_add_(0, line, lines.long())
    used = used.clamp_max(1)
    most = int(used.sum(1).amax())
    order = used.sort(dim=1, descending=True, stable=True).indices[:, :most]
    known = torch.arange(most, device=order.device) < used.sum(1, keepdim=True)
    # all branches through an entry have its path in common: any of them tells it
    place = line[:, None].expand_as(lines)
    branch = torch.arange(len(lines), device=lines.device)[:, None].where(lines, -1)
    through = torch.full_like(used, -1).scatter_reduce_(0, place, branch, "amax")
    paths = lines[through.gather(1, order)]  # [R, T, length]
    family = paths.gather(2, order[:, None].expand(-1, most, -1))
    family = (family & known[:, :, None] & known[:, None]).tril()
    number = used.cumsum(1) - 1
    asked = slots[own]
    tree, at = used.gather(1, asked).nonzero().unbind(1)
    answers = tree, number.gather(1, asked)[tree, at]
    return Run(own, order, (own[tree], at), answers, False, family=family)
