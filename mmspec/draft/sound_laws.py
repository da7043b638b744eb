"""Invalid laws of a drafter: found, and replaced before a token is drawn or chosen by them.

A NaN sorts first and is drawn as the last token, so what is picked by one depends on what was drawn
before it; and so does a whole row that is thrown away because of one. Either would bias the output.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..engine.draft import Context, Draft
from ..engine.laws import Categorical, TargetError

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
    return (draft.live() & ~good).any(1)


def chain_of_laws(
    context: Context,
    tokens: list[Tensor],
    laws: list[Tensor],
    lengths: Tensor,
    good: list[Tensor] | None = None,
) -> Draft:
    """The chain of drawn `tokens`, with their `laws [B, V]`.

    Args:
        lengths: of the rows, `[B]`.
        good: which laws were laws, `[B]` each, where the others are `mended`. None: nobody looked.
            Then a row ends in front of its first law that is none: that it is none follows from the
            tokens in front of it, and not from what was drawn by it.
    """
    if not tokens:
        return Draft(context.tokens[:, :0], lengths, Categorical(torch.zeros(0)))
    drawn, probs = torch.stack(tokens, 1), torch.stack(laws, 1)
    if good is not None:
        draft = Draft(drawn, lengths, Categorical(probs), checked=(drawn, probs))
        draft.faulty = faults(torch.stack(good, 1), draft)
        return draft
    probs, known = mended(probs)
    ends = reached(known, lengths)
    faulty = ends < lengths
    return Draft(drawn, ends, Categorical(probs), faulty=faulty, checked=(drawn, probs))


def reached(good: Tensor, lengths: Tensor) -> Tensor:
    """Nodes `[B]` in front of the first of `good [B, N]` that is False, of `lengths [B]`."""
    return torch.minimum(lengths, good.cumprod(1).sum(1))


def without_faults(draft: Draft, good: Tensor) -> Draft:
    """The draft less its nodes that are not `good [B, N]`, and less what follows them.

    So a node may owe its place to those that it follows, and to nothing else that chance has drawn.
    """
    if draft.parents is None:
        return replace(draft, lengths=reached(good, draft.lengths))
    draft.sound = good if draft.sound is None else draft.sound & good
    return draft
