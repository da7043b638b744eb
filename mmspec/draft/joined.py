"""Runs of draft tokens are joined to the one of the target's that they spell (OmniDraft).

Ramakrishnan et al. 2025. A draft model of other words draws its own tokens. Where a run of them is
known to spell one token of the target's, that token is drafted in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor

from ..engine.coins import RoundCoins
from ..engine.draft import Context, Draft, Scores, Verdict
from ..engine.laws import Categorical
from ..models.token_model import TokenModel
from .draft_model import ModelDrafter
from .runs import LivingRuns, Run, RunCache
from .translated import TranslatedModel

Node = tuple[int, Tensor, int]  # token, its law [V], and draft tokens in it


class JoinedDrafter(ModelDrafter):
    """Drafts as `ModelDrafter`, and joins the runs among what was drawn.

    The draft stays exact. Let draft tokens be drawn one by one, the newest by a law q. It may go on
    with runs, begin some, or neither, and which of these is part of the drafter's own chance:

    - A token that does neither is a node. Its law is q less all tokens that would have gone on with
      a run or begun one. (As the paper reads, its law is q. But one that follows an "a" of the run
      "ab" by itself is known not to be "b".)
    - Behind the beginning of a run, a node is the token that the run makes with the newest one, or
      else what the run began with. The law of this choice follows from q, given that beginning.
      (As the paper reads, all other tokens keep their shares. But those with which runs begin
      would have lost some, had they been drawn, and how much is not known.)
    - What is left of a beginning, or stands at the end of a draft, is chosen.

    Args:
        model: the draft model; of the target's words it has no runs, and drafts as it is.
        runs: tells them, and keeps those of earlier texts; None: the model has the target's words.
        run_cache: runs that are known at a time; those of tokens seen last. 0: nothing is joined.
        table_lives: begin with the runs of earlier texts, too.
        prompt: tokens `[N, P]` in front of every sample's output, -1 where there is none; None:
            unknown.
        more, greedy: see `ModelDrafter`.
    """

    def __init__(
        self,
        model: TokenModel,
        runs: LivingRuns | None = None,
        run_cache: int = 4096,
        table_lives: bool = False,
        prompt: Tensor | None = None,
        more: Callable[[Tensor], Tensor] | None = None,
        greedy: bool = False,
    ) -> None:
        super().__init__(model, more, greedy)
        self.runs = runs if run_cache else None
        self.run_cache, self.table_lives, self.prompt = run_cache, table_lives, prompt
        self.caches: list[RunCache] = []  # by row, if anything is joined
        self._seen: list[int] = []  # tokens of the output that were looked at, by row
        self._first: list[int] = []  # by row, where the last draft began
        self._widths: list[list[int]] = []  # draft tokens in its nodes

    def start(self, context: Context) -> None:
        super().start(context)
        self._first, self._widths = self._known, []
        if self.runs is not None:
            self.runs.begin(self.run_cache if self.table_lives else 0)
            self.caches = [RunCache(0)] * context.rows
            self._seen = [0] * context.rows
            self._read_prompts(context, [*range(context.rows)], self.runs)

    def seat(self, context: Context, rows: list[int]) -> None:
        super().seat(context, rows)  # in what is known, which `_first` and `_reached` are, too
        if self.runs is not None:
            self._read_prompts(context, rows, self.runs)

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        drawn = super().propose(context, budget, coins)
        if not drawn.nodes or not any(cache.runs for cache in self.caches):
            self._widths = [[1] * drawn.nodes for _ in budget]
        else:
            drawn = self._joined(drawn, budget)
        self._first = list(context.base) if drawn.nodes else list(self._known)
        return drawn

    def observe(self, context: Context, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        for row, accepted in enumerate(context.accepted):
            reached = self._first[row]
            read = self._reached[row] - reached  # draft tokens of the draft in the model's cache
            for width in (self._widths[row] if self._widths else ())[:accepted]:
                read -= width
                if read < 0:
                    break
                if width > 1:
                    assert isinstance(self.model, TranslatedModel)
                    self.model.join(row, reached, width)
                reached += 1
            self._known[row] = min(context.base[row] - 1, reached)
        self._reached = self._first = self._known
        self._widths = []
        if self.runs is not None:
            self._see(context, self.runs)

    def _joined(self, drawn: Draft, budget: list[int]) -> Draft:
        """The draft of what was drawn."""
        assert isinstance(drawn.law, Categorical)
        told = zip(drawn.tokens.tolist(), drawn.lengths.tolist(), strict=True)
        made = [
            nodes_of(tokens[:length], drawn.law.probs[row], self.caches[row], budget[row])
            for row, (tokens, length) in enumerate(told)
        ]
        self._widths = [[width for *_, width in nodes] for nodes in made]
        most = max(1, *map(len, made))
        probs = drawn.law.probs.new_zeros(len(made), most, drawn.law.probs.shape[-1])
        probs[..., 0] = 1  # of filling
        tokens = drawn.tokens.new_zeros(len(made), most)
        for row, nodes in enumerate(made):
            for n, (token, law, _) in enumerate(nodes):
                tokens[row, n], probs[row, n] = token, law
        lengths = torch.tensor([len(nodes) for nodes in made], device=tokens.device)
        return Draft(tokens, lengths, Categorical(probs), faulty=drawn.faulty)

    def _read_prompts(self, context: Context, rows: list[int], runs: LivingRuns) -> None:
        """See the prompts of the samples that begin in these rows."""
        prompts: list[list[int]] = [[] for _ in range(context.rows)]
        if self.prompt is not None:
            prompts = context.of_samples(self.prompt).tolist()
        for row in rows:
            self.caches[row], self._seen[row] = runs.row(self.run_cache), 0
            for token in prompts[row]:
                if token >= 0:
                    self.caches[row].see(runs.run_of(token), token)

    def _see(self, context: Context, runs: LivingRuns) -> None:
        """See what was written since the last time."""
        first = min(self._seen)
        new = context.tokens[:, first : max(context.base)].tolist()
        for row, (known, end) in enumerate(zip(self._seen, context.base, strict=True)):
            for token in new[row][known - first : end - first]:
                self.caches[row].see(runs.run_of(token), token)
        self._seen = list(context.base)


def nodes_of(drawn: list[int], laws: Tensor, cache: RunCache, planned: int) -> list[Node]:
    """Nodes of a row's draft.

    Args:
        drawn: the row's draft tokens.
        laws: what each was drawn from, `[N, V]`.
        cache: the row's runs.
        planned: as many would be drawn if nothing stopped the row; the last begins no run.
    """
    nodes: list[Node] = []
    path: Run = ()  # what was drawn of a run
    for n, token in enumerate(drawn):
        law, begins = laws[n], n + 1 < planned
        if path and token not in cache.next(path):
            nodes += broken(path, choice(path, law, cache), cache)
            law, path = without(law, cache.next(path)), ()
        if path or (begins and token in cache.next(())):
            path = (*path, token)
            if not cache.next(path):
                nodes.append((cache.runs[path], choice(path[:-1], law, cache), len(path)))
                path = ()
        else:
            nodes.append((token, without(law, cache.next(())) if begins else law, 1))
    if path:
        nodes += broken(path, point(begun(path, cache)[0], laws[0]), cache)
    return nodes


def choice(path: Run, law: Tensor, cache: RunCache) -> Tensor:
    """The law `[V]` of the node that begins with `path`, if no longer run than one more can be.

    Args:
        path: what a run began with.
        law: of the draft token behind it, `[V]`.
        cache: runs; some go on behind the path.
    """
    further, made = [*cache.next(path)], torch.zeros_like(law)
    for token in further:
        run = *path, token
        if not cache.next(run):
            made[cache.runs[run]] += law[token]
    ends = law.index_fill(0, torch.tensor(further, device=law.device), 0).sum()
    made[begun(path, cache)[0]] += ends
    return made / made.sum()


def broken(path: Run, law: Tensor, cache: RunCache) -> list[Node]:
    """Nodes of a path behind which no run went on; `law [V]` is the first one's."""
    token, width = begun(path, cache)
    return [(token, law, width), *((later, point(later, law), 1) for later in path[width:])]


def begun(path: Run, cache: RunCache) -> tuple[int, int]:
    """The token at the beginning of a path, by its longest run, and draft tokens in it."""
    for end in range(len(path), 1, -1):
        if path[:end] in cache.runs:
            return cache.runs[path[:end]], end
    return path[0], 1


def without(law: Tensor, tokens: Collection[int]) -> Tensor:
    """A law `[V]` given that none of these tokens is drawn."""
    if not len(tokens):
        return law
    left = law.index_fill(0, torch.tensor([*tokens], device=law.device), 0)
    return left / left.sum()


def point(token: int, like: Tensor) -> Tensor:
    """The law `[V]` of a token that was chosen."""
    law = torch.zeros_like(like)
    law[token] = 1
    return law
