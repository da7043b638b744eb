"""Base of published heads as they run at inference, beside a target of transformers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor

from ....engine.cache import KVCache, StaticCache
from ....errors import InputError
from ...llama_layers import LlamaLayers
from ...repacked import Repacked, patched
from ...transformers.causal import CausalDecoder
from ...transformers.rearranged import factors
from .arranged import ArrangedLayers
from .attention import Attend
from .head import PublishedHead


def check_layers(target: CausalDecoder) -> None:
    """Raise an `InputError` if the target's layers read more than a draft head is given."""
    if target.by_layer is not None:
        name = type(target.model).__name__
        raise InputError(f"layers of {name} look tokens up themselves; it takes no draft heads")


class PublishedDecoder:
    """A head's layers over their own cache; its `rotary` are columns of what `place` was told.

    Args:
        head: in evaluation mode, on the target's device and in its dtype.
        target: what it drafts for; from now on its calls leave the hidden states behind that the
            head reads.

    Attributes:
        dim: width of what is kept of the target's hidden states.

    Raises:
        InputError: the head was made for another target, or the target reads more than embeddings.
    """

    _arranged: LlamaLayers | None = None  # during a generation, see `repacked`

    def __init__(self, head: PublishedHead, target: CausalDecoder) -> None:
        check_layers(target)
        head.meet(target.model)
        self.head, self.target, self.network = head, target, head.network
        self.reads = head.taken_of(target.model.config.get_text_config().num_hidden_layers)
        self.layers = list(getattr(head.network, "layers", ()))
        self.dim = head.target_size
        own = head.embeddings
        self._own_embeddings = own is not None
        self.embeddings = target.embeddings if own is None else own.detach()
        # cosines and sines of the rows that run, `[R, slots, head_dim]` each; behind them, of
        # layers that are arranged, their complex factors
        self._turns: tuple[Tensor, ...] = ()
        self._turns_of_all: tuple[Tensor, ...] = ()
        self._columns = 0
        self._arranging, self._repacked = ArrangedLayers(), Repacked()

    @contextmanager
    def repacked(self) -> Iterator[None]:
        """Surround a generation: on a processor, layers run on packed or rearranged weights."""
        self._arranged = self._arranging.of(self.head)
        try:
            with patched(self._repacked.ways([self.network])):
                yield
        finally:
            self._arranged = None

    def place(self, positions: Tensor) -> None:
        """Set the positions of the next generation's columns, `[R, slots]` or `[3, R, slots]`."""
        if not self._own_embeddings:
            self.embeddings = self.target.embeddings  # the target may have been moved
        self._columns = positions.shape[-1]
        if self.head.rotary is not None:
            turns = self.head.rotary(positions, self.head.dtype)
            own = () if self._arranged is None else (factors(*turns),)
            self._turns_of_all = *turns, *own
        self._turns = self._turns_of_all

    def text_of(self, rows: int) -> Tensor | None:
        """Ids of the placed prompt's text `[R, T]`, -1 elsewhere; None: there are none of R rows.

        Under guidance a prompt has ids of its conditional rows alone.
        """
        text = self.target.text
        return None if text is None or len(text) != rows else text

    def narrow(self, rows: Sequence[int] | None) -> None:
        """Run these rows alone, of those that were placed; None: all of them."""
        placed = self._turns_of_all
        self._turns = placed if rows is None else tuple(turns[[*rows]] for turns in placed)

    def embed(self, ids: Tensor) -> Tensor:
        """Its own inputs, or the target's, which some models scale."""
        return F.embedding(ids, self.embeddings) if self._own_embeddings else self.target.embed(ids)

    def rotary(self, grid: int = 0) -> Tensor:
        """The columns that have a place."""
        return torch.arange(self._columns, device=self.target.embeddings.device)

    def turns(self, columns: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines `[R, n, head_dim]` of columns `[n]` or `[R, n]`."""
        cos, sin = (_at(columns, turns) for turns in self._turns[:2])
        return cos, sin

    def cache(self, rows: int, slots: int, room: int | None = None) -> KVCache:
        """An empty cache for `rows` rows of at most `slots` tokens."""
        sizes = self.layers[0].self_attn.sizes
        kv, dim = sizes.num_key_value_heads, sizes.head_dim
        weight = next(self.network.parameters())
        return StaticCache(len(self.layers), rows, kv, slots, dim, weight.dtype, weight.device)

    def fuse(self, states: Tensor) -> Tensor:
        """Part `[…, dim]` of the target's hidden states `[…, A · Ht]` that is kept."""
        return states

    def states(self, hidden: Tensor) -> Tensor:
        """Hidden states that its own calls leave behind: the last ones."""
        return hidden

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
    ) -> Tensor:
        """Run N new inputs a row, see `Decoder.forward`; `rotary` holds columns."""
        if self._arranged is not None:
            turn = _at(rotary, self._turns[2])
            hidden = self.behind(self._arranged(x, turn, cache, slots, length, mask))
        else:
            hidden = self.run(x, self.turns(rotary), cached(cache, slots, length, mask))
        return self.logits(hidden) if head else hidden

    def run(self, x: Tensor, turns: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        """Hidden states `[R, N, H]` of inputs `[R, N, …]`."""
        out: Tensor = self.network(x, turns, attend)
        return out

    def behind(self, hidden: Tensor) -> Tensor:
        """Hidden states `[R, N, H]` that the network makes of those behind its last layer."""
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits `[…, V]` by the head's own output layer, or the target's."""
        return self.spread(self.own_logits(hidden))

    def own_logits(self, hidden: Tensor) -> Tensor:
        """Logits `[…, Vd]` over the tokens that the head drafts."""
        own = getattr(self.network, "lm_head", None)
        logits: Tensor = self.target.logits(hidden) if own is None else own(hidden)
        return logits

    def spread(self, logits: Tensor) -> Tensor:
        """Logits `[…, V]` of those over the head's own tokens `[…, Vd]`."""
        vocabulary = self.head.vocabulary
        return logits if vocabulary is None else vocabulary.scatter(logits)


def _at(columns: Tensor, turns: Tensor) -> Tensor:
    """Entries `[R, n, …]` of `turns [R, slots, …]` at columns `[n]` or `[R, n]`."""
    if columns.ndim == 1:
        return turns[:, columns]
    return turns[torch.arange(len(columns), device=columns.device)[:, None], columns]


def cached(cache: KVCache, slots: int | Tensor, length: int, mask: Tensor | None) -> Attend:
    """Attention over a cache that receives the new keys and values.

    Args:
        cache, slots, length, mask: see `Decoder.forward`.
    """

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        cache.write(layer, torch.stack([k, v]), slots)
        keys, values = cache.read(layer, length)
        grouped = q.shape[1] != k.shape[1]
        return F.scaled_dot_product_attention(q, keys, values, mask, enable_gqa=grouped)

    return attend
