"""Invalid laws of a drafter: found, and replaced before a token is drawn or chosen by them.

A NaN sorts first and is drawn as the last token, so what is picked by one depends on what was drawn
before it; and so does a whole row that is thrown away because of one. Either would bias the output.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..engine.accept.chain import pick
from ..engine.draft import Context, Draft
from ..engine.laws import Categorical, TargetError, WithoutReplacement
from .tree.shape import renumbered

_OFF = 1e-2  # how far from 1 a sum may be: laws in bfloat16 are


def sound(laws: Tensor) -> Tensor:
    """True for those of `laws [..., V]` that are laws `[...]`: nothing below 0, and a sum of 1."""
    return (laws.amin(-1) >= 0) & ((laws.sum(-1) - 1).abs() < _OFF)  # of a NaN neither is true


def check_target(laws: Tensor, places: Tensor) -> None:
    """Raise a `TargetError` if laws `[B, n, V]` of the target, at `places [B, n]`, are none.

    For drafters that draw with the target itself, and whom nobody judges.
    """
    wrong = laws[..., 0].isnan()  # such a law has no numbers at all
    if bool(wrong.any()):
        row, n = wrong.nonzero()[0].tolist()
        raise TargetError(
            f"the target's laws behind token {int(places[row, n])} of row {row} are no numbers"
        )


def mended(laws: Tensor) -> tuple[Tensor, Tensor]:
    """The laws `[..., V]`, even where they are none; and which of them are `sound` `[...]`.

    What is drawn from an even law is a draw like any other: the draft stays exact, only poorer.
    """
    good = sound(laws)
    return torch.where(good[..., None], laws, 1 / laws.shape[-1]), good


def faults(good: Tensor, draft: Draft) -> Tensor:
    """Rows `[B]` with a real node that is not `good [B, N]`."""
    return (~good & draft.live()).any(1)


def chain_of_laws(
    context: Context, tokens: list[Tensor], laws: list[Tensor], good: list[Tensor], lengths: Tensor
) -> Draft:
    """The chain of drawn `tokens`, with their `laws [B, V]` and whether these were `good`, `[B]`.

    Args:
        lengths: of the rows, `[B]`.
    """
    if not tokens:
        return Draft(context.tokens[:, :0], lengths, Categorical(torch.zeros(0)))
    draft = Draft(torch.stack(tokens, 1), lengths, Categorical(torch.stack(laws, 1)))
    draft.faulty = faults(torch.stack(good, 1), draft)
    return draft


def without_faults(draft: Draft, good: Tensor) -> Draft:
    """The draft less its nodes that are not `good [B, N]`, and less what follows them.

    So a node may owe its place to those that it follows, and to nothing else that chance has drawn.
    """
    if draft.parents is None:
        return replace(draft, lengths=torch.minimum(draft.lengths, good.cumprod(1).sum(1)))
    fallen = (draft.ancestors() & ~good[:, None]).any(-1)
    keep = draft.live() & ~fallen
    order = (~keep).long().argsort(dim=1, stable=True)  # the others become filling
    law = draft.law
    if isinstance(law, Categorical | WithoutReplacement):
        law = type(law)(pick(law.probs, order))
    parents = renumbered(draft.parents, order)
    live = torch.arange(draft.nodes, device=order.device) < keep.sum(1, keepdim=True)
    return replace(
        draft,
        tokens=draft.tokens.gather(1, order),
        lengths=keep.sum(1),
        law=law,
        parents=parents.where(live, -1),
        positions=None if draft.positions is None else draft.positions.gather(1, order),
    )
