"""Models of transformers are tried out: what is taken is exact, what is not is refused in a line.

The oracle is `generate` of the same tiny random model in float64, a row alone and without padding:
where windows slide, transformers' own padded rows are not always numbers.
"""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest
import torch
from sizes import SMALL
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from mmspec import SpecConfig, disable_speculation, enable_speculation
from mmspec.errors import InputError
from mmspec.eval.report.causal import causal, trials
from mmspec.models.heads.published.base_decoder import PublishedDecoder
from mmspec.models.transformers.probe import probed
from mmspec.models.transformers.tiny import WINDOW, model_classes, randomized, tiny

PAGE = (Path(__file__).parents[3] / "pipelines" / "causal.md").read_text()
PROMPTS = [[3, 11, 4, 11, 5, 9, 12], [6, 5, 3, 5], [8, 9, 7, 9, 3, 12, 3, 3, 5]]
NEW = 24
# a few of every kind
TAKEN = [
    "bloom",  # positions by a bias on scores
    "deepseek_v2",  # keys and values of two widths
    "gemma2",  # scores and logits capped
    "gemma3_text",  # embeddings scaled, rotary positions of two kinds
    "gemma4_text",  # layers that look tokens up
    "gpt2",  # learned positions
    "gpt_oss",  # sinks, windows in every second layer
    "longcat_flash",  # two caches a layer
    "mimo_v2_flash",  # heads by layer
    "jamba",  # a state that goes on a token at a time
    "mistral",  # one window for all layers
    "mpt",  # the same in another way
    "mllama",  # layers that text does not reach
    "modernbert-decoder",
    "opt",
    "qwen3_next",  # a state in most layers
]
REFUSED = {
    "gemma3n": "looks some tokens up in tables of pictures and sounds",
    "bart": "takes no positions",
    "camembert": "its logits over embeddings, positions and a cache of ours are not its own",
    "llama4_text": "layers of the kind chunked_attention",
    "minimax": "uses cache of its own",
    "moshi": "states a window, and its masks do not heed it",
    "gpt_neo": "window_size, a window of another kind",
    "rwkv": "store no keys and values",
}


@pytest.fixture(autouse=True)
def _quiet(caplog):
    """Configs that are tiny on purpose."""
    caplog.set_level("ERROR", "transformers")


def written(
    model, method, drafter=None, prompts=PROMPTS
) -> tuple[list[list[int]], list[list[int]]]:
    """What `generate` writes of each row alone, and we of a batch of padded rows."""
    asked = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None}
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
    mask = (torch.arange(width) >= torch.tensor([[width - len(p)] for p in prompts])).long()
    theirs = [model.generate(torch.tensor([p]), **asked)[0, len(p) :].tolist() for p in prompts]
    enable_speculation(model, method, drafter)
    ours = model.generate(input_ids=ids, attention_mask=mask, **asked)[:, width:]
    assert model.speculation_stats.fault is None
    return theirs, ours.tolist()


def check(kind: str, method: str, **sizes) -> None:
    """A batch of padded rows is what the model writes of each row alone."""
    model = tiny(kind, torch.float32 if kind == "xglm" else torch.float64, **sizes)
    theirs, ours = written(model, SpecConfig(method))
    disable_speculation(model)
    assert ours == theirs


@pytest.mark.parametrize("kind", TAKEN)
def test_what_is_taken_is_exact(kind):
    check(kind, "token-recycling")  # trees, and branches that are kept


@pytest.mark.parametrize("kind", ["mixtral", "phi3", "qwen2", "starcoder2"])
def test_windows_that_the_default_config_leaves_out(kind):
    more = {"use_sliding_window": True, "max_window_layers": 1} if kind == "qwen2" else {}
    check(kind, "sjd", sliding_window=WINDOW, **more)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_biases_on_scores_that_the_default_config_leaves_out(attention):
    """Falcon rounds them behind 256 tokens, so padded rows must stand at positions of their own."""
    model = tiny("falcon", torch.float64, alibi=True, max_position_embeddings=999)
    model.set_attn_implementation(attention)
    long = [prompt * 40 for prompt in PROMPTS]
    theirs, ours = written(model, SpecConfig("token-recycling"), prompts=long)
    assert ours == theirs


@pytest.mark.parametrize("kind", ["bloom", "mpt", "falcon"])
def test_positions_that_such_models_ignore(kind):
    """Theirs are distances between tokens, whatever `position_ids` say."""
    model = tiny(kind, torch.float64, **({"alibi": True} if kind == "falcon" else {}))
    ids = torch.tensor([PROMPTS[0]])
    asked = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
    theirs = model.generate(ids, **asked)
    enable_speculation(model, SpecConfig("token-recycling"))
    for places in (torch.arange(7) * 3, torch.arange(7) + 400, torch.zeros(7, dtype=torch.long)):
        assert torch.equal(model.generate(ids, position_ids=places[None], **asked), theirs)


@pytest.mark.parametrize("kind", ["bloom", "mpt"])
def test_draft_models_with_biases_on_scores(kind):
    """With the target's weights every draft stands, so its rows stood at their places."""
    model = tiny(kind, torch.float64)
    method = SpecConfig("draft", num_draft_tokens=3)
    theirs, ours = written(model, method, copy.deepcopy(model))
    assert ours == theirs
    assert model.speculation_stats.drafted == model.speculation_stats.accepted


@pytest.mark.parametrize("method", ["plain", "early-exit", "dynamic-tree"])
def test_windows_with_other_drafters(method):
    """Trees that are drafted level by level see their own levels within the window."""
    sizes = SMALL | dict(vocab_size=23, num_hidden_layers=3, num_key_value_heads=2)
    config = MistralConfig(**sizes, sliding_window=4)
    model = randomized(MistralForCausalLM(config), torch.float64)
    drafter = copy.deepcopy(model)
    drafter.model.layers = drafter.model.layers[:2]
    drafter.config.num_hidden_layers = 2
    ids = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
    theirs = model.generate(ids, max_new_tokens=NEW, do_sample=False)
    wanted = SpecConfig(method)
    enable_speculation(model, wanted, drafter if "drafter" in wanted.resolve("vlm").needs else None)
    assert torch.equal(model.generate(ids, max_new_tokens=NEW, do_sample=False), theirs)
    assert model.speculation_stats.fault is None


@pytest.mark.parametrize("kind", ["gemma4", "gemma4_unified"])
@pytest.mark.parametrize("token", [36, 37, 38])
def test_tokens_that_stand_for_a_picture_without_one(kind, token):
    """The model reads them as padding."""
    model = tiny(kind, torch.float64)
    ids, asked = torch.tensor([[5, token, 7, 9]]), {"max_new_tokens": NEW, "do_sample": False}
    theirs = model.generate(ids, eos_token_id=None, **asked)
    enable_speculation(model, SpecConfig("prompt-lookup"))
    assert torch.equal(model.generate(ids, eos_token_id=None, **asked), theirs)


@pytest.mark.parametrize("kind", ["gemma3n_text", "gemma4_text"])
def test_layers_that_look_tokens_up_themselves(kind):
    """As a target and as a draft model; with the same weights all of its drafts stand."""
    model = tiny(kind, torch.float64)
    ids = torch.tensor([PROMPTS[0]])
    asked = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None}
    theirs = model.generate(ids, **asked)
    enable_speculation(model, SpecConfig("draft", num_draft_tokens=3), copy.deepcopy(model))
    assert torch.equal(model.generate(ids, **asked), theirs)
    assert model.speculation_stats.calls == [NEW // 4]
    decoder = probed(model)
    assert decoder.by_layer == (4, model.config.hidden_size_per_layer_input)
    with pytest.raises(InputError, match="look tokens up themselves; it takes no draft heads"):
        PublishedDecoder(None, decoder)
    embedded = model.get_input_embeddings()(ids)
    with pytest.raises(InputError, match=r"can't honour inputs_embeds of .*, whose layers look"):
        model.generate(inputs_embeds=embedded, **asked)


def test_widths_of_keys_and_values():
    decoder = probed(tiny("deepseek_v3"))
    cache = decoder.cache(2, 9)
    assert cache.data.shape == (4, 2, 2, 1, 9, 12)  # latents of 12 numbers, rotary keys of 8
    by_layer = probed(tiny("mimo_v2_flash")).cache(2, 9)  # the last layer: columns, for windows
    assert len({part.data.shape[3:] for part in by_layer.parts[:-1]}) > 1
    assert by_layer.layers == 5


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_refused_is_refused_in_a_line(kind):
    with pytest.raises(InputError, match=REFUSED[kind]) as error:
        enable_speculation(tiny(kind))
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 250


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["llama", "mixtral", "gemma2"])
def test_half_precision_is_no_reason_to_refuse(kind, dtype):
    probed(tiny(kind, dtype))


def test_the_model_is_left_as_it_was():
    model = tiny("mistral").train()
    model.model.layers[0].eval()
    before = {name: module.training for name, module in model.named_modules()}
    decoder = probed(model)
    assert {name: module.training for name, module in model.named_modules()} == before
    assert model.config.sliding_window == decoder.masks.window == WINDOW
    assert "forward" not in vars(model)


class Blind(LlamaForCausalLM):
    """Leaves out a part of what it is told."""

    leaves = ""

    def forward(self, *args, **inputs):
        if inputs["use_cache"] and self.leaves:
            inputs[self.leaves] = None
        return super().forward(*args, **inputs)


@pytest.mark.parametrize("leaves", ["position_ids", "attention_mask"])
def test_a_model_that_leaves_something_out_is_seen(leaves):
    config = LlamaConfig(vocab_size=23, **SMALL)
    model = randomized(Blind(config), torch.float32)
    probed(model)
    model.leaves = leaves
    with pytest.raises(InputError, match="Blind can't speculate"):
        probed(model)


def test_a_model_that_says_no_numbers_is_refused():
    model = tiny("llama")
    with torch.no_grad():
        model.lm_head.weight[3] = torch.nan
    with pytest.raises(InputError, match="can't speculate"):
        probed(model)


def test_methods_that_choose_layers_need_a_list_of_them():
    with pytest.raises(InputError, match="no list of layers to choose from"):
        enable_speculation(tiny("longcat_flash"), SpecConfig("early-exit"))
    with pytest.raises(InputError, match="share keys, so that none can be skipped"):
        enable_speculation(tiny("gemma3n_text"), SpecConfig("layer-skip"))


def test_layers_of_text_are_told_from_those_of_pictures():
    """A vision tower of as many layers stands in front of them."""
    model = tiny("git")
    vision, text = model.config.vision_config, model.config
    assert vision.num_hidden_layers == text.num_hidden_layers
    decoder = probed(model)
    assert all("vision" not in type(layer).__name__.lower() for layer in decoder.blocks())


# lists of other names, and layers that give more than hidden states
@pytest.mark.parametrize(
    "kind", ["bamba", "bert", "bloom", "falcon_h1", "gpt2", "gpt_neox_japanese"]
)
@pytest.mark.parametrize("method", ["early-exit", "layer-skip"])
def test_layers_that_draft(kind, method):
    """Some rows leave earlier than others."""
    check(kind, method, num_hidden_layers=3)


# --- the page -------------------------------------------------------------------------------------


def stated() -> dict[str, bool]:
    """What the page says, by model type."""
    taken, refused = PAGE.split("## Refused")
    rows = re.compile(r"^\| (\S+) \| \w+ \|", re.MULTILINE)
    return {
        **dict.fromkeys(rows.findall(taken), True),
        **dict.fromkeys(rows.findall(refused), False),
    }


def test_the_page_has_what_is_tried_here():
    page = stated()
    for kind in TAKEN[::3]:
        assert page[kind]
    assert not any(page[kind] for kind in REFUSED)
    assert len(page) > 150
    text = causal(["llama", "llama4_text", "reformer"])
    assert "1 model types are taken, 1 are refused" in text
    assert "| llama | LlamaForCausalLM |" in text
    reason = "it has layers of the kind chunked\\_attention"
    assert f"| llama4_text | Llama4ForCausalLM | {reason} |" in text
    assert "`reformer`" in text
    with pytest.raises(InputError, match="no causal 'lama'"):
        causal(["lama"])


@pytest.mark.slow  # 200 models
def test_the_page_is_true_of_every_class_here():
    page = stated()
    known = model_classes()
    shared = [kind for kind in page if kind in known]
    assert len(shared) > 0.8 * len(page)
    tried = {one.kind: one.taken for one in trials(shared)}
    wrong = {kind: taken for kind, taken in tried.items() if taken not in (None, page[kind])}
    assert not wrong, f"make it anew: mmspec eval causal --into pipelines/causal.md ({wrong})"


# generate itself fails, or takes a processor of its own
OWN_WAY = {"hrm_text", "whisper"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    sorted(
        {k for k, taken in stated().items() if taken} & model_classes().keys() - OWN_WAY - {*TAKEN}
    ),
)
def test_every_class_that_is_taken_is_exact(kind):
    check(kind, "token-recycling")


def test_kinds_of_plain_text():
    """Processors of models that see say of every token that it is text."""
    model = tiny("llama", torch.float64)
    decoder, ids = probed(model), torch.tensor([[5, 3, 7, 9]])
    mask, kinds = torch.ones_like(ids, dtype=torch.bool), torch.zeros_like(ids)
    prompt = decoder.prompt(ids, mask, 4, mm_token_type_ids=kinds)
    assert torch.equal(prompt.embedded, decoder.prompt(ids, mask, 4).embedded)
    kinds[0, 1] = 1
    with pytest.raises(InputError, match="mm_token_type_ids"):
        decoder.prompt(ids, mask, 4, mm_token_type_ids=kinds)
