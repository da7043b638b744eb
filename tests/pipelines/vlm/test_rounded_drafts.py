"""The target's rounded weights draft over its own cache, for transformers models and pictures."""

from __future__ import annotations

import folders
import pytest
import torch
import vlms
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM
from vlms import NEW, agree, asked, greedy, made

import mmspec
from mmspec import SpecConfig
from mmspec.errors import InputError

RAGGED = [1, 2, 0]  # pictures of every row
FAMILIES = ("llama", "neox", "llava", "qwen2_5_vl", "qwen3_vl")
HEADS = {
    "eagle": folders.eagle1,
    "eagle3": lambda folder: folders.eagle3(folder, eagle_aux_hidden_state_layer_ids=[0, 1, 2]),
    "dflash": folders.dflash,
    "hydra": folders.hydra,
}


def text_model(family: str):
    torch.manual_seed(0)
    if family == "llama":
        return LlamaForCausalLM(LlamaConfig(**vlms.TEXT)).eval()
    own = {n: v for n, v in vlms.TEXT.items() if n != "num_key_value_heads"}
    return GPTNeoXForCausalLM(GPTNeoXConfig(**own)).eval()


@pytest.fixture(scope="module")
def known():
    """A model of a family, what it is asked, and what it answers by itself."""
    models = {}

    def get(family: str):
        if family not in models:
            if family in ("llama", "neox"):
                model = text_model(family)
                ids = torch.randint(1, 30, (3, 9), generator=torch.Generator().manual_seed(1))
                mask = torch.ones_like(ids)
                mask[1, :4] = mask[2, :7] = 0
                inputs = {"input_ids": ids, "attention_mask": mask}
            else:
                model = made(family)
                inputs = asked(model, RAGGED)
            models[family] = model, inputs, greedy(model, inputs)
        return models[family]

    return get


def answered(model, inputs, config, **parts):
    mmspec.enable_speculation(model, config, **parts)
    try:
        out = model.generate(**inputs, max_new_tokens=NEW, do_sample=False)
        return out, model.speculation_stats
    finally:
        mmspec.disable_speculation(model)


@pytest.mark.parametrize("weights", ["float16", "int8"])
@pytest.mark.parametrize("method", ["specqd", "ml-specqd"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_text_is_the_models(known, family, method, weights):
    """And nearly all stands, for the copy is the model but for its rounding."""
    model, inputs, theirs = known(family)
    config = SpecConfig(method, num_draft_tokens=4, draft_weights=weights)
    out, stats = answered(model, inputs, config)
    assert agree(out, theirs)
    assert stats.contract == "exact-greedy"
    least = {"float16": 0.9, "int8": 0.6}[weights]  # of random laws, which are rarely sure
    assert sum(stats.accepted) >= least * sum(stats.drafted) > 0


@pytest.fixture
def sizes(monkeypatch):
    """Heads of the models' sizes."""
    new = dict(H=32, I=48, HEADS=4, KV=2, DIM=8, V=vlms.VOCAB, VD=20)
    for name, value in new.items():
        monkeypatch.setattr(folders, name, value)
    told = dict(hidden_size=32, intermediate_size=48, head_dim=8, vocab_size=vlms.VOCAB)
    monkeypatch.setattr(folders, "SIZES", {**folders.SIZES, **told})
    torch.manual_seed(0)


@pytest.mark.parametrize("family", ["llama", "qwen2_5_vl"])
@pytest.mark.parametrize("kind", HEADS)
def test_a_head_drafts_for_the_copy(known, sizes, tmp_path, kind, family):
    """Head → rounded → unrounded: the head reads the copy's hidden states, then the target's."""
    model, inputs, theirs = known(family)
    HEADS[kind](tmp_path / "head")
    inner = "block" if kind == "dflash" else "model"
    config = SpecConfig("ml-specqd", head=kind, inner=inner, draft_weights="float16")
    out, stats = answered(model, inputs, config, head=mmspec.load_head(tmp_path / "head"))
    assert agree(out, theirs)
    assert stats.fault is None
    assert sum(stats.accepted) >= 0.8 * sum(stats.drafted) > 0


def test_a_draft_model_drafts_for_the_copy(known):
    model, inputs, theirs = known("llama")
    torch.manual_seed(1)
    drafter = LlamaForCausalLM(LlamaConfig(**vlms.TEXT | {"num_hidden_layers": 1})).eval()
    config = SpecConfig("ml-specqd", inner="model", draft_weights="float16")
    out, stats = answered(model, inputs, config, drafter=drafter)
    assert agree(out, theirs)
    assert sum(stats.accepted) >= 0.8 * sum(stats.drafted) > 0


@pytest.mark.parametrize("method", ["specqd", "ml-specqd", "ml-specqd[length=goodput]"])
def test_a_sampled_text_is_no_worse_than_the_rounding(known, method):
    model, inputs, _ = known("llama")
    mmspec.enable_speculation(model, method)
    torch.manual_seed(0)
    model.generate(**inputs, max_new_tokens=NEW, do_sample=True)
    stats = model.speculation_stats
    mmspec.disable_speculation(model)
    assert stats.contract == "exact"
    assert stats.fault is None
    assert sum(stats.accepted) >= 0.8 * sum(stats.drafted) > 0


@pytest.mark.parametrize("method", ["specqd", "ml-specqd", "ml-specqd[inner=recycling]"])
def test_pictures_are_the_targets(tiny_folder, method):
    pipe = mmspec.ImagePipeline.from_pretrained(tiny_folder, dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    call = dict(temperature=0, output_type="tokens", num_images_per_prompt=2)
    truth = pipe("a photo of a ring", **call).images
    pipe.enable_speculation(method)
    drawn = pipe("a photo of a ring", **call)
    assert torch.equal(drawn.images, truth)
    assert drawn.stats.fault is None
    assert drawn.stats.mean_acceptance_length > 2
    assert pipe.decoder(pipe.transformer).weights is None


def test_bad_configurations_are_refused_in_a_line():
    with pytest.raises(InputError, match="drafter 'tree' is none that drafts for another; use"):
        SpecConfig("ml-specqd", inner="tree")
    with pytest.raises(InputError, match="no use for head 'eagle'"):
        SpecConfig("ml-specqd", head="eagle")
    with pytest.raises(InputError, match="needs a head that says several tokens"):
        SpecConfig("ml-specqd", inner="block")
    with pytest.raises(InputError, match="inner is a setting of 'nested'"):
        SpecConfig("specqd", inner="lookup")
    model = LlamaForCausalLM(LlamaConfig(**vlms.TEXT)).eval().bfloat16()
    with pytest.raises(InputError, match="float32 on the processor"):
        mmspec.enable_speculation(model, "specqd")
