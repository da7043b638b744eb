"""Lengths by where drafts end and how far they stand: as published, and the law stays.

The pitfalls of DiffuSpec's reproductions have a test each: ends that a search forces into its
candidates, logits that stand a place in front, and trigrams that were fitted on the benchmark.
"""

from __future__ import annotations

import math
import random

import pytest
import torch
from toys import EXACT, Table, TableModel, TableTarget, distance, drafters, whole_loop
from transformers import LlamaConfig, LlamaForCausalLM

from mmspec.draft.feature.block import BlockDrafter
from mmspec.draft.masked import masked_chain
from mmspec.draft.tree.block_paths import BlockPathsDrafter, best_paths, candidates, smoothed
from mmspec.draft.tree.fixed_tree import TreeDrafter
from mmspec.engine.accept.recursive import RecursiveRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.draft import Context, Draft
from mmspec.engine.laws import OneHot
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.length.eos_ema import EosEmaLength, before_the_end
from mmspec.engine.loop import run
from mmspec.engine.protocols import Engine
from mmspec.engine.stats import SpecStats
from mmspec.errors import InputError
from mmspec.methods import SpecConfig, parts
from mmspec.models.guided import GuidedDecoder
from mmspec.models.setting import Setting
from mmspec.models.target import TokenTarget
from mmspec.models.transformers.causal import CausalDecoder

EOS = 2


def chain(*rows, lengths=None):
    tokens = torch.tensor(rows)
    return Draft(tokens, torch.tensor(lengths or [len(row) for row in rows]), OneHot())


def told(policy, draft, accepted):
    context = Context.empty(len(accepted), 1)
    context.reached, context.accepted = draft.reach().tolist(), accepted
    policy.observe(context, draft, None)


# --- what it learns, and what follows -------------------------------------------------------------


@pytest.mark.parametrize("least", [20, 3])
@pytest.mark.parametrize("seed", range(4))
def test_lengths_are_those_of_the_formula(seed, least):
    """The published numbers: 20 to 30 tokens, 10 more where drafts stand whole, means of halves."""
    more = {} if least == 20 else {"least_share": 0.1}
    rng, policy = random.Random(seed), EosEmaLength(30, (EOS,), **more)
    assert (policy.least, policy.growth) == (least, 10)
    policy.start(1)
    drafted, stood, length, seen = 0.0, 0.0, 30, set()
    for _ in range(60):
        assert policy.budget() == [length]
        tokens = [3] * length
        ends = rng.choice([None, None, None, rng.randrange(length)])
        if ends is not None:
            tokens[ends] = EOS
        before = length if ends is None else ends
        accepted = rng.choice([before, before, before, rng.randint(0, before)])
        told(policy, chain(tokens), [accepted])
        drafted, stood = (drafted + before) / 2, (stood + accepted) / 2
        length = min(max(math.floor(drafted) + 10 * (stood >= drafted), least), 30)
        seen.add(length)
    assert len(seen) > 3 or least == 20


def test_means_begin_at_nothing():
    """The first draft that stands whole: half of it is the mean, and 10 are added."""
    policy = EosEmaLength(30, (EOS,), least_share=0.1)
    policy.start(2)
    told(policy, chain([3] * 30, [3] * 30), [30, 4])
    assert policy.budget() == [15 + 10, 15]
    policy.seat(Context.empty(2, 1), [1])
    assert policy.budget() == [25, 30]


def test_rows_without_a_draft_learn_nothing():
    policy = EosEmaLength(9, (EOS,))
    policy.start(2)
    told(policy, chain([EOS, 3], [3, 3], lengths=[0, 2]), [0, 0])
    assert policy.budget() == [9, policy.least]
    told(policy, Draft(torch.zeros(2, 0).long(), torch.tensor([0, 0]), OneHot()), [0, 0])
    assert policy.budget() == [9, policy.least]


def test_tokens_in_front_of_the_end():
    assert before_the_end(chain([3, EOS, 3, EOS], [EOS] * 4, [3] * 4), (EOS,)) == [1, 0, 4]
    assert before_the_end(chain([3, 1, 3, EOS]), (EOS, 1)) == [1]
    cut = chain([3, 3, EOS, 3], [3, 3, 3, EOS], lengths=[2, 4])
    assert before_the_end(cut, (EOS,)) == [2, 3]


def test_of_a_tree_its_first_path_counts():
    parents = torch.tensor([[-1, 0, 1, -1, 3], [-1, -1, 0, 2, 3], [-1, 0, 1, 2, 3]])
    tokens = torch.tensor([[3, 3, EOS, EOS, 3], [3, EOS, 3, 3, EOS], [3, EOS, 3, 3, 3]])
    for bounds in (None, (4, 2)):
        draft = Draft(tokens, torch.tensor([5, 5, 1]), OneHot(), parents, bounds=bounds)
        assert before_the_end(draft, (EOS,)) == [2, 3, 1]


def test_a_row_learns_from_its_own_drafts():
    def lengths(rows):
        policy, rng = EosEmaLength(12, (EOS,), least_share=0.0), random.Random(3)
        policy.start(rows)
        out = []
        for _ in range(20):
            drawn = [[rng.choice([3, 3, 3, EOS]) for _ in range(12)] for _ in range(4)][:rows]
            accepted = [rng.randint(0, 12) for _ in range(4)][:rows]
            told(policy, chain(*drawn), accepted)
            out.append(policy.budget()[0])
        return out

    assert lengths(1) == lengths(4)
    assert len(set(lengths(1))) > 2


# --- the law --------------------------------------------------------------------------------------


class Blocks:
    """A block model whose laws lean on the last token and on the place in the block."""

    def __init__(self, vocab, size=3, seed=0):
        draw = torch.Generator().manual_seed(seed)
        self.laws = torch.rand(vocab, size, vocab, generator=draw, dtype=torch.float64).softmax(-1)

    def start(self, rows): ...

    def seat(self, context, rows): ...

    def block(self, context, drafted):
        last = drafted[:, -1] if drafted.shape[1] else context.last[:, 0]
        return self.laws[last]


class Watched(EosEmaLength):
    """Remembers the lengths that it has asked for."""

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.seen = set()

    def budget(self):
        (length,) = super().budget()
        self.seen.add(length)
        return [length]


EARLY = {"least_share": 0.0, "growth_share": 0.0}


@pytest.mark.parametrize("name", ["model", "jacobi-previous", "jacobi-uniform", "lookup"])
@pytest.mark.parametrize("seed", [8, 11])
def test_joint_law(name, seed):
    """Lengths follow the ends of drafts, here tokens as any other, and the law does not."""
    target, length = Table(2, 7), Watched(3, (1,), **EARLY)
    made = drafters(2, Table(2, seed))[name]
    limit = 6 if name == "lookup" else 4  # a text to copy from comes first
    law = whole_loop(limit, TableTarget(target), made, length=length, at_once=1)
    assert distance(law, target.joint(limit)) < EXACT
    assert len(length.seen) > 1


@pytest.mark.parametrize("how", ["drawn", "top"])
def test_joint_law_of_blocks(how):
    """Also where they end the text."""
    target = Table(3, 4)
    for eos in (None, 1):
        length = Watched(3, (1,), **EARLY)
        law = whole_loop(
            3,
            TableTarget(target),
            lambda: BlockDrafter(Blocks(3, 2), how),
            None,
            length,
            eos,
            at_once=1,
        )
        assert distance(law, target.joint(3, eos)) < EXACT
        assert len(length.seen) > 1


@pytest.mark.parametrize("made", ["paths", "tree"])
def test_joint_law_of_trees(made):
    target, length = Table(3, 5), Watched(2, (1,), **EARLY)

    def drafter():
        if made == "tree":
            return TreeDrafter(TableModel(Table(3, 6)), (2, 1))
        return BlockPathsDrafter(Blocks(3, 2), 3, beam=2, eos=(1,))

    law = whole_loop(3, TableTarget(target), drafter, RecursiveRule(), length, 1, at_once=1)
    assert distance(law, target.joint(3, 1)) < EXACT
    assert len(length.seen) > 1


class Peeking(BlockDrafter):
    """Cuts the very draft that it looks at: what it says would then depend on what was drawn."""

    def propose(self, context, budget, coins):
        draft = super().propose(context, budget, coins)
        if draft.nodes:
            draft.lengths = torch.minimum(draft.lengths, (draft.tokens == 1).long().argmax(1))
        return draft


def test_hazard_is_seen():
    worst = 0.0
    for seed in range(3):
        target = Table(2, seed)
        made, length = (lambda seed=seed: Peeking(Blocks(2, 2, seed))), ConstantLength(2)
        law = whole_loop(3, TableTarget(target), made, length=length)
        worst = max(worst, distance(law, target.joint(3)))
    assert worst > 1e-2


@pytest.mark.parametrize("method", ["scd", "gsd", "sjd-pac", "merged"])
def test_tokens_that_live_on_are_refused(method):
    with pytest.raises(InputError, match="drafts the same tokens again"):
        SpecConfig(method, length="eos-ema")


@pytest.mark.parametrize("method", ["dflash", "flash", "diffuspec", "deer", "deer-tree", "draft"])
def test_block_drafters_take_it(method):
    config = SpecConfig(method, length="eos-ema").resolve("vlm")
    length = config.build_length({"eos": lambda: (EOS,)})
    length.start(2)
    assert length.budget() == [config.draft_size().deepest] * 2
    assert length.least == max(1, round(0.67 * config.draft_size().deepest))
    assert length.eos == (EOS,)


# --- pitfalls of reproductions --------------------------------------------------------------------


def test_an_end_that_a_search_forces_is_no_end():
    """Candidates have it where its share says so alone; put among all, it would stop drafts."""
    shares = [0.55, 0.40, 0.05]  # token 2 ends texts, and is none of the likely ones
    natural = candidates([0, 1, EOS], shares, 0.8)
    assert [token for token, _ in natural] == [0, 1]
    forced = [*natural, (EOS, math.log(shares[EOS]))]

    def trigram(path):  # whose text often ends here
        return lambda token: 0.0 if token == EOS else -20.0

    lengths = []
    for place in (natural, forced):
        (best, *_) = best_paths([place] * 6, trigram, 3, 0.5, frozenset({EOS}))
        policy = EosEmaLength(6, (EOS,), least_share=0.0)
        policy.start(1)
        for _ in range(8):
            told(policy, chain([*best, *[0] * (6 - len(best))], lengths=[len(best)]), [len(best)])
        lengths.append(policy.budget()[0])
    assert lengths[0] == 6
    assert lengths[1] <= 2


class Likely(Blocks):
    """A block model that is sure of an end at one place."""

    def block(self, context, drafted):
        laws = torch.full((len(context.base), 6, 4), 0.02, dtype=torch.float64)
        laws[:, :, 0], laws[:, 3] = 0.94, torch.tensor([0.02, 0.02, 0.94, 0.02])
        return laws


@pytest.mark.parametrize("paths", [True, False])
def test_an_end_that_a_model_says_is_one(paths):
    """Behind three tokens, by a search that stops there and by a block that goes on."""
    law = Table(4, 1)
    law._laws = {(0,) * n: [0.97, 0.01, 0.01, 0.01] for n in range(30)}
    model, policy = Likely(4), EosEmaLength(6, (EOS,), least_share=0.0, growth_share=0.0)
    drafter = BlockPathsDrafter(model, 4, beam=1, weight=1.0, eos=(EOS,))
    drafter = drafter if paths else BlockDrafter(model, "top")
    parts_ = TableTarget(law), drafter, RecursiveRule(), policy
    stats, drafts = SpecStats(), []

    def round_(context):
        drafts.append(context.reached[0])
        return len(drafts) > 7 or set(context.tokens[0, : context.base[0]].tolist()) != {0}

    run(Engine(*parts_, ProductionCoins([5]), None), 1, 29, stats, round_)
    assert drafts[0] == (4 if paths else 6)  # the end itself is drafted, and counts no more
    assert policy.budget()[0] < 3
    assert policy._rows[0].drafted <= 3


@pytest.mark.parametrize("shifted", [False, True])
def test_logits_that_stand_a_place_in_front(shifted):
    """Dream 7B says a place's token at the one before it: the law stays, and drafts are as good."""
    config = LlamaConfig(
        vocab_size=3,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=32,
    )
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = LlamaForCausalLM(config)
        for weight in model.parameters():
            torch.nn.init.normal_(weight, mean=float(weight.ndim == 1), std=0.4)
    model.config.mask_token_id, model.config.shifted_logits = 2, shifted
    decoder, ids = CausalDecoder(model.double().eval()), torch.tensor([[1, 0]])

    def guided():
        mask = torch.ones_like(ids).bool()
        setting = Setting(decoder.embeddings[ids], mask, None, lambda x: x.softmax(-1), 3, 0, 6)
        return GuidedDecoder(decoder, setting)

    target, length = Table(3, 9), Watched(2, (1,), **EARLY)
    options = {"block_length": 2, "steps": 1, "how": "drawn"}
    with torch.inference_mode():
        law = whole_loop(
            3,
            TableTarget(target),
            lambda: masked_chain(guided(), **options),
            None,
            length,
            at_once=1,
        )
        assert distance(law, target.joint(3)) < EXACT
        assert len(length.seen) > 1
        # over the model itself as the target, the first place's law is what the target says
        if shifted:
            drafter, context = masked_chain(guided(), **options), Context.empty(1, 3)
            drafter.start(context)
            draft = drafter.propose(context, [2], ProductionCoins([1]).round(0)[0])
            said = TokenTarget(guided())
            said.start(1)
            first = said.score(context, draft).probs[:, 0]
            assert torch.allclose(draft.law.probs[:, 0], first, atol=1e-12)


def test_trigrams_have_seen_no_benchmark():
    """The search's table begins with the prompt alone: without one, all tokens are alike."""
    drafter = BlockPathsDrafter(Blocks(4), 4, eos=(EOS,))
    drafter.start(Context.empty(1, 4))
    shares = [smoothed(drafter.texts.counts[0], (0, 1), 4)(token) for token in range(4)]
    assert shares == pytest.approx([-math.log(4)] * 4)
    own = BlockPathsDrafter(Blocks(4), 4, prompt=torch.tensor([[0, 1, 3, 0, 1, 3]]))
    own.start(Context.empty(1, 4))
    shares = [smoothed(own.texts.counts[0], (0, 1), 4)(token) for token in range(4)]
    assert max(range(4), key=shares.__getitem__) == 3


def test_its_declaration():
    part = parts("length")["eos-ema"]
    assert part.recalls
    with pytest.raises(InputError, match="recency must be from 0 to 1"):
        SpecConfig("dflash", length="eos-ema", recency=1.5)
