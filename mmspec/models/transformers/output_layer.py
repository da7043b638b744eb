"""The output layer of a model of transformers, apart from its body."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ...errors import InputError

if TYPE_CHECKING:
    from .causal import CausalDecoder


@torch.no_grad()
def output_layer(decoder: CausalDecoder) -> nn.Module:
    """The model's own output layer, after a trial that it and the body are the whole model.

    Raises:
        InputError: the model does more with its hidden states.
    """
    model, ids = decoder.model, decoder.embeddings
    head: nn.Module = model.get_output_embeddings()
    place = torch.zeros(1, 1, dtype=torch.long, device=ids.device)
    token = decoder.embed(place + len(ids) // 2)
    trial: dict[str, Any] = {
        **decoder.split_inputs(token),
        "position_ids": place,
        "use_cache": False,
    }
    apart, whole = head(decoder.body(**trial).last_hidden_state), model(**trial).logits
    if not torch.allclose(apart.to(whole), whole, rtol=1e-3):
        raise InputError(
            f"{type(model).__name__} does more with its hidden states than its output "
            "layer does; choose a method that does not read them"
        )
    return head
