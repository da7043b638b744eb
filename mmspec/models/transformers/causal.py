"""A causal language model of transformers, as target or as draft model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from copy import copy
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from ...engine.cache import KVCache
from ...errors import InputError
from ..counted_tokens import ALL, CountedTokens
from ..fuzzy_layers import shared_inputs, sources
from ..repacked import Repacked, Way, patched
from ..rounded import check_rounding
from .alibi import Alibi
from .cache_view import CacheView, Window, cache_name, columns_of, write_columns
from .chosen_layers import layers_of, outputs_told, running, states_kept
from .hot_experts import HotExperts
from .looking import See, attention_told
from .masks import Masks
from .output_layer import output_layer
from .rearranged import Rearranged, Rearranging, is_plain
from .recurrent import RecurrentLayers
from .sparse_experts import SparseExperts

if TYPE_CHECKING:
    from typing_extensions import Self


class CausalDecoder:
    """Cached forward passes of a language model of transformers, for `GuidedDecoder`.

    The model runs as transformers has it, or on a processor as `Rearranged`; but not as
    `torch.compile` has it, whose graphs would be made anew for every length. Its cache is ours, so
    that rows can stand at different places and roll back for nothing. It holds all of the text, but
    in layers with a window that much. Positions are slots of the cache: padding shifts a row as a
    whole, which rotary positions don't notice.

    Args:
        model: such as `LlamaForCausalLM`, in evaluation mode; with a `head` of our own a model
            without one, such as `LlamaModel`.
        embeddings: inputs by token id `[V, D]`; None: the model's own.
        head: logits of hidden states, V or fewer, see `GuidedDecoder`; None: the model's own.
        weights: how those of linear layers are rounded, see `rounded.linear`; None: as they are.

    Attributes:
        masks: how the model takes masks.
        text: ids of the prompt's text `[R, T]`, -1 elsewhere; None: no prompt with ids was placed.
        reads: hidden states that calls leave behind for a draft head, numbered as transformers'
            `hidden_states`: k is what layer k reads, 0 the embeddings, and as many as there are
            layers the last one. Empty: the last one, behind the final norm.

    Raises:
        InputError: the model has no table of embeddings, or weights that can't be rounded.
    """

    head: Callable[[Tensor], Tensor] | None
    text: Tensor | None = None
    reads: tuple[int, ...] = ()
    weights: str | None = None
    packs = True
    _read: dict[int, Tensor]
    _of: CausalDecoder | None = None  # of a rounded copy: whose caches it writes to
    _ways: Sequence[Way] = ()  # of a rounded copy: what its calls do with the model's layers

    def __init__(
        self,
        model: PreTrainedModel,
        embeddings: Tensor | None = None,
        head: Callable[[Tensor], Tensor] | None = None,
        weights: str | None = None,
    ) -> None:
        self.model, self.head = model, head
        self.config: Any = model.config.get_text_config()
        table = getattr(model.get_input_embeddings(), "weight", None)
        if not isinstance(table, Tensor) or table.ndim != 2:
            raise InputError(f"{type(model).__name__} has no table of embeddings")
        self._own_embeddings = embeddings is None
        self.embeddings = (table if embeddings is None else embeddings).detach()
        self.layers = range(getattr(self.config, "num_hidden_layers", 0))
        self.masks = Masks.stated(self.config)
        self.recurrent = RecurrentLayers()
        self.experts = SparseExperts(self.body)
        self.alibi = Alibi(self.body)
        self._view = CacheView(self.recurrent)
        self._outputs: dict[nn.Module, int] = {}
        self._measured: tuple[torch.dtype, torch.device] | None = None
        self._cache_name = cache_name(model)
        self._repacked, self._rearranging = Repacked(), Rearranging()
        self._rearranged: Rearranged | None = None
        self.round_weights(weights)

    @property
    def body(self) -> PreTrainedModel:
        """The part that makes the last hidden states, such as `LlamaModel`."""
        body = self.model.get_decoder()
        if not isinstance(body, PreTrainedModel):  # an output layer may bear this name
            body = self.model.base_model
        return body if body is not self.model else getattr(self.model, "model", body)

    @property
    def paired(self) -> bool:
        """True if its caches hold keys as `LlamaLayers` has them, False if as the model has."""
        return is_plain(self)

    @property
    def stored(self) -> Sequence[tuple[int, tuple[int, int]]]:
        """Layers that store keys and values, in a cache's order, and the widths of both."""
        return sorted(self._view.widths.items())

    @property
    def counts_columns(self) -> bool:
        """True if its caches hold the column of every entry, too."""
        return self.masks.window is not None or bool(self.alibi.layers)

    def blocks(self) -> Sequence[nn.Module]:
        """The layers, first to last."""
        blocks = layers_of(self.body, len(self.layers), self._outputs)
        if not blocks:
            raise InputError(f"{type(self.model).__name__} has no list of layers to choose from")
        return blocks

    def running(self, use: Sequence[Tensor | bool]) -> AbstractContextManager[None]:
        """Surround a call in which every layer runs for some rows alone, see `chosen_layers`."""
        return running(self.blocks(), use, self._outputs)

    @contextmanager
    def repacked(self) -> Iterator[None]:
        """Surround a generation: on a processor, layers run on packed or rearranged weights."""
        self.experts.forget()
        head = self.model.get_output_embeddings()
        if self._of is None or self._of.paired:
            self._rearranged = self._rearranging.of(self)
        parts = [] if self._rearranged is not None else [self.body]
        parts += [] if head is None else [head]
        ways = self._repacked.ways(parts, self.weights) if parts else []
        if self._of is not None:
            self._ways, ways = [*ways, *self.experts.ways(self.weights)], []
        else:
            ways += self.experts.ways(self.weights)
        try:
            with torch.compiler.set_stance("force_eager"), patched(ways):
                yield
        finally:
            self._rearranged, self._ways = None, ()
            self.forget()

    def looking(self, see: See) -> AbstractContextManager[None]:
        """Surround calls that tell `see` their attention weights, layer by layer."""
        if self._rearranged is not None:
            return self._rearranged.layers.looking(see)
        return attention_told(self, see)

    def fuzzy(self, size: int) -> AbstractContextManager[None]:
        """Surround calls in which `size` layers in a row are fuzzy, see `fuzzy_layers`."""
        reads = sources(len(self.layers), size)
        if self._rearranged is not None:
            return self._rearranged.layers.reading(reads)
        return patched(shared_inputs(self.blocks(), reads), over=True)

    def rounded(self, weights: str | None, hot_experts: int | None = None) -> Self:
        """The same network on rounded weights, see `rounded.linear`, for calls between this one's.

        With `hot_experts` its tokens choose among so many of a layer's, see `HotExperts`.

        It reads and writes this one's caches, and has generations of its own to be told of:
        `repacked`, `refresh`, `place`. During its calls the model's own layers are rounded: no
        other thread may call the model meanwhile.

        Raises:
            InputError: they can't be rounded, or chosen from.
        """
        other = copy(self)
        other.experts, self.experts.kept = HotExperts(self.experts, hot_experts), bool(hot_experts)
        other.round_weights(weights)
        other._repacked, other._rearranging = Repacked(), Rearranging()
        other._of = self
        return other

    def round_weights(self, weights: str | None) -> None:
        """Let generations run on rounded weights, see `rounded.linear`; None: on those there are.

        Raises:
            InputError: they can't be rounded.
        """
        if weights is not None:
            check_rounding(weights, self.embeddings)
        self.weights = weights

    def forget(self) -> None:
        """Let go of the last cache."""
        self._view.forget()

    def embed(self, ids: Tensor) -> Tensor:
        """Inputs `[…, D]` of token ids `[…]`; those of a model with more `by_layer` are wider."""
        module = self.model.get_input_embeddings()
        if self._own_embeddings and type(module) is not nn.Embedding:
            x = module(ids)  # some scale what they look up
        else:
            x = F.embedding(ids, self.embeddings)
        if self.by_layer is None:
            return x
        body: Any = self.body
        return torch.cat([x, body.get_per_layer_inputs(ids).flatten(-2)], dim=-1)

    @property
    def by_layer(self) -> tuple[int, int] | None:
        """Layers and width of what each reads of a token's id, behind its embedding; else None."""
        width = getattr(self.config, "hidden_size_per_layer_input", None)
        return (len(self.layers), width) if width and self._own_embeddings else None

    def split_inputs(self, x: Tensor) -> dict[str, Tensor]:
        """Arguments of the model for inputs `[R, N, …]`, see `embed`."""
        if self.by_layer is None:
            return {"inputs_embeds": x}
        width = self.embeddings.shape[1]
        return {
            "inputs_embeds": x[..., :width],
            "per_layer_inputs": x[..., width:].unflatten(-1, self.by_layer),
        }

    def rotary(self, grid: int = 0) -> Tensor:
        """Columns `[max_position_embeddings]`; the model turns its positions itself."""
        return torch.arange(self.config.max_position_embeddings, device=self.embeddings.device)

    def places(self) -> Tensor:
        """Positions of all columns `[R or 1, columns]`, or `[axes, R, columns]`."""
        return self.turned(self.rotary())

    def turned(self, columns: Tensor) -> Tensor:
        """Positions `[R or 1, N]`, or `[axes, R, N]`, of columns `[N]` or `[R, N]`."""
        return columns[None] if columns.ndim == 1 else columns

    def cache(self, rows: int, slots: int, room: int | None = None) -> KVCache:
        """An empty cache for `rows` rows of at most `slots` tokens, see `Decoder.cache`."""
        weight = self.embeddings
        if self._measured != (weight.dtype, weight.device):
            self._measure()
            self._measured = weight.dtype, weight.device
        stored = self._view.shapes
        rings, window = dict[int, Window](), self.masks.window
        # of layers that run several times it is not known which run slides
        if room is not None and window is not None and set(stored) <= {*self.layers}:
            rings = {n: (window, room) for n in stored if self.masks.slides(self.config, n)}
        chosen = self.experts.entries(rows, slots, weight.device)
        return self._view.made(rows, slots, rings, self.counts_columns, weight, chosen)

    @torch.no_grad()
    def _measure(self) -> None:
        """Learn the shapes of keys and values, and what keeps a state, from a call of one token."""
        scratch = DynamicCache(config=self.config)
        self._view.measure(scratch)
        place = torch.zeros(1, dtype=torch.long, device=self.embeddings.device)
        x = self.embed(place[None])
        place = self.turned(place)[..., :1, :]  # of one row
        told = outputs_told(self.body, len(self.layers), self._outputs)
        mask = x.new_zeros(1, 1, 1, 1)
        experts = self.experts.call(None, 0, 1, mask, True)
        with told, experts, self.recurrent.found_in(self.body, self._view, scratch):
            masks = self.masks.of(mask, lambda: x)
            self._call(self.body, x, place, place + 1 if self.alibi.layers else masks)
        if not self._view.shapes and not self.recurrent.modules:
            raise InputError("its layers store no keys and values")

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
        some: CountedTokens = ALL,
        **inputs: Any,
    ) -> Tensor:
        """Run N new inputs a row, see `Decoder.forward`; `rotary` is columns, see `turned`.

        `inputs`: what else the model is called with. Hidden states are those after the last norm.
        """
        if self._rearranged is not None and not inputs:
            self._read = {}
            where = self.turned(rotary), cache, slots, length, mask, use
            hidden = self._rearranged(x, *where, self._read if self.reads else None, some)
            return some.mapped(self.logits, hidden) if head else hidden
        mask = x.new_zeros(x.shape[1], length) if mask is None else mask
        self._view.move(cache, slots, x.shape[1], length)
        columns = rotary.expand(len(x), -1)
        if self.counts_columns:
            write_columns(cache, columns, slots)

        def distance() -> Tensor:
            return columns[:, :, None] - columns_of(cache, length)[:, None]

        network = self.model if (whole := head and self.head is None) else self.body
        mask = mask if mask.ndim == 4 else mask[None, None]
        masks = self.masks.of(mask, distance, self._view.held)
        with ExitStack() as during:
            if self.recurrent.modules:
                # states of other weights, or of some of the layers, are not the model's
                fold = use is None and self._of is None
                call = self.recurrent.call(self._view, cache, slots, length, mask, fold)
                during.enter_context(patched(during.enter_context(call).ways, over=True))
            if self.alibi.layers:
                keys = self.turned(columns_of(cache, length))
                during.enter_context(patched(self.alibi.ways(mask, keys, x.dtype), over=True))
                masks = torch.ones_like(keys)  # the layers have been given theirs
            during.enter_context(patched(self._ways, over=True))
            if use is not None:
                during.enter_context(self.running(use))
            during.enter_context(self.experts.call(cache, slots, length, mask, use is None))
            blocks = self.blocks() if self.reads else ()
            self._read = during.enter_context(states_kept(blocks, self.reads))
            out = self._call(network, x, self.turned(rotary), masks, **inputs)
        if whole:
            return out.logits
        return self.logits(out.last_hidden_state) if head else out.last_hidden_state

    def states(self, hidden: Tensor) -> Tensor:
        """Hidden states `[R, N, A · D]` that the last call leaves for a head; it gave `hidden`."""
        if not self.reads:
            return hidden
        states = [self._read.get(number, hidden) for number in self.reads]
        self._read = {}
        return torch.cat(states, dim=-1)

    def _call(
        self, network: nn.Module, x: Tensor, positions: Tensor, masks: Any, **inputs: Any
    ) -> Any:
        """Call `network` with inputs `[R, N, D]`; `masks` are those of `Masks.of`."""
        inputs |= self.split_inputs(x) | {"attention_mask": masks, "position_ids": positions}
        return network(**inputs, **{self._cache_name: self._view}, use_cache=True)

    def logits(self, hidden: Tensor) -> Tensor:
        """The output layer: logits `[..., V]` of hidden states `[..., D]`.

        Raises:
            InputError: it is not all that the model does with them; some scale or cap their logits.
        """
        if self.head is None:
            self.head = output_layer(self)
        with patched(self._ways, over=True):
            return self.head(hidden)
