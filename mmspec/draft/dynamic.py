"""A smaller model drafts a tree that grows where it is confident (EAGLE-2, Li et al. 2024)."""

from __future__ import annotations

import torch
from torch import Tensor

from ..config import Siblings
from ..engine.accept.chain import pick
from ..engine.coins import RoundCoins
from ..engine.types import Context, Draft, OneHot, Scores, Verdict
from .model import TokenModel, root_laws
from .siblings import draw_siblings, law_of_siblings


class DynamicTreeDrafter:
    """Level by level, only the likeliest nodes get children.

    A node's likelihood is the product of the draft model's probabilities from the root down. With
    "top" siblings, which owe nothing to chance, the likeliest `nodes` of the whole tree are kept in
    the end; they hang together, for no node is likelier than its parent. Drawn siblings all stay:
    to drop one because of its own probability would bias the output. Whether it has children is
    free to choose.

    Args:
        model: the draft model; its cache holds committed tokens, the tree is read anew per level.
        depth: levels.
        width: children of a node.
        beam: nodes of a level that get children.
        nodes: most nodes of a tree of "top" siblings.
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
        likely = above.new_zeros(context.rows, 1)  # [B, F], log
        tokens = parents = context.tokens[:, :0]
        values, levels = above.new_zeros(context.rows, 0), []
        laws: list[Tensor] = []
        for level in range(1, depth + 1):
            first = tokens.shape[1]
            chosen = draw_siblings(above, self.width, self.siblings, coins, first)  # [B, F, K]
            value = (likely[..., None] + above.gather(2, chosen).log()).flatten(1)
            laws.append(above.repeat_interleave(self.width, 1))
            tokens = torch.cat([tokens, chosen.flatten(1)], dim=1)
            parents = torch.cat([parents, frontier.repeat_interleave(self.width, 1)], dim=1)
            values = torch.cat([values, value], dim=1)
            levels += [level] * value.shape[1]
            if level < depth:
                best = value.topk(min(self.beam, value.shape[1]), dim=1)
                frontier, likely = first + best.indices, best.values
                tree = Draft(
                    tokens,
                    torch.full_like(context.lengths, tokens.shape[1]),
                    OneHot(),
                    parents,
                    bounds=(level, self.width),
                )
                root = [b - 1 for b in context.base]
                scored = self.model.extend(torch.cat([context.last, tokens], 1), root, tree)
                above = pick(scored, frontier + 1)
        level_of = torch.tensor(levels, device=device).expand(context.rows, -1)
        probs = torch.cat(laws, 1)
        faulty = probs.sum((1, 2)).isnan()
        most = torch.tensor(budget, device=device)[:, None]
        if self.siblings == "top" and tokens.shape[1] > self.nodes:
            values = torch.where(level_of <= most, values, -torch.inf)  # too deep for this row
            tokens, parents, level_of = self._best(values, tokens, parents, level_of)
        real = level_of <= most
        law = law_of_siblings(probs, self.siblings)
        return Draft(tokens, real.sum(1), law, parents, bounds=(depth, self.width), faulty=faulty)

    def _best(
        self, values: Tensor, tokens: Tensor, parents: Tensor, level_of: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The likeliest nodes in their old order; of equals the one nearer to the root."""
        order = values.argsort(dim=1, descending=True, stable=True)[:, : self.nodes]
        kept = order.sort(dim=1).values
        place = torch.full_like(parents, -1).scatter_(
            1, kept, torch.arange(self.nodes, device=kept.device).expand_as(kept)
        )
        above = parents.gather(1, kept)
        parents = torch.where(above < 0, -1, place.gather(1, above.clamp_min(0)))
        return tokens.gather(1, kept), parents, level_of.gather(1, kept)

    def observe(self, context: Context, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        # the tree's own entries stand behind the last token that was committed before it
        self._known = [min(k, b - 1) for k, b in zip(self._known, context.base, strict=True)]
