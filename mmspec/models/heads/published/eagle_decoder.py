"""Heads of EAGLE's kind as they run at inference: EAGLE-1 and 3, P-EAGLE, MSD, ViSpec."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ....engine.accept.chain import pick
from ...transformers.causal import CausalDecoder
from ...transformers.prompted import continued
from ..columns import Images, kept_columns
from ..columns import positions as places
from .base_decoder import PublishedDecoder
from .eagle1 import EagleNetwork
from .eagle3 import Eagle3Network
from .head import PublishedHead
from .layer import Attend
from .vispec import ViSpecNetwork


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
