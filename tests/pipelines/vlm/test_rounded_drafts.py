"""The target's rounded weights draft over its own cache, for transformers models and pictures."""

from __future__ import annotations

import copy

import folders
import pytest
import torch
import vlms
from transformers import (
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)
from vlms import NEW, agree, asked, greedy, made

import mmspec
from mmspec import SpecConfig
from mmspec.errors import InputError
from mmspec.models.rounded_copy import RoundedCopy

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
        return LlamaForCausalLM(LlamaConfig(**vlms.text_sizes())).eval()
    own = {n: v for n, v in vlms.text_sizes().items() if n != "num_key_value_heads"}
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
    folders.sized_for(vlms.VOCAB, monkeypatch)
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
    assert min(stats.inner.drafted) > 0
    # inner rounds end with a token of the copy's own, which may be more than was asked
    assert sum(stats.inner.emitted) >= sum(stats.drafted)


@pytest.mark.parametrize("kind", HEADS)
def test_rows_under_a_head_do_not_depend_on_their_neighbours(known, sizes, tmp_path, kind):
    """Sampled, and eight bits: what the copy's hidden states say is not what the target's say."""
    model, inputs, _ = known("llama")
    HEADS[kind](tmp_path / "head")
    inner = "block" if kind == "dflash" else "model"
    config = SpecConfig("ml-specqd", head=kind, inner=inner, draft_weights="int8")
    mmspec.enable_speculation(model, config, head=mmspec.load_head(tmp_path / "head"))
    generation = vars(model)["generate"].__self__
    call = dict(max_new_tokens=NEW, do_sample=True)
    generation.seeds = [3, 4, 5]
    together = model.generate(**inputs, **call)
    drafted = model.speculation_stats.drafted, model.speculation_stats.accepted
    for row in range(3):
        generation.seeds = [3 + row]
        alone = model.generate(**{n: x[row : row + 1] for n, x in inputs.items()}, **call)
        assert torch.equal(alone[0], together[row])
        stats = model.speculation_stats
        assert (stats.drafted, stats.accepted) == ([drafted[0][row]], [drafted[1][row]])
    mmspec.disable_speculation(model)


@pytest.mark.parametrize("inner", ["model", "lookup"])
def test_a_draft_model_drafts_for_the_copy(known, monkeypatch, inner):
    """A drafter that is the model itself saves the copy most of its calls; lookup does not."""
    model, inputs, theirs = known("llama")
    parts = {"drafter": copy.deepcopy(model)} if inner == "model" else {}
    calls = []
    extend = RoundedCopy.extend
    monkeypatch.setattr(
        RoundedCopy,
        "extend",
        lambda self, *args, **how: calls.append(1) or extend(self, *args, **how),
    )
    config = SpecConfig("ml-specqd", inner=inner, draft_weights="float16")
    out, stats = answered(model, inputs, config, **parts)
    assert agree(out, theirs)
    assert sum(stats.accepted) >= 0.8 * sum(stats.drafted) > 0
    rounds = len(stats.rounds)  # of up to 8 drafted tokens each
    assert (len(calls) <= 3 * rounds) == (inner == "model")
    assert max(stats.inner.calls) <= len(calls) <= sum(stats.inner.calls)
    assert (stats.inner.mean_acceptance_length >= 3) == (inner == "model")
    told = stats.as_dict()
    assert told["inner_acceptance_length"] == stats.inner.mean_acceptance_length
    assert told["inner_acceptance_by_position"] == stats.inner.acceptance_by_position
    both = stats.merged([stats])
    assert both.inner.emitted == 2 * stats.inner.emitted
    assert both.inner.judged_at == [2 * n for n in stats.inner.judged_at]
    assert stats.merged([type(stats)()]).inner.calls == stats.inner.calls


def test_a_copy_goes_where_its_model_goes(known):
    """Copied with speculation on, edited, and with windows in its layers."""
    model, inputs, theirs = known("llama")
    model = copy.deepcopy(model)
    mmspec.enable_speculation(model, "specqd")
    call = dict(max_new_tokens=NEW, do_sample=False)
    assert agree(model.generate(**inputs, **call), theirs)
    other = copy.deepcopy(model)
    assert agree(other.generate(**inputs, **call), theirs)
    with torch.no_grad():
        for weight in model.model.layers.parameters():
            weight.mul_(0.5)
    out = model.generate(**inputs, **call)
    stats = model.speculation_stats
    mmspec.disable_speculation(model)
    assert agree(out, greedy(model, inputs))
    assert sum(stats.accepted) >= 0.8 * sum(stats.drafted) > 0
    torch.manual_seed(0)
    sliding = MistralForCausalLM(MistralConfig(**vlms.text_sizes(), sliding_window=4)).eval()
    out, stats = answered(sliding, inputs, "specqd")
    assert agree(out, greedy(sliding, inputs))
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
    assert sum(stats.drafted) > 0
    if "goodput" not in method:  # whose lengths follow the clock, and so does what is drawn
        assert sum(stats.accepted) >= 0.8 * sum(stats.drafted)


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


def test_costs_that_are_known_already(tiny_folder):
    """The copy may be timed before the target of its generation has started."""
    pipe = mmspec.ImagePipeline.from_pretrained(tiny_folder, dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    for method in ("draft[length=goodput]", "specqd[length=goodput]", "ml-specqd[length=goodput]"):
        pipe.enable_speculation(method)
        out = pipe("a photo of a ring", output_type="tokens")
        assert out.stats.fault is None


def test_bad_configurations_are_refused_in_a_line():
    with pytest.raises(InputError, match="drafter 'tree' is none that drafts for another; use"):
        SpecConfig("ml-specqd", inner="tree")
    with pytest.raises(InputError, match="no use for head 'eagle'"):
        SpecConfig("ml-specqd", head="eagle")
    with pytest.raises(InputError, match="needs a head that says several tokens"):
        SpecConfig("ml-specqd", inner="block")
    with pytest.raises(InputError, match="inner is a setting of 'nested'"):
        SpecConfig("specqd", inner="lookup")
    model = LlamaForCausalLM(LlamaConfig(**vlms.text_sizes())).eval().bfloat16()
    with pytest.raises(InputError, match="float32 on the processor"):
        mmspec.enable_speculation(model, "specqd")
