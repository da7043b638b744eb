"""Heads over a vision-language model as drafters: what they draft from, and that they are exact."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from toy_vlm import PICTURE, ROWS, Passes, guided_vlm, tiny_head, tiny_llava
from toys import EXACT, distance, whole_loop
from watched_drafts import Watched, inner, joint

from mmspec.draft.feature.feature_model import EagleDrafter, FeatureModel
from mmspec.draft.feature.head_model import head_model
from mmspec.draft.null import NullDrafter
from mmspec.draft.tree.dynamic_tree import DynamicTreeDrafter
from mmspec.draft.tree.fixed_tree import TreeDrafter
from mmspec.engine.accept.greedy import GreedyRule
from mmspec.engine.accept.recursive import RecursiveRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.laws import OneHot
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.loop import run
from mmspec.engine.protocols import Engine
from mmspec.engine.stats import SpecStats
from mmspec.engine.warp import Warp
from mmspec.models.heads.published.base_decoder import PublishedDecoder
from mmspec.models.heads.published.dflash import DFlashNetwork
from mmspec.models.heads.published.eagle3 import Eagle3Network
from mmspec.models.heads.published.falcon import FalconNetwork
from mmspec.models.heads.published.flash import FlashNetwork
from mmspec.models.heads.published.hydra import HydraNetwork
from mmspec.models.heads.published.longspec import LongSpecNetwork
from mmspec.models.heads.published.medusa import MedusaNetwork
from mmspec.models.target import TokenTarget
from mmspec.train.heads.glancing import Blocks, read_blocks
from mmspec.train.heads.head_losses import blocks_at, forward
from mmspec.train.heads.last_layer import Crossing, crossed

FEATURES = ["eagle", "eagle3", "vispec", "vispec-4", "msd", "specvlm", "specvlm-sum"]
FEATURES += ["specvlm-pruning", "specvlm-pooling", "specvlm-text-only"]
BLOCKS = ["flash", "dflash", "falcon", "falcon-3"]
DRAFTED = [(name, "chain") for name in [*FEATURES, "hydra", "medusa", "longspec"]]
DRAFTED += [(name, "block") for name in BLOCKS]
BRANCHING = ("tree", "without-replacement")
DRAFTED += [
    (name, kind)
    for name in ("vispec", "hydra", "longspec", "falcon", "falcon-3")
    for kind in BRANCHING
]


class Oracle:
    """A draft's laws from what the head says in training, row by row, of full passes."""

    def __init__(self, model, head, prompt, scale=None) -> None:
        self.model, self.head, self.scale = model, head, scale
        self.rows = [Passes(model, prompt, row) for row in range(len(prompt.images))]

    def law(self, row: int, committed: list[int], path: list[int]) -> torch.Tensor:
        """The head's law `[V]` behind `path`, which it drafted behind `committed`."""
        logits = self.logits(row, committed, path)
        if self.scale is not None:
            twin = len(self.rows) // 2 + row
            without = self.logits(twin, committed, path)
            logits = without + self.scale * (logits - without)
        return logits.softmax(-1)

    @torch.no_grad()
    def logits(self, row: int, committed: list[int], path: list[int]) -> torch.Tensor:
        """What it says in training there `[V]`."""
        passes, network = self.rows[row], self.head.network
        root = passes.length + len(committed) - 1
        batch = passes.batch([*committed, *path], root, self.head.reads)
        if isinstance(network, MedusaNetwork):
            return network.head(len(path))(batch.features[0, root - 1])
        if isinstance(network, HydraNetwork):
            way = batch.embedded[0, root : root + 1 + len(path)]
            return network(batch.features[0, root - 1], way)
        if isinstance(network, DFlashNetwork):
            hidden = blocks_at(network, self.head.rotary, batch, torch.tensor([[root]]))
            return self.model.lm_head(hidden[0, 0, len(path)])
        if isinstance(network, LongSpecNetwork):
            steps = (torch.arange(batch.mask.shape[1])[None] - root).clamp_min(0)
            what = Crossing(batch.last(batch.embedded, batch.mask), steps)
            return self.model.lm_head(crossed(network, batch, what)[0, -1])
        if isinstance(network, FalconNetwork):
            return self.model.lm_head(self.block(batch, root, len(path)))
        if isinstance(network, FlashNetwork):
            return self.model.lm_head(self.slot(batch, root, len(path)))
        hidden = network.before_output(forward(self.head, batch, len(path) + 1)[0][-1][0, -1])
        return (network.lm_head if isinstance(network, Eagle3Network) else self.model.lm_head)(
            hidden
        )

    def slot(self, batch, root: int, n: int) -> torch.Tensor:
        """The state that FLASH draws token n from: block by block over its own slots."""
        network, at = self.head.network, root
        for block in range(n // network.block + 1):
            (hidden,), index, _ = forward(self.head, batch, 1)
            slots = network.slots(hidden[0, index[0].tolist().index(at)])
            if block < n // network.block:
                batch.states[0, at : at + network.block] = slots
                at += network.block
        return slots[n % network.block]

    def block(self, batch, root: int, n: int) -> torch.Tensor:
        """The state that Falcon draws token n from: block by block over its own states."""
        size = self.head.network.block
        place = (torch.arange(batch.mask.shape[1])[None] - root - 1) % size
        blocks = Blocks(place, torch.zeros_like(batch.mask))
        for at in range(root, root + n + 1, size):
            hidden, index, mask = read_blocks(self.head, batch, blocks)
            columns = index[0].tolist()
            first = columns[int(mask[0].long().argmax())]
            ends = range(at - size + 1, at + 1)
            states = hidden[0, [columns.index(max(column, first)) for column in ends]]
            batch.features[0, at : at + size] = states[: batch.mask.shape[1] - at]
        return states[n % size]


def generation(
    name, kind, *, rows=ROWS, warp=None, limit=8, depth=3, watch=False, rule=None, scale=None
):
    """A whole generation; returns the context, the drafter and the counters."""
    model = tiny_llava()
    target, prompt, images = guided_vlm(model, rows, limit=limit, warp=warp, scale=scale)
    head = tiny_head(name, model)
    drafts = head_model(head, target, images)
    chosen, own_rule = inner(kind, drafts)
    drafter = EagleDrafter(drafts, chosen) if depth else NullDrafter()
    if watch:
        drafter = Watched(drafter, Oracle(model, head, prompt, scale))
    # a row's seed is its prompt's, wherever it stands
    coins = ProductionCoins([7 + len(row) for row in rows])
    engine = Engine(TokenTarget(target), drafter, rule or own_rule, ConstantLength(depth), coins)
    stats = SpecStats()
    return run(engine, len(rows), limit, stats), drafter, stats


# --- what the draft is made from ------------------------------------------------------------------


@pytest.mark.parametrize(("name", "kind"), DRAFTED)
def test_drafts_are_what_training_sees(name, kind):
    """Every node's law, of rows with two pictures, with none and with one, is training's."""
    _, watched, stats = generation(name, kind, watch=True, warp=Warp())
    assert watched.worst < EXACT
    assert set(watched.behind) == {0, 1, 2}
    assert 0 < sum(stats.accepted) < sum(stats.drafted)


@pytest.mark.parametrize("kind", ["block", "chain", "tree"])
def test_prompts_shorter_than_a_block(kind):
    """Missing columns of the first block repeat the first one."""
    _, watched, _ = generation("falcon-3", kind, rows=[[1, 2], [2]], watch=True, warp=Warp())
    assert watched.worst < EXACT


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("vispec", "chain"),
        ("flash", "block"),
        ("falcon", "block"),
        ("falcon-3", "tree"),
        ("dflash", "block"),
        ("hydra", "tree"),
        ("longspec", "tree"),
    ],
)
def test_under_guidance(name, kind):
    """Unconditional rows have neither the picture nor the words."""
    _, watched, _ = generation(name, kind, watch=True, scale=1.5)
    assert watched.worst < EXACT
    assert set(watched.behind) == {0, 1, 2}


@pytest.mark.parametrize("name", ["eagle", "vispec", "msd", "flash", "specvlm"])
def test_hazard_pictures_matter(name):
    """What heads draft leans on the pictures: with others the oracle says something else."""
    model = tiny_llava()
    _, prompt, _ = guided_vlm(model)
    oracle = Oracle(model, tiny_head(name, model), prompt)
    before = oracle.law(0, [1], [])
    oracle.rows[0].prompt = oracle.rows[0].prompt.clone()
    oracle.rows[0].prompt[:, 1 : 1 + PICTURE] += 3
    assert (oracle.law(0, [1], []) - before).abs().max() > 1e-3


def one_ahead(self, context, draft, scores, verdict):
    """The state behind a token in place of the one in front of it: the future leaks in."""
    RIGHT(self, context, draft, replace(scores, hidden=scores.hidden.roll(-1, 1)), verdict)


def no_gaps(self, positions):
    """What stays of a picture stands one after the other."""
    first, steps = positions[:, :1], torch.arange(positions.shape[1])
    PLACED(self, first + steps)


RIGHT, PLACED = FeatureModel.observe, PublishedDecoder.place


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("vispec", "chain"),
        ("vispec", "tree"),
        ("flash", "block"),
        ("dflash", "block"),
        ("hydra", "chain"),
    ],
)
def test_hazard_states_of_other_tokens(name, kind, monkeypatch):
    monkeypatch.setattr(FeatureModel, "observe", one_ahead)
    assert generation(name, kind, watch=True)[1].worst > 1e-6


@pytest.mark.parametrize(("name", "kind"), [("vispec", "chain"), ("flash", "block")])
def test_hazard_positions_without_the_pictures_gap(name, kind, monkeypatch):
    monkeypatch.setattr(PublishedDecoder, "place", no_gaps)
    assert generation(name, kind, watch=True)[1].worst > 1e-6


# --- exactness ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind", "limit"),
    [
        ("vispec", "chain", 3),
        ("specvlm", "chain", 3),
        ("flash", "block", 3),
        ("flash", "top-block", 4),
        ("dflash", "block", 3),
        ("hydra", "chain", 3),
        ("medusa", "chain", 3),
        ("eagle3", "chain", 3),
        ("msd", "tree", 3),
        ("hydra", "tree", 3),
        ("eagle", "top", 4),
    ],
)
def test_joint_law_of_the_whole_loop(name, kind, limit):
    """Of the shipped loop, target and head behind a picture."""
    model = tiny_llava(vocab=2)
    target, prompt, images = guided_vlm(model, [["picture", 0]], limit=limit, scratch=8)
    drafts = head_model(tiny_head(name, model), target, images)

    def drafter():
        chosen = inner(kind, drafts)[0]
        if kind == "tree":
            chosen = TreeDrafter(drafts, (2, 1))
        if kind == "top":
            chosen = DynamicTreeDrafter(drafts, 2, 2, 1, 4, "top")
        return EagleDrafter(drafts, chosen)

    law = whole_loop(limit, TokenTarget(target), drafter, inner(kind, drafts)[1], at_once=1)
    with torch.inference_mode():
        assert distance(law, joint(limit, 2, Passes(model, prompt, 0).law)) < EXACT


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *[(name, "chain") for name in [*FEATURES, "hydra", "medusa"]],
        *[(name, "block") for name in BLOCKS],
        ("eagle", "top"),
        ("hydra", "top"),
        ("flash", "top-block"),
    ],
)
def test_greedy_text_is_the_plain_one(name, kind):
    rule = RecursiveRule() if kind == "top" else GreedyRule()
    make = {"warp": Warp(0.0), "rule": rule, "limit": 10}
    got, _, _ = generation(name, kind, depth=5, **make)
    plain, _, stats = generation(name, kind, depth=0, **make)
    assert sum(stats.drafted) == 0
    assert torch.equal(got.tokens[:, :10], plain.tokens[:, :10])


# --- batches --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "kind"), DRAFTED)
def test_row_equals_itself_alone(name, kind):
    make = {"limit": 10, "warp": Warp(3.0)}
    together, _, stats = generation(name, kind, **make)
    for row in range(len(ROWS)):
        alone, _, counters = generation(name, kind, rows=[ROWS[row]], **make)
        assert torch.equal(together.tokens[row, :10], alone.tokens[0, :10])
        assert stats.calls[row] == counters.calls[0]


# --- compression ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("eagle", PICTURE),
        ("msd", PICTURE),
        ("vispec", 1),
        ("vispec-4", 3),
        ("flash", 3),
        ("specvlm-pruning", 4),
        ("specvlm-pooling", 4),
        ("specvlm-convolution", 4),
        ("specvlm-resampler", 2),
        ("specvlm-text-only", 0),
    ],
)
def test_the_heads_own_prefix_is_shorter(name, left, monkeypatch):
    model = tiny_llava()
    target, _, images = guided_vlm(model, limit=5, scratch=6)
    drafts = head_model(tiny_head(name, model), target, images)
    # the longest row's words but its first, and two pictures
    assert drafts.offset == 3 + 2 * left
    assert target.offset == 4 + 2 * PICTURE
    assert drafts.slots == drafts.offset + 5 + 6 + 1
    lengths = (drafts.offset - drafts.pads).tolist()
    begun = left == PICTURE  # a row's first column is not read
    assert lengths == [3 + 2 * left, 2, 1 + left - begun]
    # every kept column stands where it stood, and a picture's last columns for the whole
    own = drafts.decoder._prompt.read[0].tolist()
    first = [*range(1 + PICTURE - left, 1 + PICTURE)]
    second = [*range(3 + 2 * PICTURE - left, 3 + 2 * PICTURE)]
    if name != "specvlm-pruning":
        assert own == [*first, 1 + PICTURE, 2 + PICTURE, *second, 3 + 2 * PICTURE]
    pads = [0, 4 + 2 * PICTURE - 3, 3 + PICTURE]
    turns = drafts.decoder._turns
    for row, pad in enumerate(pads):
        place = drafts.decoder._prompt.read[row, -1] - pad + torch.arange(6)
        expected = drafts.decoder.head.rotary(place[None] - 1, torch.float64)
        for all_turns, own_turns in zip(turns, expected, strict=True):
            assert torch.equal(all_turns[row, drafts.offset - 1 : drafts.offset + 5], own_turns[0])


def test_top_drafts_are_ranked_where_the_target_is_greedy():
    """A tree's siblings would be any tokens if the head's law were the largest alone."""
    model = tiny_llava()
    target, _, images = guided_vlm(model, warp=Warp(0.0))
    drafts = head_model(tiny_head("eagle", model), target, images, warp=Warp())
    seen = []

    class Probe(NullDrafter):
        def start(self, context):
            super().start(context)
            drafts.start(context.rows)

        def propose(self, context, budget, coins):
            seen.append(drafts.extend(context.last, [b - 1 for b in context.base]))
            return super().propose(context, budget, coins)

    engine = Engine(
        TokenTarget(target),
        EagleDrafter(drafts, Probe()),
        GreedyRule(),
        ConstantLength(2),
        ProductionCoins([1, 2, 3]),
    )
    run(engine, 3, 2, SpecStats())
    assert all(((law > 0).all(), law.max() < 1) == (True, True) for law in seen)


@pytest.mark.parametrize("name", ["eagle", "vispec", "flash", "dflash", "hydra"])
def test_cost_of_a_call_outside_a_generation(name):
    model = tiny_llava()
    target, _, images = guided_vlm(model)
    drafts = head_model(tiny_head(name, model), target, images)
    with torch.inference_mode():
        assert drafts.seconds_per_call(3) > 0


def test_chosen_tokens_have_no_law():
    _, drafter, _ = generation("flash", "top-block")
    context = drafter.model.context

    class Coins:
        def draw(self, *_):
            raise AssertionError("nothing is drawn")

    with torch.inference_mode():
        drafter.model.target.start(context.rows)
        drafter.start(context)
        draft = drafter.propose(context, [3, 1, 2], Coins())
    assert isinstance(draft.law, OneHot)
    assert draft.lengths.tolist() == [3, 1, 2]
