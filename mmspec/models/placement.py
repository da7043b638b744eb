"""Placement of a network on several devices, layer by layer, by accelerate's device map.

The module keeps its weights where they were loaded, in host memory; a decoder puts what runs, and
that alone, on the devices. So a network needs room for its weights once over all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

import torch

from ..errors import InputError, absent
from .llamagen.transformer import LlamaGenTransformer

Device = int | str | torch.device
ROOM = 0.9  # of a device's free memory, for weights; the rest is for keys, values and activations


@dataclass(frozen=True)
class Placement:
    """The devices of a network's parts.

    Attributes:
        main: of embeddings, of all that goes in and of what comes out.
        layers: of each layer.
        head: of the last norm and the output layer.
    """

    main: torch.device
    layers: tuple[torch.device, ...]
    head: torch.device

    @classmethod
    def on(cls, device: torch.device, layers: int) -> Placement:
        """Everything on one device."""
        return cls(device, (device,) * layers, device)

    @property
    def moves(self) -> dict[int, torch.device]:
        """Devices to which activations move before a layer, by layer; the head is the last."""
        at, out = self.main, {}
        for layer, device in enumerate((*self.layers, self.head)):
            if device != at:
                at = out[layer] = device
        return out

    @property
    def runs(self) -> list[tuple[torch.device, int]]:
        """Devices in the order of the layers, and how many layers in a row are on each."""
        return [(device, len(list(layers))) for device, layers in groupby(self.layers)]


def infer_device_map(
    model: LlamaGenTransformer, room: dict[Device, int] | None = None
) -> dict[str, torch.device]:
    """Devices by module name, balanced over the accelerators; what is too much goes to the CPU.

    Args:
        model: on whatever device; its sizes matter alone.
        room: bytes of weights that each device takes; None: `ROOM` of what is free there now.

    Raises:
        InputError: accelerate is not installed, or the devices together are too small.
    """
    try:
        from accelerate import infer_auto_device_map
        from accelerate.utils import get_balanced_memory, get_max_memory
    except ImportError as error:
        raise absent("device_map='auto' needs accelerate", "multi-gpu") from error
    if room is None:
        room = {device: int(ROOM * free) for device, free in get_max_memory().items()}
    blocks = model._no_split_modules
    balanced = get_balanced_memory(model, dict(room), no_split_module_classes=blocks)
    found = infer_auto_device_map(model, balanced, no_split_module_classes=blocks)
    if "disk" in found.values():
        size = sum(p.nbytes for p in model.parameters()) / 2**30
        raise InputError(
            f"a network of {size:.1f} GiB is too large for the memory of all devices; "
            "load it with a smaller dtype"
        )
    return {name: torch.device(device) for name, device in found.items()}


def device_of(device_map: Mapping[str, torch.device], name: str) -> torch.device:
    """The device of a module: that of the innermost one which the map names; "" is everything.

    Raises:
        InputError: the map says nothing of it.
    """
    inner = name
    while inner and inner not in device_map:
        inner = inner.rpartition(".")[0]
    if inner not in device_map:
        raise InputError(f"the device map says nothing of {name}")
    return device_map[inner]
