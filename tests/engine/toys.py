"""A target small enough to enumerate: a random law of the next token for every prefix."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from hypothesis import strategies as st

from mmspec.draft.draft_model import ModelDrafter
from mmspec.draft.jacobi.coupled import CoupledJacobiDrafter
from mmspec.draft.jacobi.jacobi import JacobiDrafter
from mmspec.draft.null import NullDrafter
from mmspec.draft.prompt_lookup import PromptLookupDrafter
from mmspec.engine.accept.token import TokenRule
from mmspec.engine.coins import ACCEPT, PROPOSE, RECOVER, ProductionCoins
from mmspec.engine.draft import Context, Draft, Scores
from mmspec.engine.laws import Categorical
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.loop import advance, run
from mmspec.engine.proof.enumeration import EnumeratingCoins, enumerate_law
from mmspec.engine.protocols import Engine
from mmspec.engine.stats import SpecStats
from mmspec.engine.warp import Warp

torch.set_num_threads(1)  # toys are too small to share

PLAIN = Warp()
EXACT = 1e-9


class Table:
    """Laws keyed by the prefix tuple, a pure function of (seed, prefix).

    About a quarter of the entries are zero; tokens outside `support` all are.
    """

    def __init__(self, vocab: int, seed: int, warp: Warp = PLAIN, support=None) -> None:
        self.vocab, self.seed, self.warp = vocab, seed, warp
        self.support = set(range(vocab) if support is None else support)
        self._laws: dict[tuple[int, ...], list[float]] = {}

    def __call__(self, prefix: tuple[int, ...]) -> list[float]:
        if prefix not in self._laws:
            rng = np.random.default_rng([self.seed, len(prefix), *prefix])
            logits = torch.tensor(rng.normal(0, 1.5, self.vocab))
            absent = torch.tensor(rng.random(self.vocab) < 0.25)
            absent[rng.choice(sorted(self.support))] = False
            for token in set(range(self.vocab)) - self.support:
                absent[token] = True
            self._laws[prefix] = self.warp(logits.masked_fill(absent, -torch.inf)).tolist()
        return self._laws[prefix]

    def joint(self, limit: int, eos: int | None = None) -> dict[tuple[int, ...], float]:
        """The law of whole outputs: `limit` tokens, or fewer when `eos` ends them."""
        law = {(): 1.0}
        for _ in range(limit):
            longer: dict[tuple[int, ...], float] = {}
            for prefix, probability in law.items():
                if prefix and prefix[-1] == eos:
                    longer[prefix] = probability
                    continue
                for token, p in enumerate(self(prefix)):
                    if p > 0:
                        longer[(*prefix, token)] = probability * p
            law = longer
        return law

    def greedy(self, limit: int) -> tuple[int, ...]:
        """Plain greedy decoding."""
        out: tuple[int, ...] = ()
        for _ in range(limit):
            probs = self(out)
            out = (*out, probs.index(max(probs)))
        return out


def paths_to(nodes: list[int], parents: list[int] | None) -> list[tuple[int, ...]]:
    """The tokens drafted up to the root and up to every node."""
    paths: list[tuple[int, ...]] = [()]
    for n, token in enumerate(nodes):
        paths.append((*paths[n if parents is None else parents[n] + 1], token))
    return paths


class TableTarget:
    """A table as the engine's target, for chains and trees."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def start(self, rows: int) -> None:
        pass

    def score(self, context: Context, draft: Draft) -> Scores:
        laws = []
        for tokens, base, last, nodes in zip(
            context.tokens.tolist(),
            context.base,
            context.last[:, 0].tolist(),
            draft.tokens.tolist(),
            strict=True,
        ):
            parents = draft.parents[len(laws)].tolist() if draft.parents is not None else None
            paths = paths_to(nodes, parents)
            root = (*tokens[: base - 1], last) if base else ()
            laws.append([self.table((*root, *path)) for path in paths])
        return Scores(torch.tensor(laws, dtype=torch.float64))

    def commit(self, context, draft, verdict) -> None:
        pass


class TableModel:
    """A table as a draft model. Its cache is the list of tokens that it was really shown."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def start(self, rows: int) -> None:
        self.seen: list[list[int]] = [[] for _ in range(rows)]  # from position -1 on

    def extend(self, tokens: torch.Tensor, start: list[int], draft=None) -> torch.Tensor:
        if draft is not None:
            return self._tree(tokens, start, draft)
        laws = []
        for row, (new, first) in enumerate(zip(tokens.tolist(), start, strict=True)):
            assert -1 <= first <= len(self.seen[row]) - 1, "a gap in the cache"
            seen = self.seen[row] = self.seen[row][: first + 1] + new
            ends = range(first + 1, len(seen))
            laws.append([self.table(tuple(seen[1 : end + 1])) for end in ends])
        return torch.tensor(laws, dtype=torch.float64)

    def _tree(self, tokens: torch.Tensor, start: list[int], draft) -> torch.Tensor:
        laws = []
        for row, (root, *nodes) in enumerate(tokens.tolist()):
            seen = self.seen[row] = [*self.seen[row][: start[row] + 1], root]
            paths = paths_to(nodes, draft.parents[row].tolist())
            laws.append([self.table((*seen[1:], *path)) for path in paths])
        return torch.tensor(laws, dtype=torch.float64)


class FixedDrafter:
    """Drafts the same tokens and law in every round; for one-round tests."""

    def __init__(self, tokens: list[int], law) -> None:
        self.tokens, self.law = tokens, law

    def start(self, context: Context) -> None:
        pass

    def propose(self, context: Context, budget: list[int], coins) -> Draft:
        tokens = torch.tensor(self.tokens).expand(context.rows, -1)
        return Draft(tokens, torch.tensor(budget), self.law)

    def observe(self, context, draft, scores, verdict) -> None:
        pass


def drafters(vocab: int, model: Table) -> dict:
    """A maker of every shipped drafter of chains."""
    return {
        "null": NullDrafter,
        "model": lambda: ModelDrafter(TableModel(model)),
        "jacobi-uniform": lambda: JacobiDrafter(vocab, "uniform"),
        "jacobi-previous": lambda: JacobiDrafter(vocab, "previous"),
        "coupled": lambda: CoupledJacobiDrafter(vocab),
        "jacobi-above": lambda: JacobiDrafter(vocab, "above", 2),
        "lookup": lambda: PromptLookupDrafter(2),
    }


def outputs(context: Context) -> list[tuple[int, ...]]:
    """What every row has emitted."""
    rows = zip(context.tokens.tolist(), context.base, strict=True)
    return [tuple(tokens[:base]) for tokens, base in rows]


def context_at(prefix: tuple[int, ...], rows: int, limit: int) -> Context:
    """A context in which every row has emitted `prefix`."""
    context = Context.empty(rows, limit)
    context.tokens[:, : len(prefix)] = torch.tensor(prefix, dtype=torch.long)
    context.lengths += len(prefix)
    context.base = [len(prefix)] * rows
    if prefix:
        context.last += prefix[-1]
    return context


def distance(law: dict, other: dict) -> float:
    """Total variation of two laws, which need not have the same mass."""
    return sum(abs(law.get(x, 0.0) - other.get(x, 0.0)) for x in law.keys() | other.keys()) / 2


def one_round(prefix, limit, target, drafter, rule, gamma, eos=None, advance=advance) -> dict:
    """The enumerated law of the output after one shipped round behind `prefix`."""

    def shipped(coins, rows):
        context = context_at(prefix, rows, limit)
        target.start(rows)
        drafter.start(context)
        proposal, verification = coins.round(0)
        budget = [max(0, min(gamma, room - 1)) for room in context.room()]
        draft = drafter.propose(context, budget, proposal)
        scores = target.score(context, draft)
        verdict = rule.verify(draft, scores, verification)
        advance(context, draft, scores, verdict, eos)
        return outputs(context)

    return enumerate_law(shipped)


def composed(limit, target, drafter, rule, gamma, eos=None, advance=advance) -> dict:
    """One-round laws composed over prefixes to the law of whole outputs."""
    done: dict[tuple[int, ...], float] = {}
    by_length: list[dict[tuple[int, ...], float]] = [{} for _ in range(limit)]
    by_length[0][()] = 1.0
    for length in range(limit):
        for prefix, probability in by_length[length].items():
            step = one_round(prefix, limit, target, drafter, rule, gamma, eos, advance)
            for out, p in step.items():
                ended = len(out) >= limit or out[-1] == eos
                law = done if ended else by_length[len(out)]
                law[out] = law.get(out, 0.0) + probability * p
    return done


def whole_loop(limit, target, drafter=None, rule=None, length=None, eos=None, at_once=64) -> dict:
    """The enumerated law of `loop.run` for a row.

    Rows of a run emit as many tokens as each other in every round: where they part they go on in
    other runs. Else a row's filling would toss, too, as its neighbours need it.

    Args:
        target: one of any number of rows; or, without `drafter`, makes target and drafter of a run
            of so many rows.
        drafter: makes a new one for every run.
        at_once: most rows of a run; 1 where target or drafter hold the prompt of one.
    """
    law: dict[tuple[int, ...], float] = {}
    waiting = {(): [()]}  # scripts by what their rows emit in the rounds that are known
    while waiting:
        steps, scripts = waiting.popitem()
        if scripts[at_once:]:
            waiting[steps] = scripts[at_once:]
        coins = EnumeratingCoins(scripts[:at_once])
        told: list[tuple] = [()] * len(coins.probability)

        def parted(context, coins=coins, told=told):
            if coins.pending:
                waiting.setdefault(told[0], []).extend(coins.pending)
                coins.pending.clear()
            for row, emitted in enumerate(zip(context.emitted, context.finished, strict=True)):
                told[row] += (emitted,)
            return len(set(told)) > 1

        both = (target, drafter()) if drafter else target(len(told))
        engine = Engine(*both, rule or TokenRule(), length or ConstantLength(2), coins, eos)
        context = run(engine, len(told), limit, SpecStats(), parted)
        assert coins.followed()
        for row, output in enumerate(outputs(context)):
            if len(set(told)) > 1:
                waiting.setdefault(told[row], []).append(coins.taken(row))
            else:
                law[output] = law.get(output, 0.0) + coins.probability[row]
    return law


def one_hot(token: int, vocab: int) -> list[float]:
    return [float(v == token) for v in range(vocab)]


def categorical(laws: list[list[float]], vocab: int, rows: int = 1) -> Categorical:
    """Node laws `[rows, N, V]` from plain lists."""
    probs = torch.tensor(laws, dtype=torch.float64).view(1, len(laws), vocab)
    return Categorical(probs.expand(rows, -1, -1))


class GridCoins(ProductionCoins):
    """The shipped coins, but every purpose's number runs over a grid of [0, 1): one row a point.

    With laws that are multiples of the grid's step, counting rows gives the exact law.

    Args:
        step: points per purpose.
        shared: one stream for proposals and verification, the hazard.
    """

    def __init__(self, step: int, shared: bool = False) -> None:
        points = itertools.product(range(step), repeat=3)
        self.points = torch.tensor(list(points), dtype=torch.float64) / step
        self.column = {PROPOSE: 0, ACCEPT: 0 if shared else 1, RECOVER: 2}

    @property
    def rows(self) -> int:
        return len(self.points)

    def uniform(self, number, purpose, start, count):
        assert count == 1, "one node a row"
        return self.points[:, self.column[purpose], None]


# --- random chains and the law of one verdict -----------------------------------------------------


@st.composite
def probs(draw, vocab: int) -> list[float]:
    """A law, often with zeros or all on one token."""
    weights = draw(st.lists(st.integers(0, 6), min_size=vocab, max_size=vocab).filter(any))
    scale = draw(st.lists(st.floats(0.1, 1.0), min_size=vocab, max_size=vocab))
    mixed = [w * s for w, s in zip(weights, scale, strict=True)]
    return [w / sum(mixed) for w in mixed]


@st.composite
def chains(draw):
    """(vocab, drafted, p, q): q may equal p, overlap nowhere, or be one-hot."""
    vocab, nodes = draw(st.integers(3, 5)), draw(st.integers(0, 3))
    p = [draw(probs(vocab)) for _ in range(nodes + 1)]
    q, drafted = [], []
    for n in range(nodes):
        kind = draw(st.sampled_from(["any", "any", "equal", "one-hot"]))
        if kind == "one-hot":
            q.append(one_hot(draw(st.integers(0, vocab - 1)), vocab))
        else:
            q.append(p[n] if kind == "equal" else draw(probs(vocab)))
        drafted.append(draw(st.sampled_from([x for x in range(vocab) if q[n][x] > 0])))
    return vocab, drafted, p, q


def rule_law(drafted, p, law, rule, filling=0) -> dict:
    """The enumerated law of what one verdict emits; `filling` nodes follow the real ones."""

    def verify(coins, rows):
        nodes = torch.tensor([*drafted, *[0] * filling]).long().expand(rows, -1)
        draft = Draft(nodes, torch.full((rows,), len(drafted)), law)
        laws = torch.tensor(p + p[-1:] * filling, dtype=torch.float64).expand(rows, -1, -1)
        if isinstance(law, Categorical):
            draft.law = Categorical(law.probs.expand(rows, -1, -1))
        verdict = rule.verify(draft, Scores(laws), coins.round(0)[1])
        assert torch.equal(verdict.counts, verdict.accepted + 1)
        return [
            tuple(tokens[:count])
            for tokens, count in zip(verdict.emitted.tolist(), verdict.counts.tolist(), strict=True)
        ]

    return enumerate_law(verify)


def close(law: dict, other: dict) -> bool:
    return all(abs(law.get(x, 0) - other.get(x, 0)) < EXACT for x in law.keys() | other.keys())
