"""A smaller model drafts a tree that grows where it is confident (EAGLE-2, Li et al. 2024; DySpec,
Xiong et al. 2024)."""

from __future__ import annotations

import torch
from torch import Tensor

from ...engine.accept.chain import pick
from ...engine.coins import RoundCoins
from ...engine.draft import Context, Draft
from ...engine.laws import OneHot
from ...methods.parts.shared import Siblings
from ...models.token_model import TokenModel
from ..draft_model import TreeModelDrafter
from ..sound_laws import mended
from .shape import renumbered
from .siblings import draw_siblings, law_of_siblings, outlook


class DynamicTreeDrafter(TreeModelDrafter):
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
        super().__init__(model)
        self.siblings = siblings
        self.depth, self.width, self.beam, self.nodes = depth, width, beam, nodes

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        depth, device = min(self.depth, max(budget)), context.tokens.device
        if not depth:
            return Draft(context.tokens[:, :0], torch.tensor(budget, device=device), OneHot())
        above = self.root_laws(context)  # [B, F, V]: of those with children
        frontier = torch.full_like(context.last, -1)  # [B, F]
        read = read_parents = context.tokens[:, :0]  # nodes that get children: the model's tree
        offset = -1  # where the last level of that begins; at first it is the root
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
                read_parents = torch.cat([read_parents, best // self.width + offset], dim=1)
                offset = read.shape[1]
                read = torch.cat([read, chosen.flatten(1).gather(1, best)], dim=1)
                real = torch.full_like(context.lengths, read.shape[1])
                tree = Draft(read, real, OneHot(), read_parents, bounds=(level, best.shape[1]))
                inputs, root = torch.cat([context.last, read], dim=1), [b - 1 for b in context.base]
                above = self.model.extend(inputs, root, tree)[:, 1 + offset :]
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


def _largest(values: Tensor, most: int) -> Tensor:
    """Places of the `most` largest of `values [B, N]`, the largest first, of equals the first.

    Not `topk`: which of several equals it takes may depend on all the others.
    """
    return values.argsort(dim=1, descending=True, stable=True)[:, :most]
