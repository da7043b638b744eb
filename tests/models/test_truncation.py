"""The ends of long prompts, and unknown words, are told: once a call, once and in all in a run."""

from __future__ import annotations

import logging

import pytest
import torch
from mars import captioned_pipeline
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, T5Config, T5EncoderModel
from wans import tiny_pipeline

from mmspec import ImagePipeline
from mmspec.cli.main import main
from mmspec.models.text_encoder import encode_captions, encode_prompt
from mmspec.models.truncation import gathered, lost_words, tell, tell_lost
from mmspec.train.tokenizers import PREFIX, caption_tokenizer

# 20 words; the embedded models read 15 of them and the mark of the end
LONG = "a photo of a red circle left of a blue square and two white stars above a green ring here"
LOST = " ".join(LONG.split()[15:])


@pytest.fixture(scope="module")
def words():
    return caption_tokenizer()


@pytest.fixture(scope="module")
def encoder(words):
    config = T5Config(vocab_size=len(words), d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    return T5EncoderModel(config)


def told(caplog) -> list[str]:
    return [r.message for r in caplog.records if "reads" in r.message]


def test_the_end_is_found(words):
    assert (LOST, PREFIX) == ("above a green ring here", 16)
    assert lost_words(words, [LONG], 16) == {LONG: LOST}
    assert lost_words(words, ["a star", LONG, LONG], 19) == {LONG: "ring here"}
    assert lost_words(words, ["a star", LONG], len(LONG.split()) + 1) == {}


def test_a_word_in_two_is_lost_as_a_whole():
    """Letters as tokens: "wombat" is cut behind its second."""
    letters = {c: n for n, c in enumerate("abcdefghijklmnopqrstuvwxyz ?")}
    inner = Tokenizer(models.WordLevel(letters, unk_token="?"))
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="?")
    assert lost_words(tokenizer, ["a wombat here"], 4) == {"a wombat here": "wombat here"}
    assert lost_words(tokenizer, ["a wombat here"], 8) == {"a wombat here": "here"}


class Slow:
    """A tokenizer without offsets: words by number, and an end."""

    is_fast, all_special_ids = False, [0]
    known = ("</s>", "a", "red", "star")

    def __call__(self, text, max_length=99, truncation=False, **_):
        ids = [self.known.index(word) for word in text.split()]
        return {"input_ids": [*ids[: max_length - 1], 0]}

    def decode(self, ids):
        return " ".join(self.known[i] for i in ids)


def test_without_offsets():
    assert lost_words(Slow(), ["a red star"], 3) == {"a red star": "star"}


@pytest.mark.parametrize("encode", [encode_prompt, encode_captions])
def test_encoders_tell(encode, words, encoder, caplog):
    def say(prompt: str) -> list[str]:
        caplog.clear()
        encode(words, encoder, [prompt] if encode is encode_captions else prompt, PREFIX)
        return told(caplog)

    assert say(" ".join(LONG.split()[:15])) == []
    (line,) = say(LONG)
    assert line.startswith(f"the model reads 16 tokens of a prompt: lost is {LOST!r} of 'a photo")


def test_image_pipeline_tells(tiny_folder, caplog):
    """Once a call, however many pictures; and the pictures are in truth the same."""
    pipe = ImagePipeline.from_pretrained(tiny_folder)
    pipe.set_progress_bar_config(disable=True)
    call = dict(temperature=0, output_type="tokens", num_images_per_prompt=2)
    first = pipe([LONG, "a star"], **call).images
    assert len(told(caplog)) == 1
    assert repr(LOST) in told(caplog)[0]
    same = pipe([LONG.replace("ring here", "star"), "a star"], **call).images
    assert torch.equal(first, same)


def test_continuous_and_video_pipelines_tell(caplog):
    pipe = captioned_pipeline()
    pipe.set_progress_bar_config(disable=True)
    pipe(LONG, num_iterations=1, diffusion_steps=2, output_type="latent")
    assert len(told(caplog)) == 1
    caplog.clear()
    video = tiny_pipeline()
    video.set_progress_bar_config(disable=True)
    length = video.transformer.config.text_len
    video(" ".join(["a red star"] * length), num_frames=5, output_type="none")
    assert len(told(caplog)) == 1
    assert f"reads {length} tokens" in told(caplog)[0]


def test_a_run_tells_the_first_and_in_all(caplog):
    """A thousand long prompts are two lines; known ones, of which all is said, one."""
    with gathered():
        for n in range(1000):
            tell_lost({f"prompt {n}": f"end {n}"}, 16)
            tell_lost({"same": "end"}, 77, "clip")
            tell("unknown", {}, str)
        assert len(told(caplog)) == 2
    (first, other, last) = told(caplog)
    assert first == "the model reads 16 tokens of a prompt: lost is 'end 0' of 'prompt 0'"
    assert other == "clip reads 77 tokens of a prompt: lost is 'end' of 'same'"
    assert last == f"in all: {first}, and the end of 999 others"
    caplog.clear()
    tell_lost({"a": "b", "c": "d"}, 16)
    assert told(caplog)[0].endswith("of 'a', and the end of 1 other")


def test_unknown_words_of_a_run(words, encoder, caplog):
    with gathered():
        for name in ("wombat", "wombat", "emu"):
            encode_captions(words, encoder, [f"a {name}"], PREFIX)
    said = [r.message for r in caplog.records]
    assert said == [
        "the model does not know 'wombat'",
        "in all: the model does not know 'wombat', 'emu'",
    ]


def test_what_is_cleaned_away_is_told(words, encoder, caplog):
    encode_captions(words, encoder, ["一只猫", "a star"], PREFIX, clean=True)
    (record,) = caplog.records
    assert record.message.startswith("nothing is left of '一只猫', cleaned")


def test_command_tells_once(tiny_folder, tmp_path, caplog):
    """Though two methods draw two pictures each, and warm up."""
    command = ["generate", LONG, "--model", str(tiny_folder), "--method", "scd", "--compare"]
    with caplog.at_level(logging.WARNING):
        assert main([*command, "-n", "2", "-o", str(tmp_path)]) == 0
    assert len(told(caplog)) == 1
