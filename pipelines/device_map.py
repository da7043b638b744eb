"""A pipeline on several devices: the layers of its networks where a device map puts them.

Names in a map are those of components, of their embeddings, layers and heads, such as
"transformer.layers.7". Everything but layers and heads is on one device, the main one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..devices import check_device
from ..errors import InputError
from ..models.llamagen.transformer import LlamaGenTransformer
from ..models.placement import Device, Placement, device_of, infer_device_map

AUTO = "auto"
MAIN = "transformer.tok_embeddings"  # is on the main device
SPREAD = ("transformer", "sibling")  # by "auto"; a drafter is small, and slow in pieces


def spread(pipe: Any, device_map: str | Mapping[str, Device]) -> None:
    """Put a pipeline, as it was loaded, on the devices of a map, and note them in `hf_device_map`.

    The map is "auto", or devices by module name; what is not named is where the module around it
    is, and "" stands for all.

    Raises:
        InputError: no map, an unknown name, a device that can't be used or is not the main one, or
            too little memory.
    """
    if isinstance(device_map, str):
        if device_map != AUTO:
            raise InputError(f"device_map must be 'auto' or devices by name, not {device_map!r}")
        wanted = {"": next(iter(infer_device_map(pipe.transformer).values()))}
    else:
        wanted = _checked(pipe, device_map)
    networks, main = _modules(pipe, LlamaGenTransformer), device_of(wanted, MAIN)
    for name, module in _modules(pipe).items():
        (module.cls_embedding if name in networks else module).to(main)
    pipe.hf_device_map = {"": main}
    # a decoder takes its memory before the next one is placed: those that can be spread come last
    for name in sorted(networks, key=lambda name: name in SPREAD):
        if device_map == AUTO and name in SPREAD:
            found = infer_device_map(networks[name])
            wanted |= {f"{name}.{part}".rstrip("."): device for part, device in found.items()}
        for part in _layers_and_head(networks[name]):
            pipe.hf_device_map[f"{name}.{part}"] = device_of(wanted, f"{name}.{part}")
        pipe.decoder(networks[name])


def placement(pipe: Any, network: LlamaGenTransformer) -> Placement | None:
    """Devices of a network's layers; None: the pipeline has no device map."""
    found = pipe.hf_device_map
    if found is None:
        return None
    networks = _modules(pipe, LlamaGenTransformer)
    name = next(name for name, other in networks.items() if other is network)
    *layers, head = (device_of(found, f"{name}.{part}") for part in _layers_and_head(network))
    return Placement(device_of(found, MAIN), tuple(layers), head)


def _checked(pipe: Any, device_map: Mapping[str, Device]) -> dict[str, torch.device]:
    """A user's map, if it names nothing unknown and has on the main device what must be there."""
    networks = _modules(pipe, LlamaGenTransformer)
    known = {"", *_modules(pipe)}
    for name, network in networks.items():
        parts = ["cls_embedding", "tok_embeddings", "layers", "norm", *_layers_and_head(network)]
        known |= {f"{name}.{part}" for part in parts}
    for name, device in device_map.items():
        if name not in known:
            raise InputError(f"the device map names {name!r}, which is no part that it can place")
        check_device(device)
    found = {name: torch.device(device) for name, device in device_map.items()}
    main = device_of(found, MAIN)
    together = {name: main for name in _modules(pipe) if name not in networks}
    for name in networks:
        together |= {f"{name}.cls_embedding": main, f"{name}.tok_embeddings": main}
        together[f"{name}.norm"] = device_of(found, f"{name}.output")
    for name, device in together.items():
        if device_of(found, name) != device:
            raise InputError(f"the device map must put {name} on {device}")
    return found


def _modules(pipe: Any, kind: Any = torch.nn.Module) -> dict[str, Any]:
    return {name: part for name, part in pipe.components.items() if isinstance(part, kind)}


def _layers_and_head(network: LlamaGenTransformer) -> list[str]:
    return [*(f"layers.{n}" for n in range(len(network.layers))), "output"]
