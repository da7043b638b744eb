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
from ..sound_laws import mended, sound
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
        tokens, parents, values = list[Tensor](), list[Tensor](), list[Tensor]()
        laws, are_laws = list[Tensor](), list[Tensor]()
        levels: list[int] = []
        drawn = self.siblings != "top"
        root = [b - 1 for b in context.base]
        for level in range(1, depth + 1):
            first = len(levels)
            if drawn:
                above, known = mended(above)  # whose value is NaN would come first
                are_laws.append(known)
            laws.append(above)
            chosen = draw_siblings(above, self.width, self.siblings, coins, first)  # [B, F, K]
            q = above.gather(2, chosen)
            if drawn:
                own = (likely[..., None] + q.log()).flatten(1)
                value = (likely[..., None] + outlook(q, self.siblings).log()).flatten(1)
                # what repeats an elder sibling, or rounding, would make it likelier than its place
                own = torch.minimum(own, value)
            else:  # chosen by what is no law they may stand anywhere: last
                own = (likely[..., None] + q.clamp(0, 1).log()).flatten(1)
                own = value = own.nan_to_num(-torch.inf, neginf=-torch.inf)
            tokens.append(chosen.flatten(1))
            parents.append(frontier.repeat_interleave(self.width, 1))
            values.append(value)
            levels += [level] * own.shape[1]
            if level < depth:
                best = _largest(own, self.beam)
                frontier, likely = first + best, own.gather(1, best)
                above_best = best // self.width + offset
                read_parents = torch.cat([read_parents, above_best], dim=1)
                offset = read.shape[1]
                read = torch.cat([read, tokens[-1].gather(1, best)], dim=1)
                real = torch.full_like(context.lengths, read.shape[1])
                tree = Draft(read, real, OneHot(), read_parents, bounds=(level, best.shape[1]))
                inputs = torch.cat([context.last, read], dim=1)
                above = self.model.extend(inputs, root, tree)[:, 1 + offset :]
        found, most = torch.cat(values, 1), torch.tensor(budget, device=device)
        real = torch.full_like(context.lengths, min(self.nodes, found.shape[1]))
        if min(budget) < depth:  # the others are too deep for this row
            below = torch.tensor(levels, device=device) > most[:, None]
            found = found.masked_fill(below, -torch.inf)
            real = torch.minimum(real, (~below).sum(1))
        kept = _largest(found, self.nodes)
        whole = torch.cat(laws, 1)
        good = torch.cat(are_laws, 1) if drawn else sound(whole)
        # of a node's parent, which has as many children as all others
        probs = pick(whole, kept // self.width) if drawn else whole
        kept_tokens = torch.cat(tokens, 1).gather(1, kept)
        kept_parents = renumbered(torch.cat(parents, 1), kept)
        return Draft(
            kept_tokens,
            real,
            law_of_siblings(probs, self.siblings),
            kept_parents,
            bounds=(depth, self.width),
            faulty=~good.all(1) & (most > 0),
            # beside laws, whose width tells that these ids exist
            checked=(kept_tokens, kept_parents) if drawn else (kept_parents,),
        )


def _largest(values: Tensor, most: int) -> Tensor:
    """Places of the `most` largest of `values [B, N]`, the largest first, of equals the first.

    Not `topk`: which of several equals it takes may depend on all the others.
    """
    return values.argsort(dim=1, descending=True, stable=True)[:, :most]
