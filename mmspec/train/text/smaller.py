"""First weights of a small model that drafts: some of its target's layers, or narrower ones."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping

import numpy as np
from transformers import PreTrainedModel

from ...errors import InputError
from ...models.transformers.exits import EXITS

SIZES = {"layers": 2, "width": 0, "exits": 1}  # settings; width 0: the target's
_LAYER = re.compile(r"(\.(?:layers|layer|blocks|block|h)\.)(\d+)(?=\.)")  # in names of weights


def smaller(target: PreTrainedModel, sizes: Mapping[str, int]) -> PreTrainedModel:
    """A drafter of the target's class with first weights, see `TextDrafterRecipe`.

    Args:
        sizes: of `SIZES`; those that are not given are as there.

    Raises:
        InputError: there can be no such model.
    """
    sizes = SIZES | {**sizes}
    config = copy.deepcopy(target.config)
    layers, width = sizes["layers"], sizes["width"] or config.hidden_size
    if not 0 < layers < config.num_hidden_layers:
        raise InputError(
            f"layers of a drafter must be from 1 to {config.num_hidden_layers - 1}, not {layers}"
        )
    if not 0 < (exits := sizes["exits"]) <= layers:
        raise InputError(f"exits of a drafter must be from 1 to its {layers} layers, not {exits}")
    if exits > 1:
        ends = np.linspace(layers / exits, layers, exits).round().astype(int)
        setattr(config, EXITS, ends.tolist())
    chosen = np.linspace(0, config.num_hidden_layers - 1, layers).round().astype(int).tolist()
    kinds = vars(config).get("layer_types")  # some work it out of their number
    if kinds is not None:
        config.layer_types = [kinds[number] for number in chosen]
    turned = vars(config).get("no_rope_layers")  # by layer, or every so many
    if isinstance(turned, list):
        config.no_rope_layers = [turned[number] for number in chosen]
    config.num_hidden_layers = layers
    if width == config.hidden_size:
        student = type(target)(config)
        theirs = target.state_dict()
        names = {
            name: _LAYER.sub(lambda n: f"{n[1]}{chosen[int(n[2])]}", name)
            for name in student.state_dict()
        }
        if not any(map(_LAYER.search, names)):
            raise InputError(f"{type(target).__name__} has no list of layers to choose from")
        try:
            student.load_state_dict({name: theirs[other].clone() for name, other in names.items()})
        except (KeyError, RuntimeError) as error:  # some are dense, others have experts
            told = ", ".join(map(str, chosen))
            raise InputError(
                f"layers {told} of {type(target).__name__} are of other kinds than its first "
                f"{layers}; set another number of layers, or a width"
            ) from error
        return student
    heads = config.num_attention_heads
    shared = getattr(config, "num_key_value_heads", None)
    if shared is None or getattr(config, "intermediate_size", None) is None:
        raise InputError(
            f"there are no narrower drafters for {type(target).__name__}; leave width out"
        )
    config.head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    share = heads // shared
    if width % (config.head_dim * share):
        raise InputError(
            f"width of a drafter must be a multiple of {config.head_dim * share}, not {width}"
        )
    config.intermediate_size = max(1, config.intermediate_size * width // config.hidden_size)
    config.hidden_size = width
    config.num_attention_heads = width // config.head_dim
    config.num_key_value_heads = config.num_attention_heads // share
    return type(target)(config)
