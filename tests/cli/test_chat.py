"""`mmspec chat` on a tiny model."""

from __future__ import annotations

import io
import json

import pytest
import texts

import mmspec
from mmspec.cli.main import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    words = texts.tokenizer()
    folder = tmp_path_factory.mktemp("text") / "model"
    mmspec.TextPipeline(texts.model(words).float(), words).save_pretrained(folder)
    return folder


@pytest.fixture
def chat(run, folder):
    return lambda *more: run("chat", "--model", folder, "--max-new-tokens", 12, *more)


def test_an_answer(chat, folder):
    pipe = mmspec.TextPipeline.from_pretrained(folder)
    code, out, err = chat("the cat", "--method", "plain")
    assert (code, out) == (0, pipe("the cat", max_new_tokens=12).text[0] + "\n"), err
    told = [{"role": "system", "content": "Be."}, {"role": "user", "content": "the cat"}]
    code, out, err = chat("the cat", "--system", "Be.", "--stream")
    assert code == 0, err
    assert out.strip() == pipe(told, max_new_tokens=12).text[0].strip()


def test_a_conversation_is_one_prompt(chat):
    """Also where tokens are drawn, by a seed for each prompt."""
    for more in ((), ("--compare",)):
        code, out, err = chat("the cat", "--system", "Be.", "--temperature", 1, *more)
        assert code == 0, err
        assert out.strip()


def test_plain_decoding_with_settings_has_plain_decoding_beside_it(chat):
    options = "--method", "plain", "--target-weights", "int8", "--compare", "--json"
    code, out, err = chat("the cat saw the", *options)
    assert code == 0, err
    found = json.loads(out)["methods"]
    assert list(found) == ["plain", "plain[target_weights=int8]"]


def test_compared(chat):
    code, out, err = chat("the cat saw the", "--compare", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert set(found["methods"]) == {"plain", "prompt-lookup"}
    assert found["answers"]["plain"] == found["answers"]["prompt-lookup"]


def test_a_conversation(chat, monkeypatch, folder):
    monkeypatch.setattr("sys.stdin", io.StringIO("the cat\nand the dog\n\nnot read\n"))
    code, out, err = chat("--json")
    assert code == 0, err
    first, second = map(json.loads, out.splitlines())
    talk = mmspec.Chat(mmspec.TextPipeline.from_pretrained(folder))
    assert first["text"] == talk.say("the cat", max_new_tokens=12).text[0]
    assert second["text"] == talk.say("and the dog", max_new_tokens=12).text[0]
    assert first["reused_tokens"] == 0 < second["reused_tokens"]


def test_input_that_is_no_text(chat, monkeypatch):
    latin = io.TextIOWrapper(io.BytesIO("café\n".encode("latin-1")), encoding="utf-8")
    monkeypatch.setattr("sys.stdin", latin)
    code, out, err = chat()
    assert (code, out) == (2, "")
    assert "can't read the input: " in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--compare"], "leave --compare out"),
        (["the cat", "--stream", "--json"], "leave --json out"),
        (["the cat", "--method", "eagle"], "needs the draft head"),
    ],
)
def test_what_it_refuses(chat, more, message):
    code, out, err = chat(*more)
    assert (code, out) == (2, "")
    assert message in err


def test_each_turn_is_told_before_the_next_is_read(folder, monkeypatch):
    """To whoever answers it: output to a pipe is held back otherwise."""
    raw, seen = io.BytesIO(), []

    class Lines:
        def isatty(self):
            return False

        def __iter__(self):
            yield "the cat\n"
            seen.append(raw.getvalue())
            yield "\n"

    monkeypatch.setattr("sys.stdin", Lines())
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw))
    assert main(["chat", "--model", str(folder), "--max-new-tokens", "4", "--json"]) == 0
    assert json.loads(seen[0])["text"]
