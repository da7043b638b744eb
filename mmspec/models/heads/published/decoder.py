"""Published heads as they run at inference, beside a target of transformers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ....engine.accept.chain import pick
from ....engine.cache import KVCache, StaticCache
from ...transformers.causal import CausalDecoder
from ...transformers.prompted import continued
from ..columns import Images, kept_columns
from ..columns import positions as places
from .dflash import DFlashNetwork
from .eagle1 import EagleNetwork
from .eagle3 import Eagle3Network
from .head import PublishedHead
from .hydra import HydraNetwork
from .layer import Attend
from .medusa import MedusaNetwork
from .vispec import ViSpecNetwork


class PublishedDecoder:
    """A head's layers over their own cache; its `rotary` are columns of what `place` was told.

    Args:
        head: in evaluation mode, on the target's device and in its dtype.
        target: what it drafts for; from now on its calls leave the hidden states behind that the
            head reads.

    Attributes:
        dim: width of what is kept of the target's hidden states.

    Raises:
        InputError: the head was made for another target.
    """

    def __init__(self, head: PublishedHead, target: CausalDecoder) -> None:
        head.check(target.model)
        self.head, self.target, self.network = head, target, head.network
        self.reads = head.reads_of(target.model.config.get_text_config().num_hidden_layers)
        self.layers = list(getattr(head.network, "layers", ()))
        self.dim = head.target_size
        own = head.embeddings
        self._own_embeddings = own is not None
        self.embeddings = target.embeddings if own is None else own.detach()
        self._turns: tuple[Tensor, Tensor] = (torch.zeros(0), torch.zeros(0))
        self._columns = 0

    def place(self, positions: Tensor) -> None:
        """Set the positions of the next generation's columns, `[R, slots]` or `[3, R, slots]`."""
        if not self._own_embeddings:
            self.embeddings = self.target.embeddings  # the target may have been moved
        self._columns = positions.shape[-1]
        if self.head.rotary is not None:
            self._turns = self.head.rotary(positions, self.head.dtype)

    def embed(self, ids: Tensor) -> Tensor:
        """Its own inputs, or the target's, which some models scale."""
        return F.embedding(ids, self.embeddings) if self._own_embeddings else self.target.embed(ids)

    def rotary(self, grid: int = 0) -> Tensor:
        """The columns that have a place."""
        return torch.arange(self._columns, device=self.target.embeddings.device)

    def turns(self, columns: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines `[R, n, head_dim]` of columns `[n]` or `[R, n]`."""
        cos, sin = self._turns
        if columns.ndim == 1:
            return cos[:, columns], sin[:, columns]
        rows = torch.arange(len(columns), device=columns.device)[:, None]
        return cos[rows, columns], sin[rows, columns]

    def cache(self, rows: int, slots: int) -> KVCache:
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
        hidden = self.run(x, self.turns(rotary), cached(cache, slots, length, mask))
        return self.logits(hidden) if head else hidden

    def run(self, x: Tensor, turns: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        """Hidden states `[R, N, H]` of inputs `[R, N, …]`."""
        out: Tensor = self.network(x, turns, attend)
        return out

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


class PublishedEagleDecoder(PublishedDecoder):
    """A head of EAGLE's kind, for `EagleModel`.

    Its input at a column is the token's embedding and the hidden state in front of it. As
    published, a row's first column has none and is not read, and a pair stands at its hidden
    state's position.
    """

    network: EagleNetwork | Eagle3Network

    def view(
        self, prefix: Tensor, mask: Tensor, images: Images | None, positions: int
    ) -> tuple[Tensor, Tensor]:
        place = places(mask)
        own = mask & (place > 0) & self._kept_of(prefix, mask, images)
        own[:, -1] = True  # drafts begin there
        self._mask, self._images = mask, images
        self._index, self._kept = kept_columns(own)
        if self.head.rotary is not None and self.head.rotary.axes == 3:
            stand = continued(self.target.places(), positions)  # a few more than there are columns
        else:
            stand = continued(place, positions)
        stand = F.pad(stand[..., :-1], (1, 0))
        index = self._index.expand(*stand.shape[:-1], -1)
        behind = stand[..., mask.shape[1] :]
        self.place(torch.cat([stand.gather(-1, index), behind], dim=-1))
        return pick(prefix, self._index), self._kept

    def _kept_of(self, prefix: Tensor, mask: Tensor, images: Images | None) -> Tensor:
        """The columns `[R, T]` that it reads of a prompt: all, also those of pictures."""
        return mask

    def visual(self) -> list[int]:
        """Columns of pictures that it reads of the last prompt, per row."""
        if self._images is None:
            return [0] * len(self._index)
        found = self._images.visual(self._mask)
        counts: list[int] = (found.gather(1, self._index) & self._kept).sum(1).tolist()
        return counts

    def branches(self) -> list[dict[str, float]]:
        """Branches of a compressor that chooses: it has none."""
        return []

    def read(self, prefix: Tensor, before: Tensor) -> Tensor:
        return self.joined(pick(prefix, self._index), pick(before, self._index))

    def joined(self, embedded: Tensor, features: Tensor) -> Tensor:
        assert isinstance(self.network, EagleNetwork)
        return self.network.joined(embedded, features)


class PublishedEagle3Decoder(PublishedEagleDecoder):
    """An EAGLE-3 head; embeddings and hidden states stand side by side in its inputs."""

    network: Eagle3Network

    def __init__(self, head: PublishedHead, target: CausalDecoder) -> None:
        super().__init__(head, target)
        self.dim = self.layers[0].self_attn.sizes.hidden_size

    def fuse(self, states: Tensor) -> Tensor:
        return self.network.fuse(states)

    def joined(self, embedded: Tensor, features: Tensor) -> Tensor:
        return torch.cat([embedded, features], dim=-1)

    def run(self, x: Tensor, turns: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        embedded, hidden = x.split([x.shape[-1] - self.dim, self.dim], dim=-1)
        return self.network(embedded, hidden, turns, attend)

    def logits(self, hidden: Tensor) -> Tensor:
        return super().logits(self.network.before_output(hidden))


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


class PublishedPEagleDecoder(PublishedEagle3Decoder):
    """A P-EAGLE head, for `PEagleModel`."""

    @property
    def most(self) -> int:
        """Tokens that a block says."""
        return self.network.block

    def masked(self, rows: int) -> Tensor:
        """Inputs `[rows, K - 1, 2 H]` of the places behind a block's first."""
        token = torch.tensor(self.network.mask_token_id, device=self.embeddings.device)
        both = self.joined(self.embed(token)[None, None], self.fuse(self.network.mask_hidden))
        return both.expand(rows, self.most - 1, -1)


class PublishedMsdDecoder(PublishedEagleDecoder):
    """An MSD head: a picture's column is its embedding itself, past `fc`."""

    def read(self, prefix: Tensor, before: Tensor) -> Tensor:
        x = super().read(prefix, before)
        if self._images is None:
            return x
        visual = self._images.visual(before.new_zeros(before.shape[:2], dtype=torch.bool))
        return torch.where(visual.gather(1, self._index)[..., None], pick(prefix, self._index), x)


class PublishedViSpecDecoder(PublishedEagleDecoder):
    """A ViSpec head: pictures are read by its adapter, see `vispec`."""

    network: ViSpecNetwork

    def _kept_of(self, prefix: Tensor, mask: Tensor, images: Images | None) -> Tensor:
        self._global = prefix.new_zeros(len(mask), mask.shape[1] + 1, prefix.shape[-1])
        self._values, self._stand = prefix, torch.zeros_like(mask)
        if images is not None:
            seen = self.network.imadpt(images.picked(prefix), images.real())
            values, keep = images.at_end(seen[:, :-1], seen.shape[1] - 1)
            self._stand = images.put(keep, torch.zeros_like(mask))
            self._values = images.put(values, prefix)
            with_none = torch.cat([torch.zeros_like(seen[:1, -1]), seen[:, -1]])
            self._global = F.embedding(images.latest(mask) + 1, with_none)
            return mask & (self._stand | ~images.visual(mask))
        return mask

    def read(self, prefix: Tensor, before: Tensor) -> Tensor:
        context = pick(self._global[:, :-1], self._index)
        hidden = self.network.seen(pick(before, self._index), context)
        x = self.network.joined(pick(prefix, self._index), hidden)
        stand = self._stand.gather(1, self._index)
        return torch.where(stand[..., None], pick(self._values, self._index), x)

    def joined(self, embedded: Tensor, features: Tensor) -> Tensor:
        context = self._global[:, -1:].expand_as(features)
        return self.network.joined(embedded, self.network.seen(features, context))


class PublishedDFlashDecoder(PublishedDecoder):
    """A DFlash head, for `DFlashModel`."""

    network: DFlashNetwork

    def __init__(self, head: PublishedHead, target: CausalDecoder) -> None:
        super().__init__(head, target)
        self.dim = self.layers[0].self_attn.sizes.hidden_size

    @property
    def most(self) -> int:
        """Tokens that a block says."""
        return self.network.most

    def fuse(self, states: Tensor) -> Tensor:
        return self.network.fuse(states)

    def masked(self, embedded: Tensor) -> Tensor:
        """Inputs of blocks `[…, 1 + K, H]` that begin with tokens embedded as `[…, H]`."""
        size = self.network.block_size - 1
        ids = torch.full((*embedded.shape[:-1], size), self.network.mask_token_id)
        masks = self.embed(ids.to(embedded.device))
        return torch.cat([embedded.unsqueeze(-2), masks], dim=-2)

    def feed(self, features: Tensor, columns: Tensor, cache: KVCache, slots: int | Tensor) -> None:
        """Write what the layers read of features `[R, n, H]` at `columns [n]` or `[R, n]`."""
        for layer, pair in enumerate(self.network.context(features, self.turns(columns))):
            cache.write(layer, torch.stack(pair), slots)


class PublishedPathDecoder(PublishedDecoder):
    """Medusa's or Hydra's heads, for `HydraModel`: they have no cache."""

    network: MedusaNetwork | HydraNetwork

    @property
    def most(self) -> int:
        """Number of heads."""
        return self.network.count

    def ahead(self, before: Tensor, path: Tensor) -> Tensor:
        """Logits `[…, V]` behind a path of embeddings `[…, i, H]`, the last head that reads it.

        Args:
            before: the target's hidden states in front of the path `[…, H]`.
            path: from the last committed token on.
        """
        if isinstance(self.network, HydraNetwork):
            return self.network(before, path)
        return self.spread(self.network.head(path.shape[-2] - 1)(before))

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden  # they are logits already


def published_decoder(head: PublishedHead, target: CausalDecoder) -> PublishedDecoder:
    """The head as it runs at inference, for any number of generations.

    Raises:
        InputError: it was made for another target.
    """
    network = head.network
    if isinstance(network, ViSpecNetwork):
        return PublishedViSpecDecoder(head, target)
    if isinstance(network, EagleNetwork):
        kind = PublishedMsdDecoder if head.format == "msd" else PublishedEagleDecoder
        return kind(head, target)
    if isinstance(network, Eagle3Network):
        if network.mask_token_id is not None:
            return PublishedPEagleDecoder(head, target)
        return PublishedEagle3Decoder(head, target)
    if isinstance(network, DFlashNetwork):
        return PublishedDFlashDecoder(head, target)
    return PublishedPathDecoder(head, target)
