"""Data of one round: where rows stand, the draft, its scores, the verdict.

Shapes: B rows (samples), N drafted nodes a row, V vocabulary. A chain is a tree whose every node
has one child; its nodes stand in order, node n at position `base + n`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from .laws import ContractError, Gaussian, Law, Rewards


@dataclass
class Context:
    """State of every row: its output so far and its last round.

    Attributes:
        tokens: output so far `[B, ≥ limit]`; row b is filled up to `lengths[b]`. Continuous tokens
            are vectors `[B, ≥ limit, C]`, here and in drafts and verdicts. With `window` it is
            `[B, held]`, position n at n mod `window` until a later one takes its place.
        lengths: emitted tokens per row `[B]`.
        last: the last committed token `[B, 1]`, at first what `empty` was given; any if finished.
        base: the same numbers on the host, so that nothing else has to wait for the device.
        limit: output tokens a row may have at most.
        finished: rows that ended.
        round: verify rounds so far.
        reached, accepted, emitted: of the last round, how many tokens ahead each row drafted, how
            many drafted ones it kept, and how many tokens joined its output; on the host.
        keep: of the last round by a local rule, see `Verdict`; None: what was kept is in front.
        guessed: of the last round, see `Verdict`; a guess behind the row's end did not stand.
        seconds: wall-clock of the last round.
        faulty: rows whose last draft had a fault, see `Draft`.
        window: positions of the output that are kept, the latest ones; None: all.
        samples: the sample in each row, where fewer run at a time; None: sample b is in row b.
        began: the round in which the sample of each row began; None: all in the first.
    """

    tokens: Tensor
    lengths: Tensor
    last: Tensor
    base: list[int]
    limit: int
    finished: list[bool]
    round: int = 0
    reached: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    emitted: list[int] = field(default_factory=list)
    keep: Tensor | None = None
    guessed: list[int] = field(default_factory=list)
    seconds: float = 0.0
    faulty: list[int] = field(default_factory=list)
    window: int | None = None
    samples: list[int] | None = None
    began: list[int] | None = None

    @classmethod
    def empty(
        cls,
        rows: int,
        limit: int,
        device: torch.device | str = "cpu",
        first: Tensor | None = None,
        window: int | None = None,
    ) -> Context:
        """A context in which nothing is emitted yet.

        `first [B, 1, ...]` is what stands in front of the first token, such as the noise that a
        denoising chain starts from; tokens are of its kind. None: tokens are ids. Of at most
        `window` positions the output is kept, so that memory does not grow with it; None: of all.
        """
        if first is None:
            first = torch.zeros(rows, 1, dtype=torch.long, device=device)
        return cls(
            first.new_zeros(rows, limit if window is None else window, *first.shape[2:]),
            torch.zeros(rows, dtype=torch.long, device=first.device),
            first,
            [0] * rows,
            limit,
            [limit == 0] * rows,
            window=window,
        )

    @property
    def rows(self) -> int:
        """The number of rows B."""
        return self.tokens.shape[0]

    def of_samples(self, x: Tensor) -> Tensor:
        """Entries `[B, …]` of the samples in the rows, of `x` with one for each sample."""
        return x if self.samples is None else x[self.samples]

    def own_round(self, row: int) -> int:
        """Verify rounds that the sample of a row has seen."""
        return self.round - (0 if self.began is None else self.began[row])

    def seat(self, rows: list[int], samples: list[int]) -> None:
        """Let samples that have no output yet begin in these rows."""
        held = self.samples or [*range(self.rows)]
        began = self.began or [0] * self.rows
        for row, sample in zip(rows, samples, strict=True):
            held[row], began[row] = sample, self.round
            self.base[row], self.finished[row] = 0, False
        self.samples, self.began = held, began
        index = torch.tensor(rows, device=self.lengths.device)
        self.lengths = self.lengths.index_fill(0, index, 0)
        self.last = self.last.index_fill(0, index, 0)

    def room(self) -> list[int]:
        """Tokens each row may still emit."""
        return [0 if f else self.limit - b for b, f in zip(self.base, self.finished, strict=True)]

    def drafted(self) -> list[list[bool]]:
        """Mark the tokens of each row's last round that were drafted and stood."""
        if self.keep is not None:
            rows = zip(self.keep.tolist(), self.emitted, strict=True)
            return [[bool(kept) for kept in row[:count]] for row, count in rows]
        told = zip(self.accepted, self.guessed, self.emitted, strict=True)
        return [[n < kept + (g > 0) for n in range(count)] for kept, g, count in told]

    def reserve(self, width: int) -> None:
        """Make place for `width` more tokens in every row; filling may run past the limit."""
        if self.window is not None:
            return
        missing = max(self.base) + width - self.tokens.shape[1]
        if missing > 0:
            rows, _, *shape = self.tokens.shape
            more = self.tokens.new_zeros(rows, missing, *shape)
            self.tokens = torch.cat([self.tokens, more], dim=1)


@dataclass
class Draft:
    """A proposal for every row.

    Attributes:
        tokens: payload: ids `[B, N]`, vectors `[B, N, C]` or blocks `[B, N, F, C, H, W]`.
        lengths: real nodes of each row `[B]`, at most N; nodes from there on are filling.
        law: what the nodes were drawn from.
        parents: `[B, N]`, the node each follows, -1 for the last committed token; None for a chain.
        noise: the noise the payload was made from, where the target or a rejection re-uses it.
        positions: of nodes in the output `[B, N]`, for rules that ask where on the grid one lies.
        bounds: of a tree, levels and most children of a node, on the host; more are not tried.
        faulty: rows `[B]` with what can't be, or laws that are none; None: nobody saw its laws.
        calls, read: whole calls of the target that drafting took, and tokens a row in them.
        states: of the draft model, that the nodes were drawn from `[B, N, D]`; or None.
        pending: on the host, rows that draft on in the next round, without nodes in this one.
        sound: of a tree, nodes `[B, N]` that count; what follows others does not stand. None: all.
        checked: its tensors that need no check: ids below V, laws that are some, earlier parents.
    """

    tokens: Tensor
    lengths: Tensor
    law: Law
    parents: Tensor | None = None
    noise: Tensor | None = None
    positions: Tensor | None = None
    bounds: tuple[int, int] | None = None
    faulty: Tensor | None = None
    calls: int = 0
    read: int = 0
    states: Tensor | None = None
    pending: list[bool] | None = None
    sound: Tensor | None = None
    checked: tuple[Tensor, ...] = ()
    _ancestors: tuple[Tensor | None, Tensor] | None = field(default=None, init=False, repr=False)
    _live: tuple[Tensor, Tensor] | None = field(default=None, init=False, repr=False)

    @property
    def levels(self) -> int:
        """Most levels: no node is deeper below the last committed token."""
        return self.bounds[0] if self.bounds else self.nodes

    @property
    def most_children(self) -> int:
        """Most children of a node that are tried."""
        if self.parents is None:
            return 1
        return self.bounds[1] if self.bounds else self.nodes

    @property
    def nodes(self) -> int:
        """The number of nodes N."""
        return self.tokens.shape[1]

    def live(self) -> Tensor:
        """True for real nodes, `[B, N]`."""
        if self._live is None or self._live[0] is not self.lengths:
            self._live = self.lengths, self._numbers < self.lengths[:, None]
        return self._live[1] if self.sound is None else self._live[1] & self.sound

    @property
    def _numbers(self) -> Tensor:
        return torch.arange(self.nodes, device=self.lengths.device)

    def depths(self) -> Tensor:
        """Offset of every node's position from the first drafted position, `[B, N]`."""
        if self.parents is None:
            return self._numbers.expand(len(self.lengths), -1)
        return self.ancestors().sum(-1) - 1

    def reach(self) -> Tensor:
        """Depth of each row's real nodes: tokens ahead, `[B]`."""
        if self.parents is None or not self.nodes:
            return self.lengths
        return (self.ancestors().sum(-1) * self.live()).amax(1)

    def ancestors(self) -> Tensor:
        """`[B, N, N]`, True where node m is node n or one that node n descends from."""
        if self._ancestors and self._ancestors[0] is self.parents:
            return self._ancestors[1]
        line = torch.eye(self.nodes, device=self.lengths.device)
        if self.parents is None:
            line = torch.ones_like(line).tril().repeat(len(self.lengths), 1, 1)
        else:  # powers of the matrix of parents: ancestors so many levels up
            power = (self.parents[..., None] == self._numbers).float()
            line, reach = line + power, 2
            while reach < self.levels:  # every pass reaches twice as far up
                power = power @ power
                line, reach = torch.baddbmm(line, power, line), 2 * reach
        self._ancestors = self.parents, (line := line > 0)
        return line


@dataclass
class Scores:
    """The target's laws: 0 after the last committed token, n + 1 after node n.

    A law that the target can't give (its logits are no numbers) is NaN throughout.

    Attributes:
        laws: probabilities of tokens `[B, N + 1, V]`, normal laws of `[B, N + 1, C]`, or in their
            place a reward of the nodes.
        hidden: the target's last hidden states there `[R, N + 1, D]`, unconditional rows last;
            None: nobody reads them.
        logits: what the laws were made of, under guidance, `[B, N + 1, ≤ V]`; None: not kept.
        calls: of the target for them; 0 if it was not asked.
        reread_tokens: committed tokens that were read once more, per row, on the host.
        early: the laws of an early layer `[B, N + 1, V]`; None: nobody asks.
    """

    laws: Tensor | Gaussian | Rewards
    hidden: Tensor | None = None
    calls: int = 1
    reread_tokens: list[int] = field(default_factory=list)
    logits: Tensor | None = None
    early: Tensor | None = None

    @property
    def probs(self) -> Tensor:
        """The laws of tokens `[B, N + 1, V]`.

        Raises:
            ContractError: the target's tokens are vectors, or there are no laws.
        """
        if isinstance(self.laws, Rewards):
            raise ContractError("this rule judges by the target's laws, and here a reward judges")
        if isinstance(self.laws, Gaussian):
            raise ContractError(
                "this rule judges token ids, and the target's laws are Gaussian; use "
                "'gamma-maximal' or 'gaussian-block'"
            )
        return self.laws

    @property
    def gaussian(self) -> Gaussian:
        """The normal laws `[B, N + 1, C]`.

        Raises:
            ContractError: the target's tokens are ids.
        """
        if isinstance(self.laws, Gaussian):
            return self.laws
        if isinstance(self.laws, Rewards):
            raise ContractError("this rule judges by the target's laws, and here a reward judges")
        raise ContractError("this rule judges Gaussian laws, and the target's tokens are ids")

    @property
    def rewards(self) -> Tensor:
        """Rewards of every frame of the nodes, `[B, N, T]`.

        Raises:
            ContractError: there are laws, or nobody was asked.
        """
        if not isinstance(self.laws, Rewards):
            raise ContractError("this rule judges by a reward, and the scores are laws")
        if self.laws.frames.shape[1] and not self.laws.frames.shape[2]:
            raise ContractError("this rule judges by a reward, and none was asked")
        return self.laws.frames

    def undefined(self) -> Tensor:
        """True for rows `[B]` with a law that the target can't give."""
        if isinstance(self.laws, Rewards):  # what no reward judges is rejected
            frames = self.laws.frames
            return torch.zeros(len(frames), dtype=torch.bool, device=frames.device)
        if isinstance(self.laws, Gaussian):
            return ~(self.laws.mean + self.laws.std).sum((1, 2)).isfinite()
        return self.laws[..., 0].sum(1).isnan()  # such a law has no numbers at all

    def undefined_where_drawn(self, accepted: Tensor) -> Tensor:
        """The same, up to the law behind the first `accepted [B]` nodes.

        A vector that fell may be no input of the target, and nobody draws from the law behind it.
        """
        if not isinstance(self.laws, Gaussian):
            return self.undefined()
        wrong = ~(self.laws.mean + self.laws.std).isfinite().all(-1)  # [B, N + 1]
        places = torch.arange(wrong.shape[1], device=wrong.device)
        return (wrong & (places <= accepted[:, None])).any(1)

    def at_nodes(self, draft: Draft) -> Tensor:
        """The law `[B, N, V]` by which each node is judged: the one after its parent."""
        if draft.parents is None:
            return self.probs[:, : draft.nodes]
        return self.probs.take_along_dim((draft.parents + 1)[..., None], dim=1)


@dataclass
class Verdict:
    """Verdict on a draft: which nodes stand, and which tokens join the output.

    Attributes:
        accepted: kept nodes per row `[B]`.
        emitted: tokens that join the output `[B, N + 1]`: the kept ones in order, a recovered or
            bonus token, filling. Of a local rule `[B, K]`, all that `counts` says.
        last: that recovered or bonus token `[B, 1]`.
        counts: emitted tokens per row `[B]`; 0 where a unit is still being drafted or drawn.
        keep: of a local rule, nodes `[B, N]` that stand; the others were drawn anew in their
            places, and the target draws them again in turn. None: a prefix or a path stands.
        guessed: `[B]`, 1: a drafter had guessed `last`, -1: its guess fell, 0: none; or None.
        path: kept nodes in order `[B, K]`, padded by repeating; None where node n is n-th (chains).
        calls, target_tokens: what drawing again in turn took, per row, on the host.
    """

    accepted: Tensor
    emitted: Tensor
    last: Tensor
    counts: Tensor
    keep: Tensor | None = None
    path: Tensor | None = None
    guessed: Tensor | None = None
    calls: list[int] = field(default_factory=list)
    target_tokens: list[int] = field(default_factory=list)

    def drawn_by(self, draft: Draft) -> Tensor:
        """Numbers of the laws `[B, K]` that the emitted tokens were judged by, see `Scores`.

        Of a rule that keeps a prefix or a path: 0 is behind the last committed token, n + 1 behind
        node n; what recovers or is a bonus has the law behind the last kept node.
        """
        kept = self.path
        if kept is None:
            kept = draft._numbers.expand(len(draft.lengths), -1)
        return torch.nn.functional.pad(kept + 1, (1, 0))


class Interrupted(Exception):  # noqa: N818
    """Somebody stopped a generation within a round; target and drafter may raise it."""
