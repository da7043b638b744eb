"""Lessons of LongSpec: what the target's last layer stores, and which of it a draft would know.

A draft behind column c reads the target's entries in front of c alone. So column i reads the entry
j if `⌊i / n⌋ > ⌊j / n⌋`, n the tokens that are learned ahead: blocks of n columns are drafts from
what is in front of them (Yang et al. 2025). Where blocks begin is drawn anew at every step. A
column with no such entry reads none; this mask in released code opens the first n to each other,
and so to tokens that are still to come. (Its training takes another: entries up to i − s, one s of
1 to n a step.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ...errors import InputError
from ...models.call_masks import additive, prefix_mask
from ...models.heads.columns import positions
from ...models.heads.published.last_entries import LastEntries, whole_pass
from ...models.heads.published.longspec import LongSpecNetwork, attended
from ...models.heads.published.rotary import HeadRotary
from ...models.transformers.causal import CausalDecoder
from .head_batch import HeadBatch

SINK = 4  # tokens at most that stay where they are
FAR = 30000  # the farthest place of a short text
SHORT = 1200  # tokens of a text whose positions are moved
SPARE = 1000  # positions at the end of a model's range that no text is moved to


@dataclass(frozen=True)
class LastLayer:
    """Answers as the target's last layer stores them.

    Attributes:
        features: hidden states behind the last norm `[R, S, D]`.
        keys, values: `[R, kv_heads, S, head_dim]`.
        turns: cosines and sines of the positions `[R, S, head_dim]`.
    """

    features: Tensor
    keys: Tensor
    values: Tensor
    turns: tuple[Tensor, Tensor]


class LastLayerReader:
    """Reads texts with the target once more, for what its last layer stores of them.

    Args:
        decoder: the target's.
    """

    def __init__(self, decoder: CausalDecoder) -> None:
        self.decoder = decoder

    @cached_property
    def rotary(self) -> HeadRotary:
        """Positions of what the layer stores.

        Raises:
            InputError: it stores no plain keys and values, see `LastEntries`, or positions have
                three axes.
        """
        with torch.autocast(self.decoder.embeddings.device.type, enabled=False):
            rotary = LastEntries(self.decoder).rotary
        if rotary.axes > 1:
            raise InputError(
                "a head of longspec is not trained on a target whose positions have three axes "
                "(mrope): lessons have one position a token"
            )
        return rotary

    @torch.no_grad()
    def __call__(self, embedded: Tensor, mask: Tensor, groups: Tensor | None = None) -> LastLayer:
        """What it stores of inputs `[R, S, D]` that `mask [R, S]` says; see `moved`.

        Args:
            groups: of columns that read each other, see `HeadBatch`.
        """
        decoder = self.decoder
        with torch.autocast(embedded.device.type, enabled=False):
            most = getattr(decoder.config, "max_position_embeddings", None) or 0
            places = moved(positions(mask), mask, most)
            x = embedded.to(decoder.embeddings.dtype)
            if groups is None:
                groups = torch.full_like(places, -1)
            pads = mask.long().argmax(1)  # behind an answer padding is out of everybody's sight
            one_way = mask.new_ones(mask.shape[1], mask.shape[1]).tril()
            seen = additive(prefix_mask(one_way, pads, groups), x.dtype)
            found = whole_pass(decoder, x, places, seen)
            features, keys, values = (states.to(embedded) for states in found if states is not None)
            return LastLayer(features, keys, values, self.rotary(places, embedded.dtype))


def moved(places: Tensor, mask: Tensor, most: int) -> Tensor:
    """Positions `[R, S]` of short texts moved away from their start (anchor-offset indices).

    The first s of a text stay, s drawn from 0 to `SINK`: models look at the first tokens from
    everywhere. The others move together by a number drawn from 0 to `min(FAR, most − SPARE)` less
    the text's length, so that a head that was trained on short texts knows far positions.

    Args:
        most: positions that the model has.
    """
    lengths = mask.sum(1)
    room = (min(FAR, most - SPARE) - lengths).clamp_min(0) * (lengths <= SHORT)
    drawn = torch.rand(2, len(mask), device=mask.device)
    sink, shift = (drawn[0] * (SINK + 1)).long(), (drawn[1] * (room + 1)).long()
    return places + shift[:, None] * (places >= sink[:, None])


@dataclass(frozen=True)
class Crossing:
    """Lessons of one step.

    Attributes:
        last: see `LastLayer`.
        steps: of every column `[R, S]`, how many in front of it are drafted with it.
    """

    last: LastLayer
    steps: Tensor


def crossing(network: LongSpecNetwork, batch: HeadBatch) -> tuple[Crossing, HeadBatch]:
    """Lessons of a step, and the batch with the hidden states that belong to them."""
    assert batch.last is not None
    first = torch.randint(network.block, ())
    last = batch.last(batch.embedded, batch.mask, batch.groups)
    # every row counts from its prompt's last column
    columns = torch.arange(batch.mask.shape[1], device=batch.mask.device)
    steps = columns - batch.columns(batch.features).last_asked() + first.to(columns.device)
    batch = replace(batch, features=last.features, kept={})
    return Crossing(last, steps % network.block), batch


def crossed(network: LongSpecNetwork, batch: HeadBatch, what: Crossing, skip: int = 0) -> Tensor:
    """Inputs of the output layer `[R, S − skip, H]` at all columns but the first `skip`."""
    last, steps = what.last, what.steps
    columns = torch.arange(steps.shape[1], device=steps.device)
    back = columns[skip:, None] - columns
    near = (back >= 0) & (back <= network.window)
    own = near & (batch.mask[:, None] | (back == 0))  # padding reads itself
    known = ((columns - steps)[:, skip:, None] > columns) & batch.mask[:, None]

    def within(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attended(q, k, v, own[:, None])

    def across(q: Tensor) -> Tensor:
        return attended(q, last.keys, last.values, known[:, None])

    return network(batch.embedded, last.turns, within, across, skip)
