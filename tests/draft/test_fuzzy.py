"""Drafts by fuzzy layers: exact, and over entries that are the draft model's own."""

from __future__ import annotations

import copy
from contextlib import contextmanager
from itertools import pairwise

import pytest
import torch
import vlms
from PIL import Image
from sizes import SMALL
from toys import EXACT, Table, TableModel, TableTarget, distance, outputs, whole_loop
from transformers import LlamaConfig, LlamaForCausalLM

import mmspec
from mmspec import SpecConfig
from mmspec.cli.main import main
from mmspec.draft.draft_model import ModelDrafter
from mmspec.draft.fuzzy import FuzzyDrafter
from mmspec.engine.accept.token import TokenRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.loop import run
from mmspec.engine.protocols import Engine
from mmspec.engine.stats import SpecStats
from mmspec.models.guided import GuidedDecoder
from mmspec.models.setting import Setting
from mmspec.models.transformers.causal import CausalDecoder


def llama(vocab=3, layers=5, seed=0, dtype=torch.float64):
    config = LlamaConfig(**SMALL | dict(vocab_size=vocab, num_hidden_layers=layers))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
        for weight in model.parameters():
            torch.nn.init.normal_(weight, mean=float(weight.ndim == 1), std=0.3)
    return model.to(dtype).eval()


class Network:
    """A tiny draft model for any number of equal rows, which says what it was asked for."""

    def __init__(self, model, pads=(0,), limit=12) -> None:
        self.decoder, self.pads, self.limit = CausalDecoder(model), pads, limit
        self.calls: list[tuple[int, bool]] = []
        self.inside = False

    def start(self, rows: int) -> None:
        ids = torch.tensor([[1, 0, 1, 0]]).repeat(rows, 1)
        mask = torch.arange(4) >= torch.tensor(self.pads)[:, None]
        setting = Setting(
            self.decoder.embeddings[ids], mask.expand(rows, -1), None, lambda x: x.softmax(-1),
            self.limit, 0, 8,
        )  # fmt: skip
        self.guided = GuidedDecoder(self.decoder, setting)
        self.guided.start(rows)

    def extend(self, tokens, start, draft=None):
        self.calls.append((tokens.shape[1], self.inside))
        return self.guided.extend(tokens, start, draft)

    @contextmanager
    def fuzzy(self, size: int):
        with self.decoder.fuzzy(size):
            self.inside = True
            yield
            self.inside = False


def drafter(network, size=3):
    return FuzzyDrafter(network, network.fuzzy, size)


@pytest.mark.slow
@torch.inference_mode()
def test_joint_law_of_the_whole_loop():
    network, target = Network(llama(2)), Table(2, 7)
    law = whole_loop(4, TableTarget(target), lambda: drafter(network), length=ConstantLength(3))
    assert distance(law, target.joint(4)) < EXACT


class FuzzyTable(TableModel):
    """A table whose laws depend on which of the tokens before were read fuzzily."""

    def __init__(self, vocab: int) -> None:
        super().__init__(Table(vocab, 9))
        self.inside, self.marks = False, []

    def start(self, rows):
        super().start(rows)
        self.marks = [[] for _ in range(rows)]

    @contextmanager
    def fuzzy(self, size):
        self.inside = True
        yield
        self.inside = False

    def extend(self, tokens, start, draft=None):
        super().extend(tokens, start)
        laws = []
        for row, first in enumerate(start):
            marks = self.marks[row] = self.marks[row][: first + 1]
            assert self.inside or not any(marks), "an exact call reads fuzzy entries"
            new = []
            for n in range(tokens.shape[1]):
                marks.append(int(self.inside))
                seen = self.seen[row][: first + n + 2]
                vocab = self.table.vocab
                seed = 100 + sum(mark << i for i, mark in enumerate(marks))
                new.append(Table(vocab, seed)(tuple(seen[1:])))
            laws.append(new)
        return torch.tensor(laws, dtype=torch.float64)


@pytest.mark.parametrize(("vocab", "limit", "ahead"), [(2, 5, 3), (3, 3, 2)])
def test_joint_law_where_marks_decide(vocab, limit, ahead):
    target, model = Table(vocab, 7), FuzzyTable(vocab)
    law = whole_loop(
        limit, TableTarget(target), lambda: drafter(model), length=ConstantLength(ahead)
    )
    assert distance(law, target.joint(limit)) < EXACT


class Watched(FuzzyDrafter):
    """Compares the entries of all committed tokens with those of one exact pass, every round."""

    seen = 0
    off = 0.0

    def propose(self, context, budget, coins):
        draft = super().propose(context, budget, coins)
        network = self.model
        fresh = Network(network.decoder.model, network.pads, network.limit)
        fresh.start(context.rows)
        width = max(context.base)
        if draft.nodes and min(context.base):
            tokens = torch.cat([context.tokens[:, :1], context.tokens[:, :width]], 1)
            fresh.guided.extend(tokens, [-1] * context.rows)
            offset = fresh.guided.offset
            for row, base in enumerate(context.base):
                pad, end = network.pads[row], offset + base
                pair = [n.guided.cache.data[:, :, row, :, pad:end] for n in (network, fresh)]
                self.off = max(self.off, float((pair[0] - pair[1]).abs().max()))
                self.seen += 1
        return draft


class Careless(Watched):
    """Keeps what was accepted as it was drafted."""

    def observe(self, context, draft, scores, verdict):
        self._reached = [b + draft.nodes for b in self._reached]
        super().observe(context, draft, scores, verdict)


@torch.inference_mode()
def test_entries_of_committed_tokens_are_those_of_an_exact_pass():
    """Of ragged rows, some of which accept more than others."""
    pads = (0, 2, 1)
    for kind in (Watched, Careless):
        network = Network(llama(), pads)
        watched = kind(network, network.fuzzy, 3)
        coins, stats = ProductionCoins([3, 4, 5]), SpecStats()
        engine = Engine(TableTarget(Table(3, 7)), watched, TokenRule(), ConstantLength(3), coins)
        run(engine, 3, 12, stats)
        assert watched.seen > 6
        assert len(set(stats.accepted)) > 1
        assert (watched.off < 1e-12) == (kind is Watched)


@torch.inference_mode()
def test_every_round_costs_a_call_for_what_stood_and_one_for_every_token_but_the_first():
    network = Network(llama(), (0, 2, 1), limit=17)
    parts = TableTarget(Table(3, 7)), drafter(network), TokenRule(), ConstantLength(3)
    run(Engine(*parts, ProductionCoins([3, 4, 5])), 3, 17, SpecStats())
    exact = [n for n, (_, fuzzy) in enumerate(network.calls) if not fuzzy]
    assert max(width for width, fuzzy in network.calls if fuzzy) == 1
    assert max(width for width, fuzzy in network.calls if not fuzzy) == 4
    assert min(b - a for a, b in pairwise(exact)) >= 2
    config = SpecConfig("easyspec", num_draft_tokens=3).resolve("vlm")
    assert config.draft_size().draft_calls(3) == [4, 1, 1]
    assert config.draft_size().draft_calls(0) == []


@torch.inference_mode()
def test_rows_do_not_depend_on_their_neighbours():
    def drawn(rows):
        network = Network(llama(), tuple((0, 2, 1)[row] for row in rows))
        coins = ProductionCoins([3 + row for row in rows])
        parts = TableTarget(Table(3, 7)), drafter(network), TokenRule(), ConstantLength(3), coins
        stats = SpecStats()
        return outputs(run(Engine(*parts), len(rows), 12, stats)), stats.accepted

    together, accepted = drawn([0, 1, 2])
    for row in range(3):
        assert drawn([row]) == ([together[row]], [accepted[row]])


@torch.inference_mode()
def test_groups_of_one_are_the_draft_model():
    """The same drafts as `ModelDrafter`, token by token."""
    made = []
    for kind in (lambda n: drafter(n, 1), ModelDrafter, lambda n: drafter(n, 3)):
        stats = SpecStats()
        network = Network(llama(), (0, 2, 1))
        parts = TableTarget(Table(3, 7)), kind(network), TokenRule(), ConstantLength(3)
        context = run(Engine(*parts, ProductionCoins([3, 4, 5])), 3, 12, stats)
        made.append((outputs(context), stats.accepted))
    assert made[0] == made[1] != made[2]


# --- for a user -----------------------------------------------------------------------------------

IDS = torch.tensor([[3, 7, 1, 3, 7, 1, 3], [0, 0, 9, 8, 9, 8, 9]])


@pytest.mark.parametrize("weights", [None, "int8"])
@torch.inference_mode()
def test_text_is_the_models_own(weights):
    model = llama(32, dtype=torch.float32)
    call = dict(attention_mask=(IDS > 0).long(), max_new_tokens=24, do_sample=False, pad_token_id=0)
    truth = model.generate(IDS, **call)
    lengths = {}
    for size in (1, 3):
        config = SpecConfig("easyspec", fuzzy_layers=size, draft_weights=weights)
        mmspec.enable_speculation(model, config, drafter=copy.deepcopy(model))
        assert torch.equal(model.generate(IDS, **call), truth)
        stats = model.speculation_stats
        assert stats.contract == "exact-greedy"
        assert stats.fault is None
        lengths[size] = stats.mean_acceptance_length
    assert lengths[1] > 3  # its own copy says the same
    assert 1 < lengths[3] < lengths[1]


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl"])
@torch.inference_mode()
def test_of_models_that_see_too(family):
    model = vlms.made(family, num_hidden_layers=5)
    inputs = vlms.asked(model, [1, 2, 0])
    truth = vlms.greedy(model, inputs)
    mmspec.enable_speculation(
        model, SpecConfig("easyspec", fuzzy_layers=2), drafter=copy.deepcopy(model)
    )
    out = model.generate(**inputs, max_new_tokens=vlms.NEW, do_sample=False)
    assert vlms.agree(out, truth)
    assert model.speculation_stats.fault is None
    assert 0 < sum(model.speculation_stats.accepted) < sum(model.speculation_stats.drafted)


def test_command(tmp_path, capsys):
    Image.new("RGB", (24, 24), "red").save(tmp_path / "red.png")
    call = ["ask", str(tmp_path / "red.png"), "What is there?", "--method", "easyspec"]
    assert main([*call, "--max-new-tokens", "4", "--json"]) == 0
    assert '"easyspec"' in capsys.readouterr().out
    assert main([*call, "--fuzzy-layers", "0"]) == 2
    assert "fuzzy_layers must be an integer from 1 to 64" in capsys.readouterr().err
