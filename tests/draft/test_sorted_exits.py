"""Drafts from exits: exact, and each exit is the network of the first layers."""

from __future__ import annotations

import copy

import pytest
import torch
from PIL import Image
from sizes import SMALL
from toys import EXACT, Table, TableTarget, distance, outputs, whole_loop
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import mmspec
from mmspec import SpecConfig
from mmspec.cli.main import main
from mmspec.draft.draft_model import ModelDrafter
from mmspec.draft.sorted_exits import SortedDrafter, sorted_exits
from mmspec.engine.accept.token import TokenRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.laws import Categorical
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.loop import run
from mmspec.engine.protocols import Engine
from mmspec.engine.stats import SpecStats
from mmspec.errors import InputError
from mmspec.models.guided import GuidedDecoder
from mmspec.models.setting import Setting
from mmspec.models.transformers.causal import CausalDecoder
from mmspec.models.transformers.exits import ExitModel

THRESHOLDS = (0.6, 0.7)


class ExitTables:
    """A table for every exit; what an exit reads the one in front of it must have read."""

    exits = (1, 2, 3)

    def __init__(self, vocab: int) -> None:
        self.tables = [Table(vocab, 20 + n) for n in range(3)]

    def start(self, rows):
        self.seen = [[[] for _ in range(rows)] for _ in self.exits]  # from position -1 on

    def read(self, number, tokens, start):
        laws = []
        for row, (new, first) in enumerate(zip(tokens.tolist(), start, strict=True)):
            seen = self.seen[number][row]
            assert -1 <= first <= len(seen) - 1, "a gap in the cache"
            seen[first + 1 :] = new
            if number:
                assert self.seen[number - 1][row][: len(seen)] == seen
            ends = range(first + 1, len(seen))
            laws.append([self.tables[number](tuple(seen[1 : end + 1])) for end in ends])
        laws = torch.tensor(laws, dtype=torch.float64)
        self.raw = laws.log()
        return laws


@pytest.mark.parametrize("thresholds", [(0.6,), THRESHOLDS, (0.0,), (1.0,)])
@pytest.mark.parametrize(("vocab", "limit", "ahead"), [(2, 5, 3), (3, 3, 2)])
def test_joint_law_of_the_whole_loop(vocab, limit, ahead, thresholds):
    target, model = Table(vocab, 7), ExitTables(vocab)
    law = whole_loop(
        limit,
        TableTarget(target),
        lambda: SortedDrafter(model, thresholds),
        length=ConstantLength(ahead),
    )
    assert distance(law, target.joint(limit)) < EXACT


class ByItsOwn(SortedDrafter):
    """Leaves where the drawn token itself is likely, and states that exit's law."""

    def propose(self, context, budget, coins):
        draft = super().propose(context, [min(n, 1) for n in budget], coins)
        if not draft.nodes:
            return draft
        for number, threshold in enumerate((*self.thresholds, 0.0)):
            laws = [t(()) for t in self.model.tables][number]
            law = torch.tensor([laws], dtype=torch.float64)
            token = coins.draw(law, 1 + number)
            if float(law[0, token]) >= threshold:
                break
        draft.tokens, draft.law = token[:, None], Categorical(law[:, None])
        return draft


def test_a_test_of_the_drawn_token_is_off():
    target, model = Table(3, 8), ExitTables(3)
    found = {}
    for kind in (SortedDrafter, ByItsOwn):
        law = whole_loop(
            2, TableTarget(target), lambda kind=kind: kind(model, THRESHOLDS),
            length=ConstantLength(1), at_once=1
        )  # fmt: skip
        found[kind] = distance(law, target.joint(2))
    assert found[SortedDrafter] < EXACT
    assert found[ByItsOwn] > 0.01


# --- over a network -------------------------------------------------------------------------------


def llama(vocab=3, layers=4, seed=0, dtype=torch.float64, kind=LlamaForCausalLM):
    config = LlamaConfig(**SMALL | dict(vocab_size=vocab, num_hidden_layers=layers))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = kind(config)
        for weight in model.parameters():
            torch.nn.init.normal_(weight, mean=float(weight.ndim == 1), std=0.3)
    return model.to(dtype).eval()


def cut(model, layers: int):
    """The network of the first layers, with the same norm and output layer."""
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = layers
    small = LlamaForCausalLM(config).to(model.dtype).eval()
    weights = model.state_dict()
    small.load_state_dict({name: weights[name] for name in small.state_dict()})
    return small


PADS = (0, 2, 1)


def guided(model, rows=(0, 1, 2), limit=14):
    decoder = CausalDecoder(model)
    ids = torch.tensor([[1, 0, 1, 0]]).repeat(len(rows), 1)
    mask = torch.arange(4) >= torch.tensor([PADS[row] for row in rows])[:, None]
    setting = Setting(decoder.embeddings[ids], mask, None, lambda x: x.softmax(-1), limit, 0, 8)
    return GuidedDecoder(decoder, setting)


@torch.inference_mode()
def test_an_exit_is_the_network_of_the_first_layers():
    """Whatever was read at once, and whoever went further."""
    model = llama(16)
    exits = ExitModel(guided(model), (1, 3, 4))
    tokens = torch.randint(16, (3, 7), generator=torch.Generator().manual_seed(2))
    exits.start(3)
    made = {n: [] for n in range(3)}
    made[0] += [exits.read(0, tokens[:, :2], [-1] * 3), exits.read(0, tokens[:, 2:5], [1] * 3)]
    made[1] += [exits.read(1, tokens[:, :4], [-1] * 3)]
    made[0] += [exits.read(0, tokens[:, 5:], [4] * 3)]
    made[1] += [exits.read(1, tokens[:, 4:], [3] * 3)]
    made[2] += [exits.read(2, tokens, [-1] * 3)]
    for number, layers in enumerate(exits.exits):
        small = guided(cut(model, layers))
        small.start(3)
        expected = small.extend(tokens, [-1] * 3)
        assert torch.allclose(torch.cat(made[number], 1), expected, atol=1e-12)
    assert (made[1][0] - made[2][0][:, :4]).abs().max() > 1e-3


class Watched(SortedDrafter):
    """Compares the entries that are known with those of a full pass over the same text."""

    compared = 0
    off = 0.0

    def observe(self, context, draft, scores, verdict):
        super().observe(context, draft, scores, verdict)
        model = self.model
        fresh = guided(model.decoder.model, range(context.rows))
        fresh.start(context.rows)
        text = torch.cat([context.tokens[:, :1], context.tokens], 1)[:, : max(context.base)]
        fresh.extend(text, [-1] * context.rows)
        for number, known in enumerate(self._known):
            for row, end in enumerate(known):
                layers = slice(0, model.exits[number])
                where = layers, slice(None), row, slice(None), slice(PADS[row], model.offset + end)
                pair = [m.cache.data[where] for m in (model, fresh)]
                self.off = max(self.off, float((pair[0] - pair[1]).abs().max()))
                self.compared += pair[0].shape[-2] > model.offset


@torch.inference_mode()
def test_entries_that_were_filled_in_are_those_of_a_full_pass():
    watched = Watched(ExitModel(guided(llama()), (1, 2, 4)), (0.75, 0.75))
    parts = TableTarget(Table(3, 7)), watched, TokenRule(), ConstantLength(3)
    run(Engine(*parts, ProductionCoins([3, 4, 5])), 3, 14, SpecStats())
    assert watched.calls[0] > watched.calls[1] > watched.calls[2] > 0
    assert watched.compared > 12
    assert watched.off < 1e-12


def drawn(rows, made):
    parts = TableTarget(Table(3, 7)), made, TokenRule(), ConstantLength(3)
    coins, stats = ProductionCoins([3 + row for row in rows]), SpecStats()
    context = run(Engine(*parts, coins), len(rows), 14, stats)
    return outputs(context), stats.accepted


@torch.inference_mode()
def test_rows_do_not_depend_on_their_neighbours():
    """Some go to the last exit where others leave at the first."""

    def of(rows):
        return drawn(rows, sorted_exits(guided(llama(), rows), (1, 2, 4), (0.75,)))

    together, accepted = of([0, 1, 2])
    for row in range(3):
        assert of([row]) == ([together[row]], [accepted[row]])


@torch.inference_mode()
def test_never_sure_is_the_draft_model():
    model = llama()
    whole = drawn([0, 1, 2], ModelDrafter(guided(model)))
    assert drawn([0, 1, 2], sorted_exits(guided(model), (1, 2, 4), (1.0,))) == whole
    first = drawn([0, 1, 2], ModelDrafter(guided(cut(model, 1))))
    assert drawn([0, 1, 2], sorted_exits(guided(model), (1, 4), (0.0,))) == first != whole


# --- for a user -----------------------------------------------------------------------------------

IDS = torch.tensor([[3, 7, 1, 3, 7, 1, 3], [0, 0, 9, 8, 9, 8, 9]])
CALL = dict(attention_mask=(IDS > 0).long(), max_new_tokens=24, do_sample=False, pad_token_id=0)


@pytest.mark.parametrize("weights", [None, "int8"])
@torch.inference_mode()
def test_text_is_the_models_own(weights):
    model = llama(32, dtype=torch.float32)
    truth, lengths = model.generate(IDS, **CALL), []
    for sure in (0.0, 0.6, 1.0):
        config = SpecConfig("s2d", exit_confidence=(sure,), draft_weights=weights)
        mmspec.enable_speculation(model, config, drafter=copy.deepcopy(model))
        assert torch.equal(model.generate(IDS, **CALL), truth)
        stats = model.speculation_stats
        assert (stats.contract, stats.fault) == ("exact-greedy", None)
        lengths.append(stats.mean_acceptance_length)
    assert lengths[0] < lengths[1] <= lengths[2]
    assert lengths[2] > 3  # its own copy


@torch.inference_mode()
def test_exits_are_the_draft_models_own():
    small = llama(32)
    small.config.exits = [2, 4]
    assert sorted_exits(guided(small), None, (0.5,)).model.exits == (2, 4)
    assert sorted_exits(guided(llama()), None, (0.5,)).model.exits == (1, 2, 3, 4)


@torch.inference_mode()
def test_what_is_refused():
    for exits in ((2, 1), (0, 2), (2, 5), (2, 2)):
        with pytest.raises(InputError, match="exits must rise, and lie from 1 to the draft model"):
            ExitModel(guided(llama()), exits)
    with pytest.raises(InputError, match="3 values in exit_confidence, and 2 exits in front"):
        sorted_exits(guided(llama()), (1, 2, 4), (0.1, 0.2, 0.3))
    with pytest.raises(InputError, match="need a language model of transformers"):
        sorted_exits(object(), None, (0.5,))
    places = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_embd=16, n_layer=2, n_head=2)).eval()
    mmspec.enable_speculation(llama(32), "s2d", drafter=places)
    model = llama(32)
    mmspec.enable_speculation(model, "s2d", drafter=places)
    with pytest.raises(InputError, match="GPT2LMHeadModel does more with its inputs than its"):
        model.generate(IDS, **CALL)


def test_command(tmp_path, capsys):
    Image.new("RGB", (24, 24), "red").save(tmp_path / "red.png")
    call = ["ask", str(tmp_path / "red.png"), "What is there?", "--method", "s2d"]
    assert main([*call, "--max-new-tokens", "4", "--exits", "1,2", "--json"]) == 0
    assert '"s2d"' in capsys.readouterr().out
    assert main([*call, "--exit-confidence", "2"]) == 2
    assert "exit_confidence must be from 0 to 1" in capsys.readouterr().err
    with pytest.raises(InputError, match=r"exit_confidence must be from 0 to 1, not \(\)"):
        SpecConfig("s2d", exit_confidence=())
