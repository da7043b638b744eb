"""Drafters of heads, held against an oracle that has no cache."""

from __future__ import annotations

import itertools
from collections import Counter

from mmspec.draft.draft_model import ModelDrafter
from mmspec.draft.feature.block import BlockDrafter
from mmspec.draft.tree.dynamic_tree import DynamicTreeDrafter
from mmspec.draft.tree.fixed_tree import TreeDrafter
from mmspec.engine.accept.recursive import RecursiveRule
from mmspec.engine.accept.token import TokenRule


def inner(kind: str, model):
    """The drafter of a kind, and the rule that judges its drafts."""
    if kind == "chain":
        return ModelDrafter(model), TokenRule()
    if kind == "block":
        return BlockDrafter(model), TokenRule()
    if kind == "top-block":
        return BlockDrafter(model, "top"), TokenRule()
    if kind == "tree":
        return TreeDrafter(model, (2, 2, 1)), RecursiveRule()
    return DynamicTreeDrafter(model, 3, 3, 2, 8, kind), RecursiveRule()


class Watched:
    """Holds every draft of a drafter against `oracle.law(row, committed, path)`."""

    def __init__(self, drafter, oracle) -> None:
        self.drafter, self.oracle = drafter, oracle
        self.worst, self.behind = 0.0, Counter()

    def start(self, context) -> None:
        self.drafter.start(context)

    def propose(self, context, budget, coins):
        draft = self.drafter.propose(context, budget, coins)
        for row, length in enumerate(draft.lengths.tolist()):
            committed = context.tokens[row, : context.base[row]].tolist()
            parents = None if draft.parents is None else draft.parents[row].tolist()
            for node in range(length):
                above, path = node - 1 if parents is None else parents[node], []
                while above >= 0:
                    path.insert(0, int(draft.tokens[row, above]))
                    above = above - 1 if parents is None else parents[above]
                law = self.oracle.law(row, committed, path)
                self.worst = max(self.worst, float((draft.law.probs[row, node] - law).abs().max()))
                self.behind[len(path)] += 1
        return draft

    def observe(self, context, draft, scores, verdict) -> None:
        self.drafter.observe(context, draft, scores, verdict)


def joint(limit: int, vocab: int, law_behind) -> dict[tuple[int, ...], float]:
    """A target's own law of whole outputs, of what it says behind a text: a law `[V]`."""
    law = {(): 1.0}
    for length in range(limit):
        longer = {}
        for text in itertools.product(range(vocab), repeat=length):
            probs = law_behind(list(text)).tolist()
            longer |= {(*text, x): law[text] * p for x, p in enumerate(probs)}
        law = longer
    return law
