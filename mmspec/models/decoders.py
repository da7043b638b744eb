"""Protocols of decoders: networks that run over a cache, as targets, draft models and heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from ..engine.cache import KVCache
from .heads.columns import Images

UNNORMED = -1  # in `Decoder.reads`: what the last layer gives, in front of the final norm


class Decoder(Protocol):
    """Cached forward passes of a network.

    Attributes:
        embeddings: a row a token id `[V, …]`.
        layers: have a length.
        reads: the hidden states that calls leave behind for a draft head, see `CausalDecoder`;
            empty: the last one.
    """

    embeddings: Tensor
    layers: Any
    reads: tuple[int, ...]

    def embed(self, ids: Tensor) -> Tensor:
        """Inputs `[…, D]` of token ids `[…]`."""

    def rotary(self, grid: int) -> Tensor:
        """Positions by column `[columns, …]`, of a picture with `grid` tokens a side."""

    def cache(self, rows: int, slots: int, room: int | None = None) -> KVCache:
        """An empty cache for `rows` rows of at most `slots` tokens.

        Args:
            room: slots behind a round's first one that calls write and may take back: layers with
                a window keep so many beside it, see `RingCache`; None: all slots in every layer.
        """

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
        """Run N new inputs a row.

        Args:
            x: embedded inputs `[R, N, D]`.
            rotary: positions of the inputs, rows of what `rotary` gave.
            cache: receives the new keys and values.
            slots: where they go, see `StaticCache.write`.
            length: slots that attention reads.
            mask: `[R or 1, 1, N, length]` or `[N, length]`, added to the attention scores; None: a
                query reads everything.
            head: apply the output layer, see `logits`.
            use: per layer, whether it runs; or for which rows `[R, 1, 1]` it counts. None: all do.

        Returns:
            Logits `[R, N, V]`, or the last hidden states `[R, N, D]` without the head.
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits `[..., V]` of the last hidden states `[..., D]`."""

    def states(self, hidden: Tensor) -> Tensor:
        """Hidden states `[R, N, A · D]` that the last call leaves for a draft head.

        Args:
            hidden: what the call gave.
        """


@runtime_checkable
class PlacedDecoder(Protocol):
    """A decoder whose rows stand at positions of their own."""

    def narrow(self, rows: Sequence[int] | None) -> None:
        """Run these rows alone, of those that the generation's prompt has; None: all of them."""


@runtime_checkable
class PackingDecoder(Protocol):
    """A decoder whose calls can be told which of their tokens count."""

    packs: bool

    @property
    def forward(self) -> Callable[..., Tensor]:
        """Run as `Decoder.forward`; behind `use` it takes the `CountedTokens` of the call."""


class HeadDecoder(Decoder, Protocol):
    """A draft head's layers, for `FeatureModel`.

    Attributes:
        dim: width of what is kept of the target's hidden states.
        reads: the hidden states that the target leaves behind.
    """

    dim: int

    def fuse(self, states: Tensor) -> Tensor:
        """Part `[…, dim]` of the target's hidden states `[…, A · D]` that is kept."""


class TokenHeadDecoder(HeadDecoder, Protocol):
    """A head that reads tokens beside hidden states, for `EagleModel`."""

    def view(
        self, prefix: Tensor, mask: Tensor, images: Images | None, positions: int
    ) -> tuple[Tensor, Tensor]:
        """The head's own prefix, made of the target's, as `GuidedDecoder` wants it.

        Args:
            prefix, mask: the target's, `[R, T, D]` and `[R, T]`.
            images: where its pictures are, if there are any.
            positions: that are to come behind it.

        Returns:
            Its prefix `[R, T', D]`, of which only the width counts, and its mask `[R, T']`.
        """

    def read(self, prefix: Tensor, before: Tensor) -> tuple[Tensor, Tensor | None]:
        """Read the prefix in the rows that run, with the features `[R, T, D]` in front.

        Returns:
            Inputs `[R, T', D]` of the prefix in `view`, and what all text behind it is joined with
            `[R, 1, D]`; None: nothing.
        """

    def joined(self, embedded: Tensor, features: Tensor, context: Tensor | None = None) -> Tensor:
        """Inputs `[R, n, D]` of tokens with `embeddings` and the features in front of them.

        `context` is what `read` gave for these rows.
        """


class BlockHeadDecoder(HeadDecoder, Protocol):
    """A head that denoises blocks, for `DFlashModel`."""

    @property
    def most(self) -> int:
        """Tokens that a block says."""

    def place(self, positions: Tensor) -> None:
        """Set the positions of the next generation's columns `[R, slots]`."""

    def text_of(self, rows: int) -> Tensor | None:
        """Ids of the prompt's text `[R, T]`, -1 elsewhere; None: there are none of R rows."""

    def masked(self, embedded: Tensor, tokens: Tensor, first: Tensor, row: int) -> Tensor:
        """Inputs `[R, N, D]` of blocks behind committed tokens.

        Args:
            embedded: the last of them `[R, D]`.
            tokens: of the output `[B, limit]`, for heads that know how a picture is laid out.
            first: positions of the first masked places `[B]`.
            row: positions in a row of the picture.
        """

    def feed(self, features: Tensor, columns: Tensor, cache: KVCache, slots: int | Tensor) -> None:
        """Write what the layers read of features `[R, n, D]` at `columns [n]` or `[R, n]`."""


class PathHeadDecoder(HeadDecoder, Protocol):
    """Heads that read a path of drafted tokens, for `HydraModel`."""

    @property
    def most(self) -> int:
        """Tokens that can be drafted ahead."""

    def view(
        self, prefix: Tensor, mask: Tensor, images: Images | None, positions: int, /
    ) -> tuple[Tensor, Tensor]:
        """The prefix that it reads and its mask, see `TokenHeadDecoder`."""

    def ahead(self, before: Tensor, path: Tensor) -> Tensor:
        """Inputs of `logits` behind a path of embeddings `[…, i, D]`.

        Args:
            before: hidden states in front of the path `[…, D]`.
            path: from the last committed token on.
        """
