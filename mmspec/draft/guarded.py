"""A drafter that can't spoil the output: when it fails, decoding goes on without it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial, reduce

import torch
from torch import Tensor

from ..devices import wait
from ..engine.coins import RoundCoins
from ..engine.draft import Context, Draft, Interrupted, Scores, Verdict
from ..engine.laws import Categorical, ContractError, WithoutReplacement
from ..engine.length.guard import Guard
from ..engine.protocols import Drafter, DraftsAhead, close, seatable
from ..errors import InputError
from .null import NullDrafter
from .sound_laws import faults, sound, without_faults

logger = logging.getLogger(__name__)


class GuardedDrafter:
    """Passes on what a drafter proposes, as long as that is a draft; without a budget, asks none.

    A drafter that raises, or whose draft has impossible shapes, tokens or parents, or laws that are
    none (a NaN, an infinity, a negative entry, a sum other than 1), is left alone for the rest of
    the generation: one warning, then plain decoding. The faulty draft itself loses its faulty nodes
    and what follows them. Not all of its row: which nodes fail may depend on what was drawn, and a
    row that loses its sound nodes whenever it drew a token emits the more of all others.

    For the same reason a drafter is kept whose drawn tokens live on from round to round
    (`carries`), as long as it raises nothing: its own even laws stand where it has none.

    Args:
        drafter: may fail.
        vocab_size: V; token ids are below it. None: tokens are blocks, which have no ids.
        most: nodes that the target has room for in one call.

    Attributes:
        fault: why the drafter was given up; None: it was not.
        guard: hears of what reading the prompts takes; None: nobody does.
    """

    guard: Guard | None = None

    def __init__(self, drafter: Drafter, vocab_size: int | None, most: int) -> None:
        self.drafter, self.vocab_size, self.most = drafter, vocab_size, most
        self.fault: str | None = None
        self._carries = getattr(drafter, "carries", False)
        self._told = self._asked = False
        self._plain = NullDrafter()

    @property
    def wraps(self) -> tuple[Drafter, ...]:
        """The drafter."""
        return (self.drafter,)

    def start(self, context: Context) -> None:
        self.fault, self._told = None, False
        self._plain.start(context)
        try:
            with self._reading(context, context.rows):
                self.drafter.start(context)
        except Exception as error:
            self._give_up(error)

    def seat(self, context: Context, rows: list[int]) -> None:
        if self.fault is not None:
            return
        try:
            with self._reading(context, len(rows)):
                seatable(self.drafter).seat(context, rows)
        except Exception as error:
            self._give_up(error)

    def _reading(self, context: Context, rows: int) -> AbstractContextManager[None]:
        guard = self.guard
        if guard is None:
            return nullcontext()
        return guard.reading(rows, partial(wait, context.last.device))

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        self._asked = any(budget)
        if self.fault is None and self._asked:
            try:
                return self._sound(self.drafter.propose(context, budget, coins), budget)
            except Exception as error:
                self._give_up(error)
        return self._plain.propose(context, budget, coins)

    def ahead(
        self, context: Context, draft: Draft, coins: RoundCoins
    ) -> Callable[[], Draft | None] | None:
        if self.fault is not None or not self._asked or not isinstance(self.drafter, DraftsAhead):
            return None
        try:
            begun = self.drafter.ahead(context, draft, coins)
        except Exception as error:
            self._give_up(error)
            return None
        return begun and partial(self._guess, begun, context.rows)

    def _guess(self, begun: Callable[[], Draft | None], rows: int) -> Draft | None:
        try:
            found = begun()
            return found and self._sound(found, [1] * rows)
        except Exception as error:
            self._give_up(error)
            return None

    def close(self) -> None:
        close(self.drafter)

    def observe(self, context: Context, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        if self.fault is not None:
            return
        if any(context.faulty):
            if not self._carries:
                self._give_up("its draft holds unknown tokens or parents, or laws that are none")
                return
            if not self._told:
                logger.warning("the drafter has no laws in places; there it draws at random")
            self._told = True
        try:
            self.drafter.observe(context, draft, scores, verdict)
        except Exception as error:
            self._give_up(error)

    def _give_up(self, why: Exception | str) -> None:
        """Warn and draft no more; raise what is the caller's fault."""
        if isinstance(why, ContractError | InputError | Interrupted):
            raise why
        close(self.drafter)
        self.fault = why if isinstance(why, str) else f"{type(why).__name__}: {why}"
        logger.warning("the drafter failed (%s); decoding goes on without it", self.fault)

    def _sound(self, draft: Draft, budget: list[int]) -> Draft:
        """The draft without what can't be; `faulty` says which rows held such."""
        rows, nodes = len(budget), draft.nodes
        if draft.tokens.shape[0] != rows or draft.lengths.shape != (rows,):
            raise ValueError(f"its draft is not for {rows} rows")
        if nodes > self.most:
            raise ValueError(f"it drafted {nodes} nodes where {self.most} fit")
        if not nodes:
            return draft
        if draft.levels > max(budget):
            raise ValueError(f"it drafted {draft.levels} tokens ahead where {max(budget)} fit")
        if self.vocab_size is None:
            return draft
        known, good = {id(tensor) for tensor in draft.checked}, list[Tensor]()
        if id(draft.tokens) not in known:
            tokens = draft.tokens.clamp(0, self.vocab_size - 1)
            good.append(tokens == draft.tokens)
            draft.tokens = tokens
        if isinstance(draft.law, Categorical | WithoutReplacement):
            expected = (rows, nodes, self.vocab_size)
            if draft.law.probs.shape != expected:
                raise ValueError(f"its laws are {tuple(draft.law.probs.shape)}, not {expected}")
            if draft.faulty is None and id(draft.law.probs) not in known:
                good.append(sound(draft.law.probs))
        if draft.parents is not None:
            if draft.parents.shape != (rows, nodes):
                raise ValueError("its tree has not one parent for every node")
            if id(draft.parents) not in known:
                earlier = torch.arange(nodes, device=draft.tokens.device)
                lost = (draft.parents >= earlier) | (draft.parents < -1)
                draft.parents = draft.parents.masked_fill(lost, -1)
                good.append(~lost)
        if not good:
            return draft
        every = reduce(torch.logical_and, good)
        bad = None if draft.parents is None else faults(every, draft)
        left = without_faults(draft, every)
        bad = left.lengths < draft.lengths if bad is None else bad
        left.faulty = bad if draft.faulty is None else bad | draft.faulty
        return left
