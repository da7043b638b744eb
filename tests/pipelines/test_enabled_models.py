"""What users do to a model after `enable_speculation`: it counts, or is refused in a line."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from sizes import SMALL
from torch import nn
from torch.nn.utils import parametrizations, prune
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MllamaConfig,
    MllamaForConditionalGeneration,
)

from mmspec import SpecConfig, disable_speculation, enable_speculation
from mmspec.errors import InputError
from mmspec.models.transformers.tiny import randomized

NEW = 16
IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2]])
SIZES = SMALL | dict(vocab_size=24, num_key_value_heads=2, eos_token_id=None)


@pytest.fixture
def model():
    """In float32, so that its linear layers run on packed weights."""
    return randomized(LlamaForCausalLM(LlamaConfig(**SIZES)), torch.float32)


def written(model, ids=IDS) -> list[int]:
    return model.generate(ids, max_new_tokens=NEW, do_sample=False)[0].tolist()


def plainly(model, ids=IDS) -> list[int]:
    """Without speculation, which is put back."""
    speculation = vars(model).pop("generate")
    try:
        return written(model, ids)
    finally:
        vars(model)["generate"] = speculation


# --- ways to compute attention --------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["flex_attention", "paged|sdpa"])
def test_attention_without_masks_is_refused(model, kind):
    enable_speculation(model, SpecConfig("sjd"))
    model.config._attn_implementation = kind
    with pytest.raises(InputError, match="takes no masks of ours; call model"):
        written(model)
    disable_speculation(model)
    with pytest.raises(InputError, match="takes no masks of ours; call model"):
        enable_speculation(model)


def test_flex_attention_is_refused_before_it_runs(model):
    enable_speculation(model, SpecConfig("sjd"))
    model.set_attn_implementation("flex_attention")
    with pytest.raises(InputError, match="'flex_attention' takes no masks of ours"):
        written(model)
    model.set_attn_implementation("eager")
    assert written(model) == plainly(model)


# --- compiled -------------------------------------------------------------------------------------


def never(graph, inputs):
    raise AssertionError("compiled within a speculative call")


@pytest.mark.parametrize("way", ["forward", "module", "layer"])
@pytest.mark.parametrize("before", [True, False])
def test_compiled_models_run_as_they_were(model, way, before):
    theirs = written(model)
    if not before:
        enable_speculation(model, SpecConfig("sjd"))
    if way == "forward":
        model.forward = torch.compile(model.forward, backend=never)
    elif way == "module":
        model.compile(backend=never)
    else:
        layer = model.model.layers[0]
        layer.forward = torch.compile(layer.forward, backend=never)
    if before:
        enable_speculation(model, SpecConfig("sjd"))
    assert written(model) == theirs


def test_a_compiled_wrapper_is_refused(model):
    with pytest.raises(InputError, match="must be a PreTrainedModel"):
        enable_speculation(torch.compile(model, backend=never))


# --- copied and stored ----------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["sjd", "draft"])
def test_copies_after_a_speculative_call(model, method):
    small = copy.deepcopy(model)
    enable_speculation(model, SpecConfig(method), small if method == "draft" else None)
    first = written(model)
    assert model.generate.__self__.target._rearranging._kept is not None  # packed weights are there
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.lm_head.weight.mul_(-1)
    assert written(other) == plainly(other) != first
    assert written(model) == first
    stored = pickle.loads(pickle.dumps(model))
    assert written(stored) == first
    assert stored.speculation_stats.method == method


def test_stored_after_a_speculative_call(model, tmp_path):
    enable_speculation(model, SpecConfig("sjd"))
    first = written(model)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert written(again) == first
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    assert written(torch.load(file, weights_only=False)) == first


def test_a_call_leaves_no_cache_behind(model):
    enable_speculation(model, SpecConfig("sjd"))
    written(model)
    assert model.generate.__self__.target._view.cache is None


# --- other weights --------------------------------------------------------------------------------


class Adapted(nn.Module):
    """A linear layer with a low-rank adapter beside it, as PEFT wraps them."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base_layer = base
        self.a = nn.Linear(base.in_features, 2, bias=False)
        self.b = nn.Linear(2, base.out_features, bias=False)

    def forward(self, x):
        return self.base_layer(x) + self.b(self.a(x))

    def merge(self):
        self.base_layer.weight.data += self.b.weight.data @ self.a.weight.data


def adapted(model) -> list[Adapted]:
    torch.manual_seed(3)
    for layer in model.model.layers:
        layer.self_attn.q_proj = Adapted(layer.self_attn.q_proj)
    return [layer.self_attn.q_proj for layer in model.model.layers]


def test_adapters_wrapped_around_and_merged(model):
    """Merged in place behind autograd's back, which no version counter sees."""
    enable_speculation(model, SpecConfig("sjd"))
    first = written(model)
    adapters = adapted(model)
    wrapped = written(model)
    assert wrapped == plainly(model)
    for one, layer in zip(adapters, model.model.layers, strict=True):
        one.merge()
        layer.self_attn.q_proj = one.base_layer
    assert written(model) == plainly(model) == wrapped != first


def test_one_changed_number_is_seen(model):
    enable_speculation(model, SpecConfig("sjd"))
    written(model)
    model.lm_head.weight.data[5, 3] += 100.0
    assert written(model) == plainly(model)
    model.lm_head.weight.data.copy_(model.lm_head.weight.data.flip(0))
    assert written(model) == plainly(model)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", ["pruned", "normed", "quantized", "subclass"])
def test_layers_that_are_no_plain_linear_ones(model, way):
    enable_speculation(model, SpecConfig("sjd"))
    written(model)
    if way == "pruned":
        prune.l1_unstructured(model.model.layers[0].mlp.up_proj, "weight", amount=0.5)
        prune.l1_unstructured(model.lm_head, "weight", amount=0.3)
    elif way == "normed":
        parametrizations.weight_norm(model.model.layers[0].mlp.up_proj)
        with torch.no_grad():
            model.model.layers[0].mlp.up_proj.parametrizations.weight.original0.mul_(2)
    elif way == "quantized":
        torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, torch.qint8, inplace=True)
    else:
        model.lm_head.weight = nn.Parameter(Marked(model.lm_head.weight.data * 2))
    assert written(model) == plainly(model)
    # and one that was so from the beginning
    disable_speculation(model)
    enable_speculation(model, SpecConfig("sjd"))
    assert written(model) == plainly(model)


class Marked(torch.Tensor):
    """As weights in few bits are kept by some libraries: a tensor of another class."""


def test_weights_of_inference_mode(model):
    with torch.inference_mode():
        made = randomized(LlamaForCausalLM(LlamaConfig(**SIZES)), torch.float32)
    assert made.lm_head.weight.is_inference()
    enable_speculation(made, SpecConfig("sjd"))
    assert written(made) == written(model)


def test_hooks_hear_every_call(model):
    enable_speculation(model, SpecConfig("sjd"))
    heard = []
    model.model.layers[1].mlp.register_forward_hook(lambda *_: heard.append(1))
    model.lm_head.register_forward_hook(lambda module, args, out: out * -1)
    assert written(model) == plainly(model)
    assert heard


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_another_type(model, dtype):
    enable_speculation(model, SpecConfig("sjd"))
    written(model)
    model.to(dtype)
    ours = written(model)
    if dtype == torch.float64:
        assert ours == plainly(model)
    assert len(ours) == IDS.shape[1] + NEW


def test_more_words_and_new_embeddings(model):
    enable_speculation(model, SpecConfig("sjd"))
    model.resize_token_embeddings(31, mean_resizing=False)
    with torch.no_grad():
        model.lm_head.weight[24:] *= 3
    assert written(model) == plainly(model)


# --- pictures left out ----------------------------------------------------------------------------


def test_mllama_with_text_alone():
    text = dict(SIZES, cross_attention_layers=[1], pad_token_id=0, num_hidden_layers=3)
    tower = dict(
        hidden_size=16,
        attention_heads=2,
        num_hidden_layers=1,
        num_global_layers=1,
        intermediate_size=16,
        vision_output_dim=32,
        image_size=16,
        patch_size=8,
        max_num_tiles=1,
        intermediate_layers_indices=[0],
        supported_aspect_ratios=[[1, 1]],
    )
    config = MllamaConfig(text_config=text, vision_config=tower, image_token_id=20)
    model = randomized(MllamaForConditionalGeneration(config), torch.float64)
    theirs = written(model)
    for method in ("plain", "sjd", "token-recycling"):
        enable_speculation(model, SpecConfig(method))
        assert written(model) == theirs
        assert model.speculation_stats.fault is None
        disable_speculation(model)
