"""`mmspec doctor` over heads of every published layout: none stops it, and greedy texts stay."""

from __future__ import annotations

import json

import answering
import folders
import pytest
import torch

from mmspec.doctor.examination import examine
from mmspec.doctor.target import Target

ALL = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
IDS = {"target_layer_ids": [0, 1]}
LAYOUTS = {
    "eagle": folders.eagle1,
    "msd": folders.eagle1,
    "vispec": folders.vispec,
    "eagle3": lambda folder: folders.eagle3(folder, **ALL),
    "speculators": lambda folder: folders.speculators_eagle3(folder, **ALL),
    "peagle": lambda folder: folders.peagle(folder, **ALL),
    "dflash": lambda folder: folders.dflash(
        folder, dflash_config={"mask_token_id": folders.MASK, "target_layer_ids": [0, 1]}
    ),
    "dspark": lambda folder: folders.dspark(folder, kind="rnn", **IDS),
    "domino": lambda folder: folders.domino(folder, **IDS),
    "medusa": folders.medusa,
    "hydra": folders.hydra,
}


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """A LLaVA that answers, with random weights."""
    home = tmp_path_factory.mktemp("target")
    answering.model(3, 0, eos=2).save_pretrained(home)
    answering.processor().save_pretrained(home)
    return Target.load(str(home), torch.float32)


@pytest.fixture
def sizes(monkeypatch):
    """Heads of the target's width and vocabulary."""
    own = {"H": 32, "DIM": 8, "V": len(answering.WORDS.split())}
    for name, value in own.items():
        monkeypatch.setattr(folders, name, value)
    changed = {"hidden_size": 32, "head_dim": 8, "vocab_size": own["V"]}
    monkeypatch.setattr(folders, "SIZES", {**folders.SIZES, **changed})
    torch.manual_seed(0)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_random_head(target, sizes, tmp_path, name):
    """It is well-formed, and accepted by nobody: no neighbour is to blame."""
    folder = LAYOUTS[name](tmp_path / "head")[0]
    picture = tmp_path / "picture.png"
    answering.picture(1).save(picture)
    kind = "msd" if name == "msd" else None
    found = examine(target, folder, ["what is red", "what is on the left"], [picture], 12, kind)
    states = {one.check: one.state for one in found.findings}
    for check in ("files", "format", "tensors", "dtype", "sizes", "layers", "images", "greedy"):
        assert states[check] in ("fine", "note"), (check, found.lines())
    kinds = {one["prompts"] for one in found.trials}
    assert kinds == {"text", "pictures"}
    assert json.loads(json.dumps(found.as_dict()))["head"] == str(folder)
