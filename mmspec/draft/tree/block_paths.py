"""DiffuSpec: a search takes whole paths through a block of laws (Li et al. 2025).

The laws that one call says for a block do not know of each other, so the likeliest tokens of its
places may not fit together. A search ranks paths by these laws and by the text's own trigrams.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor

from ...engine.coins import RoundCoins
from ...engine.draft import Context, Draft, Scores, Verdict
from ...engine.protocols import Drafter
from ..feature.block import BlockModel
from ..sound_laws import faults, mended
from .counted_texts import CountedTexts
from .shape import draft_of
from .trigrams import LivingTrigrams, Trigrams, pair

MOST = 15  # candidates of a place, as published
Place = Sequence[tuple[int, float]]  # tokens of a place and the logarithms of their shares


class BlockPathsDrafter(Drafter):
    """Drafts the best paths through a block as a tree.

    The tree follows from laws and text without chance, so its nodes are `OneHot`. (The paper judges
    the path by the laws of its tokens, as if they had been drawn, which changes sampled text.)

    Args:
        model: draft model; one block of it is drafted.
        vocab_size: V.
        beam: paths.
        weight: share of the block's own laws in a path's score; the rest is the trigrams'.
        mass: of a place's law, that its candidates have at least.
        eos: tokens behind which nothing comes.
        prompt: tokens `[N, P]` in front of every sample's output, -1 where there is none; None:
            unknown.
        table: trigrams that live on; None: those of the text alone.
    """

    def __init__(
        self,
        model: BlockModel,
        vocab_size: int,
        beam: int = 3,
        weight: float = 0.5,
        mass: float = 0.8,
        eos: Sequence[int] = (),
        prompt: Tensor | None = None,
        table: LivingTrigrams | None = None,
    ) -> None:
        self.model, self.vocab_size = model, vocab_size
        self.beam, self.weight, self.mass = beam, weight, mass
        self.eos = frozenset(eos)
        self.texts = CountedTexts(2, prompt, table)

    def start(self, context: Context) -> None:
        self.model.start(context.rows)
        self.texts.start(context)

    def seat(self, context: Context, rows: list[int]) -> None:
        self.model.seat(context, rows)
        self.texts.seat(context, rows)

    def observe(self, context: Context, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        self.texts.follow(context)

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        if not max(budget):
            return draft_of([[] for _ in budget], (0, 0), context)
        laws, good = mended(self.model.block(context, context.tokens[:, :0]))
        depth = min(max(budget), laws.shape[1])
        best = laws[:, :depth].topk(min(MOST, laws.shape[-1]))
        places = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        trees = [
            tree_of(self._paths(row, tokens, shares, min(budget[row], depth)))
            for row, (tokens, shares) in enumerate(places)
        ]
        draft = draft_of(trees, (depth, self.beam), context)
        at = draft.depths().clamp(0, depth - 1)
        draft.faulty = faults(good.gather(1, at), draft)
        return draft

    def _paths(
        self, row: int, tokens: list[list[int]], shares: list[list[float]], depth: int
    ) -> list[tuple[int, ...]]:
        counts, tail = self.texts.counts[row], self.texts.tail(row)

        def expected(path: Sequence[int]) -> Callable[[int], float]:
            text = [*tail, *path]
            return smoothed(counts, pair(text, len(text), 2), self.vocab_size)

        places = [candidates(*one, self.mass) for one in zip(tokens, shares, strict=True)]
        return best_paths(places[:depth], expected, self.beam, self.weight, self.eos)


def candidates(tokens: Sequence[int], shares: Sequence[float], mass: float) -> Place:
    """The likeliest tokens of a place, ranked already, that have a mass together.

    The last that is needed counts. Tokens that can't be are none.
    """
    found: list[tuple[int, float]] = []
    whole = 0.0
    for token, share in zip(tokens, shares, strict=True):
        if share <= 0 or (found and whole >= mass):
            break
        found.append((token, math.log(share)))
        whole += share
    return found


def smoothed(counts: Trigrams, key: tuple[int, int], vocab_size: int) -> Callable[[int], float]:
    """Logarithms of tokens' shares behind a pair, by Witten and Bell's smoothing with 1 / V."""
    found = counts.behind(key)
    kinds, whole = len(found), sum(found.values())

    def share(token: int) -> float:
        if not whole:
            return -math.log(vocab_size)
        return math.log((found.get(token, 0) + kinds / vocab_size) / (whole + kinds))

    return share


def best_paths(
    places: Sequence[Place],
    expected: Callable[[Sequence[int]], Callable[[int], float]],
    beam: int,
    weight: float,
    eos: frozenset[int],
) -> list[tuple[int, ...]]:
    """The best paths by a beam search, the best one first.

    Args:
        places: candidates of every place in turn.
        expected: of a path, the logarithm of a token's share behind it.
        beam: paths that are kept at every place.
        weight: of the candidates' own logarithms in a score, the mean over both.
        eos: tokens that end a path; one that has ended keeps its place among the others.
    """
    kept: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for place in places:
        longer: list[tuple[float, tuple[int, ...]]] = []
        for score, path in kept:
            if path and path[-1] in eos:
                longer.append((score, path))
                continue
            share = expected(path)
            for token, own in place:
                gain = weight * own + (1 - weight) * share(token)
                longer.append((score + gain, (*path, token)))
        kept = sorted(longer, key=lambda one: -one[0])[:beam] or kept
    return [path for _, path in kept if path]


def tree_of(paths: Sequence[tuple[int, ...]]) -> list[tuple[int, int]]:
    """Nodes of paths, each behind its parent, those of the first paths first; a prefix is one."""
    places: dict[tuple[int, ...], int] = {(): -1}
    nodes: list[tuple[int, int]] = []
    for path in paths:
        for end in range(1, len(path) + 1):
            if path[:end] not in places:
                places[path[:end]] = len(nodes)
                nodes.append((places[path[: end - 1]], path[end - 1]))
    return nodes
