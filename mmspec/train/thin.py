"""A network that begins as a larger one with some of its layers left out.

As DistilBERT did (Sanh et al. 2019): what remains knows its work already, and only has to learn to
do without the rest, which takes far less training than to learn it all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from ..models.loading import load_strict

LAYER = re.compile(r"^blocks\.(\d+)\.")


@torch.no_grad()
def thin(small: nn.Module, large: Mapping[str, Tensor], origin: Path) -> None:
    """Put the first layer of `large`, the last one, and others evenly between them into `small`.

    Args:
        small: the model to change, as wide as the large one; its layers are called `blocks`.
        large: state of the larger model, `name: tensor`.
        origin: its folder, for the message.

    Raises:
        InputError: the two differ in more than the number of their layers.
    """
    own, count = small.state_dict(), _layers(large)
    kept = torch.linspace(0, count - 1, _layers(own)).round().int().tolist()

    def source(name: str) -> str:
        return LAYER.sub(lambda found: f"blocks.{kept[int(found[1])]}.", name)

    weights = {name: large[source(name)].clone() for name in own if source(name) in large}
    load_strict(small, weights, origin)


def _layers(state: Mapping[str, Tensor]) -> int:
    return 1 + max(int(found[1]) for name in state if (found := LAYER.match(name)))
