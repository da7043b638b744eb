"""A masked diffusion model of its own drafts a whole block in one denoising step (DEER).

Cheng et al. 2025, "DEER: Draft with Diffusion, Verify with Autoregressive Models".

Within a step the tokens of a block are drawn independently, each from its place's own law, which is
known. So the draft is exact, as long as these laws, after the target's warpers, are what tokens are
judged by. Behind more than one step a token's law depends on which others were drawn before it, and
nobody knows what it is without them: such a block is taken without chance, as the likeliest tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..engine.accept.routed import RoutedRule
from ..engine.coins import RoundCoins
from ..engine.draft import Context, Draft
from ..engine.protocols import Drafter
from ..errors import InputError
from ..methods.parts.shared import Siblings
from ..models.guided import GuidedDecoder
from ..models.llamagen.decoder import LlamaGenDecoder
from ..models.transformers.masked import MaskedForm, MaskedModel
from ..models.transformers.masked_target import OwnBlocks
from .feature.block import BlockDrafter, BlockModel
from .routed_blocks import RoutedBlockDrafter
from .sound_laws import faults, mended
from .tree.block_paths import BlockPathsDrafter
from .tree.shape import TreeShape
from .tree.siblings import draw_siblings, law_of_siblings
from .tree.trigrams import LivingTrigrams


class MaskedBlocks(BlockModel):
    """A masked model's blocks, each in the light of those that were drafted in front of it.

    Args:
        model: the masked model, whose calls may add the block and a separator to what is drafted.
        steps: denoising steps of a block; in each but the last as many of its places are filled as
            make equal shares, the surest first, with their likeliest tokens. After more than one,
            only the likeliest token of each law given back has a meaning.
    """

    def __init__(self, model: MaskedModel, steps: int = 1) -> None:
        self.model, self.steps = model, min(steps, model.size)
        self._known: list[int] = []

    def start(self, rows: int) -> None:
        self.model.start(rows)
        self._known = [-1] * rows

    def seat(self, context: Context, rows: list[int]) -> None:
        self.model.seat(context, rows)
        for row in rows:
            self._known[row] = -1

    def block(self, context: Context, drafted: Tensor) -> Tensor:
        text, count = context.tokens, drafted.shape[1]
        ends = [base + count for base in context.base]
        if count:
            first = torch.tensor(context.base, device=text.device)[:, None]
            places = first + torch.arange(count, device=text.device)
            text = F.pad(text, (0, count)).scatter(1, places, drafted)
        laws = self.model.read(text, ends, self._known)
        self._known = list(context.base)
        filled = torch.full_like(laws[..., 0], -1, dtype=torch.long)
        for step in range(1, self.steps):
            sure, likeliest = laws.max(-1)
            best = sure.masked_fill(filled >= 0, 2.0).topk(step * self.model.size // self.steps)
            chosen = torch.zeros_like(filled, dtype=torch.bool).scatter(1, best.indices, True)
            filled = torch.where((filled < 0) & chosen, likeliest, filled)
            again = self.model.read(text, ends, ends, filled)
            laws = torch.where((filled >= 0)[..., None], laws, again)
        return laws


class CartesianDrafter(Drafter):
    """Drafts a tree out of a block: a place's law is that of all nodes of its level.

    Args:
        model: drafts the block; one a round.
        widths: children of a node, by level, as many levels as the block has places or fewer.
        siblings: how they come about, see `draw_siblings`.
    """

    def __init__(
        self, model: BlockModel, widths: tuple[int, ...], siblings: Siblings = "without-replacement"
    ) -> None:
        self.model, self.shape, self.siblings = model, TreeShape(widths), siblings

    def start(self, context: Context) -> None:
        self.model.start(context.rows)

    def seat(self, context: Context, rows: list[int]) -> None:
        self.model.seat(context, rows)

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        none, ends = context.tokens[:, :0], self.shape.ends
        widths = self.shape.widths[: max(budget)]
        if not widths:
            return self.shape.draft(none, law_of_siblings(torch.zeros(0), self.siblings), budget)
        places, good = mended(self.model.block(context, none))
        tokens, laws, sound = [], [], []
        for level, width in enumerate(widths):
            parents = (ends[level + 1] - ends[level]) // width
            above = places[:, level : level + 1].expand(-1, parents, -1)
            chosen = draw_siblings(above, width, self.siblings, coins, ends[level])
            tokens.append(chosen.flatten(1))
            laws.append(above.repeat_interleave(width, 1))
            sound.append(good[:, level : level + 1].expand(-1, parents * width))
        law = law_of_siblings(torch.cat(laws, 1), self.siblings)
        draft = self.shape.draft(torch.cat(tokens, 1), law, budget)
        draft.faulty = faults(torch.cat(sound, 1), draft)
        return draft


class OwnMaskedBlocks(MaskedBlocks):
    """Blocks of the target itself, which has read all committed tokens but the last."""

    def block(self, context: Context, drafted: Tensor) -> Tensor:
        if not drafted.shape[1]:
            self._known = [base - 1 for base in context.base]
        return super().block(context, drafted)


class OwnBlockDrafter(BlockDrafter):
    """Drafts with the target's own blocks: each is a whole call of the target, and counts as one.

    Args:
        model: its blocks.
        size: places of a block.
        how: see `BlockDrafter`.
    """

    def __init__(
        self, model: OwnMaskedBlocks, size: int, how: Literal["drawn", "top"] = "drawn"
    ) -> None:
        super().__init__(model, how)
        self.size = size

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        draft = super().propose(context, budget, coins)
        drafted = range(0, draft.nodes, self.size)
        draft.calls, draft.read = len(drafted), sum(max(1, n) + self.size for n in drafted)
        return draft


def own_chain(
    target: GuidedDecoder,
    block_length: int,
    how: Literal["drawn", "top"],
    routed: RoutedRule | None = None,
    soft: Callable[[Tensor], Tensor] | None = None,
    greedy: bool = False,
) -> Drafter:
    """The drafter of chains of the target's own blocks (S2D2).

    Args:
        target: a masked model that answers.
        block_length, how: see `OwnBlockDrafter`.
        routed: the rule, if a router says what is verified.
        soft: makes the laws that tell how sure it is, at temperature 0, too.
        greedy: the likeliest tokens are drafted.
    """
    if routed is not None:
        how = "top" if greedy else how
        blocks = OwnBlocks(target, block_length, soft)
        return RoutedBlockDrafter(blocks, block_length, how, routed)
    return OwnBlockDrafter(OwnMaskedBlocks(OwnBlocks(target, block_length)), block_length, how)


def masked_chain(
    model: object, block_length: int, steps: int | None, how: Literal["drawn", "top"]
) -> BlockDrafter:
    """The drafter of chains over a masked draft model, see `MaskedModel`."""
    return BlockDrafter(MaskedBlocks(MaskedModel(model, block_length), steps or 1), how)


def masked_tree(
    model: object,
    block_length: int,
    steps: int | None,
    widths: tuple[int, ...],
    siblings: Siblings,
) -> CartesianDrafter:
    """The drafter of trees over a masked draft model, see `MaskedModel`."""
    blocks = MaskedBlocks(MaskedModel(model, block_length), steps or 1)
    return CartesianDrafter(blocks, widths, siblings)


def masked_paths(
    model: object,
    num_draft_tokens: int,
    vocab_size: int,
    beam: int,
    weight: float,
    mass: float,
    eos: Sequence[int] = (),
    prompt: Tensor | None = None,
    table: LivingTrigrams | None = None,
) -> BlockPathsDrafter:
    """The drafter of paths through a masked draft model's block, as DiffuSpec has it.

    Args:
        model: see `MaskedModel`.
        num_draft_tokens: masked places of the block, which one call fills.
        vocab_size, beam, weight, mass, eos, prompt, table: see `BlockPathsDrafter`.
    """
    blocks = MaskedBlocks(MaskedModel(model, num_draft_tokens))
    return BlockPathsDrafter(blocks, vocab_size, beam, weight, mass, eos, prompt, table)


def masked_rows(
    model: GuidedDecoder, block_length: int, steps: int | None, how: Literal["drawn", "top"]
) -> BlockDrafter:
    """The drafter of picture tokens in raster order by a masked LlamaGen network.

    A row is filled in a few calls. Tokens are drawn by blocks from left to right, each block behind
    those that were drawn in front of it, and their laws are known. Or a block is the row, filled
    without chance in `steps` calls, the surest places first, as MaskGIT does (Chang et al. 2022).

    Raises:
        InputError: the network is no masked one.
    """
    mask = getattr(getattr(model.decoder, "model", None), "config", {}).get("mask_token_id")
    if not isinstance(model.decoder, LlamaGenDecoder) or mask is None:
        raise InputError(
            "row_drafter is no masked network: its configuration names no mask_token_id; train one "
            "(mmspec train image-rows), or use method 'draft'"
        )
    blocks = MaskedBlocks(MaskedModel(model, block_length, MaskedForm(mask)), steps or 1)
    return BlockDrafter(blocks, how)
