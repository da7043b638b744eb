"""A causal language model of transformers, as target or as draft model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin

from ..engine.cache import KVCache, StaticCache
from ..errors import InputError
from .repacked import Repacked

CACHE_NAMES = ("cache", "past_key_values")  # transformers' names for it, since 5.24 and before


def cache_name(model: PreTrainedModel) -> str:
    """By which of `CACHE_NAMES` the model is given its cache."""
    taken = inspect.signature(type(model).forward).parameters
    known = [name for name in CACHE_NAMES if name in taken]
    return known[0] if known else CACHE_NAMES[-1]  # one that names none is older than both


class CausalDecoder:
    """Cached forward passes of a language model with rotary positions, for `GuidedDecoder`.

    The model runs as transformers has it; only its cache is ours, so that rows can stand at
    different places and roll back for nothing. Positions are slots of the cache: padding shifts a
    row as a whole, which rotary positions don't notice.

    Args:
        model: such as `LlamaForCausalLM`, in evaluation mode; with a `head` of our own a model
            without one, such as `LlamaModel`.
        embeddings: inputs by token id `[V, D]`; None: the model's own.
        head: logits of hidden states; None: the model's own. There may be fewer than V of them, see
            `GuidedDecoder`.

    Raises:
        InputError: the model has no rotary positions, layers without full attention, or scaled
            embeddings.
    """

    head: Callable[[Tensor], Tensor] | None

    def __init__(
        self,
        model: PreTrainedModel,
        embeddings: Tensor | None = None,
        head: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        config: Any = model.config.get_text_config()
        if getattr(config, "rope_parameters", None) is None:
            raise InputError(f"{type(model).__name__} has no rotary positions; such models only")
        kinds = getattr(config, "layer_types", None)
        sliding = any("full" not in kind for kind in kinds) if kinds else None
        if sliding or (kinds is None and getattr(config, "sliding_window", None)):
            raise InputError(f"{type(model).__name__} has layers without full attention")
        if type(model.get_input_embeddings()) is not torch.nn.Embedding:
            raise InputError(f"{type(model).__name__} does more than look its embeddings up")
        self.model, self.config = model, config
        own = model.get_input_embeddings().weight
        self.embeddings = (own if embeddings is None else embeddings).detach()
        self.head = head
        self.heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        self.head_dim = (
            getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        )
        self.layers = range(config.num_hidden_layers)
        self._view = _View(len(self.layers))
        self._cache_name = cache_name(model)
        self._repacked = Repacked()

    @property
    def body(self) -> PreTrainedModel:
        """What makes the last hidden states, such as `LlamaModel`."""
        return self.model.get_decoder()

    def blocks(self) -> Sequence[nn.Module]:
        """The layers, first to last."""
        blocks = getattr(self.body, "layers", None)
        if not isinstance(blocks, nn.ModuleList):
            raise InputError(f"{type(self.model).__name__} has no list of layers to choose from")
        return list(blocks)

    def repacked(self) -> AbstractContextManager[None]:
        """Around a generation: the layers run on packed weights where that is faster."""
        head = self.model.get_output_embeddings()
        return self._repacked.running([self.body, *([] if head is None else [head])])

    def rotary(self, grid: int = 0) -> Tensor:
        """Positions `[max_position_embeddings]`; the model turns them itself."""
        return torch.arange(self.config.max_position_embeddings, device=self.embeddings.device)

    def cache(self, rows: int, slots: int) -> StaticCache:
        """An empty cache for `rows` rows of at most `slots` tokens."""
        weight = self.embeddings
        return StaticCache(
            len(self.layers), rows, self.heads, slots, self.head_dim, weight.dtype, weight.device
        )

    def forward(
        self,
        x: Tensor,
        rotary: Tensor,
        cache: KVCache,
        slots: int | Tensor,
        length: int,
        mask: Tensor | None,
        head: bool = True,
        use: list[Tensor | bool] | None = None,
        **inputs: Any,
    ) -> Tensor:
        """Run N new inputs a row; see `Decoder.forward`. `rotary` holds positions.

        They are `[N]`, `[R, N]`, or `[axes, R, N]` where the model has several. `inputs` are what
        else the model is to be called with. Hidden states are those after the last norm.
        """
        if mask is None:
            mask = x.new_zeros(x.shape[1], length)
        self._view.move(cache, slots, length)
        inputs |= {
            "inputs_embeds": x,
            "attention_mask": mask if mask.ndim == 4 else mask[None, None],
            "position_ids": rotary[None] if rotary.ndim == 1 else rotary,
            self._cache_name: self._view,
            "use_cache": True,
        }
        with nullcontext() if use is None else running(self.blocks(), use):
            if head and self.head is None:
                logits: Tensor = self.model(logits_to_keep=0, **inputs).logits
                return logits
            hidden: Tensor = self.body(**inputs).last_hidden_state
        return self.logits(hidden) if head else hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """The output layer: logits `[..., V]` of hidden states `[..., D]`.

        Raises:
            InputError: it is not all that the model does with them; some scale or cap their logits.
        """
        if self.head is None:
            self.head = self._split()
        return self.head(hidden)

    @torch.no_grad()
    def _split(self) -> nn.Module:
        """The model's own output layer, after a trial that it and the body are the whole model."""
        head: nn.Module = self.model.get_output_embeddings()
        x = torch.linspace(-1, 1, self.embeddings.shape[1]).to(self.embeddings)[None, None]
        place = torch.zeros(1, 1, dtype=torch.long, device=x.device)
        trial: dict[str, Any] = {"inputs_embeds": x, "position_ids": place, "use_cache": False}
        apart, whole = head(self.body(**trial).last_hidden_state), self.model(**trial).logits
        if not torch.allclose(apart.to(whole), whole, rtol=1e-3):
            name = type(self.model).__name__
            raise InputError(
                f"{name} does more with its hidden states than its output layer does; choose a "
                "method that does not read them"
            )
        return head


@contextmanager
def running(layers: Sequence[nn.Module], use: Sequence[Tensor | bool]) -> Iterator[None]:
    """Let every layer run for some rows alone: what skips it keeps its hidden states.

    Args:
        layers: take hidden states first and give nothing else.
        use: by layer, True or False, or which rows `[R, 1, 1]`.
    """
    part = [(layer, rows) for layer, rows in zip(layers, use, strict=True) if rows is not True]
    before = [vars(layer).get("forward") for layer, _ in part]
    for layer, rows in part:
        vars(layer)["forward"] = partial(_of_rows, layer.forward, rows)
    try:
        yield
    finally:
        for (layer, _), own in zip(part, before, strict=True):
            del vars(layer)["forward"]
            if own is not None:
                vars(layer)["forward"] = own


def _of_rows(
    forward: Callable[..., Tensor], rows: Tensor | bool, hidden: Tensor, *args: Any, **kwargs: Any
) -> Tensor:
    if rows is False:
        return hidden
    return torch.where(torch.as_tensor(rows), forward(hidden, *args, **kwargs), hidden)


class _View(Cache):
    """Our cache as transformers wants it: what is stored goes where the call says."""

    def __init__(self, layers: int) -> None:
        super().__init__(layers=[_Layer(self, n) for n in range(layers)])
        self.length = 0

    def move(self, cache: KVCache, slots: int | Tensor, length: int) -> None:
        """The next call writes to `slots` and reads the first `length`."""
        self.cache, self.slots, self.length = cache, slots, length


class _Layer(CacheLayerMixin):
    def __init__(self, view: _View, layer: int) -> None:
        super().__init__()
        self.view, self.layer = view, layer
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """There is nothing to prepare."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        view = self.view
        view.cache.write(self.layer, torch.stack([key_states, value_states]), view.slots)
        return view.cache.read(self.layer, view.length)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.view.length, 0

    def get_seq_length(self) -> int:
        return self.view.length

    def get_max_length(self) -> int:
        return -1
