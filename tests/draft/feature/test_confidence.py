"""DSpark's confidence head as a policy of lengths."""

from __future__ import annotations

import json

import folders
import naive
import pytest
import torch
from head_twins import Twin
from toy_vlm import guided_vlm, tiny_llava

from mmspec.draft.draft_model import ModelDrafter
from mmspec.draft.feature.feature_model import EagleDrafter
from mmspec.draft.feature.head_model import head_model
from mmspec.engine.accept.token import TokenRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.loop import run
from mmspec.engine.protocols import Engine
from mmspec.engine.stats import SpecStats
from mmspec.models.heads.formats.files import HeadFiles
from mmspec.models.heads.formats.registry import read_head
from mmspec.models.target import TokenTarget


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


class Told:
    """Keeps what the head estimated of every place, and where the places were."""

    def __init__(self, drafts):
        self.estimates, self.places = [], []
        self.drafter = EagleDrafter(drafts, ModelDrafter(drafts, self.more))

    def more(self, confidence):
        self.estimates.append(float(confidence[0, -1]))
        return confidence[:, -1] >= 0.5

    def start(self, context):
        self.drafter.start(context)

    def propose(self, context, budget, coins):
        before = len(self.estimates)
        draft = self.drafter.propose(context, budget, coins)
        committed = context.tokens[0, : context.base[0]].tolist()
        drafted = draft.tokens[0].tolist()
        count = len(self.estimates) - before
        assert int(draft.lengths[0]) == count  # it ends where it is unsure, or at its budget
        assert all(sure >= 0.5 for sure in self.estimates[before:-1])
        self.places += [(committed, drafted[:n]) for n in range(count)]
        return draft

    def observe(self, *args):
        self.drafter.observe(*args)


@pytest.mark.parametrize("with_token", [True, False])
def test_confidence_says_how_far_to_draft(tmp_path, with_token):
    """A draft ends behind the first place whose token is not sure enough to stand."""
    folder, config, tensors = folders.dspark(tmp_path / "head", target_layer_ids=[0, 1])
    if not with_token:
        tensors["confidence_head.proj.weight"] = folders.rand(1, folders.H)
        folders.write(folder, json.loads((folder / "config.json").read_text()), tensors)
    head = read_head(HeadFiles.read(folder)).double().eval()
    model = tiny_llava()
    target, prompt, images = guided_vlm(model, [[1, "picture", 2]], limit=8)
    told = Told(head_model(head, target, images))
    coins = ProductionCoins([3])
    engine = Engine(TokenTarget(target), told, TokenRule(), ConstantLength(4), coins)
    with torch.no_grad():
        run(engine, 1, 8, SpecStats())
        twin = Twin("dspark", model, prompt, config, tensors)
        for (committed, path), estimate in zip(told.places, told.estimates, strict=True):
            twin.text = [*twin.said[id(twin.rows[0])], *committed]
            slot = twin.slots(twin.rows[0], committed, path)[len(path)]
            token = tensors["markov_head.markov_w1.weight"][[*twin.text, *path][-1]]
            x = torch.cat([slot, token]) if with_token else slot
            logit = naive.linear(tensors, "confidence_head.proj", x)[0]
            assert estimate == pytest.approx(float(torch.sigmoid(logit)), abs=1e-9)
    assert len({len(path) for _, path in told.places}) > 1
