"""A network whose cache keeps some entries of its prompt, others in every layer and head.

The whole prompt is read, and of its keys and values those that are chosen move into a cache that
has room for no more. They keep the positions that they were turned by, and what is written behind
them stands where it would stand behind the whole prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ..engine.cache import KVCache
from ..errors import InputError
from .call_masks import additive, prefix_mask
from .decoders import Decoder
from .guided import GuidedDecoder
from .reach import Reach
from .setting import Setting

Ahead = tuple[Tensor, Tensor]
"""Tokens `[N, L]` that are written ahead for every sample, and how many of them `[N]` it has."""


class Chooser(Protocol):
    """Says what a prompt's entries are worth.

    Attributes:
        window: last entries that always stay.
        looks: it goes by attention weights.
    """

    window: int
    looks: bool

    def scores(
        self, layer: int, heads: int, open_: Tensor, weights: Tensor | None, asks: Tensor
    ) -> Tensor:
        """Scores `[R, heads, T]`, see `mmspec.compress.speckv`."""


@dataclass(frozen=True)
class Keeping:
    """Rule by which entries stay.

    Attributes:
        chooser: tells their scores.
        share: of a row's entries that stay.
        size: most of them; None: any number.
        fixed: columns of the prompt that stay in any case `[S, T]`; None: none but the window.
        ahead: writes ahead what asks beside the prompt's end; None: nothing does.
    """

    chooser: Chooser
    share: float = 1.0
    size: int | None = None
    fixed: Tensor | None = None
    ahead: Callable[[], Ahead] | None = None

    def counts(self, real: Tensor, fixed: Tensor) -> Tensor:
        """Number of each row's entries that stay `[S]`, of `real` and `fixed` ones `[S, T]`."""
        whole = real.sum(1)
        counts = (whole * self.share).round().long().clamp_min(1)
        if self.size is not None:
            counts = counts.clamp_max(self.size)
        return torch.minimum(torch.maximum(counts, fixed.sum(1)), whole)


class KeptDecoder(GuidedDecoder):
    """A guided network over a cache without some entries of the prompt.

    Slots of the output come behind those that are kept, and turn by the positions that they have
    behind the whole prompt. While prompts are read there is a whole cache of them beside.

    Args:
        decoder, setting: see `GuidedDecoder`; a model of transformers.
        keeping: which entries stay.

    Attributes:
        kept: entries of every row that stay `[S]`.
        whole: the network over all entries, while prompts are read.

    Raises:
        InputError: entries of such a network can't be told apart by head.
    """

    compact = True
    whole: GuidedDecoder
    _left_out = 0  # columns of the prompt that have no slot in any row
    _pads: Tensor | None = None  # empty slots in front of every row's entries [S]

    def __init__(self, decoder: Decoder, setting: Setting, keeping: Keeping) -> None:
        super().__init__(decoder, setting)
        _check(decoder)
        self.keeping = keeping
        blank, _, pads, _ = setting.columns()
        entries = self.offset - 1
        places = torch.arange(entries, device=pads.device)
        real = places >= pads[:, None]
        fixed = real & (places >= entries - keeping.chooser.window)
        if keeping.fixed is not None:
            fixed |= real & keeping.fixed[:, blank : blank + entries]
        self.kept = keeping.counts(real, fixed)
        self._columns = real, fixed
        most = int(self.kept.max()) if len(self.kept) else 0
        self._left_out, self._pads = entries - most, most - self.kept
        self.offset, self.padded = most + 1, bool(self._pads.any())
        self._sit(self.running.samples)
        self.reserve(setting.scratch)

    def again(self) -> NoReturn:
        """Raise an `InputError`: another network would read entries that are not there."""
        raise InputError(
            "the network reads a prompt of which draft_cache or target_cache keeps some entries, "
            "and this method reads them all; leave that out, or use method 'draft'"
        )

    def reserve(self, scratch: int) -> None:
        super().reserve(scratch)
        columns = (self.keys + self._left_out).clamp_max(len(self._rotary) - 1)
        self.rotary = self._rotary[columns]

    def _sit(self, samples: Sequence[int]) -> None:
        super()._sit(samples)
        if self._pads is not None:
            self.pads = self.running.of_samples(self._pads)

    def start(self, rows: int) -> None:
        """Read the prompts and keep what is chosen."""
        if rows != self.running.rows:
            raise ValueError(f"{rows} rows do not match a prefix of {len(self.prefix)}")
        if self.cache is None or self.running.numbers is not None:
            self._clear()
        assert self.cache is not None
        self.cache.restart()
        self.reach = Reach([self.offset] * rows, self.cache.room)
        ahead = self._ahead()
        self._make_room(ahead).start(rows)
        self._keep(slice(None), ahead)
        self._finish()

    def _read_rows(self, rows: list[int]) -> None:
        """Read these rows' prompts, one by one."""
        assert self.cache is not None
        ahead = self._ahead()
        whole = self._make_room(ahead)
        whole._clear()
        whole._sit(self.running.samples)
        whole._read_rows(rows)
        for row in rows:
            lines = self.running.lines(row)
            self.cache.lines(lines).restart()
            self.reach.ends[row] = self.offset
            whole._narrow([row])
            self._keep(lines, ahead)
        self._finish()

    def _ahead(self) -> Ahead:
        """What is written ahead for the samples in the network's rows: `[R, L]`, and `[R]`."""
        ahead = self.keeping.ahead
        if ahead is None:
            none = self.keys.new_zeros(len(self.prefix), 0)
            return none, none.sum(1)
        tokens, lengths = (told.repeat(self.copies, *[1] * (told.ndim - 1)) for told in ahead())
        return self.running.of_samples(tokens), self.running.of_samples(lengths)

    def _make_room(self, ahead: Ahead) -> GuidedDecoder:
        """The network over a whole cache, with slots for what is written ahead."""
        setting = self.setting._replace(forced=None, limit=ahead[0].shape[1], scratch=1)
        self.whole = GuidedDecoder(self.decoder, setting)
        self.whole.drafts, self.whole.prefix_states = self.drafts, self.prefix_states
        self.whole.earlier = self.earlier
        return self.whole

    def _finish(self) -> None:
        """Let go of the whole cache, and run on over the own one."""
        self.hidden, self.whole.cache, self.whole.earlier = self.whole.hidden, None, None
        self._narrow()

    def _keep(self, lines: slice, ahead: Ahead) -> None:
        """Move what is kept of some rows from the whole cache into the own one."""
        whole, decoder = self.whole.cache, self._any
        assert whole is not None
        assert self.cache is not None
        real, fixed = (self.running.of_samples(each)[lines] for each in self._columns)
        kept = self.running.of_samples(self.kept)[lines]
        most, entries = self.offset - 1, real.shape[1]
        if not most:  # prompts of one token
            return
        asks, looked = self._look(lines, ahead) if self.keeping.chooser.looks else (real, {})
        mine, theirs = self.cache.lines(lines), whole.lines(lines)
        for place, (layer, _) in enumerate(decoder.stored):
            keys, values = theirs.read(place, entries)
            scores = looked.get(layer)
            if scores is None:
                open_ = real & ~fixed
                scores = self.keeping.chooser.scores(layer, keys.shape[1], open_, None, asks)
            index = best_entries(scores, real, fixed, kept, most).to(keys.device)
            index = index[..., None].expand(-1, -1, -1, keys.shape[-1])
            both = torch.stack([keys.gather(2, index), values.gather(2, index)])
            mine.write(place, both, 0)

    def _look(self, lines: slice, ahead: Ahead) -> tuple[Tensor, dict[int, Tensor]]:
        """Read the prompts' ends again, with what is written ahead behind them.

        Returns:
            The queries that count `[R', Q]`, and by layer the scores of entries.
        """
        whole, (tokens, lengths) = self.whole, (each[lines] for each in ahead)
        assert whole.cache is not None
        real, fixed = (self.running.of_samples(each)[lines] for each in self._columns)
        entries, length = real.shape[1], real.shape[1] + 1 + tokens.shape[1]
        first = max(0, entries - self.keeping.chooser.window)
        keys, pads = whole.keys[:length], whole.pads[lines]
        columns = keys[first:]
        asks = (columns >= pads[:, None]) & (columns < entries + 1 + lengths[:, None])
        groups = F.pad(whole.groups[lines], (0, tokens.shape[1]), value=-1)
        allowed = prefix_mask(keys <= columns[:, None], pads, groups)
        x = torch.cat([whole.prefix[lines, first:], self.decoder.embed(tokens)], dim=1)
        told: dict[int, Tensor] = {}
        stored = [layer for layer, _ in self._any.stored]
        heads = dict(zip(stored, _heads(whole.cache, len(stored), entries), strict=True))

        def see(layer: int, weights: Tensor) -> None:
            if layer in heads:
                given = weights[..., :entries], asks.to(weights.device)
                open_ = (real & ~fixed).to(weights.device)
                scores = self.keeping.chooser.scores(layer, heads[layer], open_, *given)
                told[layer] = scores.to(real.device)

        where = whole.cache.lines(lines), first, length, additive(allowed, x.dtype)
        with self._any.looking(see):
            self.decoder.forward(x, whole.rotary[first:length], *where, head=False)
        if heads.keys() - told.keys():
            name = type(self._any.model).__name__
            raise InputError(f"layers of {name} tell nothing of their attention; use 'streaming'")
        return asks, told

    @property
    def _any(self) -> Any:
        """The decoder as what it is, of a model of transformers."""
        return self.decoder


def best_entries(scores: Tensor, real: Tensor, fixed: Tensor, kept: Tensor, most: int) -> Tensor:
    """Columns of the entries that stay `[R, heads, most]`, ascending, those of a row at its end.

    Args:
        scores: `[R, heads, T]`; of equal ones the first entry stays.
        real: entries that there are `[R, T]`.
        fixed: those that stay in any case `[R, T]`.
        kept: how many of a row stay `[R]`; what is in front of so many means nothing.
        most: the largest of these.
    """
    ranked = scores.masked_fill(fixed[:, None], torch.inf).masked_fill(~real[:, None], -torch.inf)
    # an infinite score of an entry that may leave is less than being fixed
    order = fixed[:, None].expand_as(ranked).long().argsort(dim=-1, descending=True, stable=True)
    order = order.gather(-1, ranked.gather(-1, order).argsort(dim=-1, descending=True, stable=True))
    places = torch.arange(scores.shape[-1], device=scores.device)
    stays = torch.zeros_like(scores, dtype=torch.bool)
    stays.scatter_(-1, order, (places < kept[:, None, None]).expand_as(order))
    columns = places.where(stays, -1).sort(-1).values
    return columns[..., scores.shape[-1] - most :].clamp_min(0)


def _heads(cache: KVCache, layers: int, entries: int) -> list[int]:
    """Heads that store keys, by layer."""
    return [cache.read(place, entries)[0].shape[1] for place in range(layers)]


def _check(decoder: Any) -> None:
    """Raise an `InputError` if entries of a network can't leave its cache, by head."""
    name = type(getattr(decoder, "model", decoder)).__name__
    decoder.cache(1, 1)  # which may have to look at the network first
    if decoder.counts_columns:
        raise InputError(
            f"layers of {name} have a window, or count distances by themselves: entries of their "
            "cache can't leave head by head; leave draft_cache and target_cache out"
        )
    if decoder.recurrent.modules:
        raise InputError(
            f"layers of {name} keep a state of the whole text: nothing can leave their cache; "
            "leave draft_cache and target_cache out"
        )
