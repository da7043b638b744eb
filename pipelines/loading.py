"""Arguments of `from_pretrained` and `to`, in Diffusers' words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from diffusers.models.modeling_utils import ModelMixin
from torch import nn

from ..devices import check_device
from ..errors import InputError
from ..models.hub import downloaded
from ..models.placement import Device
from ..models.weights import stored_dtype
from ..registry import check_name
from .arguments import check_value, checked
from .habits import OPTIONS

DeviceMap = str | int | torch.device | Mapping[str, Device] | None
_KINDS: dict[str, Any] = {
    "torch_dtype": torch.dtype | str | None,
    "revision": str | None,
    "variant": str | None,
    "cache_dir": str | Path | None,
    "token": str | bool | None,
    "local_files_only": bool,
    "subfolder": str | None,
    "use_safetensors": bool | None,
    "low_cpu_mem_usage": bool | None,
}
_HUB = ("revision", "cache_dir", "token", "local_files_only")
_MAY_BE_WITHOUT = ("safety_checker", "requires_safety_checker", "trust_remote_code")
AUTO = "auto"


@dataclass(frozen=True)
class Loading:
    """Options for loading a pipeline.

    Attributes:
        dtype: of the weights.
        device_map: "auto" or devices by module name; None: no map.
        device: for the whole pipeline; None: it stays on the CPU.
        parts: components that were given in place of the folder's.
        variant: of the weights' files, such as "fp16"; None: those without.
        subfolder: of the folder or repository, that holds the model.
        hub: how a repository is downloaded.
        as_stored: the dtype is that in which the target's weights are stored, see `settled`.
    """

    dtype: torch.dtype = torch.float32
    device_map: str | Mapping[str, Device] | None = None
    device: Device | None = None
    parts: dict[str, Any] = field(default_factory=dict)
    variant: str | None = None
    subfolder: str | None = None
    hub: dict[str, Any] = field(default_factory=dict)
    as_stored: bool = False

    @classmethod
    def of(
        cls,
        dtype: torch.dtype | str | None,
        device_map: DeviceMap,
        options: Mapping[str, Any],
        pipelines: Sequence[Any],
    ) -> Loading:
        """The arguments of a call of `from_pretrained` that opens folders of these pipelines."""
        components = [name for kind in pipelines for name in kind.component_classes()]
        optional = [name for kind in pipelines for name in kind._optional_components]
        # no safety checker and no foreign code: as it is here anyway
        options = {n: v for n, v in options.items() if v or n not in _MAY_BE_WITHOUT}
        for name, value in options.items():
            if name in OPTIONS and name not in components:
                raise InputError(f"from_pretrained takes no {name}: {OPTIONS[name]}")
            check_name("argument", name, ["path", "dtype", "device_map", *_KINDS, *components])
            if name in _KINDS:
                check_value(name, value, _KINDS[name])
        parts = {name: value for name, value in options.items() if name in components}
        for name, value in parts.items():
            if isinstance(value, str | Path | int | float | list | tuple):
                raise InputError(f"{name} must be a component that is loaded already, not {value}")
            if value is None and name not in optional:
                raise InputError(f"a pipeline can't do without its {name}; leave out {name}=None")
        if options.get("use_safetensors") is False:
            raise InputError("weights are read from safetensors alone; leave use_safetensors out")
        device, spread = _placed(device_map, any(kind.spreads for kind in pipelines))
        said = _one_dtype(dtype, options.get("torch_dtype"))
        return cls(
            _dtype(None if said == AUTO else said),
            spread,
            device,
            parts,
            options.get("variant"),
            options.get("subfolder"),
            {name: options[name] for name in _HUB if options.get(name) is not None},
            said == AUTO,
        )

    def settled(self, folder: Path) -> Loading:
        """The options for a folder, whose target is its `transformer` or else lies in it."""
        target = folder / "transformer"
        home = target if target.is_dir() else folder
        return replace(self, dtype=stored_dtype(home)) if self.as_stored else self

    def download(self, repository: str) -> Path:
        """The folder of a hub repository; an `InputError` if the hub does not give it."""
        only = None if self.subfolder is None else [f"{self.subfolder}/*"]
        return downloaded(repository, only, **self.hub)


@checked
def destination(
    device: Any = None, dtype: Any = None, silence_dtype_warnings: bool = False
) -> tuple[Any, torch.dtype | None]:
    """Device and dtype in `to(device, dtype)`, `to(device)` or `to(dtype)`; None: as it is."""
    if isinstance(device, torch.dtype) and dtype is None:
        device, dtype = None, device
    if device is not None:
        check_device(device)
    return device, None if dtype is None else _dtype(dtype)


def moved(component: Any, device: Any, dtype: torch.dtype | None) -> bool:
    """Move or cast a component in place; what has no weights stays as it is.

    Returns:
        True if its weights are others now.
    """
    if not isinstance(component, nn.Module):
        return False
    before = [x.data_ptr() for x in component.parameters()]
    if isinstance(component, ModelMixin):
        # not Diffusers' own `to`, which warns of modules that are to stay in float32: here are none
        nn.Module.to(component, device, dtype)
    else:
        component.to(device, dtype)
    return before != [x.data_ptr() for x in component.parameters()]


def _one_dtype(
    dtype: torch.dtype | str | None, torch_dtype: torch.dtype | str | None
) -> torch.dtype | str | None:
    if dtype is not None and torch_dtype is not None and dtype != torch_dtype:
        raise InputError(f"dtype is {dtype} and torch_dtype {torch_dtype}; give one of them")
    return torch_dtype if dtype is None else dtype


def _dtype(said: torch.dtype | str | None) -> torch.dtype:
    if said is None:
        return torch.float32
    found = getattr(torch, said.removeprefix("torch."), None) if isinstance(said, str) else said
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise InputError(
            f"dtype must be one of floats, such as torch.bfloat16 or 'bfloat16', not {said!r}"
        )
    return found


def _placed(device_map: Any, spreads: bool) -> tuple[Device | None, Any]:
    """Split a device map into one device for everything, or a map of several."""
    if isinstance(device_map, Mapping) and not spreads and [*device_map] == [""]:
        device_map = device_map[""]
    if device_map is None or (spreads and (device_map == AUTO or isinstance(device_map, Mapping))):
        return None, device_map
    if isinstance(device_map, Mapping) or device_map == AUTO:
        raise InputError(
            "device_map spreads LlamaGen alone; name one device, such as device_map='cuda'"
        )
    try:
        torch.device(device_map)
    except (RuntimeError, TypeError) as error:
        raise InputError(
            "device_map must be 'auto' or devices by name, or one device for all such as 'cuda', "
            f"not {device_map!r}"
        ) from error
    check_device(device_map)
    return device_map, None
