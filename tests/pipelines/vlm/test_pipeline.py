"""Questions about pictures through the pipeline; the oracle is transformers' own `generate`."""

from __future__ import annotations

import io
import json
from functools import partial

import numpy as np
import pytest
import torch
from answering import model, picture, processor
from PIL import Image
from transformers import LlavaForConditionalGeneration
from transformers.generation.streamers import BaseStreamer

from mmspec import SpecConfig, VlmPipeline
from mmspec.cli.main import main
from mmspec.errors import InputError
from mmspec.picture import MOST_PIXELS


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("vlm")
    VlmPipeline(model(3, 0), processor(), drafter=model(1, 1)).save_pretrained(path)
    return path


@pytest.fixture
def pipe(folder):
    return VlmPipeline.from_pretrained(folder)


ASKED = ["what is red", "what is the circle on the left", "a square"]
SEEN = [picture(0), [picture(1), picture(2)], None]


def own(pipe, seen, asked, **how):
    """Transformers' own answer to one question."""
    many = seen if isinstance(seen, list) else [seen] if seen is not None else []
    content = [{"type": "image"}] * len(many) + [{"type": "text", "text": asked}]
    text = pipe.processor.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True
    )
    given = {"images": many} if many else {}
    batch = pipe.processor(text=[text], **given, return_tensors="pt")
    network = LlavaForConditionalGeneration.generate
    out = network(pipe.model, **batch, **how)
    return out[0, batch["input_ids"].shape[1] :].tolist()


@pytest.mark.parametrize("method", ["plain", "prompt-lookup", "token-recycling", "draft"])
def test_greedy_answers_are_those_of_transformers(pipe, method):
    pipe.enable_speculation(SpecConfig(method))
    out = pipe(ASKED, SEEN, max_new_tokens=20)
    alone = [own(pipe, s, a, max_new_tokens=20) for s, a in zip(SEEN, ASKED, strict=True)]
    assert out.tokens == alone
    assert out.text == pipe.processor.batch_decode(alone, skip_special_tokens=True)
    assert out.stats.method == method
    assert out.stats.contract.startswith("exact")
    assert max(out.stats.calls) <= 20
    text, stats = pipe(ASKED[0], SEEN[0], max_new_tokens=20, return_dict=False)
    assert (text, stats.emitted) == (out.text[:1], [20])


def test_the_drafter_is_shown_the_pictures(folder):
    """The target as its own drafter is always right, which without a picture it would not be."""
    same = VlmPipeline.from_pretrained(folder)
    same = VlmPipeline(same.model, same.processor, drafter=model(3, 0))
    same.enable_speculation(SpecConfig("draft", num_draft_tokens=4))
    stats = same("what is red", picture(3), max_new_tokens=20).stats
    assert (stats.calls, stats.accepted) == ([4], [16])


def test_a_row_does_not_depend_on_its_neighbours(pipe):
    pipe.enable_speculation(SpecConfig("draft"))
    seeds = [torch.Generator().manual_seed(n) for n in range(3)]
    how = dict(max_new_tokens=16, temperature=0.8, top_k=12, top_p=0.95)
    together = pipe(ASKED, SEEN, generator=seeds, **how)
    for row in range(3):
        seed = torch.Generator().manual_seed(row)
        alone = pipe(ASKED[row], SEEN[row], generator=seed, **how)
        assert alone.tokens == together.tokens[row : row + 1]
    other = pipe(ASKED, SEEN, generator=torch.Generator().manual_seed(9), **how)
    assert other.tokens != together.tokens
    assert together.stats.contract == "exact"


@pytest.mark.parametrize("method", ["plain", "draft"])
def test_answers_end_at_stop_strings(pipe, method):
    """With the string, whichever row it is in, though no token of this vocabulary is a space."""
    pipe.enable_speculation(SpecConfig(method))
    whole = pipe(ASKED, SEEN, max_new_tokens=20)
    words = [text.split() for text in whole.text]
    stop = [words[0][6], f"{words[1][3]} {words[1][4][:1]}"]
    out = pipe(ASKED, SEEN, max_new_tokens=20, stop=stop)
    for row in range(3):
        texts = [" ".join(words[row][: n + 1]) for n in range(20)]
        ends = [n + 1 for n, text in enumerate(texts) if any(s in text for s in stop)]
        assert out.tokens[row] == whole.tokens[row][: min(ends, default=20)]
    assert len(out.tokens[0]) < 20
    assert len(set(out.stats.emitted)) > 1
    assert out.stats.emitted == [len(tokens) for tokens in out.tokens]


def test_streams_and_calls_back(pipe):
    class Words(BaseStreamer):
        def __init__(self):
            self.seen, self.over = [], False

        def put(self, value):
            self.seen.append(value.flatten().tolist())

        def end(self):
            self.over = True

    streamer, rounds, drafted = Words(), [], []

    def stop_soon(pipe, step, tokens, kwargs):
        rounds.append((step, tokens, kwargs["context"].base))
        drafted.extend(kwargs["context"].drafted()[0])
        assert kwargs["stats"].accepted == [sum(drafted)]
        assert kwargs["stats"].emitted == [len(drafted)]
        pipe.interrupt = tokens >= 6

    pipe.enable_speculation(SpecConfig("prompt-lookup"))
    out = pipe(
        ASKED[0], SEEN[0], max_new_tokens=20, streamer=streamer, callback_on_step_end=stop_soon
    )
    assert streamer.over
    told = [token for tokens in streamer.seen[1:] for token in tokens]  # the prompt comes first
    assert told == out.tokens[0]
    assert len(drafted) == len(told)
    assert 6 <= len(out.tokens[0]) < 20
    assert [step for step, _, _ in rounds] == list(range(1, len(rounds) + 1))


def test_saved_as_it_was_loaded(pipe, tmp_path):
    pipe.save_pretrained(tmp_path)
    again = VlmPipeline.from_pretrained(tmp_path)
    assert again.drafter is not None
    assert again.drafter_processor is None
    wanted = pipe(ASKED, SEEN, max_new_tokens=8).tokens
    assert again(ASKED, SEEN, max_new_tokens=8).tokens == wanted


def test_a_drafter_with_a_processor_of_its_own(folder, tmp_path):
    first = VlmPipeline.from_pretrained(folder)
    pipe = VlmPipeline(first.model, first.processor, model(1, 1), processor())
    pipe.save_pretrained(tmp_path)
    again = VlmPipeline.from_pretrained(tmp_path)
    assert again.drafter_processor is None  # it is the model's: prompts are laid out once
    pipe.drafter_processor.chat_template = "a " + pipe.drafter_processor.chat_template
    pipe.save_pretrained(tmp_path)
    again = VlmPipeline.from_pretrained(tmp_path)
    assert again.drafter_processor is not None
    again.enable_speculation(SpecConfig("draft"))
    assert (
        again(ASKED, SEEN, max_new_tokens=8).tokens == first(ASKED, SEEN, max_new_tokens=8).tokens
    )


def test_pictures_that_can_not_be(pipe, tmp_path):
    text = tmp_path / "text.png"
    text.write_text("no picture")
    cut = tmp_path / "cut.jpg"
    buffer = io.BytesIO()
    picture(0).resize((200, 200)).save(buffer, "JPEG")
    cut.write_bytes(buffer.getvalue()[:-500])
    huge = tmp_path / "huge.png"
    Image.new("1", (10_000, MOST_PIXELS // 10_000 + 1)).save(huge)
    for path, said in (
        (text, "can't read .*text.png: it is no picture"),
        (cut, "can't read .*cut.jpg: image file is trunc"),
        (huge, "10000×5001 pixels, more than 50,000,000"),
        (tmp_path / "none.png", "no picture .*none.png"),
    ):
        with pytest.raises(InputError, match=said) as caught:
            pipe("what is red", path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("args", "how", "said"),
    [
        ((" ", None), {}, "the question is empty"),
        (([], None), {}, "the question is empty"),
        ((["a", "a"], [None]), {}, "1 pictures for 2 questions"),
        (("a " * 200, None), {}, "too long for this model"),
        (("a", None), {"max_new_tokens": 0}, "max_new_tokens must be from 1"),
        (("a", None), {"temperature": -1.0}, "temperature must be 0 or"),
        (("a", None), {"top_k": -1}, "top_k must be"),
        (("a", None), {"top_p": 0.0}, "top_p must be"),
        (("a", None), {"stop": ""}, "stop strings must be text that is not empty"),
        (("a", None), {"stop": []}, "stop strings must be text that is not empty"),
        (
            (["a", "a"], None),
            {"temperature": 1.0, "generator": [torch.Generator()]},
            "1 generators",
        ),
    ],
)
def test_arguments_that_can_not_be(pipe, args, how, said):
    with pytest.raises(InputError, match=said):
        pipe(*args, **how)


def test_methods_that_can_not_be(folder, pipe, tmp_path):
    pipe = VlmPipeline(pipe.model, pipe.processor)
    with pytest.raises(InputError, match="needs the component 'drafter'"):
        pipe.enable_speculation(SpecConfig("draft"))
    with pytest.raises(InputError, match="draws pictures, and this one writes text"):
        pipe.enable_speculation(SpecConfig("zipar"))
    assert pipe.speculation.method == "plain"
    other = model(1, 1)
    other.resize_token_embeddings(30)
    pipe = VlmPipeline(pipe.model, pipe.processor, drafter=other)
    with pytest.raises(InputError, match="which is more than padding; give drafter_tokenizer"):
        pipe.enable_speculation(SpecConfig("draft"))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(InputError, match="'llama' is no model that answers here"):
        VlmPipeline.from_pretrained(tmp_path)
    with pytest.raises(InputError, match="device_map"):
        VlmPipeline.from_pretrained(folder, device_map="auto")


def test_arrays_are_pictures_as_of_diffusers(pipe):
    """Bytes, floats and tensors; one of four dimensions is several pictures."""
    ask = partial(pipe, "what is red", max_new_tokens=8)
    many = [picture(1), picture(2)]
    levels = np.stack([np.asarray(one) for one in many])
    shares = torch.tensor(levels).permute(0, 3, 1, 2) / 255
    wanted = ask(many[0]).tokens
    for one in (levels[0], levels[0] / 255, shares[0], shares[0].numpy(), [shares[0]]):
        assert ask(one).tokens == wanted
    wanted = ask(many).tokens
    for both in (levels, levels / 255, shares, [levels[0], shares[1]]):
        assert ask(both).tokens == wanted
    each = pipe(["what is red"] * 2, shares, max_new_tokens=8).tokens
    assert each == [ask(one).tokens[0] for one in many]


def test_the_background_of_transparent_pictures(pipe, tmp_path):
    clear = picture(0).convert("RGBA")
    clear.putalpha(0)
    clear.save(tmp_path / "clear.png")
    grey = Image.new("RGB", clear.size, "#303030")
    white = Image.new("RGB", clear.size, "white")
    ask = partial(pipe, "what is red", max_new_tokens=8)
    assert ask(tmp_path / "clear.png").tokens == ask(white).tokens
    assert ask(clear, background="#303030").tokens == ask(grey).tokens != ask(white).tokens
    with pytest.raises(InputError, match="no background 'glass'; name a colour"):
        ask(clear, background="glass")


def test_a_placeholder_in_a_question_is_text(pipe):
    """It stands for no picture, plainly, drafted, and in a drafter's own layout."""
    asked = "what is <image> on the left"
    wanted = pipe(asked, picture(0), max_new_tokens=6)
    pipe.drafter_processor = processor()
    pipe.enable_speculation(SpecConfig("draft"))
    assert pipe(asked, picture(0), max_new_tokens=6).tokens == wanted.tokens
    assert pipe([asked, "<image>"], [None, None], max_new_tokens=6).stats.emitted == [6, 6]


def test_a_processor_without_a_template(pipe):
    pipe.processor.chat_template = None
    with pytest.raises(InputError, match="no chat template"):
        pipe("a")


def test_on_the_command_line(folder, tmp_path, capsys):
    path = tmp_path / "seen.png"
    picture(0).save(path)
    where = ["--model", str(folder), "--max-new-tokens", "9"]
    assert main(["ask", str(path), "what is red", "--method", "draft", *where]) == 0
    answer = capsys.readouterr().out.strip()
    (wanted,) = VlmPipeline.from_pretrained(folder)("what is red", path, max_new_tokens=9).text
    assert answer == wanted
    options = ["--method", "draft[num_draft_tokens=2]", "--compare", "-n", "2"]
    assert main(["ask", str(path), str(path), "a circle", *options, *where, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert list(record["answers"]) == ["plain", "draft[num_draft_tokens=2]"]
    assert len({tuple(texts) for texts in record["answers"].values()}) == 1
    assert record["methods"]["plain"]["n"] == 2
    assert main(["ask", str(path), "a circle", "--compare", "--method", "draft", *where]) == 0
    lines = capsys.readouterr().out.splitlines()
    first = ["plain:", "draft:", "method", "plain", "draft", "seconds:"]
    assert [line.split()[0] for line in lines] == first


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["none.png", "a"], "no picture none.png"),
        (["none.png", "a", "-n", "0"], "--num-answers"),
        (["none.png", "a", "--method", "drat"], "did you mean 'draft'"),
        (["none.png", "a", "--device", "tpu"], "tpu"),
    ],
)
def test_bad_options(folder, capsys, args, said):
    assert main(["ask", *args, "--model", str(folder)]) == 2
    (line,) = [s for s in capsys.readouterr().err.splitlines() if s.startswith("mmspec")]
    assert said in line
