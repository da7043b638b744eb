"""Heads of EAGLE's kind as they run at inference: a token a call, over hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ....engine.accept.chain import pick
from ....errors import InputError
from ....methods.parts.heads import BRANCHES
from ...transformers.causal import CausalDecoder
from ...transformers.prompted import continued
from ..columns import Columns, Images, Look, kept, kept_columns
from .attention import Attend
from .base_decoder import PublishedDecoder
from .eagle1 import EagleNetwork
from .eagle3 import Eagle3Network
from .falcon import FalconNetwork
from .flash import FlashNetwork
from .head import PublishedHead
from .hydra import PrefixHydraNetwork

TokenNetwork = EagleNetwork | Eagle3Network | PrefixHydraNetwork


class PromptColumns(NamedTuple):
    """Columns that a head reads of a prompt.

    Attributes:
        mask: its real columns `[R, T]`.
        read, kept: those that it reads, see `kept_columns`.
        images: where its pictures are.
        text: ids of the prompt's text `[R, T]`, -1 elsewhere, if the head embeds them itself.
    """

    mask: Tensor
    read: Tensor
    kept: Tensor
    images: Images | None
    text: Tensor | None

    def of_rows(self, rows: Sequence[int]) -> PromptColumns:
        """The same of these rows alone."""
        mask, read, kept = (x[[*rows]] for x in self[:3])
        images = self.images and self.images.of_rows(rows)
        text = None if self.text is None else self.text[[*rows]]
        return PromptColumns(mask, read, kept, images, text)


class PublishedEagleDecoder(PublishedDecoder):
    """A head of EAGLE's kind, for `EagleModel`.

    Its input at a column is the token's embedding and the hidden state in front of it. As
    published, a row's first column has none and is not read, and a pair stands at its hidden
    state's position.
    """

    network: TokenNetwork
    _prompt: PromptColumns
    _rows: Sequence[int] | None = None  # those that run; None: all
    _choice: Tensor | None = None  # see `Look`

    def __init__(self, head: PublishedHead, target: CausalDecoder) -> None:
        super().__init__(head, target)
        self.dim = self.network.width

    def fuse(self, states: Tensor) -> Tensor:
        return self.network.fuse(states)

    def view(
        self, prefix: Tensor, mask: Tensor, images: Images | None, positions: int
    ) -> tuple[Tensor, Tensor]:
        text = self._own_text(mask)
        columns = self.seen(prefix, torch.zeros_like(prefix), mask, images, text)
        look = self.network.look(columns)
        index, kept = read_columns(columns, look)
        self._prompt, self._rows = PromptColumns(mask, index, kept, images, text), None
        self._choice = look.choice
        place = columns.positions()
        if self.head.rotary is not None and self.head.rotary.axes == 3:
            stand = continued(self.target.places(), positions)  # a few more than there are columns
        else:
            stand = continued(place, positions)
        stand = F.pad(stand[..., :-1], (1, 0))
        behind = stand[..., mask.shape[1] :]
        read = stand.gather(-1, index.expand(*stand.shape[:-1], -1))
        self.place(torch.cat([read, behind], dim=-1))
        return pick(prefix, index), kept

    def narrow(self, rows: Sequence[int] | None) -> None:
        super().narrow(rows)
        self._rows = rows

    def visual(self) -> list[int]:
        """Columns of pictures that it reads of the last prompt, per row."""
        mask, index, kept, images, _ = self._prompt
        if images is None:
            return [0] * len(mask)
        counts: list[int] = (images.visual(mask).gather(1, index) & kept).sum(1).tolist()
        return counts

    def branches(self) -> list[dict[str, float]]:
        """Weights of its compressor's branches for the last prompt, those above 0, per row."""
        if self._choice is None:
            return []
        return [
            {name: weight for name, weight in zip(BRANCHES, row, strict=True) if weight > 0}
            for row in self._choice.tolist()
        ]

    def read(self, prefix: Tensor, before: Tensor) -> tuple[Tensor, Tensor | None]:
        mine = self._prompt if self._rows is None else self._prompt.of_rows(self._rows)
        mask, index, _, images, text = mine
        columns = self.seen(prefix, before, mask, images, text)
        look = self.network.look(columns)
        behind = None if look.context is None else look.context[:, -1:]
        return inputs_of(self.network, columns, look, index), behind

    def _own_text(self, mask: Tensor) -> Tensor | None:
        """Ids of the prompt's text, if the head embeds them itself and there are any."""
        text = self.text_of(len(mask)) if self._own_embeddings else None
        return None if text is None else F.pad(text, (mask.shape[1] - text.shape[1], 0), value=-1)

    def seen(
        self,
        prefix: Tensor,
        before: Tensor,
        mask: Tensor,
        images: Images | None,
        text: Tensor | None,
    ) -> Columns:
        """The prompt's columns; pictures and what has no ids are as the target embeds them."""
        narrow = self.network.width != prefix.shape[-1]
        if narrow and (text is None or bool(((text < 0) & mask).any())):
            raise InputError(
                f"the draft head is {self.network.width} wide and reads text alone, and the prompt "
                "has a picture or no ids; draft by another method here"
            )
        if text is not None:
            own = self.embed(text.clamp_min(0))
            prefix = own if narrow else torch.where((text < 0)[..., None], prefix, own)
        columns = Columns(prefix, before, mask, mask, images)
        return columns if self.head.shown is None else self.head.shown(columns)

    def joined(self, embedded: Tensor, features: Tensor, context: Tensor | None = None) -> Tensor:
        return self.network.joined(embedded, features, context)

    def behind(self, hidden: Tensor) -> Tensor:
        network = self.network
        if not isinstance(network, Eagle3Network) or not network.feed_normed:
            return hidden
        normed: Tensor = network.norm(hidden)
        return normed

    def logits(self, hidden: Tensor) -> Tensor:
        assert isinstance(self.network, EagleNetwork | Eagle3Network)
        return super().logits(self.network.before_output(hidden))


def read_columns(columns: Columns, look: Look) -> tuple[Tensor, Tensor]:
    """The columns that a head reads, and which are real, see `kept_columns`.

    A row's first has no hidden state in front of it. Drafts begin at the last of the prompt, which
    is read in any case.
    """
    own = kept(columns, look) & (columns.positions() > 0)
    return kept_columns(own.scatter(1, columns.last_asked(), True))


def inputs_of(network: TokenNetwork, columns: Columns, look: Look, index: Tensor) -> Tensor:
    """The inputs of a head's layers at the columns `index [R, S']`."""
    context = None if look.context is None else pick(look.context, index)
    x = network.joined(pick(columns.embedded, index), pick(columns.before, index), context)
    if look.values is None or columns.images is None:
        return x
    visual = columns.images.visual(columns.mask).gather(1, index)
    return torch.where(visual[..., None], pick(look.values, index), x)


class PublishedFlashDecoder(PublishedEagleDecoder):
    """A FLASH head, for `FlashModel`."""

    network: FlashNetwork


class PublishedFalconDecoder(PublishedEagleDecoder):
    """A Falcon head, for `FalconModel`."""

    network: FalconNetwork


class PublishedPrefixDecoder(PublishedEagleDecoder):
    """Hydra's heads with a prefix layer, for `PrefixHydraModel`."""

    network: PrefixHydraNetwork

    @property
    def most(self) -> int:
        """Number of heads."""
        return self.network.count

    def run(self, x: Tensor, turns: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        return self.network.prefixed(x, turns, attend)

    def ahead(self, before: Tensor, path: Tensor) -> Tensor:
        """Logits behind a path, see `PublishedPathDecoder`; `before` is what `forward` gave."""
        return self.spread(self.network(before, path))

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden  # they are logits already


class PublishedPEagleDecoder(PublishedEagleDecoder):
    """A P-EAGLE head, for `PEagleModel`."""

    network: Eagle3Network

    @property
    def most(self) -> int:
        """Tokens that a block says."""
        return self.network.block

    def masked(self, rows: int) -> Tensor:
        """Inputs `[rows, K - 1, 2 H]` of the places behind a block's first."""
        token = torch.tensor(self.network.mask_token_id, device=self.embeddings.device)
        both = self.joined(self.embed(token)[None, None], self.fuse(self.network.mask_hidden))
        return both.expand(rows, self.most - 1, -1)
