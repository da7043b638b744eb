"""Masked drafters: exact laws of a block, the network against a pass from scratch, what is off."""

from __future__ import annotations

import itertools

import masked_networks
import numpy as np
import pytest
import torch
from sizes import SMALL
from toys import EXACT, Table, TableModel, TableTarget, context_at, distance, outputs, whole_loop
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from mmspec import SpecConfig, enable_speculation
from mmspec.draft.draft_model import ModelDrafter
from mmspec.draft.feature.block import BlockDrafter
from mmspec.draft.masked import (
    CartesianDrafter,
    MaskedBlocks,
    masked_chain,
    masked_paths,
    masked_tree,
)
from mmspec.draft.tree.block_paths import BlockPathsDrafter
from mmspec.engine.accept.recursive import RecursiveRule
from mmspec.engine.accept.token import TokenRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.draft import Context
from mmspec.engine.laws import Categorical
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.loop import run
from mmspec.engine.protocols import Engine
from mmspec.engine.stats import SpecStats
from mmspec.engine.warp import Warp
from mmspec.errors import InputError
from mmspec.models.guided import GuidedDecoder
from mmspec.models.setting import Setting
from mmspec.models.target import TokenTarget
from mmspec.models.transformers.causal import CausalDecoder
from mmspec.models.transformers.masked import MaskedForm, MaskedModel


class MaskedTable:
    """Laws of a place, for every text and every filling of the places."""

    def __init__(self, vocab: int, size: int, warp: Warp = Warp()) -> None:  # noqa: B008
        self.vocab, self.size, self.warp = vocab, size, warp

    def start(self, rows):
        self.seen = [-1] * rows

    def law(self, text, filled, place):
        key = [5, len(text), *text, *(token + 1 for token in filled), place]
        logits = torch.tensor(np.random.default_rng(key).normal(0, 1.5, self.vocab))
        return self.warp(logits)

    def read(self, text, ends, known, filled=None):
        assert all(k <= end for k, end in zip(known, ends, strict=True))
        filled = [[-1] * self.size] * len(ends) if filled is None else filled.tolist()
        laws = [
            [self.law(tuple(row[:end]), one, place) for place in range(self.size)]
            for row, end, one in zip(text.tolist(), ends, filled, strict=True)
        ]
        return torch.stack([torch.stack(row) for row in laws])


WARPS = {"plain": Warp(), "warped": Warp(0.7, 2)}


@pytest.mark.parametrize("warp", WARPS.values(), ids=WARPS)
@pytest.mark.parametrize("how", ["drawn", "top"])
@pytest.mark.parametrize(("vocab", "size", "ahead", "limit"), [(3, 2, 2, 3), (2, 2, 3, 4)])
def test_joint_law_of_chains(vocab, size, ahead, limit, how, warp):
    """One block, and blocks behind drafted blocks; at a temperature and with top-k, too."""
    target = Table(vocab, 7, warp)
    law = whole_loop(
        limit,
        TableTarget(target),
        lambda: BlockDrafter(MaskedBlocks(MaskedTable(vocab, size, warp)), how),
        length=ConstantLength(ahead),
    )
    assert distance(law, target.joint(limit)) < EXACT


@pytest.mark.parametrize("siblings", ["without-replacement", "independent", "top"])
@pytest.mark.parametrize(("vocab", "widths", "limit"), [(3, (2, 1), 3), (2, (2, 2, 1), 3)])
def test_joint_law_of_trees(vocab, widths, limit, siblings):
    target = Table(vocab, 8)
    law = whole_loop(
        limit,
        TableTarget(target),
        lambda: CartesianDrafter(MaskedBlocks(MaskedTable(vocab, 3)), widths, siblings),
        RecursiveRule(),
        length=ConstantLength(len(widths)),
    )
    assert distance(law, target.joint(limit)) < EXACT


@pytest.mark.parametrize("warp", WARPS.values(), ids=WARPS)
@pytest.mark.parametrize(("vocab", "ahead", "limit"), [(3, 2, 3), (2, 3, 4)])
def test_joint_law_of_paths(vocab, ahead, limit, warp):
    """DiffuSpec over a masked model: its paths are chosen without chance, whatever its laws say."""
    target, prompt = Table(vocab, 7, warp), torch.tensor([[0, 1, 0, 0, 1]])
    for eos in ((), (1,)):
        law = whole_loop(
            limit,
            TableTarget(target),
            lambda eos=eos: BlockPathsDrafter(
                MaskedBlocks(MaskedTable(vocab, ahead, warp)), vocab, 3, eos=eos, prompt=prompt
            ),
            RecursiveRule(),
            length=ConstantLength(ahead),
            at_once=1,
        )
        assert distance(law, target.joint(limit)) < EXACT


def test_paths_are_the_masked_models():
    """The surest path of its block comes first, where the text knows nothing."""
    table, text = MaskedTable(5, 3), (1, 2)
    drafter = BlockPathsDrafter(MaskedBlocks(table), 5, beam=1, weight=1.0)
    context = context_at(text, 1, 8)
    drafter.start(context)
    draft = drafter.propose(context, [3], ProductionCoins([0]).round(0)[0])
    likeliest = [int(table.law(text, [-1] * 3, place).argmax()) for place in range(3)]
    assert draft.tokens.tolist() == [likeliest]
    assert draft.parents.tolist() == [[-1, 0, 1]]


def test_a_block_reads_the_text_and_the_blocks_in_front_of_it():
    """By hand, for rows of several lengths."""
    table = MaskedTable(3, 2)
    blocks, context = MaskedBlocks(table), Context.empty(2, 6)
    blocks.start(2)
    context.tokens[0, :2], context.tokens[1, :1] = torch.tensor([1, 2]), 2
    context.lengths, context.base = torch.tensor([2, 1]), [2, 1]
    laws = blocks.block(context, torch.tensor([[0, 1], [1, 1]]))
    for row, text in enumerate([(1, 2, 0, 1), (2, 1, 1)]):
        for place in range(2):
            assert torch.equal(laws[row, place], table.law(text, [-1] * 2, place))


def test_rows_of_a_tree_go_as_far_as_they_may():
    """By hand: a level, both levels, and nothing."""
    drafter = CartesianDrafter(MaskedBlocks(MaskedTable(3, 3)), (2, 2), "top")
    context = Context.empty(3, 6)
    drafter.start(context)
    coins, _ = ProductionCoins([0, 1, 2], torch.device("cpu")).round(0)
    draft = drafter.propose(context, [1, 2, 0], coins)
    assert draft.lengths.tolist() == [2, 6, 0]
    first, second = (MaskedTable(3, 3).law((), [-1] * 3, place).topk(2).indices for place in (0, 1))
    assert draft.tokens[1].tolist() == [*first.tolist(), *second.tolist() * 2]
    assert draft.parents[1].tolist() == [-1, -1, 0, 0, 1, 1]


class Unwarped(BlockDrafter):
    """Draws by warped laws and is judged by those before the warpers."""

    def propose(self, context, budget, coins):
        draft = super().propose(context, budget, coins)
        if draft.nodes:
            model = MaskedTable(self.model.model.vocab, self.model.model.size)
            law = model.read(context.tokens, context.base, context.base)
            draft.law = Categorical(law[:, : draft.nodes])
        return draft


def test_laws_before_the_warpers_are_off():
    """The output is the target's only if a token is judged by the law that it was drawn from."""
    vocab, warp, found = 3, WARPS["warped"], {}
    target = Table(vocab, 7, warp)
    for kind in (BlockDrafter, Unwarped):
        law = whole_loop(
            2,
            TableTarget(target),
            lambda kind=kind: kind(MaskedBlocks(MaskedTable(vocab, 2, warp))),
            length=ConstantLength(2),
        )
        found[kind] = distance(law, target.joint(2))
    assert found[BlockDrafter] < EXACT
    assert found[Unwarped] > 0.01


class Stepwise(MaskedBlocks):
    """Draws a block in steps, the surest places first, and states each place's law of its step."""

    def draw(self, context, coins):
        laws = self.block(context, context.tokens[:, :0])  # one step
        ends, filled = context.base, torch.full(laws.shape[:2], -1)
        for step in range(laws.shape[1]):
            sure = laws.amax(-1).masked_fill(filled >= 0, -1.0)
            place = sure.argmax(-1, keepdim=True)
            token = coins.draw(laws.gather(1, place[..., None].expand(-1, 1, laws.shape[2])), step)
            filled = filled.scatter(1, place, token)
            again = self.model.read(context.tokens, ends, ends, filled)
            laws = torch.where((filled >= 0)[..., None], laws, again)
        return filled, laws


class Drawn(BlockDrafter):
    """The same as a drafter that claims its nodes' laws are a product."""

    def propose(self, context, budget, coins):
        draft = super().propose(context, budget, coins)
        if draft.nodes == self.model.model.size:
            draft.tokens, laws = self.model.draw(context, coins)
            draft.law = Categorical(laws)
        return draft


@pytest.mark.slow
def test_several_steps_are_exact_without_chance_and_off_with_it():
    """DEER drafts in one step. A diffusion model's usual sampler, of several, gives no product."""
    vocab, size, limit = 3, 2, 3
    target, found = Table(vocab, 9), {}
    ways = {
        "top": lambda: BlockDrafter(MaskedBlocks(MaskedTable(vocab, size), size), "top"),
        "drawn": lambda: Drawn(Stepwise(MaskedTable(vocab, size))),
    }
    for name, make in ways.items():
        law = whole_loop(limit, TableTarget(target), make, length=ConstantLength(size))
        found[name] = distance(law, target.joint(limit))
    assert found["top"] < EXACT
    assert found["drawn"] > 0.01


class Twice:
    """Texts that say each token twice: 00 or 11, with the same chance."""

    def __call__(self, prefix):
        if len(prefix) % 2 == 0:
            return [0.5, 0.5]
        return [float(token == prefix[-1]) for token in range(2)]


class Marginals(MaskedTable):
    """The best that the two places behind nothing can say of such texts."""

    def law(self, text, filled, place):
        return torch.tensor([0.5, 0.5], dtype=torch.float64)


def test_places_do_not_know_of_each_other():
    """Errors that don't add up are not less of them: a place is right on the mean alone.

    A drafter of single tokens that knows such texts has all of its tokens stand, and a masked one
    that knows them as well loses every other second token.
    """
    rows, found = 2000, {}
    ways = {
        "masked": lambda: BlockDrafter(MaskedBlocks(Marginals(2, 2))),
        "token by token": lambda: ModelDrafter(TableModel(Twice())),
    }
    for name, make in ways.items():
        stats = SpecStats()
        coins = ProductionCoins([*range(rows)], torch.device("cpu"))
        parts = TableTarget(Twice()), make(), TokenRule(), ConstantLength(2), coins
        run(Engine(*parts), rows, 3, stats)
        found[name] = stats.acceptance_by_position
    assert found["token by token"] == [1.0, 1.0]
    assert found["masked"] == pytest.approx([1.0, 0.5], abs=0.04)


@pytest.mark.parametrize("steps", [2, 3, 4])
def test_places_of_a_step_are_the_surest_ones(steps):
    """By hand: after each step but the last its share of places hold their likeliest tokens."""
    vocab, size = 4, 4
    table, read = MaskedTable(vocab, size), []

    def kept(text, ends, known, filled=None, own=table.read):
        read.append(None if filled is None else filled.clone())
        return own(text, ends, known, filled)

    table.read = kept
    blocks = MaskedBlocks(table, steps)
    blocks.start(1)
    context = Context.empty(1, 6)
    laws = blocks.block(context, context.tokens[:, :0])
    wanted, filled = [table.law((), [-1] * size, place) for place in range(size)], [-1] * size
    for step in range(1, steps):
        free = [place for place in range(size) if filled[place] < 0]
        share = step * size // steps - (size - len(free))
        for place in sorted(free, key=lambda place: -float(wanted[place].max()))[:share]:
            filled[place] = int(wanted[place].argmax())
        assert read[step].tolist() == [filled]
        for place in (place for place in free if filled[place] < 0):
            wanted[place] = table.law((), filled, place)
    assert len(read) == steps
    assert torch.equal(laws[0], torch.stack(wanted))


# --- over a network -------------------------------------------------------------------------------

VOCAB, MASK, SEPARATOR = 16, 15, 14
FORMS = {
    "deer": {"sep_token_id": SEPARATOR},
    "sdar": {},
    "shifted": {"shifted_logits": True},
    "dream": {"shifted_logits": True, "prefix_reading": "whole"},
    "a2d": {"prefix_reading": "whole"},
}


def network(form=None, kind=LlamaForCausalLM, config=LlamaConfig, seed=0, dtype=torch.float64):
    made = config(**SMALL | dict(vocab_size=VOCAB, num_key_value_heads=2, head_dim=8))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = kind(made)
        for weight in model.parameters():
            torch.nn.init.normal_(weight, mean=float(weight.ndim == 1), std=0.3)
    for name, value in ({"mask_token_id": MASK} | form if form is not None else {}).items():
        setattr(model.config, name, value)
    return model.to(dtype).eval()


PROMPT, PADS = [1, 0, 3, 2], (0, 2, 1)


def guided(model, rows=(0, 1, 2), limit=14):
    decoder = CausalDecoder(model)
    ids = torch.tensor([PROMPT]).repeat(len(rows), 1)
    mask = torch.arange(4) >= torch.tensor([PADS[row] for row in rows])[:, None]
    setting = Setting(decoder.embeddings[ids], mask, None, lambda x: x.softmax(-1), limit, 0, 8)
    return GuidedDecoder(decoder, setting)


def slow(model, text, size):
    """Laws of `size` places behind a text, by transformers' own forward over all of it at once."""
    form = MaskedForm.of(model)
    block = ([] if form.separator is None else [form.separator]) + [form.mask] * size
    total, known = len(text) + len(block), len(text)
    seen = torch.zeros(total, total, dtype=torch.bool)
    for query, key in itertools.product(range(total), repeat=2):
        if form.reading == "whole" or query >= known:
            seen[query, key] = True
        else:
            seen[query, key] = key <= query
    bias = torch.zeros(total, total, dtype=model.dtype).masked_fill(~seen, -torch.inf)
    logits = model(
        input_ids=torch.tensor([[*text, *block]]),
        attention_mask=bias[None, None],
        position_ids=torch.arange(total)[None],
        use_cache=False,
    ).logits[0]
    first = total - size - int(form.shifted)
    return logits[first : first + size].softmax(-1)


@torch.inference_mode()
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize(
    ("kind", "config"), [(LlamaForCausalLM, LlamaConfig), (Qwen3ForCausalLM, Qwen3Config)]
)
def test_laws_are_those_of_a_pass_from_scratch(form, kind, config):
    """Rows at different places, padded, over a cache that earlier blocks have written to."""
    network_ = network(form, kind, config)
    model = MaskedModel(guided(network_), 3)
    model.start(3)
    text = torch.randint(12, (3, 14), generator=torch.Generator().manual_seed(1))
    known = [-1] * 3
    for ends in ([0, 0, 0], [1, 3, 0], [4, 3, 2], [9, 4, 9]):
        laws = model.read(text, ends, known)
        for row, end in enumerate(ends):
            whole = [*PROMPT[PADS[row] :], *text[row, :end].tolist()]
            assert torch.allclose(laws[row], slow(network_, whole, 3), atol=1e-10)
        known = ends


@torch.inference_mode()
def test_filled_places_are_read():
    network_ = network(FORMS["deer"])
    model = MaskedModel(guided(network_, (0,)), 3)
    model.start(1)
    text = torch.tensor([[4, 5, 6, 0, 0, 0]])
    filled = torch.tensor([[-1, 7, -1]])
    bare = model.read(text, [3], [-1])
    laws = model.read(text, [3], [3], filled)
    assert float((laws - bare).abs().max()) > 1e-3
    again = model.read(text, [3], [3])
    assert torch.allclose(bare, again, atol=1e-12)


def drawn(model, target, rows, seeds=(1, 2, 3), limit=12):
    places = list(rows)
    masked = MaskedModel(guided(model, places, limit), 3)
    engine = Engine(
        TokenTarget(guided(target, places, limit)),
        BlockDrafter(MaskedBlocks(masked)),
        TokenRule(),
        ConstantLength(5),
        ProductionCoins([seeds[row] for row in places], torch.device("cpu")),
    )
    return outputs(run(engine, len(places), limit, SpecStats(method="x")))


@torch.inference_mode()
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_rows_do_not_depend_on_their_neighbours(form):
    model, target = network(form, seed=3), network(seed=4)
    together = drawn(model, target, (0, 1, 2))
    for row in range(3):
        assert drawn(model, target, (row,)) == [together[row]]


WAYS = {
    "chain": lambda model: (masked_chain(model, 2, None, "drawn"), TokenRule()),
    "tree": lambda model: (
        masked_tree(model, 2, None, (2, 1), "without-replacement"),
        RecursiveRule(),
    ),
    "paths": lambda model: (masked_paths(model, 2, 2, 3, 0.5, 0.8, (1,)), RecursiveRule()),
}


@torch.inference_mode()
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("form", [FORMS["sdar"], FORMS["dream"]], ids=["sdar", "dream"])
def test_joint_law_over_a_network(form, way):
    """What pipelines make, with its cache, for a target of other laws."""
    model, other = masked_networks.network(vocab=2), Table(2, 9)
    again = masked_networks.target(model, limit=3, prompt=masked_networks.SHORT).again()
    for name, value in form.items():
        setattr(model.config, name, value)
    law = whole_loop(
        3,
        TableTarget(other),
        lambda: way(GuidedDecoder(*again))[0],
        way(GuidedDecoder(*again))[1],
        at_once=1,
    )
    assert distance(law, other.joint(3)) < EXACT


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (dict(draft_steps=2), "in several draft_steps is not known.*use siblings 'top'"),
        (dict(method="deer-tree", draft_steps=2), "in several draft_steps is not known"),
        (dict(method="deer-tree", block_length=2), "has 6 levels, and a block has 2 places"),
        (dict(block_length=0), "block_length must be an integer from 1 to 64"),
    ],
    ids=str,
)
def test_options_that_cannot_be(options, said):
    with pytest.raises(InputError, match=said):
        SpecConfig(**{"method": "deer", **options}).resolve("vlm")


@pytest.mark.parametrize(
    ("form", "said"),
    [
        (None, "names no mask_token_id; train one"),
        ({"mask_token_id": 16}, "mask_token_id of LlamaForCausalLM is below its 16 tokens, not 16"),
        ({"sep_token_id": -1}, "sep_token_id of LlamaForCausalLM is below its 16 tokens, not -1"),
        ({"prefix_reading": "both"}, "is causal or whole, not 'both'"),
    ],
    ids=str,
)
def test_models_that_are_none(form, said):
    with pytest.raises(InputError, match=said):
        enable_speculation(network(), "deer", drafter=network(form))


def test_a_state_reads_nothing_behind_it():
    config = MambaConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, state_size=4)
    mamba = MambaForCausalLM(config).eval()
    mamba.config.mask_token_id = MASK
    target = network(dtype=torch.float32)
    enable_speculation(target, "deer", drafter=mamba)
    with pytest.raises(InputError, match="keeps a state of its text"):
        target.generate(torch.tensor([PROMPT]), max_new_tokens=8, do_sample=False)
