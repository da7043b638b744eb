"""A cached decoder under classifier-free guidance: tokens in, laws of the next tokens out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..engine.cache import KVCache
from ..engine.draft import Context, Draft
from ..errors import InputError
from .call_masks import CausalMasks, additive, tree_mask, tree_of_one
from .costed import Costed
from .counted_tokens import CountedTokens
from .decoders import Decoder, PackingDecoder, PlacedDecoder
from .prefix_reader import PrefixReader
from .reach import Reach, most_back
from .running_rows import LayersOfRows, RunningRows
from .setting import Setting, with_forced


class GuidedDecoder(PrefixReader, Costed):
    """Conditional and unconditional rows in one batch, combined before the warpers.

    `l = l_u + s (l_c − l_u)`, then temperature, top-k and top-p. Row b of B samples is row b of the
    network, its unconditional twin row B + b: R = 2 B in all with guidance, else B.

    Args:
        decoder: the network.
        setting: of the generation.

    Attributes:
        drafts: whether it only drafts: what fails in one branch of a tree then leaves the others
            alone. Of a target such a fault is to be seen.
        watched: whether calls leave the last hidden states, after the last norm, behind.
        prefix_states: last ones of the prefix's T - 1 columns whose hidden states are left behind.
        ranked: whether calls leave their logits behind.
        raw, told: its last logits `[B, n, V]`, not warped, if `ranked`: under guidance and without.
        running: the samples in the rows, and the rows that calls run.
        prefix, pads, groups: of the samples in the rows `[R, T, D]`, columns of padding in front
            `[R]`, and groups of columns `[R, T]`, see `Setting.both_ways`.
        hidden: those of the last call `[R, n, D]`, if `watched`; after `start` of the prefix, after
            `seat` of the new rows' prefixes, zeros elsewhere; see the decoder's `states`.
        earlier: a cache of the same network, of one row or all, and how many of its first slots
            hold what this prefix begins with: `start` takes them over, unless it is `watched`.
        known: per row, tokens of the output in the cache, if others write to it; None: all but one.
        packs: whether its calls can be told which of their tokens count.
        counts: those of the next calls `[B, n]`, if it `packs`; None: all do.
        stays: whether rows that are over stay in the cache.
        returns: whether calls may go back to any slot, and layers with a window keep all of them.
        compact: whether some of the prefix's entries are not in the cache, see `KeptDecoder`.
        back, reach: slots that a call may go back, None: any; and how far calls have come.
    """

    drafts = watched = ranked = returns = stays = compact = False
    entries = 1  # slots that a call writes for each of its tokens
    prefix_states = 0
    raw: Tensor | None = None
    told: Tensor | None = None
    hidden: Tensor | None = None
    earlier: tuple[KVCache, int] | None = None
    known: list[int] | None = None
    counts: Tensor | None = None

    def __init__(self, decoder: Decoder, setting: Setting) -> None:
        self.decoder, self.layers = decoder, len(decoder.layers)
        self.packs = self.entries == 1 and isinstance(decoder, PackingDecoder)
        self.setting, self.grouped = setting, setting.both_ways is not None
        self.scale, self.warp, self.limit = setting.scale, setting.warp, setting.limit
        self.copies = 1 if setting.scale is None else 2  # rows of the network for each sample
        blank, *self._of_samples = setting.columns()
        self.padded = bool(self._of_samples[1].any())
        self._all_run()
        self.offset = self.prefix.shape[1]  # slot of output position 0
        self._rotary = decoder.rotary(setting.grid)[blank:]
        if self.offset + self.limit > (most := len(self._rotary)):
            much = f"a prompt of {self.offset} tokens and {self.limit} more are too long"
            raise InputError(f"{much} for this model: it has {most} positions")
        self.reserve(setting.scratch)

    def again(self) -> tuple[Decoder, Setting]:
        """Parts that another network over the same prompt is made of, entry for entry."""
        return self.decoder, self.setting

    def reserve(self, scratch: int) -> None:
        """Let a call add so many tokens beyond the output; before `start`."""
        self.setting = self.setting._replace(scratch=scratch)
        written = self.limit + scratch + 1  # slots that one call may write at most
        self.room, self.slots = written // self.entries, self.offset + written  # tokens; all slots
        # scratch slots past the grid are never kept; any rotation will do
        self.keys = torch.arange(self.slots, device=self.prefix.device)
        self.rotary = self._rotary[self.keys.clamp_max(len(self._rotary) - 1)]
        self.causal = CausalMasks(self.slots, self.prefix.dtype, self.prefix.device)
        self.back = None if self.returns else most_back(scratch)
        self.reach = Reach([self.offset] * self.running.rows)
        self.cache: KVCache | None = None
        self.forced: Tensor | None = None  # also of the scratch behind the output
        if (forced := self.setting.forced) is not None and bool((forced >= 0).any()):
            self.forced = F.pad(forced.to(self.keys.device), (0, scratch + 2), value=-1)

    def watch(self, reads: tuple[int, ...] = (), prefix: int = 0) -> None:
        """Let calls leave hidden states of `reads` behind, and the prefix those of its end."""
        self.watched, self.decoder.reads = True, reads
        self.prefix_states = max(self.prefix_states, prefix)

    def held(self, base: list[int]) -> list[int]:
        """Tokens of the output that the cache holds, of `base` in every row.

        The last one was never read; -1: nor was the prompt's last column. Where others write to the
        cache it may hold fewer.
        """
        known = base if self.known is None else self.known
        return [min(count - 1, least) for count, least in zip(base, known, strict=True)]

    def start(self, rows: int) -> None:
        """Prefill all of the prefix but its last column, which is the first call's input."""
        if rows != self.running.rows:
            raise ValueError(f"{rows} rows do not match a prefix of {len(self.prefix)}")
        if self.cache is None or self.running.numbers is not None:
            self._clear()
        assert self.cache is not None
        self.cache.restart()
        self.hidden, first, self.reach = None, 0, Reach([self.offset] * rows, self.cache.room)
        if self.earlier is not None and not (self.watched or self.grouped):
            first = min(self.earlier[1], self.offset - 1)
            self.cache.take(self.earlier[0], first)
        if first < self.offset - 1:
            self._read_all(first)

    def seat(self, context: Context, rows: list[int]) -> None:
        """Read the prefixes of the samples that begin in these rows, one by one."""
        self._sit(context.samples or [])
        self._read_rows(rows)

    def _sit(self, samples: Sequence[int]) -> None:
        """Let these samples have the rows."""
        self.running.seat(samples)
        self.prefix, self.pads, self.groups = map(self.running.of_samples, self._of_samples)

    def _clear(self) -> None:
        """Begin with an empty cache; all rows run."""
        if self.cache is None:
            self.cache = self.decoder.cache(len(self.prefix), self.slots, self.back)
            self.cache.contained = self.drafts
        else:
            self.cache.restore()
        self._all_run()
        self._narrow()

    def _all_run(self) -> None:
        """Let the first samples have the rows, all of which run."""
        prefix, samples = self.setting.prefix, len(self.setting.prefix) // self.copies
        self.running = RunningRows(samples, self.copies, prefix.device, self.setting.at_once)
        self._sit(self.running.samples)

    def leave(self, finished: Sequence[bool]) -> None:
        """Run samples no more that are over; calls give zeros in their place."""
        assert self.cache is not None
        rows = None if self.stays else self.running.leave(finished)
        if rows is not None:
            self.cache.select(rows, self.slots)
            self._narrow()

    def _narrow(self, rows: Sequence[int] | None = None) -> None:
        """Let the network run these rows alone; None: the `running` ones."""
        if isinstance(self.decoder, PlacedDecoder):
            self.decoder.narrow(self.running.places(rows))

    def extend(
        self, tokens: Tensor, start: list[int], draft: Draft | None = None, use: LayersOfRows = None
    ) -> Tensor:
        """Laws `[B, n, V]` after each of `tokens [B, n]` at positions `start[b] + 0 .. n - 1`.

        Position -1 is the prefix's last column. With a tree in `draft`, the first token is the root
        and the others its nodes: they lie in neighbouring slots, stand at their depth's position
        and see the root's past, their ancestors and themselves. Row b runs the layers `use[b]`
        alone; None: every row all of them.
        """
        assert self.cache is not None, "start() comes first"
        # position -1 is a column of the prefix, which has no token
        condition = self._places(start, tokens.shape[1], None) < 0 if min(start) < 0 else None
        x = self._embedded(tokens, condition)
        if draft is not None and (draft.parents is None or not draft.nodes):
            draft = None  # a chain is what the mask says by itself
        at = None if self.forced is None else self._places(start, tokens.shape[1], draft)
        runs = self.running.layers(use, self.layers)
        return self._laws(self._forward(x, start, draft, runs), at)

    def _forward(
        self,
        x: Tensor,
        start: list[int],
        draft: Draft | None = None,
        use: list[Tensor | bool] | None = None,
    ) -> Tensor:
        """Decode inputs `[R, n, D]`; of a tree they may be the last n alone."""
        assert self.cache is not None
        n, running = x.shape[1], [start[sample] for sample in self.running.left]
        count, places = n if draft is None else draft.nodes + 1, [self.offset + s for s in start]
        self.reach.call(places, count)
        level = not self.padded and min(running) == max(running)
        if level and (draft is None or len(start) == 1):
            end, slot = self.offset + running[0] + count, self.offset + running[0] + count - n
            if draft is not None:
                turns, seen = tree_of_one(draft, places[0], n, x.dtype)
                return self._call(x, self.rotary[turns], slot, end, seen, use)
            mask = None if n == 1 else self.causal.of(slot, n)
            return self._call(x, self.rotary[slot:end], slot, end, mask, use)
        first = torch.tensor(places, device=x.device)[:, None]
        slots, length = first + self.keys[count - n : count], max(running) + self.offset + count
        if draft is None:
            return self._at(x, slots, slots, length, self.keys[:length] <= slots[..., None], use)
        turns = self._places(start, n, draft) + self.offset
        tree = tree_mask(draft, first, self.keys[:length])[:, -n:]
        return self._at(x, slots, turns, length, tree, use)

    def extend_at(
        self, tokens: Tensor, positions: Tensor, reach: int, known: Tensor | None = None
    ) -> Tensor:
        """Laws `[B, n, V]` after each of `tokens [B, n]`, wherever in the output they stand.

        A token reads everything in front of it, as the cache has it; its own entry is written anew.
        Places of a row may repeat, with the same token.

        Args:
            positions: positions `[B, n]`; -1 is the prefix's last column.
            reach: the largest of them, known to the host.
            known: positions `[limit]` whose entries may be read, or those of every token's own
                `[B, n, limit]`; None: all.
        """
        assert self.cache is not None, "start() comes first"
        x, slots = self._embedded(tokens, positions < 0), positions + self.offset
        length = reach + self.offset + 1
        mask = self.keys[:length] <= slots[..., None]
        if known is not None:
            read = F.pad(known, (self.offset, self.slots - self.offset - self.limit), value=True)
            mask = mask & read[..., :length]
        return self._laws(self._at(x, slots, slots, length, mask), positions)

    def _places(self, start: list[int], n: int, draft: Draft | None) -> Tensor:
        """Positions in the output `[B, n]` of a call's tokens, of a tree in `draft` the last n."""
        steps = self.keys[:n] if draft is None else F.pad(draft.depths() + 1, (1, 0))[:, -n:]
        return torch.tensor(start, device=self.keys.device)[:, None] + steps

    def _embedded(self, tokens: Tensor, condition: Tensor | None) -> Tensor:
        """Inputs `[R, n, D]`: of tokens `[B, n]`, or the prefix's last column where `condition`."""
        x = self.decoder.embed(tokens if self.copies == 1 else tokens.repeat(self.copies, 1))
        if condition is not None:
            x = torch.where(condition.repeat(self.copies, 1)[..., None], self.prefix[:, -1:], x)
        return x

    def _laws(self, out: Tensor, positions: Tensor | None = None) -> Tensor:
        """Laws `[B, n, V]` from what the decoder gave: logits or hidden states.

        `positions [B, n]` are the tokens' own, for the laws that the layout forces.
        """
        self.hidden = None
        if self.watched:
            self.hidden = self.running.of_all(self.decoder.states(out))
            out = self.decoder.logits(out)
        laws = self._warped(self.running.of_all(out))
        if self.forced is None or positions is None:
            return laws
        return with_forced(laws, self.forced[positions + 1], len(self.decoder.embeddings))

    def _warped(self, rows: Tensor) -> Tensor:
        """Laws `[B, n, V]` of logits `[R, n, V]`, under guidance."""
        logits = self.setting.guided(rows)
        self.raw, self.told = (logits, rows[: len(logits)]) if self.ranked else (None, None)
        return self.warp(logits)

    def _at(
        self,
        x: Tensor,
        slots: Tensor,
        turns: Tensor,
        length: int,
        mask: Tensor,
        use: list[Tensor | bool] | None = None,
    ) -> Tensor:
        """A call whose every entry has its own place: ragged rows, padded prefixes, trees.

        Args:
            slots, turns: where they are stored, and by whose rotary factors they turn `[B, n]`.
            length: slots that are read.
            mask: which of them each input may read `[B, n, length]`.
        """
        slots, turns, mask = map(self.running.copied, (slots, turns, mask))
        if self.padded:
            mask = mask & (self.keys[:length] >= self.pads[:, None, None])
        mask = additive(mask, x.dtype)[:, None]
        return self._call(x, self.rotary[turns], slots, length, mask, use)

    def _call(
        self,
        x: Tensor,
        rotary: Tensor,
        slots: int | Tensor,
        length: int,
        mask: Tensor | None,
        use: list[Tensor | bool] | None,
    ) -> Tensor:
        """Run the rows `[R', n, …]` of a call that still do; what has a row for each has R."""
        assert self.cache is not None
        of, head = self.running.of, not self.watched
        slots, rotary = (of(slots), of(rotary)) if isinstance(slots, Tensor) else (slots, rotary)
        mask = of(mask) if mask is not None and mask.ndim == 4 else mask
        if use is not None:
            use = [of(runs) if isinstance(runs, Tensor) else runs for runs in use]
        where = rotary, self.cache, slots, length, mask, head, use
        if self.counts is None:
            return self.decoder.forward(of(x), *where)
        told: object = self.decoder
        assert isinstance(told, PackingDecoder)
        return told.forward(of(x), *where, CountedTokens(of(self.running.copied(self.counts))))

    def keep(self, start: list[int], path: Tensor) -> None:
        """Move the nodes of `path [B, K]` behind the root, as the chain that was kept."""
        assert self.cache is not None
        if len(start) == 1:  # its copies lie alike
            slot = self.offset + start[0] + 1
            self.cache.gather(path + slot, self.keys[None, slot : slot + path.shape[1]])
            return
        first = torch.tensor(start, device=path.device)[:, None] + self.offset + 1
        both = first + path, first + self.keys[: path.shape[1]]
        source, target = (self.running.of(slots.repeat(self.copies, 1)) for slots in both)
        self.cache.gather(source, target)
