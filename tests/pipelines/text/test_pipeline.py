"""The text pipeline, end to end, against transformers' own `generate`."""

from __future__ import annotations

import gguf_files
import pytest
import texts
import torch

import mmspec
from mmspec.errors import InputError

PROMPTS = ["the cat saw", "the dog and the dog saw the cat. the dog and", "x"]


@pytest.fixture(scope="module")
def words():
    return texts.tokenizer()


@pytest.fixture(scope="module")
def llama(words):
    return texts.model(words)


@pytest.fixture
def pipe(llama, words):
    return mmspec.TextPipeline(llama, words, drafter=texts.model(words, seed=1))


def of_transformers(pipe, prompt, **how):
    """What `generate` writes behind one prompt, as ids."""
    turn = [{"role": "user", "content": prompt}]
    inputs = pipe.tokenizer.apply_chat_template(
        turn, add_generation_prompt=True, return_tensors="pt"
    )
    out = pipe.model.generate(**inputs, do_sample=False, pad_token_id=0, **how)
    return out[0, inputs["input_ids"].shape[1] :].tolist()


@pytest.mark.parametrize(
    "method", ["plain", "prompt-lookup", "draft", "token-recycling", "tree", "sjd"]
)
def test_greedy_text_is_transformers_own(pipe, method):
    """In one batch of prompts of several lengths."""
    pipe.enable_speculation(method)
    out = pipe(PROMPTS, max_new_tokens=24)
    for prompt, tokens, text in zip(PROMPTS, out.tokens, out.text, strict=True):
        assert tokens == of_transformers(pipe, prompt, max_new_tokens=24)
        assert text == pipe.tokenizer.decode(tokens, skip_special_tokens=True)


def test_a_seed_means_the_same_alone_and_in_a_batch(pipe):
    pipe.enable_speculation("draft")
    sampled = texts.check_seeds(pipe, PROMPTS)
    assert pipe(PROMPTS[0], max_new_tokens=12).tokens != sampled[:1]


def test_stop_strings_end_an_answer(pipe):
    whole = pipe("the cat saw", max_new_tokens=24).text[0]
    stop = whole[3:6]
    text = pipe("the cat saw", max_new_tokens=24, stop=stop).text[0]
    assert text == whole[: whole.index(stop) + len(stop)]


def test_folders_and_files(pipe, tmp_path):
    pipe.to(torch.float32)
    pipe.save_pretrained(tmp_path / "saved")
    again = mmspec.TextPipeline.from_pretrained(tmp_path / "saved", dtype="float64")
    assert again.drafter is None or again.drafter.dtype == torch.float64
    file = gguf_files.write_gguf(tmp_path / "tiny.gguf", pipe.model, pipe.tokenizer)
    read = mmspec.TextPipeline.from_pretrained(file, dtype="float64")
    assert read(PROMPTS, max_new_tokens=8).tokens == again(PROMPTS, max_new_tokens=8).tokens
    pipe.to(torch.float64)


def test_without_a_template_it_goes_on_with_the_text(llama):
    words = texts.tokenizer(chat=False)
    pipe = mmspec.TextPipeline(llama, words)
    ids = torch.tensor([words("the cat")["input_ids"]])
    own = llama.generate(ids, do_sample=False, max_new_tokens=9, pad_token_id=0)[0, ids.shape[1] :]
    assert pipe("the cat", max_new_tokens=9).tokens[0] == own.tolist()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"prompt": " "}, "the prompt is empty"),
        ({"prompt": []}, "the prompt is empty"),
        ({"prompt": ["a", ""]}, "the prompt is empty"),
        ({"prompt": "a", "max_new_tokens": 0}, "max_new_tokens"),
        ({"prompt": "a", "temperature": -1.0}, "temperature"),
        ({"prompt": "a", "image": "cat.png"}, "it reads no pictures; take a VlmPipeline"),
        ({"prompt": "a" * 600}, "too long for this model"),
        (
            {"prompt": [{"role": "user", "content": [{"type": "image", "image": "a.png"}]}]},
            "the question is empty",
        ),
        (
            {
                "prompt": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "image", "image": "a.png"},
                            {"type": "text", "text": "What?"},
                        ],
                    }
                ]
            },
            "a message holds a picture",
        ),
    ],
)
def test_what_it_refuses(pipe, call, message):
    with pytest.raises(InputError, match=message):
        pipe(**call)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("eagle3", "make it: mmspec train text-head --method eagle3 --pipeline FOLDER"),
        ("mtp", "comes from published files: put them into heads/mtp of the folder"),
        ("draft", "needs the component 'drafter' .* use 'prompt-lookup'"),
    ],
)
def test_what_it_lacks(llama, words, method, message):
    with pytest.raises(InputError, match=message):
        mmspec.TextPipeline(llama, words).enable_speculation(method)


def test_folders_that_it_refuses(tmp_path):
    with pytest.raises(InputError, match=r"models by name are .*smollm2"):
        mmspec.TextPipeline.from_pretrained("smollm3")
    (tmp_path / "config.json").write_text('{"model_type": "clip"}')
    with pytest.raises(InputError, match="no language model that transformers knows: 'clip'"):
        mmspec.TextPipeline.from_pretrained(tmp_path)
