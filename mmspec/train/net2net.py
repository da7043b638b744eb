"""A larger language model that begins as the same function as a smaller one.

Function-preserving growth in width and depth (Chen, Goodfellow, Shlens 2016, "Net2Net"), with zeros
in place of copies: what is new reads the old channels through fresh random weights, and is itself
read through weights that begin at zero. So it says nothing yet, and learns from the first step on.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn

LAYER = re.compile(r"(?:^|\.)language_model\.layers\.(\d+)\.")
# these write to the residual stream: silent where it is new, and about what they read that is new
WRITERS = ("o_proj.weight", "down_proj.weight", "linear_2.weight", "linear_2.bias")


@torch.no_grad()
def net2net(large: nn.Module, small: Mapping[str, Tensor]) -> None:
    """Make `large` the function that `small` is, up to the epsilon of its norms.

    Both are of one architecture, of Llama's layers (RMS norms before attention and before the
    gated units, no biases in them) on top of LLaVA's projector; `large` may have more layers, more
    heads of the same size, and more units. Layers are added at the end. What has no smaller form,
    such as the vision tower, is copied.

    Args:
        large: the model to change; it has the first weights of training.
        small: state of the smaller model, `name: tensor`.

    Raises:
        ValueError: a tensor of `small` is larger than its place, or has none.
    """
    state = large.state_dict()
    for name, old in small.items():
        new = state.get(name)
        if new is None or any(o > n for o, n in zip(old.shape, new.shape, strict=True)):
            raise ValueError(f"{name} does not fit into the larger model")
        if old.shape == new.shape:
            new.copy_(old)
            continue
        place = tuple(slice(size) for size in old.shape)
        if name.endswith("norm.weight"):
            # zeros in the new channels make the mean of squares smaller
            new.fill_(1.0)[place] = old
            new.mul_(math.sqrt(len(old) / len(new)))
        else:
            if name.endswith(WRITERS) or name.endswith(("embed_tokens.weight", "lm_head.weight")):
                new.zero_()
            new[place] = old
    layers = {found[0] for name in small if (found := LAYER.findall(name))}
    for name, new in state.items():
        found = LAYER.findall(name)
        if found and found[0] not in layers and name.endswith(WRITERS):
            new.zero_()
