"""A cache of ours as a model of transformers wants to be given it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Cache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin

from ...engine.cache import KVCache, SpreadCache, StaticCache
from ...engine.ring_cache import RingCache
from ...errors import InputError
from .recurrent import RecurrentLayers

Shape = tuple[int, int, torch.dtype, torch.device]  # heads, width, and of which tensors
Window = tuple[int, int]  # of a layer: the window, and the room beside it, see `RingCache`


# transformers' names for it, since 5.24 and before; the last is of models without attention
CACHE_NAMES = ("cache", "past_key_values", "cache_params")


def cache_name(model: PreTrainedModel) -> str:
    """Name, one of `CACHE_NAMES`, of the argument that takes the model's cache."""
    taken = inspect.signature(type(model).forward).parameters
    known = [name for name in CACHE_NAMES if name in taken]
    return known[0] if known else CACHE_NAMES[1]  # one that names none is older than both


class CacheView(Cache):
    """View of a cache: a call stores at the places that it names and reads all before `length`.

    Keys and values may differ in width, from each other (multi-head latent attention) and, as the
    number of heads, from layer to layer: the narrower of two is stored with zeros behind it, and
    layers of different shapes lie in different parts. Layers that store nothing have no part.

    Stateful layers are not given it but what `recurrent` puts in its place.

    Args:
        recurrent: layers that keep a state.

    Attributes:
        shapes: of the keys and values by layer, as `measure`d; empty before.
        widths: of its keys and of its values, by layer.
        held: slots that layers with a window read in this call, see `RingCache.begin_call`.
    """

    def __init__(self, recurrent: RecurrentLayers) -> None:
        super().__init__(layers=[])
        self.recurrent = recurrent
        self.shapes: dict[int, Shape] = {}
        self.widths: dict[int, tuple[int, int]] = {}
        self.forget()

    def forget(self) -> None:
        """Let go of the cache."""
        self.cache: KVCache | None = None
        self.scratch: Cache | None = None
        self.slots: int | Tensor = 0
        self.length = 0
        self.held: Tensor | None = None

    def measure(self, scratch: Cache) -> None:
        """The next calls store nothing, and tell `shapes`; states lie in `scratch`."""
        self.forget()
        self.shapes, self.scratch = {}, scratch

    def made(
        self,
        rows: int,
        slots: int,
        windows: Mapping[int, Window],
        columns: bool,
        like: Tensor,
        more: StaticCache | None = None,
    ) -> KVCache:
        """An empty cache of the shapes that were measured, then of stateful layers' inputs.

        Inputs are `like` a tensor. There may be `more` to keep of every token, a layer of its own.
        With `columns`, it has a layer more, the last: the column of every entry. Layers with
        `windows` have rings.
        """
        of = [(windows.get(layer), *shape) for layer, shape in sorted(self.shapes.items())]
        kinds, parts = list(dict.fromkeys(of)), list[StaticCache]()
        for kind in kinds:
            ring, heads, width, dtype, device = kind
            size = of.count(kind), rows, heads, slots, width, dtype, device
            parts.append(StaticCache(*size) if ring is None else RingCache(*size, *ring))
        layers = [kinds.index(kind) for kind in of]
        if stateful := len(self.recurrent.modules):
            layers += [len(parts)] * stateful
            parts.append(self.recurrent.entries(rows, slots, like))
        if more is not None:
            layers.append(len(parts))
            parts.append(more)
        if columns:
            layers.append(len(parts))
            parts.append(StaticCache(1, rows, 1, slots, 1, torch.long, like.device))
        return parts[0] if len(parts) == 1 else SpreadCache(parts, layers)

    def move(self, cache: KVCache, slots: int | Tensor, count: int, length: int) -> None:
        """The next call writes `count` entries a row to `slots`, and reads the first `length`."""
        self.cache, self.slots, self.length, self.scratch = cache, slots, length, None
        self.held = None
        for part in cache.parts if isinstance(cache, SpreadCache) else [cache]:
            if isinstance(part, RingCache):  # all are as large
                self.held = part.begin_call(slots, count, length)
        self._place = {layer: n for n, layer in enumerate(sorted(self.shapes))}

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store new keys and values `[R, heads, N, width]` of a layer, and read all in front."""
        both = key_states, value_states
        widths = [states.shape[-1] for states in both]
        if self.cache is None:
            while len(self.layers) <= layer_idx:
                self.layers.append(_Layer(self))
            heads = key_states.shape[1]
            self.widths[layer_idx] = widths[0], widths[1]
            self.shapes[layer_idx] = heads, max(widths), key_states.dtype, key_states.device
            return both
        place = self._place[layer_idx]
        keys, values = self.cache.update(place, together(*both), self.slots, self.length)
        return keys[..., : widths[0]], values[..., : widths[1]]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.length

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return (query_length if self.cache is None else self.length), 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1

    def _asked(self, name: str, number: int, *args: Any, **kwargs: Any) -> Any:
        """An answer about states; they are asked for while shapes are measured alone."""
        if self.scratch is None or not hasattr(self.scratch, name):
            raise InputError("its layers keep a state beside keys and values")
        self.recurrent.ask(number)
        return getattr(self.scratch, name)(*args, **kwargs)

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Any:
        return self._asked("get_conv_state", layer_idx, layer_idx, state_idx)

    def update_conv_state(self, conv_states: Tensor, layer_idx: int, *args: Any, **kw: Any) -> Any:
        return self._asked("update_conv_state", layer_idx, conv_states, layer_idx, *args, **kw)

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Any:
        return self._asked("get_recurrent_state", layer_idx, layer_idx, state_idx)

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, *args: Any, **kw: Any
    ) -> Any:
        given = recurrent_states, layer_idx, *args
        return self._asked("update_recurrent_state", layer_idx, *given, **kw)

    def has_previous_state(
        self, layer_idx: int | None = None, state_idx: int | None = None
    ) -> bool:
        return self.scratch is None

    def is_recording_past(self, layer_idx: int) -> bool:
        return False

    def update_indexer(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise InputError("its layers keep an index beside keys and values")


def columns_of(cache: KVCache, length: int) -> Tensor:
    """Columns `[R, length]` of the entries; see `CacheView.made`."""
    assert isinstance(cache, SpreadCache)
    return cache.read(cache.layers - 1, length)[0][:, 0, :, 0]


def write_columns(cache: KVCache, columns: Tensor, slots: int | Tensor) -> None:
    """Store the columns `[R, N]` of new entries."""
    assert isinstance(cache, SpreadCache)
    new = columns[None, :, None, :, None].expand(2, -1, -1, -1, -1)
    cache.write(cache.layers - 1, new, slots)


def together(keys: Tensor, values: Tensor) -> Tensor:
    """Keys and values `[2, …, width]` as a cache stores them, the narrower with zeros behind."""
    width = max(keys.shape[-1], values.shape[-1])
    return torch.stack([_widened(keys, width), _widened(values, width)])


def _widened(states: Tensor, width: int) -> Tensor:
    return F.pad(states, (0, width - states.shape[-1])) if states.shape[-1] < width else states


class _Layer(CacheLayerMixin):
    """Layer for models that look at the cache's layers; it has no keys of its own to show."""

    def __init__(self, view: CacheView) -> None:
        super().__init__()
        self.view, self.layer = view, len(view.layers)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None: ...

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        return self.view.update(key_states, value_states, self.layer)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.view.length, 0

    def get_seq_length(self) -> int:
        return self.view.length

    def get_max_length(self) -> int:
        return -1
