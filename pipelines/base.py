"""What every speculative pipeline shares: strict loading, switching speculation, row seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Self

import torch
from diffusers import DiffusionPipeline
from torch import Tensor, nn

from ..engine.protocols import Engine
from ..errors import InputError
from ..files import atomic_folder, read_object, write_json
from ..methods import PIPELINES, Modality, ResolvedConfig, SpecConfig, config_of
from ..models.embedded import readable
from ..models.loading import load_component
from ..registry import resolve
from .arguments import checked
from .available_methods import first_of
from .device_map import spread
from .loading import DeviceMap, Loading, destination, moved

PLAIN = SpecConfig(method="plain")
_EMBEDDED = "embedded-"  # begins the names of models that ship


class SpeculativePipeline(DiffusionPipeline):
    """A Diffusers pipeline that can speculate.

    Subclasses name the folder of their embedded model in `embedded`, what they make in `modality`,
    a method that needs no component beside the target in `without`, and the classes of their
    components in `component_classes`; those in `_optional_components` may be missing. `strangers`
    says, by class, what to do with folders of another pipeline, and `instead`, by name, what to do
    in place of arguments that other pipelines take. `spreads`: a device map may give its layers
    devices of their own. `on_engine` is given the engine of
    every generation before it runs, for measurements.
    """

    embedded: str
    modality: ClassVar[Modality] = "image"
    without: ClassVar[str] = "sjd"
    component_classes: ClassVar[dict[str, Any]]
    strangers: ClassVar[dict[str, str]] = {}
    spreads: ClassVar[bool] = False
    instead: ClassVar[dict[str, str]] = {
        "prompt_embeds": "the text is encoded here; give prompt",
        "negative_prompt_embeds": "the text is encoded here; give negative_prompt",
        "latents": "what is drawn starts from seeds; give generator",
    }
    speculation: SpecConfig = PLAIN
    on_engine: Callable[[Engine], None] | None = None
    _interrupt = False

    def __init__(self) -> None:
        super().__init__()
        self._built: dict[int, tuple[object, Any]] = {}

    @classmethod
    @checked
    def from_pretrained(
        cls,
        path: str | Path | None = None,
        dtype: torch.dtype | str | None = None,
        device_map: DeviceMap = None,
        **options: Any,
    ) -> SpeculativePipeline:
        """Load a pipeline folder; without a path, the embedded model.

        Args:
            path: folder in Diffusers layout (`model_index.json` and a folder per component), or
                the id of a hub repository in that layout.
            dtype: of the weights, such as `torch.bfloat16` or "bfloat16"; None: float32.
            device_map: a device for everything. Or, for a LlamaGen that is larger than one device,
                "auto", which lets accelerate spread the target's layers over the GPUs, and over
                the CPU what they can't hold; or devices by module name, as in
                `pipe.hf_device_map`. None: everything on the CPU, for `.to()`.
            options: as in Diffusers: `torch_dtype`, `variant`, `subfolder`, and of a repository
                `revision`, `cache_dir`, `token` and `local_files_only`. Components by name take
                the place of the folder's; None leaves one out that may be missing.

        Raises:
            InputError: the folder or a file is missing or unreadable, a tensor does not fit, an
                option is unknown or of a wrong kind, or the device map can't be followed.
        """
        may_lack = cls._optional_components
        names = cls.component_classes
        loading = Loading.of(dtype, device_map, options, names, may_lack, cls.spreads)
        folder = locate(path, cls.embedded, loading)
        check_folder(folder, cls.__name__, "model_index.json", cls.strangers)
        index = read_object(folder / "model_index.json")
        parts: dict[str, Any] = {}
        for name in cls.component_classes:
            if name in loading.parts:
                parts[name] = loading.parts[name]
                continue
            present = (index.get(name) or [None])[0] is not None
            if not present and name not in cls._optional_components:
                raise InputError(f"{folder}/model_index.json names no {name}")
            component = cls.component_class(name, folder / name)
            parts[name] = None
            if present:
                home = folder / name
                parts[name] = load_component(component, home, loading.dtype, loading.variant)
        pipe = cls(**parts)
        if loading.device_map is not None:
            spread(pipe, loading.device_map)
        return pipe if loading.device is None else pipe.to(loading.device)

    @classmethod
    def component_class(cls, name: str, folder: Path) -> Any:
        """The class of a component; a family of classes may look into its folder."""
        return cls.component_classes[name]

    def save_pretrained(self, save_directory: str | Path, max_shard_size: str = "10GB") -> None:
        """Write `model_index.json` and every component, as `from_pretrained` reads them.

        Args:
            save_directory: folder, made if it does not exist.
            max_shard_size: largest weights file, as in Diffusers ("16MB").

        Raises:
            InputError: it can't be written: the disk is full, say. The folder is as it was.
        """
        kind = type(self)
        index: dict[str, Any] = {"_class_name": kind.__name__}
        opener = f"{kind.__module__}.{kind.__name__}.from_pretrained"
        index["_opened_by"] = f"{opener}: diffusers' own DiffusionPipeline does not know the class"
        with atomic_folder(Path(save_directory)) as folder:
            for name, component in self.components.items():
                if component is None:
                    index[name] = [None, None]
                    continue
                index[name] = [type(component).__module__, type(component).__name__]
                sharded = {} if name == "tokenizer" else {"max_shard_size": max_shard_size}
                component.save_pretrained(folder / name, **sharded)
            write_json(folder / "model_index.json", index)

    def enable_speculation(self, config: SpecConfig | str | None = None) -> None:
        """Speculate from now on.

        Args:
            config: how, or the name of a method, such as "scd" or "gsd[window=32]"; None: by the
                modality's default method, the first that this pipeline has the parts for.

        Raises:
            InputError: the method is not for such a pipeline, or needs a component that this one
                lacks.
        """
        if config is None:
            config = first_of(self.modality, self._able)
        config = config_of(config)
        self.check_speculation(config)
        self.speculation = config

    def disable_speculation(self) -> None:
        """Back to plain decoding."""
        self.speculation = PLAIN

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move every component, or cast it: `to(device)`, `to(dtype)` or `to(device, dtype)`.

        Raises:
            InputError: there is no such device, weights can't be of that dtype, or a device map
                says where the components are.
        """
        device, dtype = destination(*args, **kwargs)
        if self.hf_device_map is not None:
            raise InputError(
                "a device map says where this pipeline is; call reset_device_map() first"
            )
        for component in self.components.values():
            moved(component, device, dtype)
        return self

    def _no_offload(self, *_: Any, **__: Any) -> NoReturn:
        """Raise an `InputError`, where hooks would move weights only when `forward` is called."""
        raise InputError(
            f"{type(self).__name__} can't offload its parts, whose weights are read outside of "
            "`forward`, too: move it as a whole by pipe.to(device), in half precision if it is too "
            "large"
        )

    enable_model_cpu_offload = _no_offload
    enable_sequential_cpu_offload = _no_offload
    enable_group_offload = _no_offload

    def _able(self, method: str) -> bool:
        """Whether a method can run here."""
        try:
            self.check_speculation(SpecConfig(method))
        except InputError:
            return False
        return True

    def check_speculation(self, config: SpecConfig) -> ResolvedConfig:
        """The configuration as it works here.

        Raises:
            InputError: it can't run here.
        """
        resolved = config.resolve(self.modality)
        for part in self._needed(resolved):
            if self.components.get(part) is None:
                raise InputError(
                    f"method {config.method!r} needs the component {part!r} and this pipeline has "
                    f"none; load one or use {self.without!r}"
                )
        return resolved

    def _needed(self, config: ResolvedConfig) -> tuple[str, ...]:
        """The components without which `config` can't run here."""
        return config.needs

    def built(self, network: nn.Module, beside: object, build: Callable[[], Any]) -> Any:
        """What `build` makes of a network and of what is `beside` it, kept until one changes."""
        weights = [
            (p.data_ptr(), 0 if p.is_inference() else p._version) for p in network.parameters()
        ]
        made_of = weights, beside
        found = self._built.get(id(network))
        if found is None or found[0] != made_of:
            found = self._built[id(network)] = made_of, build()
        return found[1]

    def pictures(self, pixels: Tensor, output_type: str) -> Any:
        """Pixels `[B, 3, H, W]` in [0, 1] as "pil", "np" or "pt" asks for them."""
        if output_type == "pt":
            return owned(pixels)
        array = pixels.permute(0, 2, 3, 1).cpu().numpy()
        return array if output_type == "np" else self.numpy_to_pil(array)

    @property
    def interrupt(self) -> bool:
        """True after a callback set it: generation stops at the end of the round, or sooner."""
        return self._interrupt

    @interrupt.setter
    def interrupt(self, value: bool) -> None:
        self._interrupt = value


def owned(x: Tensor) -> Tensor:
    """A normal tensor, which its owner may edit, of one made in inference mode."""
    with torch.inference_mode(False):
        return x.clone()


def row_seeds(generator: torch.Generator | list[torch.Generator] | None, rows: int) -> list[int]:
    """One seed per row: from one generator in turn, or the first number of each of a list.

    Raises:
        InputError: a list of another length than the rows.
    """
    if isinstance(generator, list | tuple):
        if len(generator) != rows:
            raise InputError(f"{len(generator)} generators for {rows} samples; give one each")
        return [seed for g in generator for seed in row_seeds(g, 1)]
    device = "cpu" if generator is None else generator.device
    drawn = torch.randint(2**62, (rows,), generator=generator, device=device)
    return [int(seed) for seed in drawn.tolist()]


def check_folder(
    folder: Path, pipeline: str, index: str, strangers: Mapping[str, str] | None = None
) -> None:
    """Raise an `InputError` unless a folder is one that a pipeline opens.

    Args:
        pipeline: the name of its class.
        index: the file that says what the folder holds: one of transformers has "config.json".
        strangers: by another pipeline's class, why not and what to do.
    """
    if not folder.is_dir():
        raise InputError(f"can't read {folder} as a model: it is no folder")
    saved = folder / "model_index.json"
    held = read_object(saved).get("_class_name") if saved.is_file() else None
    if held not in (None, pipeline):
        why = (strangers or {}).get(str(held))
        raise InputError(
            f"{folder} is a model of {held}, and {pipeline} can't open it"
            + (f": {why}" if why else "")
        )
    if not (folder / index).is_file():
        raise InputError(f"can't read {folder} as a model of {pipeline}: it has no {index}")


def embedded_name(modality: Modality) -> str:
    """The name of a modality's embedded model among those that ship."""
    name: str = resolve(PIPELINES[modality].reference).embedded
    return name


def shipped() -> dict[str, Path]:
    """The folders of the pipelines that ship with the package, by the name that `locate` takes."""
    from ..models.embedded import MODELS

    index = ("model_index.json", "config.json")
    folders = sorted(path for path in MODELS.iterdir() if any((path / n).exists() for n in index))
    return {_EMBEDDED + folder.name: folder for folder in folders}


def locate(path: str | Path | None, embedded: str, loading: Loading | None = None) -> Path:
    """The folder of an embedded model ("embedded-image"), a local one, or a downloaded repository.

    Args:
        embedded: the name of the model that None stands for.
        loading: which part of it, and how it is downloaded.
    """
    loading = loading or Loading()
    folder = _located(path, embedded, loading)
    if loading.subfolder is None:
        return folder
    if not (folder / loading.subfolder).is_dir():
        raise InputError(f"{folder} has no subfolder {loading.subfolder!r}")
    return folder / loading.subfolder


def _located(path: str | Path | None, embedded: str, loading: Loading) -> Path:
    """The whole of it."""
    if path is None or str(path).startswith(_EMBEDDED):
        name, there = str(path or _EMBEDDED + embedded), shipped()
        if name not in there:
            known = ", ".join(there) or "none"
            raise InputError(
                f"no model {name} ships with this version (there are {known}); name a folder"
            )
        return readable(there[name])
    folder = Path(path)
    if folder.exists():
        if "revision" in loading.hub:
            raise InputError(f"{folder} is a folder, which has no revisions; leave revision out")
        return readable(folder)
    if "/" in str(path) and not str(path).startswith((".", "/", "~")):
        return loading.download(str(path))
    raise InputError(
        f"no model folder at {path}; models that ship are {', '.join(shipped()) or 'none'}"
    )
