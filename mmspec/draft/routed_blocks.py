"""The target's own blocks, filled by confidence until a router asks for verification (S2D2).

Han et al. 2026, "S2D2: Fast Decoding for Diffusion LLMs via Training-Free Self-Speculation". A
block's masked places are filled over several calls, in any order, and the text goes on as far as
its places are filled from the left.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..engine.accept.routed import RoutedDraft, RoutedRule
from ..engine.accept.verify_router import BlockView
from ..engine.coins import RoundCoins
from ..engine.draft import Context, Draft, Scores, Verdict
from ..engine.laws import Categorical, OneHot
from ..engine.protocols import Drafter
from ..models.transformers.masked_target import OwnBlocks
from .sound_laws import faults, mended


@dataclass
class _Row:
    """State of a row.

    Attributes:
        places: tokens of its block behind the text, -1 where masked.
        known: tokens of its text that the cache holds, see `MaskedModel.read`.
        base: tokens of its text.
        nodes, trusted: of the draft.
        asks: the draft is to be verified.
        learns: its router decided that.
    """

    places: list[int]
    known: int = -1
    base: int = 0
    nodes: list[int] = field(default_factory=list)
    trusted: list[bool] = field(default_factory=list)
    asks: bool = True
    learns: bool = False

    def take_filled(self) -> bool:
        """Let what is filled from the left be the draft; whether there is anything."""
        run = [*takewhile(lambda token: token >= 0, self.places)]
        if run:
            self.nodes, self.trusted, self.asks = run, [True] * len(run), False
        return bool(run)


class _Pass(NamedTuple):
    """What a call says of the blocks.

    Attributes:
        laws, sound: of the places `[B, K, V]`, and which of them are laws `[B, K]`.
        tokens, sure, entropies, margins, good: by row and place, on the host: x0, its probability,
            the law's entropy over ln V, the lead of its best token, and whether it is one.
        read: tokens that were read in a row.
    """

    laws: Tensor
    sound: Tensor
    tokens: list[list[int]]
    sure: list[list[float]]
    entropies: list[list[float]]
    margins: list[list[float]]
    good: list[list[bool]]
    read: int


class RoutedBlockDrafter(Drafter):
    """Drafts what of a block is to be verified, or is filled from the left already.

    In a call the places that are masked get a law, a token x0 and its confidence. Then the router
    of the row says what to do. If it verifies, the first run of masked places is the draft, and
    what is filled right behind it comes along, trusted. If not, all places that are surer than the
    threshold are filled, at least the surest one; as soon as the block's first place is filled, the
    filled places in front are the draft, which asks nobody. Otherwise there is another call.

    A block ends where its last place is emitted, and the next one begins behind the text.

    Args:
        model: the target's blocks.
        size: places of a block.
        how: x0 is "drawn", or the likeliest token ("top").
        rule: has the router, and the threshold of confidence.
    """

    def __init__(
        self, model: OwnBlocks, size: int, how: Literal["drawn", "top"], rule: RoutedRule
    ) -> None:
        self.model, self.size, self.how, self.rule = model, size, how, rule
        self._rows: list[_Row] = []

    def start(self, context: Context) -> None:
        self.model.start(context.rows)
        self.rule.router.start(context.rows)
        self._rows = [_Row([-1] * self.size, base=base) for base in context.base]
        for row in self._rows:
            row.known = row.base - 1
        self.model.target.known = None

    def seat(self, context: Context, rows: list[int]) -> None:
        self.model.seat(context, rows)
        self.rule.router.seat(rows)
        for row in rows:
            self._rows[row] = _Row([-1] * self.size)
        self.model.target.known = [row.known for row in self._rows]

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        for row, over in zip(self._rows, context.finished, strict=True):
            row.nodes, row.trusted, row.asks, row.learns = [], [], not over, False
        limits = zip(budget, context.finished, strict=True)
        going = [n > 0 and not over for n, over in limits]
        laws = good = None
        calls = read = 0
        while True:
            going = [g and not row.take_filled() for g, row in zip(going, self._rows, strict=True)]
            if not any(going):
                break
            said = self._read(context, going, coins, calls * self.size)
            calls, read = calls + 1, read + said.read
            now = torch.tensor(going, device=said.laws.device)[:, None]
            laws = said.laws if laws is None else torch.where(now[..., None], said.laws, laws)
            good = said.sound if good is None else torch.where(now, said.sound, good)
            for number in (n for n, goes in enumerate(going) if goes):
                going[number] = not self._decided(number, said)
        return self._draft(context, budget, laws, good, (calls, read))

    def _read(self, context: Context, going: list[bool], coins: RoundCoins, index: int) -> _Pass:
        """A call of all rows; tokens are drawn where places are masked, in rows that go on."""
        device, rows = context.tokens.device, self._rows
        blank = [[*row.places, *[-1] * (self.size - len(row.places))] for row in rows]
        left = torch.tensor([len(row.places) for row in rows], device=device)
        filled = torch.tensor(blank, device=device)
        known = [row.known for row in rows]
        width = max(1, *(b - k for b, k in zip(context.base, known, strict=True)))
        laws, sound = mended(self.model.read(context.tokens, context.base, known, filled, left))
        for row, base in zip(rows, context.base, strict=True):
            row.known = base
        self.model.target.known = None
        if self.how == "top":
            tokens = laws.argmax(-1)
        else:  # no chance where nobody looks
            places = torch.arange(self.size, device=device) < left[:, None]
            open_ = places & (filled < 0) & torch.tensor(going, device=device)[:, None]
            none = F.one_hot(torch.zeros_like(filled), laws.shape[-1]).to(laws)
            tokens = coins.draw(torch.where(open_[..., None], laws, none), index)
        sure = laws.gather(-1, tokens[..., None])[..., 0]
        entropies = torch.special.entr(laws).sum(-1) / math.log(max(2, laws.shape[-1]))
        best = laws.topk(min(2, laws.shape[-1]), dim=-1).values
        margins = best[..., 0] - best[..., 1:].sum(-1)
        told = torch.stack([x.double() for x in (tokens, sure, entropies, margins, sound)])
        ids, *numbers, fine = told.tolist()  # the one synchronization of a call
        x0, good = [[int(x) for x in row] for row in ids], [[x > 0 for x in row] for row in fine]
        read = width + self.size
        return _Pass(laws, sound, x0, numbers[0], numbers[1], numbers[2], good, read)

    def _decided(self, number: int, said: _Pass) -> bool:
        """Do what the router of a row says; whether its draft is there."""
        row, router = self._rows[number], self.rule.router
        masked = [n for n, token in enumerate(row.places) if token < 0]
        sure = said.sure[number]
        fills = [n for n in masked if sure[n] > self.rule.confidence]
        run = [*takewhile(lambda n: row.places[n] < 0, range(len(row.places)))]
        view = BlockView(
            [said.entropies[number][n] for n in run],
            [said.margins[number][n] for n in run],
            len(fills),
            self.size - len(masked),
            self.size,
        )
        row.learns = all(said.good[number][n] for n in masked)
        if row.learns and not router.verifies(number, view):
            fills = fills or [max(masked, key=lambda n: sure[n])]
            for n in fills:
                row.places[n] = said.tokens[number][n]
            router.learn(number, len(fills))
            return False
        behind = [*takewhile(lambda token: token >= 0, row.places[len(run) :])]
        row.nodes = [*said.tokens[number][: len(run)], *behind]
        row.trusted = [False] * len(run) + [True] * len(behind)
        return True

    def _draft(
        self,
        context: Context,
        budget: list[int],
        laws: Tensor | None,
        good: Tensor | None,
        cost: tuple[int, int],
    ) -> Draft:
        """The rows' nodes as one draft, cut to what each may draft."""
        device = context.tokens.device
        counts = [min(n, len(row.nodes)) for n, row in zip(budget, self._rows, strict=True)]
        width = max(counts)
        nodes = [(row.nodes + [0] * width)[:width] for row in self._rows]
        marks = [(row.trusted + [True] * width)[:width] for row in self._rows]
        tokens = torch.tensor(nodes, dtype=torch.long, device=device).view(len(nodes), width)
        trusted = torch.tensor(marks, dtype=torch.bool, device=device).view(len(nodes), width)
        draft = RoutedDraft(tokens, torch.tensor(counts, device=device), OneHot())
        draft.asks, draft.trusted = [row.asks for row in self._rows], trusted
        draft.calls, draft.read = cost
        if width and laws is not None and good is not None:
            if self.how != "top":
                chosen = F.one_hot(tokens, laws.shape[-1]).to(laws)
                draft.law = Categorical(torch.where(trusted[..., None], chosen, laws[:, :width]))
            draft.faulty = faults(good[:, :width] | trusted, draft)
        return draft

    def observe(self, context: Context, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        for number, (row, base) in enumerate(zip(self._rows, context.base, strict=True)):
            if scores.calls:  # it has read all of it
                row.known = base - 1
            emitted, row.base = base - row.base, base
            if row.asks and row.learns and emitted:
                excused = sum(row.trusted[: min(emitted, len(row.nodes))])
                self.rule.router.learn(number, emitted - excused)
            row.places = row.places[emitted:] or [-1] * self.size
        self.model.target.known = [row.known for row in self._rows]
