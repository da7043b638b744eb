"""Heads that correct a block's logits by the tokens drafted before: DSpark's and Domino's.

Cheng et al. 2026, arXiv 2607.05147; Huang et al. 2026, arXiv 2605.29707.
The block is denoised once; then its tokens are drawn one by one, and each logit is corrected by
what was drawn. So the law of a token is known once the token before it is.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

import torch
from torch import Tensor, nn

MarkovKind = Literal["vanilla", "gated", "rnn"]


class Correction(nn.Module):
    """Base: a state `[R, S]` runs along the drafted tokens.

    Attributes:
        state_size: S.
        first: places of a draft in front of it are not corrected.
        reads_ids: it reads a token's id, not only its embedding; a prompt's last column has none.
    """

    state_size: int
    first = 0
    reads_ids = False

    @abstractmethod
    def step(
        self, state: Tensor, ids: Tensor, embedded: Tensor, slot: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The next state `[R, S]`, and what is added to the logits of a slot `[R, V]`.

        Args:
            state: zeros in front of the block's first token.
            ids: the tokens in front `[R]`.
            embedded: in the target's embeddings `[R, H]`.
            slot: hidden states of the slot, behind the final norm `[R, H]`.
        """

    def known(self, ids: Tensor, slot: Tensor) -> Tensor:
        """Inputs `[R, …]` of an estimate that a slot's token stands; arguments as of `step`."""
        return slot


class MarkovHead(Correction):
    """DSpark's: a correction of low rank by the token in front (names `markov_head.…`).

    Args:
        vocab_size: V, of the token in front.
        draft_vocab_size: of the logits.
        rank: r.
        width: of hidden states H.
        kind: "vanilla": `W2 e`, e = W1[token]; "gated": `W2 (σ(gate [z; e]) e)`; "rnn": a gated
            state of r numbers along the block.
        confident_of_token: the confidence head reads the token in front, too.
    """

    reads_ids = True

    def __init__(
        self,
        vocab_size: int,
        draft_vocab_size: int,
        rank: int,
        width: int,
        kind: MarkovKind,
        confident_of_token: bool = True,
    ) -> None:
        super().__init__()
        self.confident_of_token = confident_of_token
        self.kind, self.state_size = kind, rank
        self.markov_w1 = nn.Embedding(vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, draft_vocab_size, bias=False)
        if kind == "gated":
            self.gate_proj = nn.Linear(width + rank, rank)
        if kind == "rnn":
            self.joint_proj = nn.Linear(2 * rank + width, 3 * rank)

    def step(
        self, state: Tensor, ids: Tensor, embedded: Tensor, slot: Tensor
    ) -> tuple[Tensor, Tensor]:
        e = self.markov_w1(ids)
        if self.kind == "gated":
            e = torch.sigmoid(self.gate_proj(torch.cat([slot, e], dim=-1))) * e
        if self.kind == "rnn":
            gate, new, out = self.joint_proj(torch.cat([state, e, slot], dim=-1)).chunk(3, dim=-1)
            gate = torch.sigmoid(gate)
            state, e = gate * state + (1 - gate) * torch.tanh(new), torch.tanh(out)
        return state, self.markov_w2(e)

    def known(self, ids: Tensor, slot: Tensor) -> Tensor:
        if not self.confident_of_token:
            return slot
        return torch.cat([slot, self.markov_w1(ids)], dim=-1)


class ConfidenceHead(nn.Module):
    """DSpark's estimate that a token stands if those in front of it do (`confidence_head.…`)."""

    def __init__(self, inputs: int, bias: bool) -> None:
        super().__init__()
        self.proj = nn.Linear(inputs, 1, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Probabilities `[…]` of slots' hidden states, beside the token's W1: `[…, H (+ r)]`."""
        return torch.sigmoid(self.proj(x)).squeeze(-1)


class DominoHead(Correction):
    """Domino's: a GRU along the drafted tokens' embeddings (`prefix_gru`, `embed_proj`).

    Args:
        width: of embeddings and hidden states H.
        state: of the GRU.
        inner: of the correction's hidden layer.
        vocab_size: of the logits V.
        first: places of a draft in front of it are not corrected.
    """

    def __init__(self, width: int, state: int, inner: int, vocab_size: int, first: int) -> None:
        super().__init__()
        self.state_size, self.first = state, first
        self.prefix_gru = nn.GRU(width, state, bias=False, batch_first=True)
        self.embed_proj = nn.Sequential(
            nn.Linear(width + state, inner, bias=False),
            nn.SiLU(),
            nn.Linear(inner, vocab_size, bias=False),
        )

    def step(
        self, state: Tensor, ids: Tensor, embedded: Tensor, slot: Tensor
    ) -> tuple[Tensor, Tensor]:
        _, last = self.prefix_gru(embedded[:, None], state[None].contiguous())
        state = last[0]
        return state, self.embed_proj(torch.cat([slot, state], dim=-1))
