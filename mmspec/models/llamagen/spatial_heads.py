"""Drafting heads over a frozen target's features: one looks below, one to the right.

Spatially speculative decoding (Xiang et al. 2026, arXiv 2606.20543). The paper's text says that two
heads predict the token to the right and the token below and that together they propose blocks; how
they are built here is our own.
"""

from __future__ import annotations

from copy import deepcopy

import torch
import torch.nn.functional as F
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.modeling_utils import ModelMixin
from torch import Tensor, nn

from ...engine.accept.chain import pick
from ...errors import InputError
from ..linear import RowLinear
from .decoder import LlamaGenDecoder
from .transformer import LlamaGenTransformer


class SpatialHeads(ModelMixin, ConfigMixin):
    """Draft of a cell's token from the row above it and from the tokens on its left.

    The head that looks below reads, for all cells of a row at once, what the target made of the
    cells above: the hidden state from which it predicted each, and the token that came. The head
    that looks right adds the last few tokens of the row itself, and nothing else: so little that a
    row can be drawn from left to right at hardly any cost. Both speak in hidden states, which the
    target's own frozen output layer turns into logits.

    Guidance is linear in hidden states as it is in logits. So the heads read a guided state beside
    the conditional one and predict a guided one: no unconditional rows.

    Args:
        dim: width of the target's hidden states, D.
        cell_dim: width of a cell's features.
        hidden_dim: width of the heads, H.
        dropout: of what is read above and of what is made of it, in training.
        reach: cells that are read on either side of the one above.
        left: tokens that are read on the left.
        eps: of the norms.
    """

    @register_to_config
    def __init__(
        self,
        dim: int = 256,
        cell_dim: int = 192,
        hidden_dim: int = 384,
        reach: int = 2,
        left: int = 2,
        dropout: float = 0.1,
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.cell = nn.Linear(3 * dim, cell_dim)
        self.unseen = nn.Parameter(torch.zeros(2 * dim))  # in place of states that nobody knows
        self.outside = nn.Parameter(torch.zeros(cell_dim))  # a cell beyond the edge
        self.below = nn.Linear((2 * reach + 2) * cell_dim, hidden_dim)
        self.deep = nn.Linear(hidden_dim, hidden_dim)
        self.right = nn.ModuleList(nn.Linear(dim, hidden_dim, bias=False) for _ in range(left))
        self.edge = nn.Parameter(torch.zeros(left, 1, hidden_dim))  # no token on the left
        self.skip = nn.Linear(hidden_dim, dim)
        self.out = nn.Linear(hidden_dim, dim, bias=False)

    def check(self, target: LlamaGenTransformer) -> None:
        """Raise an `InputError` unless they are for a target of such width."""
        if self.config.dim != target.config.dim:
            raise InputError(
                f"the spatial heads read hidden states of width {self.config.dim}, and the "
                f"target's have {target.config.dim}; train them on this target"
            )

    @property
    def above(self) -> int:
        """Cells of the row above that are read."""
        return int(2 * self.config.reach + 1)

    def features(self, states: Tensor, embedded: Tensor) -> Tensor:
        """Features of cells `[..., F]` from their states and tokens.

        Args:
            states: `[..., 2D]`, see `guided_states`.
            embedded: the target's embeddings of the tokens `[..., D]`.
        """
        return self.cell(torch.cat([states, self._even(embedded)], dim=-1))

    def summary(self, states: Tensor) -> Tensor:
        """Features `[B, F]` of the condition, whose mean states are `[B, 2D]`."""
        nothing = states.new_zeros(*states.shape[:-1], self.config.dim)
        return self.cell(torch.cat([states, nothing], dim=-1))

    def look_below(self, above: Tensor, summary: Tensor) -> tuple[Tensor, Tensor]:
        """Read the row above, for cells.

        Args:
            above: features `[B, n, 2 reach + 1, F]` of the cells above each, left to right.
            summary: of the condition `[B, F]`.

        Returns:
            `[B, n, H]` for `look_right`, and a hidden state `[B, n, D]` to add to its own.
        """
        summary = summary[:, None].expand(-1, above.shape[1], -1)
        rate = self.config.dropout
        x = F.dropout(torch.cat([above.flatten(2), summary], dim=-1), rate, self.training)
        x = F.dropout(F.silu(self.below(x)), rate, self.training)
        x = x + F.silu(self.deep(self._even(x)))
        return x, self.skip(x)

    def look_right(self, below: Tensor, left: Tensor) -> Tensor:
        """Hidden states `[..., D]`, from `below [..., H]` and `left [..., H]`, a sum of `table`."""
        return self.out(F.silu(below + left))

    def table(self, distance: int, embeddings: Tensor) -> Tensor:
        """`[V + 1, H]`: what each token says `distance` + 1 cells further right; V: no token."""
        rows = self.right[distance](self._even(embeddings))
        return torch.cat([rows, self.edge[distance].to(rows)])

    def _even(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], eps=self.config.eps)


class SpatialDecoder:
    """Spatial heads as they run at inference: what depends on weights alone is made once.

    Raises:
        InputError: the heads are for hidden states of another width.
    """

    def __init__(self, heads: SpatialHeads, decoder: LlamaGenDecoder) -> None:
        heads.check(decoder.model)
        self.decoder, self.embeddings = decoder, decoder.embeddings
        self.reach, self.left = int(heads.config.reach), int(heads.config.left)
        heads = deepcopy(heads).eval().to(self.embeddings.device)
        with torch.no_grad():
            self.tables = [heads.table(k, self.embeddings) for k in range(self.left)]
            self.out = RowLinear(decoder.logits(heads.out.weight.T).T)
        for name in ("cell", "below", "deep", "skip"):
            setattr(heads, name, Packed(getattr(heads, name)))
        self.heads = heads

    def summary(self, states: Tensor) -> Tensor:
        return self.heads.summary(states)

    def look_below(
        self,
        states: Tensor,
        seen: Tensor,
        tokens: Tensor,
        index: Tensor,
        exist: Tensor,
        summary: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Read the row above, for n cells, from a run of m earlier ones.

        Args:
            states: of those `[B, m, 2D]`, where they are `seen [B, m]`.
            tokens: theirs `[B, m]`.
            index: which of them lie above each cell `[B, n, 2 reach + 1]`, if they `exist`.
            summary: of the condition `[B, F]`.

        Returns:
            `[B, n, H]` and logits `[B, n, V]`, both for `logits`.
        """
        heads = self.heads
        states = torch.where(seen[..., None], states, heads.unseen)
        features = heads.features(states, F.embedding(tokens, self.embeddings))
        above = pick(features, index.clamp(0, tokens.shape[1] - 1))
        above = torch.where(exist[..., None], above, heads.outside)
        below, skip = heads.look_below(above, summary)
        return below, self.decoder.logits(skip)

    def logits(self, below: Tensor, skip: Tensor, left: list[Tensor]) -> Tensor:
        """Guided logits `[B, V]` of one cell a row.

        Args:
            below, skip: what `look_below` says of it.
            left: the tokens on its left, the nearest first, `[B]` each; V where there is none.
        """
        for table, tokens in zip(self.tables, left, strict=True):
            below = below + F.embedding(tokens, table)
        return skip + self.out(F.silu(below))


class Packed(nn.Module):
    """A linear layer that is quick for few rows, see `RowLinear`."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.run = RowLinear(linear.weight)
        self.bias: Tensor | None = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        out = self.run(x)
        return out if self.bias is None else out + self.bias


def guided_states(hidden: Tensor, scale: float | None) -> Tensor:
    """Conditional and guided hidden states `[B, n, 2D]` from those of all rows `[R, n, D]`.

    Args:
        scale: guidance; None: there are no unconditional rows, and the two are the same.
    """
    if scale is None:
        return torch.cat([hidden, hidden], dim=-1)
    conditional, without = hidden.chunk(2)
    return torch.cat([conditional, torch.lerp(without, conditional, scale)], dim=-1)


def mean_state(hidden: Tensor, pads: Tensor) -> Tensor:
    """Mean of the prefix's hidden states `[R, n, D]` as `[R, 1, D]`, row b's first `pads[b]` apart.

    Nothing is left of a row without a state: zero.
    """
    real = (torch.arange(hidden.shape[1], device=hidden.device) >= pads[:, None])[..., None]
    count = real.sum(1, keepdim=True).clamp_min(1)
    return hidden.masked_fill(~real, 0).sum(1, keepdim=True) / count


def places_above(positions: Tensor, row: int, reach: int) -> tuple[Tensor, Tensor]:
    """Places above the cells `positions [B, n]`, `[B, n, 2 reach + 1]`, and which of them exist.

    Args:
        row: positions in a row of the picture.
    """
    offsets = torch.arange(-reach, reach + 1, device=positions.device)
    above, column = positions[..., None] - row + offsets, (positions % row)[..., None] + offsets
    return above, (positions[..., None] >= row) & (column >= 0) & (column < row)
