"""A masked model answers at block size 1, and drafts for itself: `s2d2`."""

from __future__ import annotations

import json

import pytest
import texts
import torch
from transformers import (
    Qwen3Config,
    Qwen3ForCausalLM,
    StoppingCriteria,
    StoppingCriteriaList,
)

import mmspec
from mmspec import SpecConfig, enable_speculation
from mmspec.cli.main import main
from mmspec.errors import InputError
from mmspec.models.transformers.text_folder import load_text
from mmspec.models.transformers.text_inputs import process_texts
from mmspec.pipelines.model_folders import first_method, runnable_in

PROMPTS = ["the cat saw", "the dog and the cat saw the dog"]
METHODS = [
    "s2d2",
    "s2d2[num_draft_tokens=7,block_length=3]",
    "s2d2[siblings=top]",
    "s2d2[length=goodput]",
    "draft",
    "deer",
    "deer-tree",
    "tree",
    "prompt-lookup",
    "token-recycling",
    "early-exit",
    "layer-skip",
]


def masked(words, seed=0, **form):
    """A model with one token more than the tokenizer has, the mask."""
    model = texts.model(words, seed)
    model.resize_token_embeddings(len(words) + 1, mean_resizing=False)
    for name, value in {"mask_token_id": len(words), **form}.items():
        setattr(model.config, name, value)
    return model.double()


def slow(model, words, prompt, count):
    """Greedy tokens: one mask behind the text at a time, by transformers' own forward."""
    text, out = process_texts(words, [prompt], "cpu")["input_ids"][0].tolist(), []
    shifted = getattr(model.config, "shifted_logits", False)
    while len(out) < count and words.eos_token_id not in out:
        behind = [] if shifted else [model.config.mask_token_id]
        ids = torch.tensor([[*text, *out, *behind]])
        with torch.no_grad():
            out.append(int(model(input_ids=ids, use_cache=False).logits[0, -1].argmax()))
    return out


@pytest.fixture(scope="module")
def words():
    return texts.tokenizer()


@pytest.mark.slow
@pytest.mark.parametrize("shifted", [False, True])
def test_greedy_text_is_that_of_one_mask_at_a_time(words, shifted):
    """Plain, by its own blocks, and by other drafters; in a batch and one by one."""
    model = masked(words, shifted_logits=shifted)
    pipe = mmspec.TextPipeline(model, words, drafter=masked(words, 1))
    expected = [slow(model, words, prompt, 20) for prompt in PROMPTS]
    for method in ("plain", *METHODS):
        pipe.enable_speculation(method)
        for size in (None, 1):
            out = pipe(PROMPTS, max_new_tokens=20, batch_size=size)
            assert out.tokens == expected, method
            assert out.stats.fault is None, method
            assert (sum(out.stats.drafted) > 0) == (method != "plain"), method
            assert out.stats.contract.startswith("exact"), method


@pytest.mark.slow
def test_who_always_verifies_writes_what_the_exact_form_writes(words):
    """Greedily; the others need not, and say that they are lossy."""
    for shifted in (False, True):
        model = masked(words, shifted_logits=shifted)
        pipe = mmspec.TextPipeline(model, words)
        expected = [slow(model, words, prompt, 20) for prompt in PROMPTS]
        for policy in ("always", "score", "hysteresis", "span", "ucb", "never"):
            pipe.enable_speculation(f"s2d2-routed[verify_policy={policy},fill_confidence=0.3]")
            texts_of = [
                pipe(PROMPTS, max_new_tokens=20, batch_size=size).tokens for size in (None, 1)
            ]
            out = pipe(PROMPTS, max_new_tokens=20)
            assert texts_of[0] == texts_of[1] == out.tokens, (
                policy
            )  # rows have routers of their own
            assert (out.stats.contract, out.stats.fault) == ("lossy", None)
            if policy == "always":
                assert out.tokens == expected


def test_routers_leave_processors_and_guidance_alone(words):
    model, ids = masked(words), torch.tensor([[0, 5, 9, 4]])
    enable_speculation(model, "s2d2-routed[verify_policy=always]")
    for how in (dict(guidance_scale=1.5), dict(repetition_penalty=1.3)):
        how = dict(max_new_tokens=12, do_sample=False) | how
        routed = model.generate(ids, **how)
        enable_speculation(model, "plain")
        assert torch.equal(routed, model.generate(ids, **how))
        enable_speculation(model, "s2d2-routed[verify_policy=always]")


UNASKED = "block-diffusion[fill_confidence=0,block_length=4]"


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (dict(prefix_allowed_tokens_fn=lambda *_: [5, 6]), "logits processors"),
        (dict(repetition_penalty=1.3), "logits processors"),
        (dict(return_dict_in_generate=True, output_scores=True), "output_scores"),
    ],
)
def test_routers_refuse_what_only_the_target_can_do(words, how, said):
    """Places that nobody asks it about stand by their own laws."""
    model, ids = masked(words), torch.tensor([[0, 5, 9, 4]])
    enable_speculation(model, UNASKED)
    with pytest.raises(InputError, match=f"can't honour {said}"):
        model.generate(ids, max_new_tokens=12, do_sample=False, **how)
    assert model.generate(ids, max_new_tokens=12, do_sample=False).shape == (1, 16)


class Seven(StoppingCriteria):
    """Over at seven tokens."""

    def __call__(self, ids, scores, **_):
        return torch.full((len(ids),), ids.shape[1] >= 7)


@pytest.mark.parametrize("method", [UNASKED, "s2d2-routed[verify_policy=always]", "plain"])
def test_the_cache_that_is_left_holds_the_text(words, method):
    """Not what masked places were read as, where nobody asked the target."""
    model, ids = masked(words), torch.tensor([[0, 5, 9, 4]])
    enable_speculation(model, method)
    out = model.generate(
        ids,
        max_new_tokens=12,
        do_sample=False,
        return_dict_in_generate=True,
        stopping_criteria=StoppingCriteriaList([Seven()]),
    )
    mine = out.past_key_values.layers[0].keys
    with torch.no_grad():
        own = model(out.sequences[:, : mine.shape[2]], use_cache=True).past_key_values
    assert torch.allclose(mine, own.layers[0].keys)


def test_a_router_needs_blocks_of_the_targets_own(words):
    pipe = mmspec.TextPipeline(masked(words), words, drafter=masked(words, 1))
    with pytest.raises(InputError, match="drafter 'masked' has none; use method 's2d2-routed'"):
        pipe.enable_speculation("deer[rule=routed]")
    with pytest.raises(InputError, match=r"verify_on must be above verify_off \(2\), not 1"):
        pipe.enable_speculation("s2d2-routed[verify_off=2]")


@pytest.mark.parametrize("method", [*METHODS[:2], "s2d2-routed", "block-diffusion"])
@pytest.mark.parametrize("shifted", [False, True])
def test_a_seed_draws_the_same_alone_and_in_a_batch(words, method, shifted):
    pipe = mmspec.TextPipeline(masked(words, shifted_logits=shifted), words)
    pipe.enable_speculation(method)
    texts.check_seeds(pipe, PROMPTS)


@pytest.mark.parametrize(
    "how",
    [
        dict(guidance_scale=1.5),
        dict(repetition_penalty=1.3, no_repeat_ngram_size=2),
    ],
    ids=str,
)
def test_generate(words, how):
    """Through transformers' own `generate`: guidance, and processors."""
    model, ids = masked(words), torch.tensor([[0, 5, 9, 4]])
    how = dict(max_new_tokens=16, do_sample=False) | how
    enable_speculation(model, "plain")
    plain = model.generate(ids, **how)
    enable_speculation(model)  # the method of such a model
    assert torch.equal(model.generate(ids, **how), plain)
    assert model.speculation_stats.method == "s2d2"
    assert model.speculation_stats.fault is None


def test_a_conversation_keeps_what_was_read(words):
    pipe = mmspec.TextPipeline(masked(words), words)
    pipe.enable_speculation("s2d2")
    chat = mmspec.Chat(pipe)
    for turn in PROMPTS:
        said = chat.say(turn, max_new_tokens=8).tokens
        alone = pipe(chat.messages[:-1], max_new_tokens=8).tokens
        assert said == alone
    assert chat.memory.reused > 0


def test_on_rounded_weights(words):
    pipe = mmspec.TextPipeline(masked(words), words).to(torch.float32)
    pipe.enable_speculation("s2d2[target_weights=int8]")
    out = pipe(PROMPTS, max_new_tokens=12)
    assert out.stats.fault is None
    assert out.stats.contract == "exact-rounded"


def test_its_calls_are_counted(words):
    """A block is a call of the target, too: of a chain of four, two calls a round at most."""
    pipe = mmspec.TextPipeline(masked(words), words)
    pipe.enable_speculation("s2d2")
    out = pipe(PROMPTS[0], max_new_tokens=20)
    assert out.stats.calls[0] > out.stats.scored > 0


# --- folders --------------------------------------------------------------------------------------


def published(folder, words, **told):
    """A folder as SDAR is published: another family's name, code of its own beside it."""
    sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, head_dim=8)
    heads = dict(num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512)
    model = Qwen3ForCausalLM(Qwen3Config(**sizes, **heads, vocab_size=len(words) + 1))
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "sdar", "architectures": ["SDARForCausalLM"]}
    config |= {"auto_map": {"AutoModel": "modeling.SDARForCausalLM"}, "mask_token_id": len(words)}
    (folder / "config.json").write_text(json.dumps(config | told))


def test_a_published_folder_answers(words, tmp_path):
    published(tmp_path, words)
    assert first_method(tmp_path, "vlm") == "s2d2"
    pipe = mmspec.TextPipeline.from_pretrained(tmp_path, dtype="float64")
    expected = [slow(pipe.model, words, prompt, 12) for prompt in PROMPTS]
    for method in ("plain", "s2d2"):
        pipe.enable_speculation(method)
        assert pipe(PROMPTS, max_new_tokens=12).tokens == expected
    pipe.save_pretrained(tmp_path / "again")
    assert first_method(tmp_path / "again", "vlm") == "s2d2"
    again = mmspec.TextPipeline.from_pretrained(tmp_path / "again", dtype="float64")
    again.enable_speculation("s2d2")
    assert again(PROMPTS, max_new_tokens=12).tokens == expected


def test_command(words, tmp_path, capsys):
    published(tmp_path, words)
    call = ["chat", "the cat saw", "--model", str(tmp_path), "--max-new-tokens", "6"]
    assert main([*call, "--block-length", "2", "--json"]) == 0
    assert '"s2d2"' in capsys.readouterr().out
    assert main([*call, "--method", "specqd"]) == 2
    assert "use method 's2d2'" in capsys.readouterr().err


# --- what is refused ------------------------------------------------------------------------------


def test_a_plain_model_has_no_masked_places(words, tmp_path):
    pipe = mmspec.TextPipeline(texts.model(words), words)
    with pytest.raises(InputError, match="is none: its configuration names no mask_token_id; use"):
        pipe.enable_speculation("s2d2")
    pipe.save_pretrained(tmp_path)
    assert "s2d2" not in runnable_in(tmp_path, "vlm")


@pytest.mark.parametrize(
    ("form", "method", "said"),
    [
        ({"prefix_reading": "whole"}, "plain", "reads all of its text both ways"),
        ({"sep_token_id": 0}, "s2d2", "with a separator in front of its places"),
        ({"mask_token_id": 10**6}, "s2d2", "mask_token_id of LlamaForCausalLM is below its"),
        ({}, "specqd", "reads the target on rounded weights at tokens"),
        ({}, "prompt-lookup[rule=restricted]", "reads the target's first layers at tokens"),
    ],
    ids=str,
)
def test_models_and_methods_that_do_not_go(words, form, method, said):
    pipe = mmspec.TextPipeline(masked(words, **form), words)
    with pytest.raises(InputError, match=said):
        pipe.enable_speculation(SpecConfig(method) if "[" not in method else method)


def test_a_masked_model_is_no_teacher(words, tmp_path):
    """Trainers read the laws at tokens; in a folder that we have saved, too."""
    published(tmp_path, words)
    mmspec.TextPipeline.from_pretrained(tmp_path).save_pretrained(tmp_path / "again")
    for folder in (tmp_path, tmp_path / "again"):
        with pytest.raises(InputError, match=r"is a masked language model .*is no teacher"):
            load_text(folder, torch.float32)
    with pytest.raises(InputError, match="masked language model, which is no teacher"):
        mmspec.DrafterLearner(masked(words), texts.model(words, 1), words, words)


def test_a_published_folder_that_only_drafts(words, tmp_path):
    published(tmp_path, words, prefix_reading="whole")
    with pytest.raises(InputError, match="drafts here and does not answer"):
        mmspec.TextPipeline.from_pretrained(tmp_path)
