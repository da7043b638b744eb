"""`mmspec doctor` over heads of every published layout: none stops it, and greedy texts stay."""

from __future__ import annotations

import json

import answering
import folders
import mtp_folders
import pytest
import torch

from mmspec.doctor import conventions, trial
from mmspec.doctor.examination import examine
from mmspec.doctor.target import Target
from mmspec.engine.accept.chain import prefix_verdict
from mmspec.engine.accept.greedy import GreedyRule
from mmspec.models.heads.formats.new import MAKERS
from mmspec.models.heads.formats.new_head import NewHead
from mmspec.models.heads.loading import load_head

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
    "falcon": folders.falcon,
    "longspec": folders.longspec,
    "medusa": folders.medusa,
    "hydra": folders.hydra,
    "hydra-prefix": folders.prefix_hydra,
    "hydra-attn": lambda folder: folders.eagle_attn(folder, sized=False),
    "mtp": lambda folder: mtp_folders.qwen(folder, experts=4),
    "mtp-glm": mtp_folders.glm,
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


@pytest.mark.parametrize("method", ["medusa", "hydra"])
def test_a_head_of_some_tokens_has_a_map(target, tmp_path, method):
    """vLLM's `token_map` of Medusa's, `d2t` of Hydra's."""
    counts = torch.arange(target.vocab_size)
    head = MAKERS[method](NewHead(target.model, lambda: counts), vocabulary=5)
    head.save_pretrained(tmp_path)
    found = {one.check: one for one in examine(target, tmp_path, ["what is red"], (), 8).findings}
    assert found["vocabulary map"].state == "fine"
    assert f"5 of {target.vocab_size} tokens" in found["vocabulary map"].text
    assert found["greedy"].state == "fine"


class Credulous(GreedyRule):
    """Keeps every draft whole."""

    def verify(self, draft, scores, coins):
        token = scores.probs.argmax(-1).gather(1, draft.lengths[:, None])[:, 0]
        return prefix_verdict(draft, draft.lengths, token)


def test_texts_that_are_not_the_targets_are_told(target, sizes, tmp_path, monkeypatch):
    folder = LAYOUTS["dflash"](tmp_path / "head")[0]
    monkeypatch.setattr(trial, "GreedyRule", Credulous)
    found = examine(target, folder, ["what is red"], max_new_tokens=8)
    assert "differ from plain decoding" in next(
        one.text for one in found.faults if one.check == "greedy"
    )


def test_two_logits_that_are_as_good_as_equal_are_a_tie(target):
    """The gap is that of the model's own forward pass."""
    tried = trial.Trial(target, 2, 8)
    prompt = target.prompt(["what is red", "a"], [None, None], 8)
    text = [5, 9]
    apart, tie = tried.gap(prompt, 0, text)
    ids = torch.tensor([[*prompt.ids[0].tolist(), *text]])
    with torch.no_grad():
        best = target.model(input_ids=ids).logits[0, -1].topk(2).values
    assert apart == pytest.approx(float(best[0] - best[1]), abs=1e-4)
    assert tie == (apart <= 1e-3 * max(1.0, float(best[0])))


def test_a_trial_leaves_the_target_as_it_was(target, sizes, tmp_path):
    folder = LAYOUTS["eagle"](tmp_path / "head")[0]
    examine(target, folder, ["what is red"], max_new_tokens=4)
    assert "states" not in vars(target.decoder)
    assert not any(module._forward_pre_hooks for module in target.model.modules())


@pytest.mark.parametrize("said", [True, False])
def test_dominos_other_shift_is_the_one_that_is_loaded(tmp_path, said):
    head = load_head(folders.domino(tmp_path / "a", shift_label=said)[0])
    other = load_head(folders.domino(tmp_path / "b", shift_label=not said)[0])
    (shift,) = conventions._anchor(head, head.network)
    tried, loaded = shift.of(head).network, other.network
    assert tried.anchored == loaded.anchored
    assert tried.correction.first == loaded.correction.first
