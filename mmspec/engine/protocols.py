"""Protocols of the loop's parts: drafter, scorer, target, rule, length policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from torch import Tensor

if TYPE_CHECKING:
    from .coins import Coins, RoundCoins
from .draft import Context, Draft, Scores, Verdict
from .laws import Contract, ContractError


class Drafter(Protocol):
    """Proposes continuations; a subclass that keeps nothing has `propose` alone."""

    def start(self, context: Context) -> None:
        """Forget everything; a new batch begins."""
        return

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        """Draft at most `budget[b]` nodes deep for row b."""

    def observe(self, context: Context, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        """Learn what became of the draft. `context` already holds the emitted tokens."""
        return


@runtime_checkable
class DraftsAhead(Protocol):
    """A drafter of chains that drafts on while the target reads (PEARL)."""

    def ahead(
        self, context: Context, draft: Draft, coins: RoundCoins
    ) -> Callable[[], Draft | None] | None:
        """Begin to draft behind `draft`, as if all of it stood; None: there is nothing to begin.

        `coins` are the proposal's of this round. What is returned waits for the first token there,
        a chain of one node a row, of length 0 where a row has none; None: it failed.
        """


class Scorer(Protocol):
    """Judges a whole draft in one parallel call."""

    def score(self, context: Context, draft: Draft) -> Scores:
        """The scores of every node of the draft."""


class Target(Scorer, Protocol):
    """The model whose output law is to be kept."""

    def start(self, rows: int) -> None:
        """Take in the condition (prefill) for a new batch."""

    def sample_next(
        self, context: Context, draft: Draft, verdict: Verdict, coins: RoundCoins
    ) -> Verdict:
        """Draw in turn what a local rule did not keep; see `Verdict.keep`."""

    def commit(self, context: Context, draft: Draft, verdict: Verdict) -> None:
        """Make the cache hold what was kept. `context` does not hold the emitted tokens yet."""


class AcceptanceRule(Protocol):
    """Decides what of a draft stands, and what is emitted after it.

    A rule with a true `local` keeps a set of nodes in place of a prefix (`Verdict.keep`) and adds
    no token of the target's own after them; others need not have the attribute.
    """

    contract: Contract

    def verify(self, draft: Draft, scores: Scores, coins: RoundCoins) -> Verdict:
        """The verdict on a draft, all rows at once.

        Raises:
            ContractError: the draft's law is one that this rule can't judge as its contract says.
        """


class DraftLength(Protocol):
    """Says how far to speculate, row by row.

    A row's law never depends on its neighbours, and its sample only where the policy says so.
    """

    def start(self, rows: int) -> None:
        """A new batch begins."""

    def budget(self) -> list[int]:
        """Depth of the next draft for each row."""

    def observe(self, context: Context, draft: Draft, verdict: Verdict) -> None:
        """Learn from what became of the draft. `context` already holds the emitted tokens."""
        return


@runtime_checkable
class Seatable(Protocol):
    """A part of the loop that takes in samples while others run."""

    def seat(self, context: Context, rows: list[int]) -> None:
        """Forget what these rows held: other samples begin in them, see `Context.samples`."""


def seatable(part: object) -> Seatable:
    """The part itself; those that it `wraps` are asked, too.

    Raises:
        ContractError: it takes in no samples.
    """
    if not isinstance(part, Seatable):
        raise ContractError(f"{type(part).__name__} takes in no sample while others run")
    for inner in getattr(part, "wraps", ()):
        seatable(inner)
    return part


@contextmanager
def closing(drafter: Drafter) -> Iterator[None]:
    """Close a drafter in the end, see `close`."""
    try:
        yield
    finally:
        close(drafter)


def close(drafter: Drafter) -> None:
    """Have a drafter give back what it held for a generation, if it has a method for that."""
    closes = getattr(drafter, "close", None)
    if closes is not None:
        closes()


Stop = Callable[[Context, Tensor, Tensor], Tensor]


@dataclass
class Engine:
    """Parts that `loop.run` puts to work.

    Attributes:
        eos: tokens that end their row.
        stop: what else does: given the context, the emitted tokens `[B, K]` behind it and how many
            of them are real `[B]`, the number of tokens per row `[B]` up to the first that ends it;
            more than there are: none does.
    """

    target: Target
    drafter: Drafter
    rule: AcceptanceRule
    length: DraftLength
    coins: Coins
    eos: int | tuple[int, ...] | None = None
    stop: Stop | None = None
