"""A smaller model drafts a tree that grows where it is confident (EAGLE-2, Li et al. 2024; DySpec,
Xiong et al. 2024)."""

from __future__ import annotations

import torch
from torch import Tensor

from ...engine.accept.chain import pick
from ...engine.coins import RoundCoins
from ...engine.draft import Context, Draft, Scores, Verdict
from ...engine.laws import OneHot
from ...methods.parts.shared import Siblings
from ..draft_model import TokenModel, root_laws
from ..sound_laws import mended
from .shape import renumbered
from .siblings import draw_siblings, law_of_siblings, outlook


class DynamicTreeDrafter:
    """Level by level, only the likeliest nodes get children.

    A node's likelihood is the product of the draft model's probabilities from the root down. Its
    value is the same with `outlook` in place of its own probability, for to drop a drawn node
    because of what was drawn would bias the output. ("top" siblings owe nothing to chance: there
    the two are one.) The `nodes` of the largest value are kept in the end, the largest first, of
    equals the one drawn first.

    That is exact. No child or younger sibling has a larger value than a node, so however many nodes
    are taken they hang together, elder siblings first, as if the place of the largest value were
    always filled next and `nodes` times in all. Whether a node has children does depend on its own
    token and on those of its level, but on none that is still to be drawn then: their likelihood is
    at most their value, and that is less than the likelihood of the node whose child comes next.

    Args:
        model: the draft model; its cache holds committed tokens. It reads the nodes that get
            children and no others, in a tree of their own, anew per level.
        depth: levels.
        width: children of a node.
        beam: nodes of a level that get children.
        nodes: most nodes of a tree.
        siblings: see `draw_siblings`.
    """

    def __init__(
        self,
        model: TokenModel,
        depth: int = 5,
        width: int = 4,
        beam: int = 4,
        nodes: int = 32,
        siblings: Siblings = "top",
    ) -> None:
        self.model, self.siblings = model, siblings
        self.depth, self.width, self.beam, self.nodes = depth, width, beam, nodes
        self._known: list[int] = []

    def start(self, context: Context) -> None:
        self.model.start(context.rows)
        self._known = [-1] * context.rows

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        depth, device = min(self.depth, max(budget)), context.tokens.device
        if not depth:
            return Draft(context.tokens[:, :0], torch.tensor(budget, device=device), OneHot())
        above = root_laws(self.model, context, self._known)  # [B, F, V]: of those with children
        self._known = list(context.base)
        frontier = torch.full_like(context.last, -1)  # [B, F]
        read = _Read(context)
        likely = above.new_zeros(context.rows, 1)  # [B, F], log
        tokens = parents = context.tokens[:, :0]
        values, levels = above.new_zeros(context.rows, 0), []
        laws: list[Tensor] = []
        good: list[Tensor] = []
        for level in range(1, depth + 1):
            first = tokens.shape[1]
            above, are_laws = mended(above)  # whose value is NaN would come first
            good.append(are_laws)
            chosen = draw_siblings(above, self.width, self.siblings, coins, first)  # [B, F, K]
            q = above.gather(2, chosen)
            value = likely[..., None] + outlook(q, self.siblings).log()
            own = likely[..., None] + q.log()
            # what repeats an elder sibling, or rounding, would make it likelier than its place
            own = torch.minimum(own, value).flatten(1)
            laws.append(above.repeat_interleave(self.width, 1))
            tokens = torch.cat([tokens, chosen.flatten(1)], dim=1)
            parents = torch.cat([parents, frontier.repeat_interleave(self.width, 1)], dim=1)
            values = torch.cat([values, value.flatten(1)], dim=1)
            levels += [level] * own.shape[1]
            if level < depth:
                best = _largest(own, self.beam)
                frontier, likely = first + best, own.gather(1, best)
                above = read.level(
                    self.model, chosen.flatten(1).gather(1, best), best // self.width
                )
        level_of = torch.tensor(levels, device=device).expand(context.rows, -1)
        probs = torch.cat(laws, 1)
        most = torch.tensor(budget, device=device)[:, None]
        values = torch.where(level_of <= most, values, -torch.inf)  # too deep for this row
        kept = _largest(values, self.nodes)
        return Draft(
            tokens.gather(1, kept),
            (level_of.gather(1, kept) <= most).sum(1),
            law_of_siblings(pick(probs, kept), self.siblings),
            renumbered(parents, kept),
            bounds=(depth, self.width),
            faulty=~torch.cat(good, 1).all(1) & (most[:, 0] > 0),
        )

    def observe(self, context: Context, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        # the tree's own entries stand behind the last token that was committed before it
        self._known = [min(k, b - 1) for k, b in zip(self._known, context.base, strict=True)]


class _Read:
    """The tree that the draft model reads: levels of nodes that get children."""

    def __init__(self, context: Context) -> None:
        self.context, self.levels = context, 0
        self.tokens = self.parents = context.tokens[:, :0]
        self._ends = (-1, 0)  # where the last level begins and ends; at first it is the root

    def level(self, model: TokenModel, tokens: Tensor, above: Tensor) -> Tensor:
        """Laws `[B, F', V]` behind the nodes of a new level.

        Args:
            model: reads them.
            tokens: `[B, F']`.
            above: their parents `[B, F']`, as places in the last level.
        """
        context = self.context
        begin, end = self._ends
        self.tokens = torch.cat([self.tokens, tokens], dim=1)
        self.parents = torch.cat([self.parents, above + begin], dim=1)
        self.levels += 1
        self._ends = end, self.tokens.shape[1]
        tree = Draft(
            self.tokens,
            torch.full_like(context.lengths, self.tokens.shape[1]),
            OneHot(),
            self.parents,
            bounds=(self.levels, tokens.shape[1]),
        )
        root = [b - 1 for b in context.base]
        laws = model.extend(torch.cat([context.last, self.tokens], dim=1), root, tree)
        return laws[:, 1 + end :]


def _largest(values: Tensor, most: int) -> Tensor:
    """Where the `most` largest of `values [B, N]` stand, the largest first, of equals the first.

    Not `topk`: which of several equals it takes may depend on all the others.
    """
    return values.argsort(dim=1, descending=True, stable=True)[:, :most]
