"""A target's own prediction layer in the loop: drafts are the slow twin's, the law stays."""

from __future__ import annotations

import folders
import mtp_folders
import pytest
import torch
from head_twins import loop_error
from mtp_naive import Mtp
from toy_vlm import ROWS, Passes, guided_vlm, tiny_llava
from toys import EXACT
from watched_drafts import Watched, inner

from mmspec.draft.feature.feature_model import EagleDrafter
from mmspec.draft.feature.head_model import head_model
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.loop import run
from mmspec.engine.protocols import Engine
from mmspec.engine.stats import SpecStats
from mmspec.models.heads.formats.files import HeadFiles
from mmspec.models.heads.formats.registry import read_head
from mmspec.models.target import TokenTarget

LAYOUTS = {
    "qwen": lambda folder: mtp_folders.qwen(folder, experts=4),
    "speculators": mtp_folders.speculators,
    "glm": lambda folder: mtp_folders.glm(folder, experts=4, own=False),
    "glm-own": mtp_folders.glm,
    "deepseek": mtp_folders.deepseek,
    "glm-raw": lambda folder: mtp_folders.glm(folder, own=False),
}


def head_of(name, folder):
    folder, config, tensors = LAYOUTS[name](folder)
    head = read_head(HeadFiles.read(folder)).double().eval()
    head.network.feed_normed = not name.endswith("raw")  # as older runtimes have it
    return head, config, tensors


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


class Twin:
    """A draft's laws from the slow twin, over the target's full passes."""

    def __init__(self, name, model, prompt, config, tensors):
        self.model, self.config, self.tensors = model, config, tensors
        self.kind, self.raw = name.split("-")[0], name.endswith("raw")
        self.rows = [Passes(model, prompt, row) for row in range(len(prompt.images))]
        self.said = [prompt.text[row, p.pads :].tolist() for row, p in enumerate(self.rows)]

    def law(self, row, committed, path):
        passes, text = self.rows[row], [*committed, *path]
        own = self.tensors.get("model.layers.4.embed_tokens.weight")
        with torch.no_grad():
            embedded, states = passes.embedded(text)[0], passes.hidden(text)[0]
            if own is not None:  # pictures come as the target has them
                said = torch.tensor([*self.said[row], *text])
                embedded = torch.where((said < 0)[:, None], embedded, own[said.clamp_min(0)])
            known = passes.length + len(committed) - 1  # states in front of committed tokens
            twin, out = Mtp(self.kind, self.tensors, self.config), None
            for column in range(1, len(embedded)):
                fed = twin.raw if column > known and self.raw else out
                hidden = states[column - 1] if column <= known else fed
                out = twin.step(embedded[column], hidden, column - 1)
            last = self.tensors.get("model.layers.4.shared_head.head.weight")
            logits = self.model.lm_head(out) if last is None else last @ out
        return logits.softmax(-1)


@pytest.mark.parametrize(
    ("name", "kind"), [*((name, "chain") for name in LAYOUTS), ("qwen", "dynamic")]
)
def test_drafts_are_from_the_laws_of_the_slow_twin(tmp_path, name, kind):
    model = tiny_llava()
    target, prompt, images = guided_vlm(model, ROWS, limit=8)
    head, config, tensors = head_of(name, tmp_path / "head")
    drafts = head_model(head, target, images)
    chosen, rule = inner(kind, drafts)
    drafter = Watched(EagleDrafter(drafts, chosen), Twin(name, model, prompt, config, tensors))
    coins = ProductionCoins([7 + len(row) for row in ROWS])
    engine = Engine(TokenTarget(target), drafter, rule, ConstantLength(3), coins)
    with torch.no_grad():
        run(engine, len(ROWS), 8, SpecStats())
    assert drafter.worst < 1e-9
    assert len(drafter.behind) > 1  # there were drafts of several tokens


@pytest.mark.parametrize(("name", "kind"), [("qwen", "chain"), ("glm", "chain"), ("glm", "tree")])
def test_joint_law_of_the_whole_loop(tmp_path, monkeypatch, name, kind):
    """The law of whole outputs, of the shipped loop, target and layer behind a picture."""
    monkeypatch.setattr(folders, "V", 2)
    monkeypatch.setattr(folders, "SIZES", {**folders.SIZES, "vocab_size": 2})
    head, _, _ = head_of(name, tmp_path / "head")
    assert loop_error(head, kind) < EXACT
