"""Speculation in transformers' `generate`: its outputs, its laws and its habits.

The oracle is the unpatched `generate` of the same tiny random model. In float64, so that two ways
to run a model agree on the largest logit; transformers draws from float32 laws all the same.
"""

from __future__ import annotations

import copy

import pytest
import torch
from accelerate.hooks import ModelHook, add_hook_to_module
from knobs import with_knobs
from sizes import SMALL
from transformers import (
    GenerationConfig,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MaxLengthCriteria,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteriaList,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.generation.streamers import BaseStreamer

import mmspec
from mmspec import SpecConfig, disable_speculation, enable_speculation
from mmspec.errors import InputError
from mmspec.models.transformers.processed_laws import ProcessedTarget
from mmspec.models.transformers.prompted import PromptedDecoder

VOCAB, NEW = 23, 24
SIZES = SMALL | dict(
    vocab_size=VOCAB,
    num_hidden_layers=3,
    num_key_value_heads=2,
    head_dim=8,
    tie_word_embeddings=False,
    bos_token_id=1,
    eos_token_id=None,
    pad_token_id=0,
)
FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "granite": (GraniteConfig, GraniteForCausalLM),  # scales its embeddings as it runs
    "gpt-neox": (GPTNeoXConfig, GPTNeoXForCausalLM),  # turns a part of every head
    "mixtral": (MixtralConfig, MixtralForCausalLM),  # experts
}
METHODS = [
    "plain",
    "prompt-lookup",
    "token-recycling",
    "aded",
    "sjd",
    "scd",
    "early-exit",
    "layer-skip",
    "draft",
    "easyspec",
    "s2d",
    "omnidraft",
    "tree",
    "dynamic-tree",
    "merged",
]
FEW = ["plain", "prompt-lookup", "sjd", "draft", "dynamic-tree"]
PROMPTS = [[3, 1, 4, 1, 5, 9, 2], [6, 5, 3, 5], [8, 9, 7, 9, 3, 2, 3]]


def made(family: str = "llama", seed: int = 0, **sizes):
    config, kind = FAMILIES[family]
    if family == "granite":
        sizes |= {"embedding_multiplier": 2.0, "logits_scaling": 0.5}
    if family == "gpt-neox":
        sizes |= {"num_key_value_heads": None}
    if family == "mixtral":  # its quicker experts know no float64
        sizes |= {"experts_implementation": "eager", "num_local_experts": 3}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = kind(config(**{**SIZES, **sizes})).double()
        for weight in model.parameters():
            torch.nn.init.normal_(weight, mean=float(weight.ndim == 1), std=0.3)
    return model.eval()


@pytest.fixture(scope="module")
def models():
    """Every family's target, and the target without its last layer as its drafter."""
    out = {}
    for family in FAMILIES:
        target, drafter = made(family), made(family, num_hidden_layers=2)
        shared = target.state_dict()
        drafter.load_state_dict({name: shared[name] for name in drafter.state_dict()})
        out[family] = target, drafter
    return out


@pytest.fixture
def model(models):
    yield models["llama"][0]
    disable_speculation(models["llama"][0])


def padded(prompts: list[list[int]] = PROMPTS) -> dict[str, torch.Tensor]:
    width = max(len(p) for p in prompts)
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
    mask = torch.arange(width) >= torch.tensor([[width - len(p)] for p in prompts])
    return {"input_ids": ids, "attention_mask": mask.long()}


def both(model, method: str, drafter=None, **asked):
    """What `generate` gives without and with speculation."""
    config = with_knobs(method, "vlm", merge=("lookup", "tree"))
    asked = {"max_new_tokens": NEW, "do_sample": False, **asked}
    disable_speculation(model)
    theirs = written_plainly(model, asked)
    enable_speculation(model, config, drafter if "drafter" in config.resolve("vlm").needs else None)
    ours = model.generate(**asked)
    assert model.speculation_stats.fault is None
    assert model.speculation_stats.method == method
    disable_speculation(model)
    return theirs, ours


PLAINLY: dict[tuple[int, str], tuple[object, ...]] = {}


def written_plainly(model, asked):
    """What transformers writes without us; greedy answers are asked for by many methods."""
    if asked["do_sample"] or "inputs_embeds" in asked:
        return model.generate(**asked)
    settings = model.config.to_json_string(), model.generation_config.to_json_string()
    version = sum(weight._version for weight in model.parameters())
    key = id(model), repr((asked, settings, version))
    if key not in PLAINLY:
        PLAINLY[key] = (
            model,
            asked,
            model.generate(**asked),
        )  # alive, so that no address is another's
    return PLAINLY[key][-1]


# --- greedy: the same tokens ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "method"),
    [("llama", method) for method in METHODS]
    + [(family, method) for family in FAMILIES if family != "llama" for method in FEW],
)
def test_left_padded_batches(models, family, method):
    target, drafter = models[family]
    theirs, ours = both(target, method, drafter, **padded())
    assert len(set(theirs[:, 7:].flatten().tolist())) > 4  # no model that says one thing only
    assert torch.equal(theirs, ours)


@pytest.mark.parametrize("method", FEW)
@pytest.mark.parametrize("prompt", PROMPTS)
def test_single_prompts(models, method, prompt):
    target, drafter = models["llama"]
    theirs, ours = both(target, method, drafter, inputs=torch.tensor([prompt]))
    assert torch.equal(theirs, ours)


def written(model) -> list[int]:
    """What the first padded prompt is followed by."""
    return model.generate(**padded(), max_new_tokens=NEW, do_sample=False)[0, 7:].tolist()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("count", [1, 3])
def test_rows_end_where_their_end_token_is(models, method, count):
    target, drafter = models["llama"]
    text = written(target)
    several = list(dict.fromkeys(text[4:]))[:count]
    eos = several[0] if count == 1 else several
    theirs, ours = both(target, method, drafter, eos_token_id=eos, pad_token_id=0, **padded())
    ends = [(row == 0).int().argmax() for row in theirs[:, 7:]]
    assert max(ends) > 0  # some row ended before another
    assert torch.equal(theirs, ours)


@pytest.mark.parametrize("method", FEW)
def test_padding_is_the_first_end_token_when_there_is_no_other(models, method):
    target, drafter = models["llama"]
    eos = written(target)[5:7]
    quiet = target.generation_config.pad_token_id
    target.generation_config.pad_token_id = None
    try:
        theirs, ours = both(target, method, drafter, eos_token_id=eos, **padded())
    finally:
        target.generation_config.pad_token_id = quiet
    assert torch.equal(theirs, ours)


@pytest.mark.parametrize("method", FEW)
@pytest.mark.parametrize(
    "asked",
    [
        {"max_new_tokens": None, "max_length": 17},
        {"max_new_tokens": 1},
        {"num_return_sequences": 2, "do_sample": True, "top_k": 1},
        {"repetition_penalty": 1.4},
        {"repetition_penalty": 0.7, "suppress_tokens": [2, 3, 11]},
        {"min_new_tokens": 9, "eos_token_id": list(range(1, 12))},
        {"min_length": 15, "eos_token_id": list(range(1, 12)), "repetition_penalty": 1.2},
        {"generation_config": GenerationConfig(max_new_tokens=11, eos_token_id=[4, 5])},
        {"use_cache": False, "renormalize_logits": True, "remove_invalid_values": True},
    ],
    ids=lambda asked: " ".join(asked),
)
def test_what_generate_is_asked_for(models, method, asked):
    target, drafter = models["llama"]
    if "generation_config" in asked:
        asked = {**asked, "max_new_tokens": 11}
    theirs, ours = both(target, method, drafter, **padded(), **asked)
    assert torch.equal(theirs, ours)


@pytest.mark.parametrize("method", ["plain", "prompt-lookup", "sjd"])
def test_prompts_of_embeddings(model, method):
    given = padded()
    asked = {"attention_mask": given["attention_mask"]}
    asked["inputs_embeds"] = model.get_input_embeddings()(given["input_ids"]).detach()
    theirs, ours = both(model, method, **asked)
    assert torch.equal(theirs, ours)


@pytest.mark.parametrize("name", ["hybrid", "hybrid_chunked", "sliding_window"])
def test_the_cache_that_published_configurations_name(model, name):
    """Gemma's do; transformers takes them for its dynamic one."""
    model.generation_config.cache_implementation = name
    try:
        config = model.generation_config
        enable_speculation(model, with_knobs("sjd", "vlm"))
        ours = model.generate(**padded(), max_new_tokens=NEW, do_sample=False)
    finally:
        config.cache_implementation = None
        disable_speculation(model)
    theirs = model.generate(**padded(), max_new_tokens=NEW, do_sample=False)
    assert torch.equal(theirs, ours)


def test_labels_that_a_processor_gives_unasked(model):
    given = padded()
    given["labels"] = torch.full_like(given["input_ids"], -100)
    theirs, ours = both(model, "sjd", **given)
    assert torch.equal(theirs, ours)


def test_one_token_is_written_before_a_length_is_looked_at(model):
    for longest in (7, 3):
        criteria = StoppingCriteriaList([MaxLengthCriteria(longest)])
        theirs, ours = both(model, "sjd", **padded(), stopping_criteria=criteria)
        assert torch.equal(theirs, ours)


def test_what_a_penalty_ignores(model):
    """Each its own first tokens; of embeddings, where padding stands in the prompt."""
    own = [
        RepetitionPenaltyLogitsProcessor(3.0, prompt_ignore_length=7),
        RepetitionPenaltyLogitsProcessor(1.0001),
    ]
    theirs, ours = both(model, "sjd", **padded(), logits_processor=own)
    assert torch.equal(theirs, ours)
    later = [RepetitionPenaltyLogitsProcessor(3.0, prompt_ignore_length=10)]
    theirs, ours = both(model, "sjd", **padded(), logits_processor=later)
    assert torch.equal(theirs, ours)
    given = padded()
    embeds = model.get_input_embeddings()(given["input_ids"]).detach()
    told = dict(inputs_embeds=embeds, attention_mask=given["attention_mask"])
    theirs, ours = both(model, "sjd", **told, repetition_penalty=3.0)
    assert torch.equal(theirs, ours)


def test_positions_that_the_user_gives(model):
    """Where they leave gaps, the text is another."""
    given = padded()
    positions = (given["attention_mask"].cumsum(1) - 1).clamp_min(0) * 3
    _, usual = both(model, "sjd", **given)
    theirs, ours = both(model, "sjd", **given, position_ids=positions)
    assert torch.equal(theirs, ours)
    assert not torch.equal(ours, usual)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("negative", ["none", "given", "padded"])
def test_guidance(models, method, negative):
    """transformers' formula is on log-probabilities; the difference is the same for all tokens."""
    target, drafter = models["llama"]
    asked = {"guidance_scale": 2.5}
    if negative != "none":
        other = padded([[2, 2, 7, 1, 8, 2, 8, 1, 8], [1, 4, 1], [5, 7, 7, 2]])
        asked["negative_prompt_ids"] = other["input_ids"]
        if negative == "padded":
            asked["negative_prompt_attention_mask"] = other["attention_mask"]
    theirs, ours = both(target, method, drafter, **padded(), **asked)
    unguided, _ = both(target, "plain", **padded())
    assert not torch.equal(theirs, unguided)
    assert torch.equal(theirs, ours)


@pytest.mark.parametrize("method", FEW)
@pytest.mark.parametrize("more", [{}, {"repetition_penalty": 1.4}], ids=["guided", "penalized"])
def test_scores_and_logits_under_guidance(models, method, more):
    """Scores are guided, and logits are what the prompt alone leads to."""
    target, drafter = models["llama"]
    asked = dict(return_dict_in_generate=True, output_logits=True, output_scores=True, **more)
    theirs, ours = both(target, method, drafter, guidance_scale=2.5, **padded(), **asked)
    assert torch.equal(theirs.sequences, ours.sequences)
    assert len(ours.logits) == len(ours.scores) == NEW
    assert not torch.allclose(ours.logits[0].log_softmax(-1), ours.scores[0].log_softmax(-1))
    for name in ("logits", "scores"):
        for mine, other in zip(getattr(ours, name), getattr(theirs, name), strict=True):
            assert torch.allclose(mine.double(), other.double(), atol=1e-4)


# --- sampling: the same laws ----------------------------------------------------------------------


@pytest.fixture
def laws(monkeypatch):
    """What every verify call saw: tokens and nodes in front of each law, and the law."""
    seen = []
    score = ProcessedTarget.score

    def spy(self, context, draft):
        scores = score(self, context, draft)
        for row, done in enumerate(context.base):
            text = context.tokens[row, :done].tolist()
            lines = [text]
            for node in range(int(draft.lengths[row])):
                above = node - 1 if draft.parents is None else int(draft.parents[row, node])
                lines.append([*lines[above + 1], int(draft.tokens[row, node])])
            if not context.finished[row]:
                seen.extend((row, line, scores.probs[row, n]) for n, line in enumerate(lines))
        return scores

    monkeypatch.setattr(ProcessedTarget, "score", spy)
    return seen


WARPERS = [
    {"top_k": 0},
    {"temperature": 0.6, "top_k": 5},
    {"temperature": 1.7, "top_p": 0.7, "top_k": 0},
    {"top_k": 7, "top_p": 0.6, "min_p": 0.05},
    {"typical_p": 0.6, "top_k": 0},
    {"epsilon_cutoff": 0.02, "eta_cutoff": 0.03, "top_h": 0.6},
    {"suppress_tokens": [1, 2, 3], "temperature": 0.8},
    {"repetition_penalty": 1.5, "temperature": 0.7, "top_k": 9},
    {"min_new_tokens": 4, "eos_token_id": [2, 3, 4, 5, 6], "top_k": 9},
    {"guidance_scale": 3.0, "temperature": 0.8, "top_k": 6},
    {"guidance_scale": 2.0, "repetition_penalty": 1.4, "top_k": 0},
    {"no_repeat_ngram_size": 2, "repetition_penalty": 1.2, "top_k": 9},
    {"bad_words_ids": [[3], [5, 9], [4, 1, 7]], "sequence_bias": [[[9, 2], 2.0], [[8], -1.0]]},
    {"exponential_decay_length_penalty": (2, 1.5), "eos_token_id": [5], "top_k": 0},
    {"begin_suppress_tokens": [1, 2, 3], "forced_eos_token_id": 4, "top_k": 9},
]


@pytest.mark.parametrize("method", ["plain", "sjd", "dynamic-tree"])
@pytest.mark.parametrize("warpers", WARPERS, ids=lambda warpers: " ".join(warpers))
def test_laws_are_those_of_transformers(models, laws, method, warpers):
    """Every law that a draft was judged by, against the scores of `generate` after that text."""
    target, drafter = models["llama"]
    given = padded(PROMPTS[:2])
    knobs = {"num_draft_tokens": 3, "window": 4, "tree_nodes": 6, "siblings": "top"}
    config = with_knobs(method, "vlm", **knobs)
    enable_speculation(
        target, config, drafter if "drafter" in config.resolve("vlm").needs else None
    )
    torch.manual_seed(5)
    target.generate(**given, **warpers, do_sample=True, max_new_tokens=8)
    disable_speculation(target)
    assert len(laws) >= 8
    deepest = max(len(line) for _, line, _ in laws)
    assert deepest >= 4
    for row, line, law in laws[:: max(1, len(laws) // 20)]:
        if any(token in line for token in warpers.get("eos_token_id", ())):
            continue  # nothing follows an end
        expected = scores_after(target, given, row, line, warpers)
        # float32 logits on their side
        assert torch.allclose(law.double(), expected, atol=2e-6), (row, line)


def scores_after(model, given, row, line, warpers):
    """The law that `generate` draws the next token from, once it has drawn `line`."""
    ids = given["input_ids"][row : row + 1]
    mask = given["attention_mask"][row : row + 1]
    said = []

    def read_out(model, input_ids, logits_processor, **rest):
        text = torch.cat([input_ids, torch.tensor([line], dtype=torch.long)], dim=1)
        # step by step: guidance keeps a cache of its own
        for end in range(input_ids.shape[1], text.shape[1] + 1):
            seen = torch.cat([mask, mask.new_ones(1, end - mask.shape[1])], dim=1)
            positions = (seen.cumsum(1) - 1).clamp_min(0)
            logits = model(text[:, :end], attention_mask=seen, position_ids=positions).logits
            said.append(logits_processor(text[:, :end], logits[:, -1].float()))
        return text

    asked = {"do_sample": True, "max_new_tokens": 8, **warpers}
    model.generate(ids, attention_mask=mask, custom_generate=read_out, **asked)
    return said[-1].double().softmax(-1)[0]


def sampled(model, seed: int, prompts=PROMPTS, **asked) -> torch.Tensor:
    torch.manual_seed(seed)
    return model.generate(**padded(prompts), do_sample=True, max_new_tokens=NEW, **asked)


@pytest.mark.parametrize("method", ["plain", "sjd", "scd", "token-recycling"])
def test_a_seed_repeats_its_text(model, method):
    enable_speculation(model, SpecConfig(method))
    first = sampled(model, 1)
    assert torch.equal(first, sampled(model, 1))
    assert not torch.equal(first, sampled(model, 2))
    disable_speculation(model)


@pytest.mark.parametrize("method", ["plain", "prompt-lookup", "sjd", "token-recycling"])
def test_a_row_does_not_depend_on_its_neighbours(model, method):
    enable_speculation(model, SpecConfig(method))
    together = sampled(model, 3, PROMPTS[1:])
    alone = sampled(model, 3, PROMPTS[1:2])
    assert together[0, -NEW:].tolist() == alone[0, -NEW:].tolist()


def test_a_greedy_text_takes_no_seed(model):
    enable_speculation(model, SpecConfig("sjd"))
    before = torch.get_rng_state()
    model.generate(**padded(), do_sample=False, max_new_tokens=NEW)
    assert torch.equal(before, torch.get_rng_state())


# --- habits ---------------------------------------------------------------------------------------


def test_public_names():
    assert mmspec.enable_speculation is enable_speculation
    assert mmspec.disable_speculation is disable_speculation


def test_only_this_object_is_changed_and_only_for_a_while(model):
    before = LlamaForCausalLM.generate
    enable_speculation(model)
    enable_speculation(model, SpecConfig("sjd"))  # in place of the first
    assert model.generate(**padded(), max_new_tokens=2).shape == (3, 9)
    assert model.speculation_stats.method == "sjd"
    assert LlamaForCausalLM.generate is before
    disable_speculation(model)
    assert not {"generate", "speculation_stats"} & set(vars(model))
    disable_speculation(model)


def test_a_generate_of_the_objects_own_comes_back(model):
    def own():
        return None

    vars(model)["generate"] = own
    enable_speculation(model)
    assert model.generate is not own
    disable_speculation(model)
    assert model.generate is own
    del vars(model)["generate"]


def test_a_copy_speculates_with_its_own_weights(model):
    enable_speculation(model, SpecConfig("sjd"))
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.lm_head.weight.mul_(-1)
    mine = model.generate(**padded(), max_new_tokens=NEW)
    ours = other.generate(**padded(), max_new_tokens=NEW)
    disable_speculation(other)
    theirs = other.generate(**padded(), max_new_tokens=NEW)
    assert torch.equal(ours, theirs)
    assert not torch.equal(ours, mine)


def test_a_model_may_be_cast_or_offloaded_afterwards(models):
    """accelerate's hooks bring weights back as the model is called; here they cast them."""
    model = copy.deepcopy(models["llama"][0])

    class Wake(ModelHook):
        def pre_forward(self, module, *args, **kwargs):
            module.float()
            return args, kwargs

    theirs = copy.deepcopy(model).float().generate(**padded(), max_new_tokens=NEW)
    add_hook_to_module(model, Wake())
    enable_speculation(model, SpecConfig("sjd"))
    assert torch.equal(model.generate(**padded(), max_new_tokens=NEW), theirs)


def test_weights_that_are_elsewhere_are_refused(models):
    decoder = PromptedDecoder(copy.deepcopy(models["llama"][0]).to("meta"))
    with pytest.raises(InputError, match="layer by layer; load it whole"):
        decoder.refresh()


def test_statistics_and_outputs(models):
    target, drafter = models["llama"]
    theirs, ours = both(target, "draft", drafter, **padded(), return_dict_in_generate=True)
    assert torch.equal(theirs.sequences, ours.sequences)
    assert type(theirs) is type(ours)
    ours.sequences[0, 0] += 1  # a normal tensor, not one of inference mode
    enable_speculation(target, drafter=drafter)  # a drafter alone: it drafts
    target.generate(**padded(), max_new_tokens=NEW)
    stats = target.speculation_stats
    assert stats.method == "draft"
    assert stats.contract == "exact-greedy"
    assert stats.emitted == [NEW] * 3
    assert 1 < stats.mean_acceptance_length <= 5
    target.generate(**padded(), max_new_tokens=NEW, do_sample=True)
    assert target.speculation_stats.contract == "exact"
    disable_speculation(target)


def test_drafter_only_is_the_drafters_own_text(models):
    target, drafter = models["llama"]
    alone = drafter.generate(**padded(), max_new_tokens=NEW, do_sample=False)
    enable_speculation(target, SpecConfig("drafter-only"), drafter)
    assert torch.equal(target.generate(**padded(), max_new_tokens=NEW), alone)
    assert target.speculation_stats.contract == "lossy"
    disable_speculation(target)


class Heard(BaseStreamer):
    def __init__(self):
        self.values, self.ended = [], False

    def put(self, value):
        assert not self.ended
        self.values.append(value.tolist())

    def end(self):
        self.ended = True


@pytest.mark.parametrize("prompts", [PROMPTS[:1], PROMPTS])
def test_streamers_hear_the_prompt_and_then_token_by_token(model, prompts):
    heard = Heard(), Heard()
    eos = written(model)[6]
    asked = {**padded(prompts), "max_new_tokens": NEW, "eos_token_id": eos}
    model.generate(**asked, streamer=heard[0])
    enable_speculation(model, SpecConfig("sjd"))
    model.generate(**asked, streamer=heard[1])
    assert heard[1].ended
    assert heard[0].values == heard[1].values


def test_a_text_ends_when_its_time_is_over(model):
    for pad in (0, None):
        model.generation_config.pad_token_id = pad
        enable_speculation(model, SpecConfig("sjd"))
        out = model.generate(**padded(), max_new_tokens=NEW, max_time=0.0)
        rows = model.speculation_stats.emitted
        assert 7 + (min if pad is None else max)(rows) == out.shape[1] < 7 + NEW
    model.generation_config.pad_token_id = 0


# --- what can't be honoured -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"num_beams": 2}, "beam search"),
        ({"prompt_lookup_num_tokens": 3}, "assisted generation"),
        ({"assistant_model": "other"}, "assistant_model"),
        ({"custom_generate": "their/loop"}, "custom_generate"),
        ({"output_attentions": True}, "output_attentions"),
        ({"cache_implementation": "quantized"}, "cache_implementation 'quantized'"),
        ({"past_key_values": "theirs"}, "a cache of the class str"),
        ({"generation_config": GenerationConfig(stop_strings=["a"])}, "stop_strings in a gener"),
    ],
)
def test_what_would_have_to_be_ignored_is_refused(model, asked, named):
    enable_speculation(model, SpecConfig("sjd"))
    with pytest.raises(InputError, match=rf"can't honour .*{named}.*; leave it") as error:
        model.generate(**padded(), **{"max_new_tokens": 4, **asked})
    assert "\n" not in str(error.value)


def test_stop_strings_need_a_tokenizer(model):
    enable_speculation(model, SpecConfig("sjd"))
    with pytest.raises(InputError, match="stop_strings need tokenizer="):
        model.generate(**padded(), max_new_tokens=4, stop_strings=["a"])


def test_padding_on_the_right_is_refused(model):
    enable_speculation(model, SpecConfig("sjd"))
    given = {name: value.flip(1) for name, value in padded().items()}
    with pytest.raises(InputError, match="padding_side='left'"):
        model.generate(**given, max_new_tokens=4)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"inputs": torch.tensor([3, 4])}, r"the shape \(2,\), .* \[rows, tokens\]"),
        ({"inputs": torch.zeros(1, 0).long()}, "the prompt is empty"),
        ({"attention_mask": torch.ones(3, 4).long()}, r"mask is \(3, 4\), the prompt \(3, 7\)"),
        ({"attention_mask": torch.ones(7).long()}, r"mask is \(7,\), the prompt \(3, 7\)"),
        ({"attention_mask": torch.ones(3, 1, 7, 7)}, r"mask is \(3, 1, 7, 7\), the prompt"),
    ],
)
def test_prompts_and_masks_of_other_shapes_are_refused(model, asked, said):
    enable_speculation(model, SpecConfig("sjd"))
    given = asked if "inputs" in asked else {**padded(), **asked}
    with pytest.raises(InputError, match=said):
        model.generate(**given, max_new_tokens=4)


def test_more_than_there_are_positions_is_refused(model):
    enable_speculation(model, SpecConfig("sjd"))
    with pytest.raises(InputError, match="64 positions"):
        model.generate(**padded(), max_new_tokens=58)
    assert model.generate(**padded(), max_new_tokens=57).shape == (3, 64)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_positions_whose_speed_changes_are_refused_from_there_on(kind):
    """Keys in the cache would have been turned at another speed."""
    rope = {"rope_type": kind, "rope_theta": 10000.0, "factor": 2.0}
    rope["original_max_position_embeddings"] = 16
    if kind == "longrope":
        rope |= {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    model = made(rope_parameters=rope, max_position_embeddings=32)
    theirs, ours = both(model, "sjd", **padded(), max_new_tokens=9)
    assert torch.equal(theirs, ours)
    enable_speculation(model, SpecConfig("sjd"))
    with pytest.raises(InputError, match="16 positions"):
        model.generate(**padded(), max_new_tokens=10)


def test_a_model_in_training_is_refused():
    model = made().train()
    enable_speculation(model, SpecConfig("sjd"))
    with pytest.raises(InputError, match=r"call model.eval\(\)"):
        model.generate(**padded(), max_new_tokens=4)


def test_models_that_cant_speculate_are_refused(models):
    t5 = T5Config(vocab_size=9, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    with pytest.raises(InputError, match="encoder of its own"):
        enable_speculation(T5ForConditionalGeneration(t5))
    with pytest.raises(InputError, match="must be a PreTrainedModel"):
        enable_speculation(torch.nn.Linear(2, 2))
    with pytest.raises(InputError, match="LlamaModel does not generate"):
        enable_speculation(models["llama"][0].model)


@pytest.mark.parametrize(
    ("config", "sizes", "message"),
    [
        (SpecConfig("draft"), None, "needs a draft model: give drafter=, or use 'prompt-lookup'"),
        (SpecConfig("sjd"), {}, "has no draft model; leave drafter out"),
        (SpecConfig("draft"), {"vocab_size": 31}, "has 31 tokens and the model 23"),
        (SpecConfig("early-exit", exit_layer=3), None, "below the target's 3 layers"),
    ],
)
def test_combinations_that_cant_work_are_refused(model, config, sizes, message):
    drafter = None if sizes is None else made(num_hidden_layers=1, **sizes)
    with pytest.raises(InputError, match=message):
        enable_speculation(model, config, drafter)
    assert "generate" not in vars(model)
