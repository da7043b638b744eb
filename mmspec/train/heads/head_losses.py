"""Losses of published heads over batches of a target's answers, by the kind of network."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...engine.accept.chain import pick
from ...errors import InputError
from ...models.heads.published.dflash import DFlashNetwork
from ...models.heads.published.eagle1 import EagleNetwork
from ...models.heads.published.eagle3 import Eagle3Network
from ...models.heads.published.eagle_decoder import inputs_of, read_columns
from ...models.heads.published.falcon import FalconNetwork
from ...models.heads.published.flash import FlashNetwork
from ...models.heads.published.head import PublishedHead
from ...models.heads.published.hydra import HydraNetwork, PrefixHydraNetwork
from ...models.heads.published.longspec import LongSpecNetwork
from ...models.heads.published.medusa import MedusaNetwork
from ...models.heads.published.rotary import HeadRotary
from ...models.llamagen.eagle_head import attend_levels
from ...models.llamagen.transformer import causal_mask
from . import objectives
from .glancing import Blocks, block_pairs, blocks_of
from .head_batch import HeadBatch
from .last_layer import Crossing, crossed, crossing
from .objectives import Objective, Places

ANCHORS = 32  # blocks of a row that a step trains

Pair = tuple[Tensor, Tensor]
"""Hidden states of a head `[N, D]`, and their places `[N]`, see `HeadBatch.ahead`."""
Lesson = Tensor | Crossing | Blocks | None
"""Part of a step that chance decides: the same for a head and its reference."""


def check_learns(head: PublishedHead, table: Tensor) -> None:
    """Raise an `InputError` if training would read other inputs than drafting does.

    Args:
        table: the target's embeddings `[V, D]`.
    """
    own = head.embeddings
    if own is not None:
        same = own.shape == table.shape and torch.allclose(
            own.float(), table.detach().to(own.device).float(), rtol=1e-2, atol=1e-3
        )
        if not same:
            raise InputError(
                "a draft head with embeddings of its own is not trained here: lessons hold the "
                "target's"
            )
    if isinstance(head.network, PrefixHydraNetwork):
        raise InputError("Hydra heads with a prefix layer are not trained here, plain ones are")
    if head.rotary is not None and head.rotary.axes > 1:
        raise InputError(
            "a draft head whose positions have three axes (mrope) is not trained here: lessons "
            "have one position a token"
        )


def head_loss(
    head: PublishedHead,
    batch: HeadBatch,
    depth: int = 1,
    laws: bool = False,
    objective: Objective | None = None,
    reference: PublishedHead | str | None = None,
    only: Tensor | None = None,
    glance: float = 0.0,
) -> tuple[Tensor, dict[str, float]]:
    """The loss, and figures of this batch for the log: acceptance at each level of a draft.

    Args:
        depth: levels of a draft, of heads that draft from their own states.
        laws: of EAGLE's kind, a loss on laws in place of the one on hidden states.
        objective: the loss on laws; None: the method's own.
        reference: a trained head of the same kind. The places count alone at which it is ahead of
            this one the most: what can be learned, see `objectives.learnable`. `RANDOM`: as many
            places count, drawn.
        only: the places that count `[R, S]`; None: all.
        glance: of Falcon, see `blocks_of`.
    """
    network = head.network
    of_features = isinstance(network, EagleNetwork)
    if objective is None:
        objective = objectives.vispec if of_features else objectives.cross_entropy
    if of_features and not laws:
        objective = objectives.eagle
    anchors: Lesson = None
    if isinstance(network, FalconNetwork):
        anchors = blocks_of(head, batch, glance)
    elif isinstance(network, DFlashNetwork):
        anchors = _anchors(batch)
    elif isinstance(network, LongSpecNetwork):
        anchors, batch = crossing(network, batch)
    levels, total, metrics = 0, batch.features.new_zeros(()), {}
    better = None
    if isinstance(reference, PublishedHead):
        better = drafted(reference, batch, depth, anchors)
    for levels, places in enumerate(drafted(head, batch, depth, anchors), start=1):
        learned = None if only is None else only.flatten()[places.at].nonzero()[:, 0]
        with torch.no_grad():
            if better is not None:
                learned = objectives.learnable(places, next(better))
            elif reference == objectives.RANDOM:
                learned = objectives.drawn(places)
            accepted = objectives.acceptance(places)
            if only is not None and reference is None:
                accepted = accepted[learned]
        if len(accepted):  # some answers go so far
            loss = objective(places)
            total = total + (loss if learned is None else loss[learned]).mean()
            metrics[f"acceptance_{levels}"] = float(accepted.mean())
    return total / levels, metrics


def drafted(
    head: PublishedHead,
    batch: HeadBatch,
    depth: int = 1,
    anchors: Lesson = None,
) -> Iterator[Places]:
    """Places of a batch, with what the head and the target say, by level or token of a draft.

    Args:
        depth: levels, of heads that draft from their own states.
        anchors: columns `[R, A]` at which blocks begin, of heads that draft blocks; of those that
            read the target's last layer, what it stores; of Falcon its blocks.
    """
    network = head.network
    ids = None if head.vocabulary is None else head.vocabulary.ids.to(batch.features.device)
    pairs: list[Pair]
    if isinstance(network, FalconNetwork):
        assert isinstance(anchors, Blocks)
        pairs = block_pairs(head, batch, anchors)
    elif isinstance(network, EagleNetwork | Eagle3Network):
        flash = isinstance(network, FlashNetwork)
        pairs = _flash(head, batch) if flash else leveled(head, batch, depth)
    elif isinstance(network, DFlashNetwork):
        assert isinstance(anchors, Tensor)
        pairs = _blocks(head, network, batch, anchors)
    elif isinstance(network, LongSpecNetwork):
        assert isinstance(anchors, Crossing)
        pairs = _crossings(network, batch, anchors)
    else:
        assert isinstance(network, MedusaNetwork | HydraNetwork)
        pairs = _paths(network, batch)
    for hidden, places in pairs:
        law, said = batch.law_at(places, ids), batch.said_at(places, ids)
        logits = _logits(network, batch, hidden)
        yield Places(hidden, batch.features_at(places), logits, law, said, places)


def _logits(network: nn.Module, batch: HeadBatch, hidden: Tensor) -> Tensor:
    """Logits over the tokens that a head drafts; those of some heads are there already."""
    if isinstance(network, MedusaNetwork | HydraNetwork):
        return hidden
    if isinstance(network, Eagle3Network):
        hidden = network.before_output(hidden)
    own: nn.Module | None = getattr(network, "lm_head", None)
    return batch.output(hidden) if own is None else own(hidden)


def _anchors(batch: HeadBatch) -> Tensor:
    """Columns `[R, A]` at which blocks begin, drawn anew every time."""
    _, begins = batch.ahead(1)
    drawn = torch.rand(begins.shape, device=begins.device) * begins
    return drawn.topk(min(ANCHORS, begins.shape[1]), dim=1).indices


def leveled(head: PublishedHead, batch: HeadBatch, depth: int) -> list[Pair]:
    """Hidden states of a head at what counts, at 1 to `depth` levels of a draft.

    At level k the last k − 1 columns up to each stand on the head's own outputs of the levels
    above, as in a draft; whatever is in front of them stands on the target's hidden states (HASS,
    Zhang et al. 2024, section 3.2; EAGLE-3, Li et al. 2025, section 3.2).
    """
    outputs, index, mask = forward(head, batch, depth, drafted=True)
    truth = batch.ahead(1)[0].gather(1, index)
    pairs = []
    for level, hidden in enumerate(outputs, start=1):
        _, begins = batch.ahead(level)  # by the draft's root, level − 1 columns in front
        counts = F.pad(begins, (level - 1, 0))[:, : begins.shape[1]]
        counts = counts.gather(1, index) & mask
        pairs.append((hidden[counts], truth[counts]))
    return pairs


def forward(
    head: PublishedHead, batch: HeadBatch, depth: int, drafted: bool = False
) -> tuple[list[Tensor], Tensor, Tensor]:
    """Outputs `[R, S', H]` by level of a head of EAGLE's kind, see `leveled`.

    Args:
        drafted: leave out what lies in front of all drafts: it is read, and nobody asks for it.

    Returns:
        The outputs, the columns `[R, S']` that they are of, and which of them are real.
    """
    network, rotary = head.network, head.rotary
    assert isinstance(network, EagleNetwork | Eagle3Network)
    assert rotary is not None
    columns = batch.columns(network.fuse(batch.states))
    look = network.look(columns)
    index, mask = read_columns(columns, look)
    embedded = pick(columns.embedded, index)
    context = None if look.context is None else pick(look.context, index)
    place = (columns.positions().gather(1, index) - 1).clamp_min(0)
    turns, scores = rotary(place, embedded.dtype), causal_mask(mask, mask.shape[1])
    memory: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        memory.setdefault(layer, []).append((k, v))
        return attend_levels(q, memory[layer], scores)

    skip = 0
    if drafted:
        begun = mask & (index >= columns.last_asked())
        skip = int(begun.long().argmax(1).min())
    outputs = [network(inputs_of(network, columns, look, index), turns, attend, skip)]
    cos, sin = turns
    turns, embedded = (cos[:, skip:], sin[:, skip:]), embedded[:, skip:]
    context = None if context is None else context[:, skip:]
    for _ in range(depth - 1):
        own = F.pad(outputs[-1][:, :-1], (0, 0, 1, 0))
        outputs.append(network(network.joined(embedded, own, context), turns, attend))
    return outputs, index[:, skip:], mask[:, skip:]


def _flash(head: PublishedHead, batch: HeadBatch) -> list[Pair]:
    """Pairs of each of the K tokens: the next block reads the slots' states."""
    network = head.network
    assert isinstance(network, FlashNetwork)
    (hidden,), index, mask = forward(head, batch, 1, drafted=True)
    pairs = []
    for n, own in enumerate(network.slots(hidden).unbind(2), start=1):
        places, answered = batch.ahead(n)
        counts = answered.gather(1, index) & mask
        pairs.append((own[counts], places.gather(1, index)[counts]))
    return pairs


def _blocks(
    head: PublishedHead, network: DFlashNetwork, batch: HeadBatch, at: Tensor
) -> list[Pair]:
    """Pairs of each place of blocks that begin at the columns `at [R, A]`."""
    assert head.rotary is not None
    hidden = blocks_at(network, head.rotary, batch, at)
    pairs = []
    for n, own in enumerate(hidden.unbind(2), start=1):
        places, drafted = batch.ahead(n)
        counts = drafted.gather(1, at)
        pairs.append((own[counts], places.gather(1, at)[counts]))
    return pairs


def blocks_at(
    network: DFlashNetwork, rotary: HeadRotary, batch: HeadBatch, anchors: Tensor
) -> Tensor:
    """Hidden states `[R, A, K, H]` of the K tokens behind the columns `anchors [R, A]`.

    A block reads the hidden states in front of its anchor, and itself.
    """
    columns, size = batch.columns(batch.features), network.block_size
    place, device = columns.positions(), anchors.device
    masks = torch.full((*anchors.shape, size - 1), network.mask_token_id, device=device)
    began = pick(batch.embedded, anchors)[:, :, None]
    x = torch.cat([began, batch.embed(masks).to(began)], dim=2)
    steps = torch.arange(size, device=device)
    turns = rotary((place.gather(1, anchors)[..., None] + steps).flatten(1), x.dtype)
    # a column has the hidden state behind it in front of the next one
    context = network.context(network.fuse(batch.states[:, :-1]), rotary(place[:, :-1], x.dtype))
    columns_of = torch.arange(place.shape[1] - 1, device=device)
    seen = (columns_of < anchors[..., None]) & columns.mask[:, None, :-1]
    return denoised(network, x, turns, context, seen)


def denoised(
    network: DFlashNetwork, blocks: Tensor, turns: Pair, context: list[Pair], seen: Tensor
) -> Tensor:
    """Hidden states `[R, A, K, H]` of the K tokens that each block says; it knows of no other.

    Args:
        blocks: inputs `[R, A, N, H]`.
        turns: of their places `[R, A · N, head_dim]`.
        context: keys and values of all columns `[R, kv_heads, C, head_dim]` by layer.
        seen: the columns that each block reads `[R, A, C]`.
    """
    rows, count, size = blocks.shape[:3]
    block = torch.arange(count, device=blocks.device).repeat_interleave(size)
    own = (block[:, None] == block).expand(rows, -1, -1)
    mask = torch.cat([seen.repeat_interleave(size, 1), own], dim=2)[:, None]

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = (torch.cat(pair, dim=2) for pair in zip(context[layer], (k, v), strict=True))
        grouped = q.shape[1] != k.shape[1]
        return F.scaled_dot_product_attention(q, keys, values, mask, enable_gqa=grouped)

    hidden = network(blocks.flatten(1, 2), turns, attend).unflatten(1, (count, size))
    return hidden[:, :, size - network.most :]


def _paths(network: MedusaNetwork | HydraNetwork, batch: HeadBatch) -> list[Pair]:
    """Logits of each head, of drafts that begin at every column."""
    columns = batch.columns(batch.features)
    pairs = []
    for n in range(network.count):
        places, drafted = batch.ahead(n + 1)
        before = columns.before[drafted]
        if isinstance(network, HydraNetwork):
            following = (F.pad(batch.embedded[:, k:], (0, 0, 0, k)) for k in range(n + 1))
            logits = network(before, torch.stack([e[drafted] for e in following], dim=1))
        else:
            logits = network.head(n)(before)
        pairs.append((logits, places[drafted]))
    return pairs


def _crossings(network: LongSpecNetwork, batch: HeadBatch, what: Crossing) -> list[Pair]:
    """Pairs of each of the tokens that are drafted from a cache in front of them."""
    skip = int(batch.ahead(1)[1].any(0).long().argmax())
    hidden = crossed(network, batch, what, skip)
    places, drafted = (x[:, skip:] for x in batch.ahead(1))
    pairs = []
    for n in range(network.block):
        counts = drafted & (what.steps[:, skip:] == n)
        pairs.append((hidden[counts], places[counts]))
    return pairs
