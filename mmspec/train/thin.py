"""A network that begins as a larger one with some of its layers left out.

As DistilBERT did (Sanh et al. 2019): what remains knows its work already, and only has to learn to
do without the rest, which takes far less training than to learn it all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn

LAYER = re.compile(r"^blocks\.(\d+)\.")


@torch.no_grad()
def thin(small: nn.Module, large: Mapping[str, Tensor]) -> None:
    """Put the first layer of `large`, the last one, and others evenly between them into `small`.

    Args:
        small: the model to change, as wide as the large one; its layers are called `blocks`.
        large: state of the larger model, `name: tensor`.

    Raises:
        RuntimeError: the two differ in more than the number of their layers.
    """
    own, count = small.state_dict(), _layers(large)
    kept = torch.linspace(0, count - 1, _layers(own)).round().int().tolist()

    def source(name: str) -> str:
        return LAYER.sub(lambda found: f"blocks.{kept[int(found[1])]}.", name)

    small.load_state_dict({name: large[source(name)] for name in own})


def _layers(state: Mapping[str, Tensor]) -> int:
    return 1 + max(int(found[1]) for name in state if (found := LAYER.match(name)))
