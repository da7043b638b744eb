"""Published heads in the loop: what they draft is what their slow twins say, and the law stays."""

from __future__ import annotations

import folders
import pytest
import torch
from head_twins import LAYOUTS, Twin, head_of, loop_error
from toy_vlm import ROWS, Passes, guided_vlm, tiny_llava
from toys import EXACT
from watched_drafts import Watched, inner

from mmspec.draft.feature.feature_model import EagleDrafter
from mmspec.draft.feature.head_model import head_model
from mmspec.engine.accept.greedy import GreedyRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.loop import run
from mmspec.engine.protocols import Engine
from mmspec.engine.stats import SpecStats
from mmspec.engine.warp import Warp
from mmspec.models.heads.published.decoder import published_decoder
from mmspec.models.llama_layers import LlamaLayers
from mmspec.models.target import TokenTarget


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def generation(
    name, kind, folder, *, rows=ROWS, warp=None, limit=8, depth=3, watch=False, rule=None
):
    model = tiny_llava()
    target, prompt, images = guided_vlm(model, rows, limit=limit, warp=warp)
    head, config, tensors = head_of(name, folder)
    decoder = published_decoder(head, target.decoder)
    with torch.no_grad(), decoder.repacked():
        drafts = head_model(decoder, target, images)
        chosen, own_rule = inner(kind, drafts)
        drafter = EagleDrafter(drafts, chosen)
        if watch:
            drafter = Watched(drafter, Twin(name, model, prompt, config, tensors))
        coins = ProductionCoins([7 + len(row) for row in rows])
        length, rule = ConstantLength(depth), rule or own_rule
        engine = Engine(TokenTarget(target), drafter, rule, length, coins)
        return run(engine, len(rows), limit, SpecStats()), drafter, (model, prompt)


KINDS = [
    (name, "block" if name.split("-")[0] in ("dflash", "peagle", "falcon") else "chain")
    for name in LAYOUTS
]
KINDS += [
    (name, "dynamic")
    for name in ("longspec", "eagle3", "falcon", "vispec", "medusa", "hydra", "hydra-prefix")
]


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_drafts_are_from_the_laws_of_the_slow_twin(tmp_path, name, kind):
    _, drafter, _ = generation(name, kind, tmp_path / "head", watch=True)
    assert drafter.worst < 1e-9
    assert len(drafter.behind) > 1  # there were drafts of several tokens


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *[(name, "chain") for name in ("eagle-bias", "eagle-own", "vispec", "eagle-attn")],
        *[("dspark-rnn", "chain"), ("dflash", "block"), ("falcon-3", "block")],
        ("vispec", "dynamic"),
    ],
)
def test_drafts_of_layers_that_are_arranged(tmp_path, monkeypatch, name, kind):
    """As a processor runs them in float32; here in float64, so that nothing is rounded."""
    monkeypatch.setattr("mmspec.models.transformers.rearranged.TYPES", (torch.float64,))
    passes = []
    own = LlamaLayers.__call__
    monkeypatch.setattr(LlamaLayers, "__call__", lambda *a: passes.append(a) or own(*a))
    _, drafter, _ = generation(name, kind, tmp_path / "head", watch=True)
    assert drafter.worst < 1e-9
    assert len(passes) > 3


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_greedy_texts_are_the_targets(tmp_path, name, kind):
    greedy = Warp(temperature=0.0)
    kind = "top-block" if kind == "block" else kind
    kind = "top" if kind == "dynamic" else kind
    rule = None if kind == "top" else GreedyRule()
    context, _, (model, prompt) = generation(name, kind, tmp_path / "head", warp=greedy, rule=rule)
    for row in range(len(ROWS)):
        passes, text = Passes(model, prompt, row), []
        with torch.no_grad():
            for _ in range(8):
                text.append(int(passes.law(text).argmax()))
        assert context.tokens[row, :8].tolist() == text


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *[(name, "chain") for name in ("eagle", "vispec", "eagle3", "dspark-rnn", "domino")],
        *[(name, "chain") for name in ("longspec", "medusa", "hydra", "hydra-prefix")],
        *[(name, "block") for name in ("dflash", "peagle", "falcon")],
        ("falcon", "chain"),
        *[(name, "tree") for name in ("longspec", "eagle3", "falcon", "medusa", "hydra-prefix")],
    ],
)
def test_joint_law_of_the_whole_loop(tmp_path, monkeypatch, name, kind):
    """The law of whole outputs, of the shipped loop, target and head behind a picture."""
    for constant, value in {"V": 2, "VD": 1, "MASK": 1}.items():
        monkeypatch.setattr(folders, constant, value)
    monkeypatch.setattr(folders, "SIZES", {**folders.SIZES, "vocab_size": 2})
    head, _, _ = head_of(name, tmp_path / "head")
    assert loop_error(head, kind) < EXACT
