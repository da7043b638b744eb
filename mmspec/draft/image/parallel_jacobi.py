"""Parallel Jacobi decoding: several rows of the picture have a window each (Liao et al. 2026)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ...engine.accept.chain import pick, token_probs
from ...engine.coins import RoundCoins
from ...engine.draft import Context, Draft
from ...engine.laws import Opaque
from ...models.guided import GuidedDecoder
from ...models.token_grid import TokenGrid
from ..sound_laws import check_target
from .whole_picture import WholePictureDrafter

_STANDS, _MOVES, _ENTERS = range(3)  # purposes of draws in a call
_PURPOSES = 3


class ParallelJacobiDrafter(WholePictureDrafter):
    """Draws the whole picture with the target, several rows at a time, each by speculative Jacobi.

    Every row under way has a window behind its last token that stands. A call of the target judges
    all windows: what falls is drawn from the residual, and what lies behind it moves on to its new
    law by the same coupling. A token reads those that stand in front of it, in all rows, and of its
    own row the window: guesses of other rows are hidden from it, so that errors stay in their row.
    A place that enters a window is guessed by the law of the place above it.

    A row begins `lag` tokens behind the one above. Its first token follows the last one above;
    where that is still to come, the token that the layout forces there, the guess of it, or else a
    copy of the newest token above stands in. With one row at a time the output is exact; with more,
    tokens do without the end of the rows above.

    Args:
        model: the target.
        grid: the picture.
        rows: of the picture that are under way at a time.
        window: tokens that are guessed in a row.
        lag: tokens that a row is behind the one above it, at least.
    """

    def __init__(
        self, model: GuidedDecoder, grid: TokenGrid, rows: int, window: int, lag: int
    ) -> None:
        super().__init__()
        self.model, self.grid = model, grid
        self.rows, self.window, self.lag = rows, window, lag

    def start(self, context: Context) -> None:
        self.model.start(context.rows)

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        limit, device = self.grid.length, context.tokens.device
        pictures = [_Picture(limit, self.grid.stride) for _ in range(context.rows)]
        # place n is column n + 1; the prefix is column 0, and the last column takes filling
        tokens = torch.zeros(context.rows, limit + 2, dtype=torch.long, device=device)
        laws = torch.zeros(0)
        calls = read = 0
        while not all(picture.over for picture in pictures):
            # of the first call, which shows how many tokens there are, nothing is judged
            window = self.window if calls else 0
            plans = [picture.plan(self.rows, window, self.lag) for picture in pictures]
            draws = _Draws(coins, calls, limit, device)
            if calls:
                self._enter(tokens, laws, pictures, plans, draws)
            found, at = self._call(tokens, pictures, plans)
            if not calls:
                laws = found.new_full((context.rows, limit + 2, found.shape[-1]), 1.0)
                laws /= found.shape[-1]
            self._judge(tokens, laws, found, at, pictures, plans, draws)
            calls, read = calls + 1, read + max(len(plan.inputs) for plan in plans)
        lengths = torch.tensor(budget, device=device)
        return Draft(tokens[:, 1:-1], lengths, Opaque(), calls=calls, read=read)

    def _enter(
        self,
        tokens: Tensor,
        laws: Tensor,
        pictures: list[_Picture],
        plans: list[_Plan],
        draws: _Draws,
    ) -> None:
        """Guess the places that enter a window, by the law above or the last one in the row."""
        entering = [
            [(place, picture.like(place)) for line in plan.lines for place in line.entering]
            for picture, plan in zip(pictures, plans, strict=True)
        ]
        places = draws.table([[place for place, _ in own] for own in entering])
        sources = draws.table([[source for _, source in own] for own in entering])
        weights = pick(laws, sources + 1)
        drawn = draws.draw(_ENTERS, weights, places)
        tokens.scatter_(1, places + 1, drawn)
        laws.scatter_(1, (places + 1)[..., None].expand_as(weights), weights)

    def _call(
        self, tokens: Tensor, pictures: list[_Picture], plans: list[_Plan]
    ) -> tuple[Tensor, list[dict[int, int]]]:
        """Laws `[B, n, V]` behind all inputs, and the number of each by its place."""
        width = max(len(plan.inputs) for plan in plans)
        # a picture with fewer inputs reads its first one again, one that is over the prefix
        inputs = [plan.inputs or [-1] for plan in plans]
        lines = [own + own[:1] * (width - len(own)) for own in inputs]
        places = torch.tensor(lines, device=tokens.device)
        rows = zip(pictures, plans, lines, strict=True)
        seen = torch.stack([picture.seen(line, plan) for picture, plan, line in rows])
        heard = tokens.clone()  # a copy that stands in is no guess of its place
        for row, plan in enumerate(plans):
            for place, source in plan.stand_ins:
                heard[row, place + 1] = tokens[row, source + 1]
        forced = F.pad(self.grid.forced.to(heard.device), (1, 1), value=-1)
        words = torch.where(forced >= 0, forced, heard).gather(1, places + 1)
        reach = max(map(max, lines))
        self.before_call()
        found = self.model.extend_at(words, places, reach, seen.to(tokens.device))
        return found, [{place: n for n, place in enumerate(plan.inputs)} for plan in plans]

    def _judge(
        self,
        tokens: Tensor,
        laws: Tensor,
        found: Tensor,
        at: list[dict[int, int]],
        pictures: list[_Picture],
        plans: list[_Plan],
        draws: _Draws,
    ) -> None:
        """Move all guesses to the laws that the target gave, and let those that stand stand."""
        judged = [[place for line in plan.lines for place in line.judged] for plan in plans]
        fresh = [[line.end for line in plan.lines if line.room] for plan in plans]
        both = [old + new for old, new in zip(judged, fresh, strict=True)]
        index = [[where[place - 1] for place in own] for where, own in zip(at, both, strict=True)]
        places = draws.table(both)
        p = pick(found, draws.table(index, 0))
        check_target(p, places)
        columns = places + 1
        x, q = tokens.gather(1, columns), pick(laws, columns)
        guessed = torch.tensor(
            [[n < len(old) for n in range(places.shape[1])] for old in judged],
            device=tokens.device,
        )
        stays = (token_probs(p, x) / token_probs(q, x)).clamp(0, 1)
        stays = torch.where(guessed, stays, 0.0)
        chance = torch.stack([1 - stays, stays], dim=-1)
        stood = draws.draw(_STANDS, chance, places).bool()
        residual = (p - q).clamp_min(0)
        # nothing is left over where p = q up to rounding: then p itself
        moves = guessed[..., None] & (residual.sum(-1, keepdim=True) > 0)
        weights = torch.where(moves, residual, p)
        settled = F.one_hot(x, p.shape[-1]).to(p)  # what stands is not drawn again
        weights = torch.where(stood[..., None], settled, weights)
        tokens.scatter_(1, columns, draws.draw(_MOVES, weights, places))
        laws.scatter_(1, columns[..., None].expand_as(p), p)
        for picture, plan, own in zip(pictures, plans, stood.tolist(), strict=True):
            picture.commit(plan, own)


class _Draws:
    """Draws of one call: each has a number of its own, by purpose and place."""

    def __init__(self, coins: RoundCoins, call: int, limit: int, device: torch.device) -> None:
        self._coins, self._limit, self._device = coins, limit, device
        self._first = call * _PURPOSES * (limit + 1)

    def table(self, lines: list[list[int]], filling: int | None = None) -> Tensor:
        """Places of every picture as one tensor `[B, n]`, filled with the place behind the end."""
        width = max(1, *map(len, lines))
        last = self._limit if filling is None else filling
        filled = [line + [last] * (width - len(line)) for line in lines]
        return torch.tensor(filled, device=self._device)

    def draw(self, purpose: int, weights: Tensor, places: Tensor) -> Tensor:
        """A number `[B, n]` for every place `[B, n]`, by `weights [B, n, K]`; 0 for filling."""
        nothing = F.one_hot(torch.zeros_like(places), weights.shape[-1]).to(weights)
        weights = torch.where((places < self._limit)[..., None], weights, nothing)
        return self._coins.draw(weights, self._first + purpose * (self._limit + 1) + places)


@dataclass
class _Line:
    """A row of the picture in one call.

    Attributes:
        number: of the row.
        first, end: its first place that does not stand, and the first one behind its window.
        held: places of the window that were guessed before.
        room: whether the row goes on behind the window.
    """

    number: int
    first: int
    end: int
    held: int
    room: bool

    @property
    def judged(self) -> range:
        """The window."""
        return range(self.first, self.end)

    @property
    def entering(self) -> range:
        """The part of the window that was not there before."""
        return range(min(self.end, self.first + self.held), self.end)


@dataclass
class _Plan:
    """One call for one picture.

    Attributes:
        lines: rows that are judged.
        inputs: places that are read; -1 is the prefix's last column.
        stand_ins: ends of rows that do not stand and are read by the row below alone, and where
            the token is from that is read there: the place itself, if it holds a guess.
    """

    lines: list[_Line]
    inputs: list[int]
    stand_ins: list[tuple[int, int]]


class _Picture:
    """Progress of one picture: how far each of its rows stands, and what is guessed behind."""

    def __init__(self, limit: int, stride: int) -> None:
        self.limit, self.stride = limit, stride
        starts = range(0, limit, stride)
        self._ends = [min(limit, start + stride) for start in starts]
        self._first = [*starts]  # by row, the first place that does not stand
        self._held = [0] * len(self._first)  # by row, guesses from there on
        self._known = [False] * limit  # places with a law
        self._stands = torch.zeros(limit, dtype=torch.bool)
        self._unread: set[int] = {-1}  # places that stand and are not in the cache as they are

    @property
    def over(self) -> bool:
        """True if all places stand."""
        return self._first == self._ends

    def plan(self, rows: int, window: int, lag: int) -> _Plan:
        """The next call, of at most so many rows."""
        lines: list[_Line] = []
        stand_ins: list[tuple[int, int]] = []
        under_way = [n for n, end in enumerate(self._ends) if self._first[n] < end][:rows]
        inputs = set(self._unread)
        for n in under_way:
            first, last = self._first[n], self._ends[n]
            if n and self._first[n - 1] < self._ends[n - 1]:
                above = self._first[n - 1] - (n - 1) * self.stride
                if above - (first - n * self.stride) < lag:
                    continue
            end = min(last, first + window)
            lines.append(_Line(n, first, end, min(self._held[n], end - first), end < last))
            root = first - 1
            if root >= 0 and not self._stands[root] and root not in inputs:
                stands = self._first[n - 1]
                guessed = root < stands + self._held[n - 1]
                stand_ins.append((root, root if guessed else stands - 1))
            inputs |= {root, *range(first, end)}
        return _Plan(lines, sorted(inputs), stand_ins)

    def like(self, place: int) -> int:
        """A place with a law like that of `place`: above, or the last in the row; -1: none."""
        above = place - self.stride
        if above >= 0 and self._known[above]:
            return above
        start = place // self.stride * self.stride
        before = (p for p in range(place - 1, start - 1, -1) if self._known[p])
        return next(before, -1)

    def seen(self, places: list[int], plan: _Plan) -> Tensor:
        """True at the places that each of `places` may read in a call, `[n, limit]`."""
        copies = {place for place, _ in plan.stand_ins}
        out = self._stands.repeat(len(places), 1)
        for own, place in zip(out, places, strict=True):
            # its own row, and what may stand in for the end of the row above
            start = place if place in copies else place // self.stride * self.stride - 1
            own[max(0, start) : place + 1] = True
        return out

    def commit(self, plan: _Plan, stood: list[bool]) -> None:
        """Let what stands stand; `stood` tells of the judged places, row by row."""
        self._unread.clear()
        told = iter(stood)
        for line in plan.lines:
            verdicts = [next(told) for _ in line.judged]
            kept = next((n for n, ok in enumerate(verdicts) if not ok), len(verdicts))
            reached = line.end + line.room  # the place behind the window has a token now
            until = min(reached, line.first + kept + 1)
            if until > line.first + kept:
                self._unread.add(until - 1)
            self._stands[line.first : until] = True
            self._first[line.number], self._held[line.number] = until, reached - until
            for place in range(line.first, reached):
                self._known[place] = True
