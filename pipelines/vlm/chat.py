"""Chat messages, as transformers' pipelines take them: what a template is told, and the pictures.

`[{"role": "user", "content": [{"type": "image", "image": PICTURE}, {"type": "text", "text": …}]}]`;
content may be text alone, and a picture that is not in its part comes from beside the messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import InputError
from ...registry import check_name

Message = Mapping[str, Any]
ROLES = ("system", "user", "assistant")
_HOLDS = ("image", "path", "url")  # the keys of a part's picture, as in transformers


def conversation(
    messages: Sequence[Message], pictures: Sequence[Any] = ()
) -> tuple[list[dict[str, Any]], list[Any]]:
    """The messages of a conversation as chat templates want them, and their pictures in order.

    `pictures` are for the parts that hold none; where no part is a picture, they stand before the
    first text.

    Raises:
        InputError: a message is not of this form, a picture would have to be downloaded, or there
            are more or fewer pictures than parts for them.
    """
    waiting, seen, told = [*pictures], [], []
    turns = [_parts(message) for message in messages]
    if waiting and not any(part["type"] == "image" for parts in turns for part in parts):
        first = next((n for n, one in enumerate(messages) if one["role"] == "user"), 0)
        turns[first] = [{"type": "image"} for _ in waiting] + turns[first]
    for message, parts in zip(messages, turns, strict=True):
        content: list[dict[str, str]] = []
        for part in parts:
            if part["type"] == "text":
                content.append({"type": "text", "text": part["text"]})
                continue
            held = next((part[key] for key in _HOLDS if part.get(key) is not None), None)
            if held is None and not waiting:
                raise InputError("a message has a place for a picture, and there is none for it")
            seen.append(waiting.pop(0) if held is None else held)
            content.append({"type": "image"})
        told.append({**message, "content": content})
    if waiting:
        raise InputError(f"{len(waiting)} pictures more than the messages have places for")
    if messages[-1]["role"] != "user":
        raise InputError("the last message must be the user's: it is what is answered")
    if not any(part["type"] == "text" and part["text"].strip() for part in turns[-1]):
        raise InputError("the question is empty; say what to answer")
    return told, seen


def _parts(message: Message) -> list[Message]:
    if message.get("role") is None:
        raise InputError(f"a message has no role; give one of {', '.join(ROLES)}")
    check_name("role of a message", message["role"], ROLES)
    content = message.get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list | tuple):
        raise InputError("a message's content must be text, or a list of parts")
    for part in parts:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "text" and isinstance(part.get("text"), str):
            continue
        if kind != "image":
            raise InputError(
                'a part of a message must be {"type": "text", "text": …} or '
                f'{{"type": "image", "image": …}}, and this one is of type {kind!r}'
            )
        for key in _HOLDS:
            if str(part.get(key)).startswith(("http:", "https:", "data:")):
                raise InputError("pictures are not downloaded here; give an opened one or a path")
    return [*parts]
