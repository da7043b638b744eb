"""Several tokens a call: chains drafted block by block."""

from __future__ import annotations

from typing import Literal, Protocol

import torch
from torch import Tensor

from ...engine.coins import RoundCoins
from ...engine.draft import Context, Draft
from ...engine.laws import Categorical, OneHot
from ...engine.protocols import Drafter
from ..sound_laws import faults, mended


class BlockModel(Protocol):
    """A draft model whose calls say the laws of several tokens at once."""

    def start(self, rows: int) -> None:
        """Take in the condition; every token is still to come."""

    def seat(self, context: Context, rows: list[int]) -> None:
        """Take in the conditions of the samples that begin in these rows."""

    def block(self, context: Context, drafted: Tensor) -> Tensor:
        """Laws `[B, K, V]` of the next K tokens behind the committed ones and `drafted [B, n]`.

        None of them depends on what the others in the block turn out to be. `drafted` are the
        blocks of this round so far, whole ones.
        """


class BlockDrafter(Drafter):
    """Drafts blocks until they reach as far as a row may; the last one is cut.

    Args:
        model: the draft model.
        how: tokens are "drawn" from their laws, or the "top" ones, without chance.
    """

    def __init__(self, model: BlockModel, how: Literal["drawn", "top"] = "drawn") -> None:
        self.model, self.how = model, how

    def start(self, context: Context) -> None:
        self.model.start(context.rows)

    def seat(self, context: Context, rows: list[int]) -> None:
        self.model.seat(context, rows)

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        depth = max(budget)
        lengths = torch.tensor(budget, device=context.tokens.device)
        tokens, laws, good = context.tokens[:, :0], [], []
        while tokens.shape[1] < depth:
            law, are_laws = mended(self.model.block(context, tokens))
            new = law.argmax(-1) if self.how == "top" else coins.draw(law, tokens.shape[1])
            tokens = torch.cat([tokens, new], dim=1)
            laws.append(law)
            good.append(are_laws)
        if not depth:
            return Draft(tokens, lengths, OneHot())
        top = self.how == "top"
        law_of_nodes = OneHot() if top else Categorical(torch.cat(laws, 1)[:, :depth])
        draft = Draft(tokens[:, :depth], lengths, law_of_nodes)
        draft.faulty = faults(torch.cat(good, 1)[:, :depth], draft)
        return draft
