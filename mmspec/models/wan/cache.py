"""Cache of a clip for a block-causal Wan: its text, and keys and values of its clean blocks."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import InputError
from .reuse import BlockReuse
from .window import ContextWindow


class WanCache:
    """Keys and values of the clean blocks so far, in memory that does not grow with the clip.

    Only clean blocks are written, each to a place that follows from its number: a noisy or rejected
    block leaves no trace, and a block that is made again (`rewind`) replaces itself. A block falls
    out of a rolling window when the one that takes its place is committed, at no other time.

    The sink is kept as it was written and turned when it is read, so that it is never farther away
    than in a clip of `known` blocks, see `ContextWindow.moved`.

    Args:
        text: keys and values of the text `[layers, 2, B, heads, T, head_dim]`; they say how many
            layers, rows and heads there are, in which dtype and where.
        tokens: S of a block.
        window: which blocks are read.
        limit: blocks of the clip at most; a rolling window needs none.
        known: blocks of the clips that the model was made for; None: any distance is known.
        later: keys `[B, heads, n, head_dim]` as if they stood so many blocks later.

    Attributes:
        blocks: committed, that is the number of the block to come.
        reuse: what calls that write nothing may add again; None: all layers run.
    """

    reuse: BlockReuse | None = None

    def __init__(
        self,
        text: Tensor,
        tokens: int,
        window: ContextWindow,
        limit: int | None = None,
        known: int | None = None,
        later: Callable[[Tensor, int], Tensor] = lambda keys, blocks: keys,
    ) -> None:
        layers, _, rows, heads, _, head_dim = text.shape
        self.text, self.tokens, self.window = text, tokens, window
        self._known, self._later = known, later
        self.rows, self.slots = rows, window.slots(limit)  # rows B, and blocks there is room for
        self.data = text.new_zeros(layers, 2, rows, heads, self.slots, tokens, head_dim)
        self.blocks = self._reached = 0

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
        kept = 0 if self.reuse is None else self.reuse.nbytes
        return self.data.nbytes + self.text.nbytes + kept

    def room(self, blocks: int) -> None:
        """Raise an `InputError` unless so many more blocks fit."""
        if self.window.blocks is None and self.blocks + blocks > self.slots:
            raise InputError(
                f"the cache has room for {self.slots} blocks of a clip; raise its limit"
            )

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, clean: int) -> Tensor:
        """Attention of the next blocks over their context and themselves, shaped like `q`.

        The first `clean` of them are written, and read by those behind them; they count as
        committed once `advance` says so.

        Args:
            q: of the last blocks alone, or of all, `[B, heads, m · S, head_dim]`; turned.
            k, v: of all n blocks, `[B, heads, n · S, head_dim]`; keys are turned.
        """
        blocks = torch.stack([k, v]).split(self.tokens, dim=3)
        queries = q.split(self.tokens, dim=2) if q.shape[2] else ()
        silent, found = len(blocks) - len(queries), [q[:, :, :0]]
        for n, own in enumerate(blocks):
            slot = self.window.slot(self.blocks + n)
            if n >= silent:
                kept = self.data[layer, :, :, :, : self.blocks + n]  # all slots, once they are full
                others = kept[:, :, :, :slot], kept[:, :, :, slot + 1 :]
                keys, values = torch.cat([*(part.flatten(3, 4) for part in others), own], dim=3)
                keys = self._near(keys, self.blocks + n)
                found.append(F.scaled_dot_product_attention(queries[n - silent], keys, values))
            if n < clean:
                self.data[layer, :, :, :, slot] = own.detach()
        return torch.cat(found, dim=2)

    def _near(self, keys: Tensor, block: int) -> Tensor:
        """The keys that a block reads; those of the sink come first, moved as near as need be."""
        moved = 0 if self._known is None else self.window.moved(block, self._known)
        if not moved or not self.window.sink:
            return keys
        sink, others = keys.tensor_split([self.window.sink * self.tokens], dim=2)
        return torch.cat([self._later(sink, moved), others], dim=2)

    def advance(self, blocks: int) -> None:
        """Count blocks that were written in all layers."""
        self.blocks += blocks
        self._reached = max(self._reached, self.blocks)

    def rewind(self, blocks: int) -> None:
        """Forget the blocks behind the first so many; they are to be made again.

        Raises:
            InputError: a rolling window no longer holds what they read: of a clip longer than the
                window, only the last block can be made again.
        """
        evicted = self._reached > self.slots and blocks < self._reached - 1
        if not 0 <= blocks <= self.blocks or evicted:
            raise InputError(f"can't go back to block {blocks} from block {self.blocks}")
        self.blocks = blocks

    def snapshot(self) -> dict[str, Tensor]:
        """The cache's state for `restore`, as tensors of their own."""
        used = min(self._reached, self.slots)
        kept = {} if self.reuse is None else self.reuse.snapshot()
        if kept:
            kept["reuse.text"] = self.text[0, 0].clone()
        return {
            "blocks": torch.tensor([self.blocks, self._reached]),
            "keys_values": self.data[..., :used, :, :].clone(),
            **kept,
        }

    def restore(self, snapshot: dict[str, Tensor]) -> None:
        """Go on from a snapshot of a cache of the same model, rows, frame size and window.

        Residuals that were computed under another text are left out.

        Raises:
            InputError: it is of another cache.
        """
        try:
            (blocks, reached), kept = snapshot["blocks"].tolist(), snapshot["keys_values"]
        except (KeyError, TypeError, ValueError) as error:
            raise InputError("this is no snapshot of a cache") from error
        here = self.data[..., : min(reached, self.slots), :, :]
        if kept.shape != here.shape:
            sizes = f"{tuple(kept.shape)}, not {tuple(here.shape)}"
            raise InputError(f"the snapshot is of another cache: {sizes}")
        here.copy_(kept)
        self.blocks, self._reached = blocks, reached
        if self.reuse is not None:
            text, mine = snapshot.get("reuse.text"), self.text[0, 0]
            same = text is not None and torch.equal(text.to(mine), mine)
            self.reuse.restore(snapshot if same else {}, mine)
