"""A draft model with another tokenizer, through the pipeline and through `generate`."""

from __future__ import annotations

import json

import pytest
import texts
import torch
from tokenizers import Tokenizer
from tokenizers_of_two_kinds import byte_level, sentence_piece
from transformers import PreTrainedTokenizerFast

import mmspec
from mmspec.cli.main import main
from mmspec.errors import InputError
from mmspec.models.transformers.vocabulary_map import vocabulary_map
from mmspec.pipelines.vlm.generate import disable_speculation

METHODS = ("draft", "omnidraft")
PROMPTS = ["the cat saw", "the dog and the dog saw the cat. the dog and", "x"]


@pytest.fixture(scope="module")
def words():
    return texts.tokenizer()


@pytest.fixture(scope="module")
def others():
    return sentence_piece(120)


@pytest.fixture
def pipe(words, others):
    llama, small = texts.model(words), texts.model(others, seed=1)
    return mmspec.TextPipeline(llama, words, drafter=small, drafter_tokenizer=others)


@pytest.mark.parametrize(
    "method",
    [
        "draft",
        "easyspec",
        "tree",
        "dynamic-tree",
        "pearl",
        "draft[rule=block]",
        "omnidraft",
        "omnidraft[length=specdec++]",
    ],
)
def test_greedy_text_is_the_models_own(pipe, method):
    """In a batch of prompts of several lengths, and with as many rows as prompts or fewer."""
    pipe.enable_speculation("plain")
    plain = pipe(PROMPTS, max_new_tokens=24).tokens
    pipe.enable_speculation(method)
    for size in (None, 2):
        out = pipe(PROMPTS, max_new_tokens=24, batch_size=size)
        assert out.tokens == plain
        assert out.stats.fault is None
        assert sum(out.stats.drafted) > 0


@pytest.mark.parametrize(("method", "calls"), [("draft", 6), ("pearl", 7)])
def test_the_same_model_in_other_words_drafts_what_stands(words, method, calls):
    """Two tokenizers of other numbers for the same bytes: all that is drafted stands."""
    llama = texts.model(words)
    order = torch.randperm(len(words), generator=torch.Generator().manual_seed(0))
    names = words.convert_ids_to_tokens(range(len(words)))
    parts = json.loads(words.backend_tokenizer.to_str())
    place = {name: int(order[number]) for number, name in enumerate(names)}
    parts["model"]["vocab"] = {n: place[n] for n in parts["model"]["vocab"]}
    for added in parts["added_tokens"]:
        added["id"] = place[added["content"]]
    turned = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(parts)),
        eos_token=words.eos_token,
        bos_token=words.bos_token,
    )
    small = texts.model(words)
    table = small.get_input_embeddings().weight.data
    table[order] = table.clone()
    words.chat_template, template = None, words.chat_template
    pipe = mmspec.TextPipeline(llama, words, drafter=small, drafter_tokenizer=turned)
    pipe.enable_speculation(method)
    try:
        out = pipe("the cat saw the dog", max_new_tokens=24)
    finally:
        words.chat_template = template
    assert out.stats.calls[0] <= calls
    assert out.stats.accepted == out.stats.drafted
    assert out.stats.drafted[0] > 12


@pytest.mark.parametrize("method", METHODS)
def test_a_seed_means_the_same_alone_and_in_a_batch(pipe, method):
    pipe.enable_speculation(method)
    texts.check_seeds(pipe, PROMPTS)


def repeating(words, text: str):
    """A model that says the tokens of a text, each another, over and over; and its tokenizer."""
    made, ids = texts.model(words), words(text)["input_ids"]
    made.config.tie_word_embeddings = False
    made.lm_head.weight = torch.nn.Parameter(torch.zeros_like(made.lm_head.weight))
    with torch.no_grad():
        for layer in made.model.layers:  # a token is all that it reads
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        table = made.get_input_embeddings().weight.zero_()
        table[:, 0] = 0.1
        made.lm_head.weight[ids[0], 0] = 1.0  # behind tokens of other texts
        for n, token in enumerate(ids):
            table[token, n + 1] = 1.0
            made.lm_head.weight[ids[(n + 1) % len(ids)], n + 1] = 1.0
        made.model.norm.weight.fill_(1.0)
    return made, words


def byte_words():
    """A tokenizer of bytes alone."""
    return byte_level(258)


@pytest.fixture
def dogs(words):
    """The one model says " dog" over and over, the other " ", "d", "o", "g"."""
    target, _ = repeating(words, " dog")
    small, letters = repeating(byte_words(), " dog")
    return mmspec.TextPipeline(target, words, drafter=small, drafter_tokenizer=letters)


@pytest.mark.parametrize("temperature", [0.0, 0.3])
def test_runs_of_its_tokens_are_joined(dogs, temperature):
    """Where nothing is joined nothing stands; else two words do in a call, once one was seen."""

    def calls(method):
        dogs.enable_speculation(method)
        drawn = torch.Generator().manual_seed(3)
        out = dogs(["a", "b!"], max_new_tokens=21, temperature=temperature, generator=drawn)
        assert out.text == [" dog" * 21] * 2
        assert out.stats.fault is None
        return out.stats.calls

    assert calls("draft[num_draft_tokens=8]") == [21, 21]
    assert calls("omnidraft[num_draft_tokens=8,run_cache=0]") == [21, 21]
    joined = calls("omnidraft[num_draft_tokens=8]")
    assert max(joined) < 12
    again = "omnidraft[num_draft_tokens=8,table_lives=true]"
    assert calls(again) == joined
    assert max(calls(again)) < min(joined)


def test_what_is_joined_is_judged_by_any_rule_and_length(dogs):
    for more in ("rule=block", "rule=recursive", "length=specdec++", "length=heuristic"):
        dogs.enable_speculation(f"omnidraft[{more}]")
        out = dogs(["a dog", "b dog!"], max_new_tokens=12, batch_size=1)
        assert out.text == [" dog" * 12] * 2
        assert sum(out.stats.accepted) > 0


def test_a_prompts_words_are_known(dogs):
    dogs.enable_speculation("omnidraft[num_draft_tokens=8]")
    unknown, known = dogs(["a cat", "a dog"], max_new_tokens=9).stats.calls
    assert known < unknown


def test_on_the_command_line(dogs, tmp_path, capsys):
    dogs.save_pretrained(tmp_path / "dogs")
    asked = ["chat", "a dog", "--model", str(tmp_path / "dogs"), "--max-new-tokens", "12", "--json"]
    found = []
    for method in METHODS:
        told = ["--method", method, "--num-draft-tokens", "8"]
        assert main([*asked, *told]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0]["answers"]["draft"] == found[1]["answers"]["omnidraft"] == [" dog" * 12]
    told = [each["methods"][name] for each, name in zip(found, METHODS, strict=True)]
    assert told[1]["nfe_per_sample"] < told[0]["nfe_per_sample"] == 12


def test_a_folder_holds_the_drafters_tokenizer(pipe, tmp_path):
    pipe.enable_speculation("draft")
    pipe.save_pretrained(tmp_path / "saved")
    again = mmspec.TextPipeline.from_pretrained(tmp_path / "saved", dtype="float64")
    again.enable_speculation("draft")
    assert again.drafter_tokenizer.get_vocab() == pipe.drafter_tokenizer.get_vocab()
    one, other = (p(PROMPTS, max_new_tokens=8) for p in (pipe, again))
    assert one.tokens == other.tokens
    assert one.stats.accepted == other.stats.accepted


def test_generate_in_a_script(pipe, words, others):
    """The drafter may have inputs of its own in place of the prompt in its words."""
    ids = torch.tensor([words("the cat saw the dog")["input_ids"]])
    plain = pipe.model.generate(ids, do_sample=False, max_new_tokens=16, pad_token_id=0)
    given = {"tokenizer": words, "drafter_tokenizer": others}
    mmspec.enable_speculation(pipe.model, drafter=pipe.drafter, **given)
    own = {"input_ids": torch.tensor([others("the cat")["input_ids"]])}
    for more in ({}, {"drafter_inputs": own}):
        out = pipe.model.generate(ids, do_sample=False, max_new_tokens=16, pad_token_id=0, **more)
        assert torch.equal(out, plain)
        assert pipe.model.speculation_stats.fault is None
    disable_speculation(pipe.model)


def test_where_it_has_no_room_it_drafts_no_more(words):
    """What is said takes several times as many of its tokens: a text goes on without it.

    The next one, which takes its row, is drafted again.
    """
    letters, long = sentence_piece(10), PROMPTS[1]
    small = texts.model(letters, seed=1)
    pipe = mmspec.TextPipeline(texts.model(words), words, drafter=small, drafter_tokenizer=letters)
    plain = pipe([long, "x"], max_new_tokens=30)
    assert " the the" in plain.text[0]
    turn = [{"role": "user", "content": long}]
    ids = words.apply_chat_template(turn, add_generation_prompt=True, return_tensors="pt")
    told = pipe_words(pipe).retold(ids["input_ids"], None)["input_ids"].shape[1]
    small.config.max_position_embeddings = told + 34
    for method in ("draft", "tree"):
        pipe.enable_speculation(method)
        out = pipe([long, "x"], max_new_tokens=30, batch_size=1)
        assert out.tokens == plain.tokens
        assert out.stats.fault is None
        if method == "draft":
            assert 0 < out.stats.drafted[0] < out.stats.drafted[1]


def pipe_words(pipe):
    both = pipe.tokenizer, pipe.drafter_tokenizer
    return vocabulary_map(*both, *(len(words) for words in both))


def test_another_tokenizer_takes_the_place_of_the_first(pipe):
    pipe.enable_speculation("draft")
    pipe(PROMPTS[0], max_new_tokens=4)
    pipe.drafter_tokenizer = sentence_piece(60)
    assert pipe.prepared().drafting.beside.tokenizers[1] is pipe.drafter_tokenizer


def test_more_tokens_of_the_same_family_are_no_other_words(words):
    """As a newer model of it has: numbers are shared, and nothing is translated."""
    more = texts.tokenizer()
    more.add_tokens(["<think>"])
    small = texts.model(words)
    pipe = mmspec.TextPipeline(texts.model(words), words, drafter=small, drafter_tokenizer=more)
    pipe.enable_speculation("draft")
    assert pipe.prepared().drafting.words is None
    out = pipe(PROMPTS[0], max_new_tokens=16)
    assert out.stats.accepted == out.stats.drafted


def test_what_it_cannot_do_is_refused(pipe, words, others):
    with pytest.raises(InputError, match="there are tokenizers of a draft model, and no draft"):
        mmspec.enable_speculation(pipe.model, tokenizer=words, drafter_tokenizer=others)
    with pytest.raises(InputError, match="needs both tokenizer and drafter_tokenizer"):
        mmspec.enable_speculation(pipe.model, drafter=pipe.drafter, tokenizer=words)
    with pytest.raises(InputError, match="give drafter_tokenizer"):
        mmspec.enable_speculation(pipe.model, drafter=pipe.drafter)
    with pytest.raises(InputError, match="has other words than the model; run it by itself"):
        pipe.enable_speculation("drafter-only")
    given = {"tokenizer": words, "drafter_tokenizer": others}
    mmspec.enable_speculation(pipe.model, drafter=pipe.drafter, **given)
    embedded = pipe.model.get_input_embeddings()(torch.tensor([[1, 2, 3]]))
    with pytest.raises(InputError, match="needs the prompt as input_ids"):
        pipe.model.generate(inputs_embeds=embedded, max_new_tokens=4, pad_token_id=0)
    ids = torch.tensor([[1, 2, 3]])
    with pytest.raises(InputError, match="guidance with a drafter of other words"):
        pipe.model.generate(ids, max_new_tokens=4, guidance_scale=2.0, pad_token_id=0)
    disable_speculation(pipe.model)
