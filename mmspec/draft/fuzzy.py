"""A draft model that drafts with groups of layers side by side (EasySpec, Wu et al. 2025).

The law of a drafted token is that of the fuzzy network, so that the output is exact; what its keys
and values miss of the network's own would add up, and so none of them outlives a round.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from torch import Tensor

from ..engine.coins import RoundCoins
from ..engine.draft import Context, Draft
from ..models.token_model import TokenModel
from .draft_model import ModelDrafter


class FuzzyDrafter(ModelDrafter):
    """Drafts with fuzzy layers, behind entries of a cache that are the draft model's own.

    A round begins with a call of the draft model as it is, over all tokens that the verdict let
    through and the one that the target added: it makes their entries anew and says the first token.
    The others are the fuzzy network's, one call each.

    Args:
        model: the draft model.
        fuzzy: given a number of layers, surrounds calls in which groups of so many are fuzzy.
        fuzzy_layers: layers of a group.
        more, greedy: see `ModelDrafter`.

    Raises:
        InputError: the draft model has layers that can't be fuzzy.
    """

    def __init__(
        self,
        model: TokenModel,
        fuzzy: Callable[[int], AbstractContextManager[None]],
        fuzzy_layers: int = 4,
        more: Callable[[Tensor], Tensor] | None = None,
        greedy: bool = False,
    ) -> None:
        super().__init__(model, more, greedy)
        self.fuzzy, self.size = fuzzy, fuzzy_layers
        with fuzzy(fuzzy_layers):
            pass

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        draft = super().propose(context, budget, coins)
        if draft.nodes:
            self._reached = list(context.base)  # entries behind are fuzzy
        return draft

    def _next_laws(self, tokens: Tensor, start: list[int]) -> Tensor:
        with self.fuzzy(self.size):
            return super()._next_laws(tokens, start)
