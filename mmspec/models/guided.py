"""A cached decoder under classifier-free guidance: tokens in, laws of the next tokens out."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..engine.cache import KVCache
from ..engine.types import Draft
from ..engine.warp import Warp
from ..errors import InputError
from .causal import CausalDecoder
from .decoder import Decoder


class GuidedDecoder:
    """Conditional and unconditional rows in one batch, combined before the warpers.

    `l = l_u + s (l_c − l_u)`, then temperature, top-k and top-p. Row b of B samples is row b of the
    network, its unconditional twin row B + b. The prefix is left-padded; columns that are padding
    in every row are dropped.

    Args:
        decoder: the network.
        prefix: embedded condition `[R, T, D]`; R = 2 B with guidance, conditional rows first.
        prefix_mask: `[R, T]`, False where padded; the last column is always real.
        guidance_scale: s; None: no unconditional rows.
        warp: the warpers.
        limit: output tokens per row.
        grid: side of the token grid; of text there is none.
        scratch: tokens that one call may add beyond the output.
    """

    def __init__(
        self,
        decoder: Decoder | CausalDecoder,
        prefix: Tensor,
        prefix_mask: Tensor,
        guidance_scale: float | None,
        warp: Warp,
        limit: int,
        grid: int,
        scratch: int,
    ) -> None:
        self.decoder, self.scale, self.warp, self.limit = decoder, guidance_scale, warp, limit
        blank = int((~prefix_mask).long().cumprod(1).sum(1).min())
        self.prefix = prefix[:, blank:]
        self.pads = (~prefix_mask[:, blank:]).sum(1)
        self.padded = bool(self.pads.any())
        self.offset = self.prefix.shape[1]  # slot of output position 0
        slots = self.offset + limit + scratch + 1
        rotary = decoder.rotary(grid)[blank:]
        if self.offset + limit > len(rotary):
            raise InputError(
                f"a prompt of {self.offset} tokens and {limit} more are too long for this model: "
                f"it has {len(rotary)} positions"
            )
        # scratch slots past the grid are never kept; any rotation will do
        beyond = max(0, slots - len(rotary))
        self.rotary = torch.cat([rotary[:slots], rotary[-1:].repeat_interleave(beyond, 0)])
        device = prefix.device
        allowed = torch.ones(slots, slots, dtype=torch.bool, device=device).tril()
        self.causal = additive(allowed, prefix.dtype)
        self.keys = torch.arange(slots, device=device)
        self.cache: KVCache | None = None
        self.slots = slots
        self.room = slots - self.offset  # tokens that one call may have at most

    def start(self, rows: int) -> None:
        """Prefill all of the prefix but its last column, which is the first call's input."""
        if rows * (1 if self.scale is None else 2) != len(self.prefix):
            raise ValueError(f"{rows} rows do not match a prefix of {len(self.prefix)}")
        if self.cache is None:
            self.cache = self.decoder.cache(len(self.prefix), self.slots)
        length = self.offset - 1
        if length:
            mask = self.causal[:length, :length]
            if self.padded:
                keys = self.keys[:length]
                # a padded query reads itself, so that its softmax is defined
                real = (keys >= self.pads[:, None, None]) | (keys == keys[:, None])
                mask = (mask + additive(real, mask.dtype))[:, None]
            self.decoder.forward(
                self.prefix[:, :length],
                self.rotary[:length],
                self.cache,
                0,
                length,
                mask,
                head=False,
            )

    @property
    def layers(self) -> int:
        """Layers of the network."""
        return len(self.decoder.layers)

    def extend(
        self,
        tokens: Tensor,
        start: list[int],
        draft: Draft | None = None,
        use: Sequence[Sequence[int]] | None = None,
    ) -> Tensor:
        """Laws `[B, n, V]` after each of `tokens [B, n]` at positions `start[b] + 0 .. n - 1`.

        Position -1 is the prefix's last column. With a tree in `draft`, the first token is the root
        and the others its nodes: they lie in neighbouring slots, stand at their depth's position
        and see the root's past, their ancestors and themselves. Row b runs the layers `use[b]`
        alone; None: every row all of them.
        """
        assert self.cache is not None, "start() comes first"
        rows, n = tokens.shape
        ids = tokens if self.scale is None else torch.cat([tokens, tokens])
        x = F.embedding(ids, self.decoder.embeddings)
        if min(start) < 0:
            first = torch.tensor([s < 0 for s in start], device=x.device)
            first = first.repeat(len(x) // rows)[:, None]
            x[:, 0] = torch.where(first, self.prefix[:, -1], x[:, 0])
        tree = draft is not None and draft.parents is not None and draft.nodes > 0
        if not tree and not self.padded and min(start) == max(start):
            slot = self.offset + start[0]
            logits = self.decoder.forward(
                x,
                self.rotary[slot : slot + n],
                self.cache,
                slot,
                slot + n,
                None if n == 1 else self.causal[slot : slot + n, : slot + n],
                use=self._layers_of_rows(use),
            )
        else:
            logits = self._ragged(x, start, draft if tree else None, self._layers_of_rows(use))
        if self.scale is not None:
            logits = torch.lerp(logits[rows:], logits[:rows], self.scale)
        return self.warp(logits)

    def _layers_of_rows(self, use: Sequence[Sequence[int]] | None) -> list[Tensor | bool] | None:
        """What `Decoder.forward` wants to know of the layers."""
        if use is None:
            return None
        out: list[Tensor | bool] = []
        for layer in range(self.layers):
            rows = [layer in layers for layers in use]
            if all(rows) or not any(rows):
                out.append(rows[0])
            else:
                counts = torch.tensor(rows, device=self.prefix.device)
                out.append(counts.repeat(len(self.prefix) // len(rows))[:, None, None])
        return out

    def _ragged(
        self,
        x: Tensor,
        start: list[int],
        draft: Draft | None,
        use: list[Tensor | bool] | None,
    ) -> Tensor:
        """Rows at different positions, padded prefixes, or trees: every entry has its own place."""
        assert self.cache is not None
        copies, n = len(x) // len(start), x.shape[1]
        first = torch.tensor(start, device=x.device).repeat(copies)[:, None] + self.offset  # [R, 1]
        slots = first + self.keys[:n]  # [R, n]
        length = max(start) + self.offset + n
        keys = self.keys[:length]
        places = slots
        if draft is None:
            mask = keys <= slots[..., None]  # [R, n, length]
        else:
            places = torch.cat([first, first + 1 + draft.depths().repeat(copies, 1)], dim=1)
            mask = self._tree_mask(draft, first, keys).repeat(copies, 1, 1)
        mask = additive(mask & (keys >= self.pads[:, None, None]), x.dtype)[:, None]
        return self.decoder.forward(
            x, self.rotary[places], self.cache, slots, length, mask, use=use
        )

    def _tree_mask(self, draft: Draft, first: Tensor, keys: Tensor) -> Tensor:
        """Which keys the root and each node may read, `[B, N + 1, length]`."""
        rows, nodes = draft.tokens.shape
        family = F.pad(draft.ancestors(), (0, 0, 1, 0))  # the root: no node
        node = keys - first[:rows] - 1  # [B, length]: which node's slot a key is; below 0: the past
        index = node.clamp(0, nodes - 1)[:, None].expand(-1, nodes + 1, -1)
        past, known = (node < 0)[:, None], (node < nodes)[:, None]
        return past | (family.gather(2, index) & known)

    def seconds_per_call(self, tokens: int = 1, repeats: int = 7) -> float:
        """Median wall-clock of a call with `tokens` new tokens a row, in the output's last slots.

        They must be free: this is for before or after a generation.
        """
        rows = len(self.prefix) // (1 if self.scale is None else 2)
        if self.cache is None:
            self.start(rows)
        inputs = torch.zeros(rows, tokens, dtype=torch.long, device=self.prefix.device)
        first = max(0, self.slots - self.offset - tokens)
        times = []
        for _ in range(repeats):
            started = time.perf_counter()
            self.extend(inputs, [first] * rows)[0, 0, 0].item()  # wait for the device
            times.append(time.perf_counter() - started)
        return sorted(times)[repeats // 2]

    def keep(self, start: list[int], path: Tensor) -> None:
        """Move the nodes of `path [B, K]` behind the root, as the chain that was kept."""
        assert self.cache is not None
        copies = len(self.prefix) // len(start)
        first = torch.tensor(start, device=path.device)[:, None] + self.offset + 1
        target = first + self.keys[: path.shape[1]]
        self.cache.gather((first + path).repeat(copies, 1), target.repeat(copies, 1))


def additive(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask to add to attention scores: 0 where `allowed`, minus infinity elsewhere."""
    return torch.zeros_like(allowed, dtype=dtype).masked_fill_(~allowed, -torch.inf)
