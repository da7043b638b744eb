"""A scaled-up picture as a draft: exact under an exact rule; the up-samplers behind it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from toys import EXACT, Table, TableTarget, context_at, distance, whole_loop

from mmspec.draft.guarded import GuardedDrafter
from mmspec.draft.image.multiscale import MultiScaleDrafter
from mmspec.engine.accept.block import BlockRule
from mmspec.engine.accept.token import TokenRule
from mmspec.engine.accept.unverified import UnaskedTarget, UnverifiedRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.draft import Context
from mmspec.engine.laws import OneHot
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.loop import run
from mmspec.engine.protocols import Engine
from mmspec.engine.stats import SpecStats
from mmspec.models.llamagen.upsampler import (
    LatentUpsampler,
    LatentUpsampling,
    PixelUpsampler,
    nearest,
)
from mmspec.models.llamagen.vq import VQModel
from mmspec.models.token_grid import TokenGrid

COINS = ProductionCoins([0]).round(0)[0]


# --- the drafter ----------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [TokenRule, BlockRule])
@pytest.mark.parametrize("plan", [[0, 1, 2, 0], [2, 2, 1, 1]], ids=str)
def test_exact_rules_are_exact_on_it(rule, plan):
    target = Table(3, 4)

    def drafter():
        return MultiScaleDrafter(lambda: torch.tensor([plan]))

    law = whole_loop(4, TableTarget(target), drafter, rule(), at_once=1)
    assert distance(law, target.joint(4)) < EXACT


def test_drafts_are_the_plan_from_where_each_row_stands():
    plan = torch.arange(24).view(2, 12)
    drafter = GuardedDrafter(MultiScaleDrafter(lambda: plan), 24, 5)
    context = Context.empty(2, 12)
    context.base, context.lengths = [3, 8], torch.tensor([3, 8])
    drafter.start(context)
    draft = drafter.propose(context, [5, 4], COINS)
    assert isinstance(draft.law, OneHot)
    assert draft.lengths.tolist() == [5, 4]
    assert draft.tokens[0].tolist() == [3, 4, 5, 6, 7]
    assert draft.tokens[1, :4].tolist() == [20, 21, 22, 23]
    assert draft.positions[0].tolist() == [3, 4, 5, 6, 7]
    assert draft.positions[1].tolist() == [8, 9, 10, 11, 12]
    assert drafter.fault is None


def test_one_picture_a_generation():
    drawn = []

    def picture():
        drawn.append(1)
        return torch.zeros(1, 6, dtype=torch.long)

    drafter = MultiScaleDrafter(picture)
    for generation in (1, 2):
        drafter.start(Context.empty(1, 6))
        assert len(drawn) == generation - 1
        for base in (0, 2):
            drafter.propose(context_at((1,) * base, 1, 6), [2], COINS)
        assert len(drawn) == generation


def test_unverified_pictures_are_the_plan():
    plan = torch.arange(18).view(3, 6)
    engine = Engine(
        UnaskedTarget(),
        MultiScaleDrafter(lambda: plan),
        UnverifiedRule(),
        ConstantLength(6),
        ProductionCoins([1, 2, 3]),
    )
    stats = SpecStats()
    context = run(engine, 3, 6, stats)
    assert torch.equal(context.tokens[:, :6], plan)
    assert (stats.calls, stats.target_tokens, stats.rounds) == ([0] * 3, [0] * 3, [])


# --- the up-samplers ------------------------------------------------------------------------------

SMALL = TokenGrid(2, 3)


def test_nearest():
    assert nearest(torch.tensor([[1, 2, 3, 4, 5, 6]]), SMALL).view(4, 6).tolist() == [
        [1, 1, 2, 2, 3, 3],
        [1, 1, 2, 2, 3, 3],
        [4, 4, 5, 5, 6, 6],
        [4, 4, 5, 5, 6, 6],
    ]


@pytest.fixture(scope="module")
def vq():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = VQModel(
            codebook_size=40,
            codebook_show_usage=False,
            ch=32,
            ch_mult=(1, 1),
            num_res_blocks=1,
            z_channels=32,
            patch_size=2,
        )
    return model.eval()


@torch.no_grad()
def test_pixels(vq):
    """Each step spelled out; and a picture of one colour stays of one code inside."""
    codes = torch.randint(40, (2, 6), generator=torch.Generator().manual_seed(1))
    small = vq.decode(codes, 2, 3)
    large = F.interpolate(small, (2 * small.shape[2], 2 * small.shape[3]), mode="bicubic")
    found = PixelUpsampler(vq)(codes, SMALL)
    assert torch.equal(found, vq.encode(large.clamp(-1, 1)))
    assert found.shape == (2, 24)


@torch.no_grad()
def test_latents(vq):
    """Rows of a batch are those alone; the cell of a small code becomes four in their places."""
    torch.manual_seed(0)
    network = LatentUpsampler(40, 8, width=32, depth=1).eval()
    upsampler = LatentUpsampling(network, vq.quantize.codebook())
    codes = torch.randint(40, (3, 6), generator=torch.Generator().manual_seed(1))
    together = upsampler(codes, SMALL)
    assert together.shape == (3, 24)
    for row in range(3):
        assert torch.equal(upsampler(codes[row : row + 1], SMALL), together[row : row + 1])
    latents = SMALL.latents(codes, vq.quantize.codebook())
    for row, column in ((0, 0), (1, 2)):
        wanted = vq.quantize.codebook()[codes[:, 3 * row + column]]
        assert torch.equal(latents[:, :, row, column], wanted)
    logits = network(latents)
    assert logits.shape == (3, 40, 4, 6)
    assert torch.equal(logits.argmax(1).flatten(1), together)
