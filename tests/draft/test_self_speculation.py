"""The target drafts with some of its layers: exact, over its own cache, and it learns which."""

from __future__ import annotations

import pytest
import torch
from toys import EXACT, Table, TableTarget, distance, whole_loop

from mmspec.draft.self_speculation import SelfDrafter, _RowSearch, exits, spread
from mmspec.engine.accept.token import TokenRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.loop import run
from mmspec.engine.protocols import Engine
from mmspec.engine.stats import SpecStats
from mmspec.models.llamagen.transformer import LlamaGenTransformer

PADS = [0, 2, 1]


class Layers:
    """A network of three layers by table: what follows depends on the layers that ran."""

    layers = 3

    def __init__(self, vocab: int) -> None:
        self.vocab = vocab

    def extend(self, tokens, start, draft=None, use=None):
        laws = []
        for row, (last, first) in enumerate(zip(tokens[:, -1].tolist(), start, strict=True)):
            seed = sum(2**layer for layer in use[row])
            laws.append([Table(self.vocab, 60 + seed)((last, first + 1))])
        return torch.tensor(laws, dtype=torch.float64)


@pytest.mark.parametrize("search", [False, True])
def test_joint_law_of_the_whole_loop(search):
    """Layers and length follow from what stood before, which must not colour what comes."""
    for vocab, limit in ((2, 4), (3, 3)):
        target = Table(vocab, 7)
        law = whole_loop(
            limit, TableTarget(target), lambda v=vocab: SelfDrafter(Layers(v), exits(3), search)
        )
        assert distance(law, target.joint(limit)) < EXACT


# --- the network ----------------------------------------------------------------------------------


def first_layers(model: LlamaGenTransformer, count: int) -> LlamaGenTransformer:
    """A network of the first layers alone, with the same weights."""
    small = LlamaGenTransformer.from_config({**model.config, "n_layer": count}).to(
        model.output.weight.dtype
    )
    weights = model.state_dict()
    small.load_state_dict({name: weights[name] for name in small.state_dict()})
    return small.eval()


@pytest.mark.parametrize("count", [1, 2])
def test_early_exit_is_the_network_of_the_first_layers(tiny_llamagen, guided_rows, count):
    model = tiny_llamagen()
    whole = guided_rows(model, PADS)[0]
    part = guided_rows(first_layers(model, count), PADS)[0]
    tokens = torch.randint(16, (3, 6), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        for guided in (whole, part):
            guided.start(3)
            guided.extend(tokens[:, :4], [-1] * 3)
        use = [tuple(range(count))] * 3
        got = whole.extend(tokens[:, 4:], [3] * 3, use=use)
        assert torch.allclose(got, part.extend(tokens[:, 4:], [3] * 3), atol=1e-9)
        if count < 2:
            assert not torch.allclose(got, whole.extend(tokens[:, 4:], [3] * 3), atol=1e-3)


def test_every_row_runs_its_own_layers(tiny_llamagen, guided_rows):
    model = tiny_llamagen()
    sets = [(0,), (0, 1), (1,)]
    tokens = torch.randint(16, (3, 5), generator=torch.Generator().manual_seed(1))

    def laws(rows, use):
        guided = guided_rows(model, PADS, rows)[0]
        guided.start(len(rows))
        guided.extend(tokens[rows, :4], [-1] * len(rows))
        return guided.extend(tokens[rows, 4:], [3] * len(rows), use=use)

    with torch.inference_mode():
        together = laws([0, 1, 2], sets)
        for row, layers in enumerate(sets):
            assert torch.allclose(together[row], laws([row], [layers])[0], atol=1e-9)
        assert len({round(float(law.max()), 9) for law in together}) == 3


def test_drafting_leaves_no_trace_in_the_cache(tiny_llamagen, guided_rows):
    """What the target scores after its own drafting is what it scores without."""
    model = tiny_llamagen()
    tokens = torch.randint(16, (3, 8), generator=torch.Generator().manual_seed(2))
    laws = []
    with torch.inference_mode():
        for drafts in (False, True):
            guided = guided_rows(model, PADS)[0]
            guided.start(3)
            guided.extend(tokens[:, :4], [-1] * 3)
            if drafts:
                for n in range(3):
                    guided.extend(tokens[:, 4 + n : 5 + n], [3 + n] * 3, use=[(0,), (1,), (0, 1)])
            laws.append(guided.extend(tokens[:, 4:], [3] * 3))
    assert torch.equal(*laws)


# --- the choice -----------------------------------------------------------------------------------


def test_choice_by_hand():
    """Of four layers: one that half the time stands, or three that nearly always do."""
    row = _RowSearch([(0,), (0, 1, 2)], 4)
    for shares in ((0.5, 0.95), (0.01, 0.95)):
        row.stood, row.judged = [100 * share for share in shares], [100.0, 100.0]
        per_layer = {
            (n, gamma): sum(share**i for i in range(gamma + 1)) / (gamma * part + 1)
            for n, (share, part) in enumerate(zip(shares, (1 / 4, 3 / 4), strict=True))
            for gamma in (1, 2, 3, 4)
        }
        row.choose(4)
        assert (row.chosen, row.length) == max(per_layer, key=per_layer.get)
        assert row.chosen == (shares[0] < 0.5)
    row.choose(0)
    assert row.length == 0


def test_it_finds_the_layers_that_stand():
    """Only the set of two layers drafts what the target says."""
    target = Table(4, 3)
    laws_of = [target((t,)) for t in range(4)]

    class Honest(Layers):
        def extend(self, tokens, start, draft=None, use=None):
            laws = super().extend(tokens, start, draft, use)
            for row, layers in enumerate(use):
                if layers == (0, 1):
                    laws[row] = torch.tensor(laws_of[tokens[row, -1].item()])
            return laws

    class Markov(TableTarget):
        """A target that looks at the last token alone."""

        def score(self, context, draft):
            scores = super().score(context, draft)
            tokens = torch.cat([context.last, draft.tokens], 1)
            scores.laws = torch.tensor([[laws_of[t] for t in row] for row in tokens.tolist()])
            return scores

    drafter = SelfDrafter(Honest(4), exits(3))
    engine = Engine(
        Markov(target), drafter, TokenRule(), ConstantLength(4), ProductionCoins(list(range(8)))
    )
    stats = SpecStats()
    run(engine, 8, 120, stats)
    assert [row.layers for row in drafter._rows] == [(0, 1)] * 8
    assert stats.mean_acceptance_length > 1.5
    assert drafter.share > 0


def test_search_replaces_the_worst_by_a_change_of_the_best():
    row = _RowSearch(spread(8), 8)
    assert row.sets[0] == (0, 7)
    assert [len(s) for s in row.sets] == [2, 3, 4, 5, 6, 7]
    row.stood = [0.9 * j if len(s) == 4 else 0.1 for s, j in zip(row.sets, row.judged, strict=True)]
    best = next(s for s in row.sets if len(s) == 4)
    before = list(row.sets)
    for number in range(20):
        row.search(number)
    new = [s for s in row.sets if s not in before]
    assert best in row.sets
    assert new
    assert all(0 < len(set(s) ^ set(best)) <= 4 for s in new)
    assert all(s and set(s) <= set(range(8)) for s in row.sets)


def test_exits_and_spread():
    assert exits(4) == [(0,), (0, 1), (0, 1, 2)]
    assert exits(4, 2) == [(0, 1)]
    assert spread(3) == [(0, 2)]
    assert spread(2) == [(0,)]
