"""Base of every speculative pipeline: strict loading, switching speculation, row seeds."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, get_args, get_type_hints

import torch
from diffusers import DiffusionPipeline
from torch import Tensor, nn

from ..engine.draft import Interrupted
from ..engine.protocols import Engine
from ..errors import InputError
from ..files import atomic_folder, read_object, write_json
from ..methods import Modality, ResolvedConfig, SpecConfig, config_of
from ..models.loading import load_component
from ..models.repacked import Repacked
from .arguments import check_arguments, checked
from .device_map import spread
from .habits import Habits
from .load_switch import LoadSwitch, automatic, choices_of
from .loading import DeviceMap, Loading, destination, moved
from .model_folders import first_of, locate
from .notices import Notices

if TYPE_CHECKING:
    from typing_extensions import Self

PLAIN = SpecConfig(method="plain")
OnStep = Callable[[Any, int, int, dict[str, Any]], Any]  # of `callback_on_step_end`
_INDEX = "model_index.json"  # of Diffusers layout


class SpeculativePipeline(Habits, DiffusionPipeline):
    """A Diffusers pipeline that can speculate.

    Subclasses declare their components as the parameters of `__init__`, by name and class; those
    with the default None may be missing. They name the folder of their embedded model in
    `embedded`, what they make in `modality`, and a method that needs no component beside the target
    in `without`. `index` is the file that says what a folder of theirs holds, and `homes` where in
    it those components lie that have no folder of their name. `strangers` says, by class, what to
    do with folders of another pipeline, and `instead`, by name, what to do in place of arguments
    that other pipelines take. `spreads`: a device map may give its layers devices of their own.
    `replaceable` components are not checked here: users may give something else for them.
    `on_engine` is given the engine of every generation before it runs, for measurements. A callback
    sets `interrupt` to True: generation stops at the end of the round, or sooner. `switch` chooses
    for each call, where the length is "auto", and `speculation` is its choice while the call runs.
    """

    embedded: str = ""
    modality: ClassVar[Modality] = "image"
    without: ClassVar[str] = "sjd"
    index: ClassVar[str] = _INDEX
    homes: ClassVar[dict[str, str]] = {}
    strangers: ClassVar[dict[str, str]] = {}
    spreads: ClassVar[bool] = False
    replaceable: ClassVar[tuple[str, ...]] = ()
    speculation: SpecConfig = PLAIN
    on_engine: Callable[[Engine], None] | None = None
    interrupt: bool = False

    def __init__(self, declared: Mapping[str, Any]) -> None:
        """`declared` are the `locals()` of a subclass, whose parameters are its components."""
        super().__init__()
        beside = ("self", "__class__")
        self.register_modules(**{n: part for n, part in declared.items() if n not in beside})
        self._notices, self.switch = Notices(), LoadSwitch()
        self._built: dict[tuple[int, str | None], tuple[object, Any]] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        """Forget all that was built if a component is replaced: heads are built on others, too."""
        old = vars(self).get(name)
        if isinstance(old, nn.Module) and old is not value:
            self._forget()
        super().__setattr__(name, value)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        declared = inspect.signature(cls.__init__).parameters
        cls._optional_components = [name for name, p in declared.items() if p.default is None]

    @classmethod
    def component_classes(cls) -> dict[str, Any]:
        """The classes of the components by name; of several that may be, the first."""
        hints = get_type_hints(cls.__init__)
        return {n: (*get_args(hint), hint)[0] for n, hint in hints.items() if n != "return"}

    @classmethod
    def openers(cls) -> tuple[type[SpeculativePipeline], ...]:
        """The pipelines whose folders `from_pretrained` opens."""
        return (cls,)

    @classmethod
    @checked
    def from_pretrained(
        cls,
        path: str | Path | None = None,
        dtype: torch.dtype | str | None = None,
        device_map: DeviceMap = None,
        **options: Any,
    ) -> SpeculativePipeline:
        """Load a pipeline's folder; without a path, the embedded model.

        Args:
            path: folder in Diffusers layout (`model_index.json` and a folder per component), or of
                a `VlmPipeline` or `TransformersImagePipeline` in transformers' layout; or the id of
                a hub repository in that layout.
            dtype: of the weights, such as `torch.bfloat16` or "bfloat16"; "auto": as the target's
                are stored; None: float32.
            device_map: a device for everything. Or, for a LlamaGen that is larger than one device,
                "auto", which lets accelerate spread the target's layers over the GPUs, and over
                the CPU what they can't hold; or devices by module name, as in
                `pipe.hf_device_map`. None: everything on the CPU, for `.to()`.
            options: as in Diffusers: `torch_dtype`, `variant`, `subfolder`, and of a repository
                `revision`, `cache_dir`, `token`, `local_files_only`. Components by name take the
                place of the folder's; None leaves one out that may be missing.

        Raises:
            InputError: the folder or a file is missing or unreadable, a tensor does not fit, the
                family is unknown, an option is unknown or of a wrong kind, or the device map can't
                be followed.
        """
        openers, asked = cls.openers(), (dtype, device_map, options)
        folder = locate(path, cls.embedded, Loading.of(*asked, openers))
        kind = next((kind for kind in openers if (folder / kind.index).exists()), cls)
        loading = Loading.of(*asked, [kind]).settled(folder)
        kind._check_folder(folder)
        pipe = kind(**kind.load_parts(folder, loading), **loading.parts)
        if loading.device_map is not None:
            spread(pipe, loading.device_map)
        return pipe if loading.device is None else pipe.to(loading.device)

    @classmethod
    def _check_folder(cls, folder: Path) -> None:
        """Raise an `InputError` unless a folder is one that this pipeline opens."""
        if not folder.is_dir():
            raise InputError(f"can't read {folder} as a model: it is no folder")
        saved = folder / _INDEX
        held = read_object(saved).get("_class_name") if saved.is_file() else None
        if held not in (None, cls.__name__):
            why = cls.strangers.get(str(held))
            told = f"{folder} is a model of {held}, and {cls.__name__} can't open it"
            raise InputError(f"{told}: {why}" if why else told)
        if not (folder / cls.index).is_file():
            raise InputError(
                f"can't read {folder} as a model of {cls.__name__}: it has no {cls.index}"
            )

    @classmethod
    def load_parts(cls, folder: Path, loading: Loading) -> dict[str, Any]:
        """The components that a folder holds, by name, but for those that were given."""
        listed, parts = read_object(folder / cls.index), {}
        for name in cls.component_classes():
            if name in loading.parts:
                continue
            if (listed.get(name) or [None])[0] is not None:
                home = folder / name
                kind = cls.component_class(name, home)
                parts[name] = load_component(kind, home, loading.dtype, loading.variant)
            elif name not in cls._optional_components:
                raise InputError(f"{folder}/{cls.index} names no {name}")
        return parts

    @classmethod
    def component_class(cls, name: str, folder: Path) -> Any:
        """The class of a component; a family of classes may look into its folder."""
        return cls.component_classes()[name]

    @checked
    def save_pretrained(self, save_directory: str | Path, max_shard_size: str = "10GB") -> None:
        """Write every component as `from_pretrained` reads it; in Diffusers layout with its index.

        Args:
            save_directory: folder, made if it does not exist.
            max_shard_size: largest weights file, as in Diffusers ("16MB").

        Raises:
            InputError: it can't be written: the disk is full, say. The folder is as it was.
        """
        kind = type(self)
        opener = f"{kind.__module__}.{kind.__name__}.from_pretrained"
        told = f"{opener}: diffusers' own DiffusionPipeline does not know the class"
        index: dict[str, Any] = {"_class_name": kind.__name__, "_opened_by": told}
        with atomic_folder(Path(save_directory)) as folder:
            for name, component in self.components.items():
                index[name] = [None, None]
                if component is not None:
                    index[name] = [type(component).__module__, type(component).__name__]
                    weighs = isinstance(component, nn.Module)
                    sharded = {"max_shard_size": max_shard_size} if weighs else {}
                    component.save_pretrained(folder / self.homes.get(name, name), **sharded)
            if self.index == _INDEX:
                write_json(folder / _INDEX, index)

    @checked
    def enable_speculation(self, config: SpecConfig | str | None = None) -> None:
        """Speculate from now on.

        Args:
            config: how, or the name of a method, such as "scd" or "gsd[window=48]"; None: by the
                modality's default method, the first that this pipeline has the parts for. An
                exact method that is named without settings gets length "auto": the size of its
                drafts, or plain decoding, is chosen call by call, by what has been the fastest for
                so many rows, but where a seed would give another sample. A `SpecConfig`, or a name
                with settings, is followed to the letter.

        Raises:
            InputError: the method is not for such a pipeline, or needs a component that this one
                lacks; or something else is given.
        """
        if config is None:
            config = first_of(self.modality, self._able)
        made = config_of(config)
        if isinstance(config, str) and self._able(PLAIN):
            made = automatic(made, self.modality)
        for choice in choices_of(made, self.modality)[:2]:  # its own, and none
            self.check_speculation(choice)
        self.speculation = made

    @checked
    def disable_speculation(self) -> None:
        """Return to plain decoding."""
        self.speculation = PLAIN

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move every component, or cast it: `to(device)`, `to(dtype)` or `to(device, dtype)`.

        Raises:
            InputError: there is no such device, weights can't be of that dtype, or a device map
                says where the components are.
        """
        device, dtype = destination(*args, **kwargs)
        if self.hf_device_map is not None:
            told = "a device map says where this pipeline is; call reset_device_map() first"
            raise InputError(told)
        changed = [moved(one, device, dtype) for one in self.components.values()]
        if any(changed):
            self._forget()
        return self

    def reset_device_map(self) -> None:
        """Forget a device map: everything is on the CPU, for `.to()`."""
        self._forget()
        super().reset_device_map()

    def _forget(self) -> None:
        """Let go of all that was built of weights that are gone; for subclasses to add to."""
        self._built.clear()

    def _able(self, method: SpecConfig | str) -> bool:
        try:
            self.check_speculation(config_of(method))
        except InputError:
            return False
        return True

    @checked
    def check_speculation(self, config: SpecConfig) -> ResolvedConfig:
        """Resolve a configuration for this pipeline; an `InputError` if it can't run."""
        resolved = config.resolve(self.modality)
        for part in resolved.needs:
            if self.components.get(part) is None and part not in self.replaceable:
                raise InputError(
                    f"method {config.method!r} needs the component {part!r} and this pipeline has "
                    f"none; load one or use {self.without!r}"
                )
        return resolved

    @checked
    def check_call(self, config: SpecConfig, **call: Any) -> None:
        """Raise an `InputError` if a call with these arguments can't be made by `config`.

        Of its arguments those are looked at that say how outputs are made, not what they show.
        """
        resolved = self.check_speculation(config)
        check_arguments(type(self).__call__, call, self)
        named = inspect.signature(type(self).__call__).parameters
        usual = {name: parameter.default for name, parameter in named.items()}
        self._check_given(resolved, {**usual, **call})

    def _after_round(self, callback: OnStep | None, number: int, done: int, **state: Any) -> bool:
        """Call the user's callback, if there is one; returns whether somebody interrupts."""
        if callback is not None:
            callback(self, number, done, state)
        return self.interrupt

    def _check_interrupt(self) -> None:
        """Raise `Interrupted` if somebody stopped the call."""
        if self.interrupt:
            raise Interrupted

    def _check_given(self, config: ResolvedConfig, given: Mapping[str, Any]) -> None:
        """Check the arguments of a call by name; hook of `check_call` for subclasses."""

    def built(
        self, network: nn.Module, beside: object, build: Callable[[], Any], form: str | None = None
    ) -> Any:
        """Result of `build`, kept until the network's weights or what is `beside` it change.

        One of each `form` is kept.
        """
        weights = [
            (p.data_ptr(), 0 if p.is_inference() else p._version) for p in network.parameters()
        ]
        made_of = weights, beside
        found = self._built.get((id(network), form))
        if found is None or found[0] != made_of:
            found = self._built[id(network), form] = made_of, build()
        return found[1]

    def rounded(self, network: nn.Module, weights: str | None) -> AbstractContextManager[None]:
        """Around a run, round the layers of `network.blocks`; None: leave them as they are.

        Raises:
            InputError: they can't be rounded, see `rounded.check_rounding`.
        """
        packed = None if weights is None else self.built(network, None, Repacked, "blocks")
        return nullcontext() if packed is None else packed.running(network.blocks, weights)

    def pictures(self, pixels: Tensor, output_type: str) -> Any:
        """Pixels `[B, 3, H, W]` in [0, 1] as "pil", "np" or "pt" asks for them."""
        if output_type == "pt":
            return owned(pixels)
        array = pixels.permute(0, 2, 3, 1).cpu().numpy()
        return array if output_type == "np" else self.numpy_to_pil(array)


def owned(x: Tensor) -> Tensor:
    """A normal tensor, which its owner may edit, of one made in inference mode."""
    with torch.inference_mode(False):
        return x.clone()


def row_seeds(generator: torch.Generator | list[torch.Generator] | None, rows: int) -> list[int]:
    """Draw a seed per row: from one generator in turn, or the first number of each of a list.

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
