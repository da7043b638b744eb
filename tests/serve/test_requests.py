"""Bodies of requests: what is taken, and the line that says what is wrong."""

from __future__ import annotations

import base64
import io
import json

import pytest
from PIL import Image

from mmspec.errors import InputError
from mmspec.serve.requests import ChatRequest, PictureRequest, ServeLimits, parsed

LIMITS = ServeLimits(pictures=2, pixels=130, characters=50, tokens=40)


def url(side: int = 8, kind: str = "PNG") -> str:
    file = io.BytesIO()
    Image.new("RGB", (side, side), "red").save(file, kind)
    return f"data:image/{kind.lower()};base64," + base64.b64encode(file.getvalue()).decode()


def chat(content="hello", **more) -> bytes:
    turn = {"role": "user", "content": content}
    return json.dumps({"model": "m", "messages": [turn], **more}).encode()


WORDS = {"type": "text", "text": "What is this?"}


def seen(where: str) -> dict:
    return {"type": "image_url", "image_url": {"url": where}}


def test_nesting_that_is_too_deep_is_the_clients_fault():
    deep = b'{"model": "m", "messages": [], "metadata": ' + b"[" * 600 + b"]" * 600 + b"}"
    with pytest.raises(InputError):
        parsed(ChatRequest, deep)


def test_a_conversation_with_pictures():
    asked = parsed(ChatRequest, chat([seen(url()), WORDS], max_tokens=7, stop="a", user="me"))
    (turn,) = asked.conversation(LIMITS)
    assert turn["role"] == "user"
    assert Image.open(io.BytesIO(turn["content"][0]["image"])).size == (8, 8)
    assert turn["content"][1] == WORDS
    assert (asked.length(LIMITS), asked.stops, asked.temperature) == (7, ("a",), 1.0)
    longer = parsed(ChatRequest, chat(max_completion_tokens=900, stop=["a", ""]))
    assert (longer.length(LIMITS), longer.stops) == (40, ("a",))
    told = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    asked = parsed(ChatRequest, json.dumps({"model": "m", "messages": told}).encode())
    assert [one["role"] for one in asked.conversation(LIMITS)] == ["system", "user"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "the body: Invalid JSON"),
        (b"[]", "the body: Input should be"),
        (chat(logit_bias={"5": 1}), "does not honour logit_bias; leave it out"),
        (chat(tools=[]), "does not honour tools"),
        (
            chat(frequency_penalty=0.5),
            "frequency_penalty: this server honours 0 alone; leave it out",
        ),
        (chat(temperature=3), "temperature"),
        (chat(temperature="1"), "temperature"),
        (chat(top_p=0), "top_p"),
        (chat(max_tokens=0), "max_tokens"),
        (chat(n=99), "n: "),
        (chat(seed=-1), "seed"),
        (chat(stop=["a"] * 5), "stop: List should have at most 4 items"),
        (chat(stop=5), "stop: it must be a string, or a list of them"),
        (chat(5), "messages.0.content: it must be text, or a list of parts"),
        (chat([{"type": "input_audio"}]), "messages.0.content.0: Input tag 'input_audio'"),
        (chat([{**WORDS, "cache_control": {}}]), "not honour messages.0.content.0.text.cache"),
        (json.dumps({"model": "m", "messages": []}).encode(), "messages"),
        (json.dumps({"messages": []}).encode(), "model: Field required"),
    ],
)
def test_what_is_wrong_with_a_body(body, message):
    with pytest.raises(InputError) as error:
        parsed(ChatRequest, body)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([seen("https://example.org/a.png")], "must be a data URL"),
        ([seen("/etc/passwd")], "must be a data URL"),
        ([seen("file:///etc/passwd")], "must be a data URL"),
        ([seen("data:image/png;base64,@@@@")], "base64 can't be read"),
        ([seen("data:image/png;base64,aGVsbG8=")], "no PNG, JPEG or WebP picture"),
        ([seen(url(kind="BMP"))], "no PNG, JPEG or WebP picture"),
        ([seen(url(12))], "have 144 pixels, more than 130"),
        ([seen(url(8)), seen(url(9))], "have 145 pixels, more than 130"),
        ([seen(url())] * 3, "at most 2 pictures"),
        ("x" * 51, "51 characters, more than 50"),
        (" ", "the question is empty"),
        ([], "the question is empty"),
        ([seen(url())], "the question is empty"),
    ],
)
def test_what_is_wrong_with_a_conversation(content, message):
    asked = parsed(ChatRequest, chat(content))
    with pytest.raises(InputError, match=message):
        asked.conversation(LIMITS)


def test_what_is_null_is_not_given():
    """As OpenAI's clients send it, and their own answers as the next turn's."""
    said = {"role": "assistant", "content": None, "refusal": None, "tool_calls": None}
    part = {**WORDS, "cache_control": None}
    turns = [{"role": "user", "content": "a"}, said, {"role": "user", "content": [part]}]
    nothing = dict.fromkeys(("temperature", "stream", "tools", "stop", "max_tokens", "logit_bias"))
    body = json.dumps({"model": "m", "messages": turns, **nothing}).encode()
    asked = parsed(ChatRequest, body)
    assert [one["role"] for one in asked.conversation(LIMITS)] == ["user", "assistant", "user"]
    assert (asked.temperature, asked.length(LIMITS)) == (1.0, None)


def test_the_last_message_is_the_users():
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    body = json.dumps({"model": "m", "messages": turns}).encode()
    with pytest.raises(InputError, match="the last message must be the user's"):
        parsed(ChatRequest, body).conversation(LIMITS)


def test_what_scripts_say_and_nothing_changes_is_taken():
    usual = dict(quality="standard", background="auto", moderation="low", user="me")
    body = json.dumps({"prompt": "a", **usual}).encode()
    assert parsed(PictureRequest, body).prompt == "a"
    assert parsed(ChatRequest, chat(parallel_tool_calls=False, presence_penalty=0))
    with pytest.raises(InputError, match="quality"):
        parsed(PictureRequest, json.dumps({"prompt": "a", "quality": "hd"}).encode())


def test_sizes_of_pictures():
    def sides(**more):
        body = json.dumps({"prompt": "a", **more}).encode()
        return parsed(PictureRequest, body).sides(LIMITS)

    assert sides() is None
    assert sides(size="auto") is None
    assert sides(size="128x64") == (128, 64)
    for wrong in ("128", "0x4", "1e3x4", "128x128x3", "-1x2"):
        with pytest.raises(InputError, match="size must be such as 128x128"):
            sides(size=wrong)
    with pytest.raises(InputError, match="response_format"):
        sides(response_format="url")
    with pytest.raises(InputError, match="51 characters, more than 50"):
        sides(prompt="x" * 51)
