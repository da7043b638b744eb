"""A token model as the engine's `Target`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from ..engine.accept.chain import pick
from ..engine.accept.islands import in_turn
from ..engine.accept.routed import RoutedDraft
from ..engine.coins import RoundCoins
from ..engine.draft import Context, Draft, Scores, Verdict
from .guided import GuidedDecoder
from .pruning import Pruning


class TokenTarget:
    """Scores the last committed token and a whole draft in one call.

    The last committed token is not in the cache yet: it is the root of every call, so that a call
    of n drafted tokens yields n + 1 laws. After a local rule the cache lacks more: tokens that were
    drawn anew, and kept ones behind those. The next call reads them too.

    Args:
        model: the network under guidance and warpers.
        stride: positions in a row of the picture.
        turns: most calls that `sample_next` makes for a draft; None: as many as it takes.
        window: how the cells of an island take turns, see `islands.in_turn`; None: one by one.
        judged: makes the laws that drafts are judged by of logits; None: as all others are made.

    Attributes:
        pruning: of drafts, by what the first layers say; None: all layers read all nodes.
    """

    pruning: Pruning | None = None

    def __init__(
        self,
        model: GuidedDecoder,
        stride: int = 1,
        turns: int | None = None,
        window: int | None = None,
        judged: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.model, self.stride, self.turns, self.judged = model, stride, turns, judged
        self.window = stride if window is None else window
        self._stale: list[int] = []  # per row, the first position that the cache lacks

    def start(self, rows: int) -> None:
        self.model.start(rows)
        self._stale = []

    def seat(self, context: Context, rows: list[int]) -> None:
        self.model.seat(context, rows)
        for row in rows if self._stale else ():
            self._stale[row] = -1  # it lacks nothing

    def score(self, context: Context, draft: Draft) -> Scores:
        if isinstance(draft, RoutedDraft) and not any(draft.asks):
            return Scores(torch.zeros_like(draft.tokens, dtype=torch.float32)[..., None], calls=0)
        warp, self.model.warp = self.model.warp, self.judged or self.model.warp
        try:
            return self._score(context, draft)
        finally:
            self.model.warp = warp

    def _score(self, context: Context, draft: Draft) -> Scores:
        self.model.leave(context.finished)
        if self.pruning is not None:
            return self.pruning.score(self.model, context, draft)
        inputs, start, calls = context.last, [b - 1 for b in context.base], 1
        stale, self._stale = self.model.known or self._stale, []
        self.model.known = None
        rows = zip(context.base, context.finished, stale, strict=False)
        # how many tokens in front of the last committed one each row has to read again
        missing = [0 if finished else base - 1 - first for base, finished, first in rows]
        width = max(missing, default=0)
        if width:
            again, first = self._tokens_to_read_again(context, width)
            # as one chain with the draft, if every row has so many tokens and the draft is a chain
            if draft.parents is None and width <= min(context.base):
                inputs, start = torch.cat([again, inputs], dim=1), first
            else:
                self.model.extend(again, first)
                calls, width = 2, 0
        if draft.nodes:
            inputs = torch.cat([inputs, draft.tokens], dim=1)
            if self.model.packs:
                self.model.counts = counts(context, draft, inputs.shape[1])
        laws = self.model.extend(inputs, start, draft)
        self.model.counts = None
        hidden, logits = self.model.hidden if self.model.watched else None, self.model.raw
        if width:
            laws = laws[:, width:]
            hidden, logits = (x if x is None else x[:, width:] for x in (hidden, logits))
        return Scores(laws, hidden, calls, missing, logits)

    @staticmethod
    def _tokens_to_read_again(context: Context, width: int) -> tuple[Tensor, list[int]]:
        """The `width` tokens in front of the last committed one, and the first one's position.

        Rows that lack less re-read a few. Those with fewer tokens read some from behind as well,
        which the draft overwrites or no one may see.
        """
        start = [max(-1, b - 1 - width) for b in context.base]
        positions = torch.tensor(start, device=context.tokens.device)[:, None]
        positions = positions + torch.arange(width, device=positions.device)
        return context.tokens.gather(1, positions.clamp_min(0)), start

    def sample_next(
        self, context: Context, draft: Draft, verdict: Verdict, coins: RoundCoins
    ) -> Verdict:
        """Draw the fallen nodes of every island again, turn by turn, all islands in parallel.

        Those of the first turn have their laws from the call that scored the draft. The others get
        theirs in one call a turn, behind what was drawn in the turns before; where `turns` are over
        they stay as the rule drew them. Kept tokens are not drawn again, and what the cache holds
        of them knows nothing of the new tokens in front of them until the next draft is scored. Nor
        does a node know those in front of it whose turn comes later: there it reads the draft's.
        """
        assert verdict.keep is not None
        joins = torch.arange(draft.nodes, device=draft.lengths.device) < verdict.counts[:, None]
        fallen = (~verdict.keep & joins & draft.live()).tolist()
        turns: list[list[list[int]]] = []  # per row, per turn: the nodes whose turn it is
        self._stale = []
        for base, row, count in zip(context.base, fallen, verdict.counts.tolist(), strict=True):
            cells = [base + n for n, fell in enumerate(row) if fell]
            order = in_turn(cells, self.stride, self.window)
            most = len(order) if self.turns is None else self.turns + 1
            turns.append([[place - base for place in turn] for turn in order[:most]])
            self._stale.append(cells[0] if cells else base + count - 1)
        tokens = torch.cat([context.last, verdict.emitted[:, : draft.nodes]], dim=1)  # root first
        calls, read = [max(0, len(t) - 1) for t in turns], [0] * len(turns)
        for turn in range(1, max(map(len, turns), default=0)):
            now = [t[turn] if len(t) > turn else [] for t in turns]
            before = [t[turn - 1] if len(t) > turn else [] for t in turns]
            # what a node follows, and what was drawn in the last turn and is not in the cache yet;
            # as places in `tokens`, where node n is n + 1
            inputs = [
                sorted({*now_, *(n + 1 for n in before_)})
                for now_, before_ in zip(now, before, strict=True)
            ]
            read = [r + len(i) for r, i in zip(read, inputs, strict=True)]
            laws = self._laws_behind(context, tokens, inputs)
            drawn_at = [[i.index(n) for n in n_] for i, n_ in zip(inputs, now, strict=True)]
            nodes, at = self._table(now, draft.nodes), self._table(drawn_at, 0)
            drawn = coins.draw(pick(laws, at), context.limit + nodes)
            # filling is drawn to a place behind the last node
            tokens = torch.nn.functional.pad(tokens, (0, 1)).scatter_(1, nodes + 1, drawn)[:, :-1]
        emitted = torch.cat([tokens[:, 1:], verdict.last], dim=1)
        last = emitted.gather(1, verdict.counts[:, None] - 1)
        emitted[:, -1:] = last
        return replace(verdict, emitted=emitted, last=last, calls=calls, target_tokens=read)

    def _laws_behind(self, context: Context, tokens: Tensor, inputs: list[list[int]]) -> Tensor:
        """Laws `[B, n, V]` behind the `inputs` of every row, filling repeats the root."""
        at = self._table(inputs, 0)
        reach = max(b - 1 + max(i, default=0) for b, i in zip(context.base, inputs, strict=True))
        return self.model.extend_at(tokens.gather(1, at), at + context.lengths[:, None] - 1, reach)

    def _table(self, lines: list[list[int]], filling: int) -> Tensor:
        """The lines as one tensor `[B, n]`."""
        width = max(1, *map(len, lines))
        filled = [line + [filling] * (width - len(line)) for line in lines]
        return torch.tensor(filled, device=self.model.prefix.device)

    def commit(self, context: Context, draft: Draft, verdict: Verdict) -> None:
        if verdict.path is not None:
            self.model.keep([b - 1 for b in context.base], verdict.path)


def counts(context: Context, draft: Draft, width: int) -> Tensor | None:
    """Tokens `[B, width]` that count of those that are read for every row, the draft's the last.

    None: all do; or no processor reads them, and filling is read along for nothing.
    """
    live = draft.live()
    if context.rows == 1 or live.device.type != "cpu":
        return None
    if not any(context.finished) and bool(live.all()):
        return None
    running = ~torch.tensor(context.finished)[:, None]
    # what is read once more stays in the cache, of rows that are over, too
    again = torch.ones(context.rows, width - draft.nodes - 1, dtype=torch.bool)
    return torch.cat([again, running, live & running], dim=1)
