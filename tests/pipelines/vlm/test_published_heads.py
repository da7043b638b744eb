"""Published heads from their files, beside transformers' own models: the text is the model's."""

from __future__ import annotations

import folders
import mtp_folders
import pytest
import torch
import vlms
from transformers import LlamaConfig, LlamaForCausalLM
from vlms import NEW, agree, asked, greedy, made

import mmspec
from mmspec.errors import InputError

RAGGED = [1, 2, 0]  # pictures of every row
ALL = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
IDS = {"target_layer_ids": [0, 2]}
MROPE = {"rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]}}
PARTIAL = {"type": "mrope", "mrope_section": [1, 1, 0]}
LAYOUTS = {
    "eagle": folders.eagle1,
    "eagle-bias": lambda folder: folders.eagle1(folder, qkv_bias=True, layers=2),
    "eagle-own": lambda folder: folders.eagle1(folder, embeds=True),
    "msd": folders.eagle1,
    "vispec": folders.vispec,
    "eagle3": lambda folder: folders.eagle3(folder, **ALL),
    "eagle3-mrope": lambda folder: folders.eagle3(folder, **ALL, **MROPE),
    "eagle3.1": lambda folder: folders.eagle3(
        folder, fc_norm=True, norm_output=True, architectures=["LlamaForCausalLM"], **ALL
    ),
    "speculators": lambda folder: folders.speculators_eagle3(folder, **ALL),
    "peagle": lambda folder: folders.peagle(folder, **ALL),
    "dflash": folders.dflash,
    "peagle-speculators": lambda folder: folders.speculators_peagle(folder, **ALL),
    "dflash-speculators": folders.speculators_blocks,
    "dspark-speculators": lambda folder: folders.speculators_blocks(folder, kind="dspark"),
    "dspark": lambda folder: folders.dspark(folder, kind="rnn"),
    "dspark-gated": lambda folder: folders.dspark(folder, kind="gated"),
    "dspark-deepspec": lambda folder: folders.dspark(
        folder, deepspec=True, target_layer_ids=[0, 1]
    ),
    "domino": folders.domino,
    "falcon": folders.falcon,
    "longspec": folders.longspec,
    "medusa": folders.medusa,
    "hydra": folders.hydra,
    "hydra-prefix": folders.prefix_hydra,
    "hydra-attn": lambda folder: folders.eagle_attn(folder, sized=False),
    "mtp": lambda folder: mtp_folders.qwen(folder, experts=4),
    "mtp-mrope": lambda folder: mtp_folders.qwen(folder, rope_scaling=PARTIAL),
    "mtp-speculators": mtp_folders.speculators,
    "mtp-glm": mtp_folders.glm,
    "mtp-deepseek": lambda folder: mtp_folders.deepseek(folder, own=False),
}


def text_model(family: str):
    if family != "llama":
        return made(family)
    config = LlamaConfig(**vlms.text_sizes())
    torch.manual_seed(0)
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def known():
    """A model of a family, what it is asked, and what it answers by itself."""
    models = {}

    def get(family: str):
        if family not in models:
            model = text_model(family)
            if family == "llama":
                ids = torch.randint(1, 30, (3, 9), generator=torch.Generator().manual_seed(1))
                mask = torch.ones_like(ids)
                mask[1, :4] = mask[2, :7] = 0
                inputs = {"input_ids": ids, "attention_mask": mask}
            else:
                inputs = asked(model, RAGGED)
            models[family] = model, inputs, greedy(model, inputs)
        return models[family]

    return get


@pytest.fixture(autouse=True)
def sizes(monkeypatch):
    """Heads of the models' sizes."""
    folders.sized_for(vlms.VOCAB, monkeypatch)
    torch.manual_seed(0)


def load(name, folder):
    LAYOUTS[name](folder)
    return mmspec.load_head(folder, kind="msd" if name == "msd" else None)


@pytest.mark.parametrize("family", ["llama", "llava", "qwen2_5_vl", "qwen3_vl"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_the_text_is_the_models(known, tmp_path, name, family):
    model, inputs, theirs = known(family)
    mmspec.enable_speculation(model, head=load(name, tmp_path / "head"))
    try:
        out = model.generate(**inputs, max_new_tokens=NEW, do_sample=False)
        stats = model.speculation_stats
    finally:
        mmspec.disable_speculation(model)
    assert agree(out, theirs)
    assert sum(stats.calls) > 0
    assert min(stats.drafted) > 0


def test_a_head_for_another_target_is_refused(known, tmp_path):
    model, _, _ = known("llama")
    head = load("medusa", tmp_path / "head")
    head.target_size = 64
    with pytest.raises(InputError, match="hidden_size 64"):
        mmspec.enable_speculation(model, head=head)
    head = load("eagle3", tmp_path / "other")
    head.vocab_size = 99
    with pytest.raises(InputError, match="vocabulary of 99"):
        mmspec.enable_speculation(model, head=head)
    head = load("eagle3", tmp_path / "deep")
    head.reads = (1, 2, 7)
    with pytest.raises(InputError, match="3 layers"):
        mmspec.enable_speculation(model, head=head)
    folder, _, _ = folders.dflash(tmp_path / "deeper", num_target_layers=36)
    with pytest.raises(InputError, match="for a target of 36 layers, and this LlamaForCausalLM"):
        mmspec.enable_speculation(model, head=mmspec.load_head(folder))
    folder, _, _ = folders.eagle3(tmp_path / "narrow", target=2 * folders.H, **ALL)
    wide = LlamaForCausalLM(LlamaConfig(**{**vlms.text_sizes(), "hidden_size": 2 * folders.H}))
    with pytest.raises(InputError, match="takes embed_tokens from its target"):
        mmspec.load_head(folder).check(wide)


def test_a_head_narrower_than_its_target(tmp_path):
    """It has tables of its own, and reads text alone."""
    torch.manual_seed(0)
    wide = {**vlms.text_sizes(), "hidden_size": 2 * folders.H}
    model = LlamaForCausalLM(LlamaConfig(**wide)).eval()
    folder, _, _ = folders.eagle3(tmp_path / "head", target=2 * folders.H, embeds=True, **ALL)
    inputs = {"input_ids": torch.tensor([[0, 3, 4, 5], [6, 7, 8, 9]])}
    inputs["attention_mask"] = (inputs["input_ids"] > 0).long()
    theirs = greedy(model, inputs)
    mmspec.enable_speculation(model, head=mmspec.load_head(folder))
    out = model.generate(**inputs, max_new_tokens=NEW, do_sample=False)
    assert agree(out, theirs)
    assert min(model.speculation_stats.drafted) > 0


def test_files_say_how_many_tokens_are_drafted(known, tmp_path):
    model, _, _ = known("llama")
    for name, length in (("speculators", 3), ("dflash", 3), ("dspark", 4), ("peagle", 3)):
        mmspec.enable_speculation(model, head=load(name, tmp_path / name))
        config = model.generate.__self__.config
        assert config.options["num_draft_tokens"] == length
        mmspec.disable_speculation(model)


@pytest.mark.parametrize("family", ["llama", "qwen2_5_vl"])
def test_dsparks_confidence_says_how_long_drafts_are(known, tmp_path, family):
    model, inputs, theirs = known(family)
    head = load("dspark", tmp_path / "head")
    try:
        mmspec.enable_speculation(model, "dspark[length=confidence]", head=head)
        out = model.generate(**inputs, max_new_tokens=NEW, do_sample=False)
        shorter = model.speculation_stats
        mmspec.enable_speculation(model, "dspark", head=head)
        model.generate(**inputs, max_new_tokens=NEW, do_sample=False)
        whole = model.speculation_stats
    finally:
        mmspec.disable_speculation(model)
    assert agree(out, theirs)
    drafts = [sum(stats.drafted) / sum(stats.calls) for stats in (shorter, whole)]
    assert 0 < drafts[0] < drafts[1]


def test_a_head_is_saved_and_read_again(tmp_path):
    head = load("speculators", tmp_path / "head")
    head.save_pretrained(tmp_path / "saved", "eagle3")
    again = mmspec.load_head(tmp_path / "saved")
    assert (head.method, again.method) == ("eagle3", "eagle3")
    with pytest.raises(InputError, match="kind is 'msd'"):
        mmspec.load_head(tmp_path / "saved", kind="eagle")
    with pytest.raises(InputError, match="no head of MSD"):
        mmspec.load_head(tmp_path / "saved", kind="msd")
