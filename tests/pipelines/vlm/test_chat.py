"""Chat messages as transformers' pipelines take them."""

from __future__ import annotations

import pytest
import torch
from answering import model, picture, processor

from mmspec import InputError, VlmPipeline
from mmspec.pipelines.vlm.chat import conversation


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def user(*parts, **more) -> dict:
    return {"role": "user", "content": [*parts], **more}


@pytest.fixture(scope="module")
def pipe() -> VlmPipeline:
    return VlmPipeline(model(2, 0).double(), processor())


def theirs(pipe, messages, pictures) -> list[int]:
    """Transformers' own answer to one conversation, in its own words."""
    words = pipe.processor.apply_chat_template(messages, add_generation_prompt=True)
    given = {"images": pictures} if pictures else {}
    batch = pipe.processor(text=[words], **given, return_tensors="pt")
    if pictures:
        batch["pixel_values"] = batch["pixel_values"].double()
    out = pipe.model.generate(**batch, max_new_tokens=8, do_sample=False)
    return out[0, batch["input_ids"].shape[1] :].tolist()


def test_messages_are_answered_as_transformers_does(pipe, tmp_path):
    saved = tmp_path / "a.png"
    picture(1).save(saved)
    image = {"type": "image"}
    for asked, beside, same, pictures in (
        ([user(image | {"image": picture(0)}, text("what is red"))], None, None, [picture(0)]),
        ([user(text("what is red"), image | {"path": str(saved)})], None, None, [picture(1)]),
        ([user(image, text("what is red"))], picture(0), None, [picture(0)]),
        ([user(image, text("a"), image)], [picture(0), picture(1)], None, [picture(0), picture(1)]),
        (
            [{"role": "user", "content": "what is red"}],
            picture(0),
            [user(image, text("what is red"))],
            [picture(0)],
        ),
        ([user(text("a square"))], None, None, []),
    ):
        wanted = theirs(pipe, same or asked, pictures)
        assert pipe(asked, beside, max_new_tokens=8).tokens == [wanted]
    turns = [
        user(image | {"url": picture(2)}, text("what is red")),
        {"role": "assistant", "content": [text("a square")]},
        user(text("what is the circle on the left")),
    ]
    assert pipe(turns, max_new_tokens=8).tokens == [theirs(pipe, turns, [picture(2)])]
    both = pipe([turns, [user(text("a square"))]], max_new_tokens=8).tokens
    assert both == [
        pipe(one, max_new_tokens=8).tokens[0] for one in (turns, [user(text("a square"))])
    ]


def test_a_question_is_a_message_of_one_turn(pipe):
    asked = [user({"type": "image", "image": picture(0)}, text("what is red"))]
    generators = [torch.Generator().manual_seed(1) for _ in range(2)]
    drawn = [
        pipe(*given, max_new_tokens=8, temperature=1.0, generator=g).tokens
        for given, g in zip(((asked,), ("what is red", picture(0))), generators, strict=True)
    ]
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize(
    ("messages", "image", "said"),
    [
        ([user(text(" "))], None, "the question is empty"),
        ([user({"type": "image"}, text("a"))], None, "there is none for it"),
        ([user({"type": "image"}, text("a"))], [picture(0)] * 2, "1 pictures more than"),
        ([{"role": "robot", "content": "a"}], None, "unknown role of a message 'robot'"),
        ([{"role": "user"}], None, "content must be text, or a list of parts"),
        ([{"content": "a"}], None, "a message has no role; give one of system, user, assistant"),
        ([user({"type": "video", "video": "a.mp4"})], None, "this one is of type 'video'"),
        ([user("a")], None, "this one is of type None"),
        ([user({"type": "text", "text": 3})], None, "this one is of type 'text'"),
        ([user({"type": "image", "url": "https://a/b.png"})], None, "not downloaded here"),
        ([user(text("a")), {"role": "assistant", "content": "b"}], None, "must be the user's"),
        ([user({"type": "image", "path": "none.png"}, text("a"))], None, "no picture none.png"),
    ],
    ids=lambda value: None,
)
def test_messages_that_can_not_be(pipe, messages, image, said):
    with pytest.raises(InputError, match=said) as caught:
        pipe(messages, image)
    assert "\n" not in str(caught.value)


def test_what_is_given_is_left_as_it_was():
    messages = [{"role": "user", "content": "a"}]
    told, seen = conversation(messages, ["one"])
    assert messages == [{"role": "user", "content": "a"}]
    assert (told[0]["content"], seen) == ([{"type": "image"}, text("a")], ["one"])


def test_a_message_keeps_what_else_it_says():
    """Templates read it: calls of tools, names, reasons."""
    calls = [{"type": "function", "function": {"name": "f", "arguments": {}}}]
    said = {"role": "assistant", "content": "", "tool_calls": calls}
    told, _ = conversation([user(text("b")), said, user(text("a"))])
    assert told[1] == {**said, "content": [{"type": "text", "text": ""}]}
