"""FastV: the visual tokens that the last text token attends to (Chen et al. 2024, section 4).

The weights are those of the language model's second layer (the paper's K = 2), and half of the
tokens go (R = 50 %).
"""

from __future__ import annotations

from torch import Tensor

from .base import Compressed, check, take, top

LAYER = 1  # counted from 0: layers 0 and 1 see every token
KEEP = 0.5


def fastv(features: Tensor, keep: int, attention: Tensor) -> Compressed:
    """The `keep` tokens with the most attention, untouched.

    Args:
        features: `[B, N, C]`: hidden states behind that layer, or a drafter's visual inputs.
        keep: tokens K that stay.
        attention: `[B, N]`, see `last_token_attention`.

    Raises:
        InputError: the inputs don't fit each other.
    """
    check(features, keep, attention)
    index = top(attention, keep)
    return Compressed.full(take(features, index), index)


def last_token_attention(weights: Tensor, columns: Tensor) -> Tensor:
    """Attention that visual tokens get from the last token, mean over heads, `[B, N]`.

    Args:
        weights: `[B, H, Q, T]`, attention weights of one layer; its last query is the last token,
            as in a left-padded prompt.
        columns: `[B, N]`, where among the T tokens the visual ones stand.
    """
    return weights[:, :, -1].mean(1).gather(1, columns)
