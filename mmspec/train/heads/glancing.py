"""Lessons of Falcon: blocks that see themselves, and glances at the truth (Gao et al. 2025).

Coupled sequential glancing distillation: the head drafts once without learning; of as many places
as a share of those where its likeliest token is not the target's, the inputs at blocks' first
columns become those of k columns further on, token and hidden state, which is what it is to say
there; and it learns from that. The share falls as training goes on.

The loss is EAGLE's first. The released `SmoothL1 + 0.1 (0.9 KL(p ‖ q) + 0.1 CE)`, its hard label
drawn of p, is the same in expectation but for a constant and for a temperature of 0.95 in its KL.
After the middle it is ViSpec's on laws, which are what is accepted. Released blocks begin at the
text's first column; here they begin anywhere, as drafts do.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ...models.heads.columns import Look
from ...models.heads.published.attention import masked_attention
from ...models.heads.published.eagle_decoder import inputs_of, read_columns
from ...models.heads.published.falcon import FalconNetwork
from ...models.heads.published.head import PublishedHead
from ...models.llamagen.transformer import causal_mask
from .head_batch import HeadBatch

MOST, LEAST = 0.45, 0.1  # share of wrong places that are glanced at, at first and at last


def share_of(done: float) -> float:
    """Share of wrong places that are glanced at when a part `done` of the training is over."""
    return LEAST + (MOST - LEAST) * (1 - done)


@dataclass(frozen=True)
class Blocks:
    """Lessons of one step.

    Attributes:
        place: of every column in its block `[R, S]`, from 0.
        glanced: columns `[R, S]` that read what stands k columns further on.
    """

    place: Tensor
    glanced: Tensor


def blocks_of(head: PublishedHead, batch: HeadBatch, glance: float) -> Blocks:
    """Blocks of a step, which begin where chance has it, and what is glanced at.

    Args:
        glance: share of wrong places.
    """
    network = head.network
    assert isinstance(network, FalconNetwork)
    first = int(torch.randint(network.block, ()))
    # every row counts from its prompt's last column
    columns = torch.arange(batch.mask.shape[1], device=batch.mask.device)
    place = (columns - batch.columns(batch.features).last_asked() + first) % network.block
    blocks = Blocks(place, torch.zeros_like(batch.mask))
    if not glance:
        return blocks
    with torch.no_grad():
        hidden, index, mask = read_blocks(head, batch, blocks)
        said = answered(batch, network.block).gather(1, index) & mask
        truth = batch.features_at((index + _rows(batch) + network.block - 1)[said])
        wrong = batch.output(hidden[said]).argmax(-1) != batch.output(truth).argmax(-1)
        count = torch.zeros_like(said, dtype=torch.long).masked_scatter(said, wrong.long()).sum(1)
        here = torch.zeros_like(batch.mask).scatter(1, index, said)
    return Blocks(place, glances(here, place, network.block, (glance * count).long()))


def glances(said: Tensor, place: Tensor, block: int, count: Tensor) -> Tensor:
    """Columns `[R, S]` that are glanced at: `count [R]` at most, with a run behind each of them.

    Of blocks of one or two it is their first columns. Of longer ones `count // block` first columns
    have runs of up to `block − 2` more behind them.

    Args:
        said: columns `[R, S]` that something is learned at.
        place: see `Blocks`.
    """
    begins = said & (place == 0)
    rank = (
        torch.rand(said.shape, device=said.device).masked_fill(~begins, 2.0).argsort(1).argsort(1)
    )
    chosen = begins & (rank < (count if block <= 2 else count // block)[:, None])
    run = torch.randint(max(block - 1, 1), said.shape, device=said.device)
    out = chosen
    for n in range(1, block - 1):
        out = out | F.pad(chosen & (run >= n), (n, 0))[:, : said.shape[1]]
    return out & said


def answered(batch: HeadBatch, block: int) -> Tensor:
    """Columns `[R, S]` whose output is a token of the answer, `block` columns on."""
    n = min(block, batch.answer.shape[1])
    return F.pad(batch.answer[:, n:], (0, n)) & batch.mask


def read_blocks(
    head: PublishedHead, batch: HeadBatch, blocks: Blocks
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs `[R, S', D]` of the head, the columns `[R, S']` that they are of, and which are real.

    Columns see those of earlier blocks and all of their own.
    """
    network, rotary = head.network, head.rotary
    assert isinstance(network, FalconNetwork)
    assert rotary is not None
    columns, size = batch.columns(batch.features), network.block
    index, mask = read_columns(columns, Look())
    place, width = blocks.place.gather(1, index), batch.mask.shape[1]
    further = index + size * blocks.glanced.gather(1, index)
    x = inputs_of(network, columns, Look(), further.clamp_max(width - 1))
    ends = index - place + size - 1
    causal = causal_mask(mask, mask.shape[1])
    inside = (index[:, None] <= ends[..., None]) & mask[:, None] & mask[..., None]
    seen = causal.masked_fill(inside[:, None], 0.0).to(x.dtype)
    turns = rotary((columns.positions().gather(1, index) - 1).clamp_min(0), x.dtype)
    return network(x, turns, masked_attention(seen)), index, mask


def block_pairs(
    head: PublishedHead, batch: HeadBatch, blocks: Blocks
) -> list[tuple[Tensor, Tensor]]:
    """Hidden states and their places, see `head_losses.Pair`, of each token of a block."""
    network = head.network
    assert isinstance(network, FalconNetwork)
    hidden, index, mask = read_blocks(head, batch, blocks)
    said = answered(batch, network.block).gather(1, index) & mask
    truth = index + _rows(batch) + network.block - 1
    place = blocks.place.gather(1, index)
    every = (said & (place == n) for n in range(network.block))
    return [(hidden[counts], truth[counts]) for counts in every]


def _rows(batch: HeadBatch) -> Tensor:
    """Number of each row's first column among all `[R, 1]`."""
    rows, width = batch.mask.shape
    return torch.arange(0, rows * width, width, device=batch.mask.device)[:, None]
