"""Drafting ahead: while the target reads a draft, the next one is drafted behind it (PEARL).

Liu et al. 2025, "PEARL: Parallel Speculative Decoding with Adaptive Draft Length". While the target
reads γ tokens, γ + 1 more are drawn behind them, as if all of them stood. The first of these, a
guess, is judged with the draft, by the law that the target's own token is drawn from
(`engine.accept.guess`). If it stands, the others are the next draft. If anything falls, they are
thrown away, and the target's next call reads no draft: meanwhile as many are drawn again, and the
first of them is judged by that call. A text that is drafted well is thus one long draft.

Every token is judged once, by the rule's own coins, against the law that it was drawn from. So the
output keeps the rule's contract at any temperature. The authors' first code derives its coins from
positions, two of which may be equal, and is not exact (see docs/methods.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from ..engine.coins import RoundCoins
from ..engine.draft import Context, Draft, Scores, Verdict
from ..engine.laws import Categorical
from ..engine.protocols import Drafter
from ..models.token_model import TokenModel, laws_at
from .beside import Beside, Place, beside
from .sound_laws import faults, mended

Chain = tuple[Tensor, Tensor, Tensor]
"""Tokens `[B, K]`, the laws that they were drawn from `[B, K, V]`, and which of these are laws."""


class ChainAhead:
    """Reads what is committed and drafted, and draws tokens behind it; works beside the target.

    Args:
        model: the draft model, which nobody else runs.
    """

    def __init__(self, model: TokenModel) -> None:
        self.model = model

    def start(self, rows: int) -> None:
        """Take in the condition."""
        self.model.start(rows)

    def seat(self, context: Context, rows: list[int]) -> None:
        """Take in the conditions of the samples that begin in these rows."""
        self.model.seat(context, rows)

    def draw(
        self,
        tokens: Tensor,
        known: list[int],
        ends: list[int],
        count: int,
        coins: RoundCoins,
    ) -> Chain:
        """Draw `count` tokens behind position `ends[b] − 1` of every row.

        Args:
            tokens: committed and drafted ones `[B, ≥ max(ends)]`.
            known: positions before these have been read.
            ends, count, coins: where to begin, how far to go, and chance.
        """
        law = laws_at(self.model, tokens, ends, known)
        drawn, drawn_from, good = list[Tensor](), list[Tensor](), list[Tensor]()
        for n in range(count):
            if n:
                law = self.model.extend(drawn[-1], [end + n - 1 for end in ends])[:, -1]
            law, is_law = mended(law)
            place = torch.full((len(law), 1), n, device=law.device)
            drawn.append(coins.draw(law[:, None], place))
            drawn_from.append(law)
            good.append(is_law)
        return torch.cat(drawn, 1), torch.stack(drawn_from, 1), torch.stack(good, 1)


class AheadDrafter(Drafter):
    """Drafts behind a draft while the target reads it; what then holds is proposed next.

    Args:
        model: the draft model.
        place: where it works, see `beside`; None: where that is best.
    """

    def __init__(self, model: TokenModel, place: Place | None = "here") -> None:
        self._chain, self._place = ChainAhead(model), place
        self._beside: Beside | None = None
        self._drawn: Chain | None = None
        self._left: list[int] = []  # tokens of it that are the next draft, behind its first
        self._known: list[int] = []  # positions before these are in the model's cache
        self._budget: list[int] = []
        self._lengths: list[int] = []
        self._begun = False  # this round has drafted ahead
        self._faulty: Tensor | None = None
        self._ends: list[int] = []
        self._counts: list[int] = []

    def start(self, context: Context) -> None:
        self.close()
        device = getattr(self._chain.model, "prefix", context.tokens).device
        self._beside = beside(self._chain, device, self._place)
        self._beside.begin("start", context.rows)()
        self._drawn, self._begun, self._faulty = None, False, None
        self._left, self._known = [0] * context.rows, [-1] * context.rows

    def seat(self, context: Context, rows: list[int]) -> None:
        self._place_of_work.begin("seat", context, rows)()
        for row in rows:
            self._left[row], self._known[row] = 0, -1

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        self._budget = budget
        left = self._lengths = [min(pair) for pair in zip(self._left, budget, strict=True)]
        lengths = torch.tensor(left, device=context.tokens.device)
        if self._drawn is None or not any(left):
            none = Categorical(torch.zeros(0))
            return Draft(context.tokens[:, :0], lengths, none, faulty=self._faulty)
        tokens, laws, _ = (x[:, 1 : 1 + max(left)] for x in self._drawn)
        return Draft(tokens, lengths, Categorical(laws), faulty=self._faulty)

    def ahead(
        self, context: Context, draft: Draft, coins: RoundCoins
    ) -> Callable[[], Draft | None] | None:
        lengths = self._lengths  # all of them: nothing of these drafts is ever cut off
        self._ends = [base + n for base, n in zip(context.base, lengths, strict=True)]
        rooms = [room - n for room, n in zip(context.room(), lengths, strict=True)]
        # one more than is asked for: the first is a guess, and none of the next draft
        budget = [b + 1 if b else 0 for b in self._budget]
        self._counts = [min(pair) for pair in zip(budget, rooms, strict=True)]
        count, self._drawn = max(self._counts), None
        if not count:
            return None
        tokens = torch.cat([context.tokens, draft.tokens], dim=1)
        places = context.lengths[:, None] + torch.arange(draft.nodes, device=tokens.device)
        tokens = tokens.scatter(1, places, draft.tokens)
        wait = self._place_of_work.begin("draw", tokens, self._known, self._ends, count, coins)

        def guess() -> Draft:
            self._drawn, self._begun = wait(), True
            counts = torch.tensor(self._counts, device=tokens.device)
            # told with the next draft, whether they are in it or not
            self._faulty = faults(
                self._drawn[2], replace(draft, tokens=self._drawn[0], lengths=counts)
            )
            first, laws, _ = (x[:, :1] for x in self._drawn)
            return Draft(first, counts.clamp_max(1), Categorical(laws))

        return guess

    def observe(self, context: Context, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        begun, self._begun = self._begun, False
        if self._drawn is None or not begun:
            self._left = [0] * context.rows
            self._known = [min(k, b - 1) for k, b in zip(self._known, context.base, strict=True)]
            return
        for row, guessed in enumerate(context.guessed):
            count, end = self._counts[row], self._ends[row]
            stood = guessed > 0 and context.base[row] == end + 1  # and has not ended the row
            self._left[row] = count - 1 if stood else 0
            read = max(end, end + count - 1)
            self._known[row] = read if stood else min(read, context.base[row] - 1)

    def close(self) -> None:
        if self._beside is not None:
            self._beside.close()
            self._beside = None

    @property
    def _place_of_work(self) -> Beside:
        if self._beside is None:
            raise RuntimeError("start comes first")
        return self._beside
