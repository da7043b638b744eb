"""Bodies of requests in OpenAI's form: what may be said, within bounds.

What would change an answer and is not honoured is refused by name; what only labels a request is
taken and ignored.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)

from ..errors import InputError
from ..files import to_json
from ..picture import WEB_FORMATS, check_picture
from ..pipelines.vlm.chat import conversation as check_conversation

Seed = Annotated[int, Field(ge=0, lt=2**53)]
_DATA = re.compile(r"data:image/[a-z+.-]+;base64,(.*)", re.DOTALL)
MOST_CHOICES = 8


@dataclass(frozen=True)
class ServeLimits:
    """Limits of the server.

    Attributes:
        body_bytes: of a request.
        held_bytes: of all requests that are here at a time.
        pixels: of all pictures of a request.
        pictures: of a request.
        characters: of all texts of a request.
        tokens: of an answer.
        rows: answers or pictures that run at a time.
        waiting: requests that wait; beyond, clients are told to come back.
        seconds: that a request may take to arrive, and again from then to its last token.
    """

    body_bytes: int = 20_000_000
    held_bytes: int = 500_000_000
    pixels: int = 16_000_000
    pictures: int = 8
    characters: int = 100_000
    tokens: int = 2048
    rows: int = 16
    waiting: int = 256
    seconds: float = 120.0

    @property
    def parts(self) -> int:
        """Brackets and commas of a request: read, each may be an object of many times its size."""
        return 2 * self.characters


def _zero(value: float) -> float:
    """A penalty of none; others would change an answer."""
    if value:
        raise ValueError("this server honours 0 alone; leave it out")
    return value


Zero = Annotated[float, AfterValidator(_zero)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Labelled(_Body):
    """A request's labels."""

    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None


class TextPart(_Body):
    """Part of a message: text."""

    type: Literal["text"]
    text: str


class ImageUrl(_Body):
    """A picture as a data URL; nothing is downloaded, and no path is read."""

    url: str
    detail: Any = None


class ImagePart(_Body):
    """Part of a message: a picture."""

    type: Literal["image_url"]
    image_url: ImageUrl


Part = Annotated[TextPart | ImagePart, Field(discriminator="type")]


def _in_parts(content: Any) -> Any:
    """Text alone is the one part of its message."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise ValueError("it must be text, or a list of parts")
    return content


class ChatMessage(_Body):
    """A turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[list[Part], BeforeValidator(_in_parts)] = []
    name: Any = None
    refusal: Any = None
    annotations: Any = None
    audio: Any = None


def _listed(stop: Any) -> Any:
    """A string alone is a list of one."""
    if isinstance(stop, str):
        return [stop]
    if not isinstance(stop, list):
        raise ValueError("it must be a string, or a list of them")
    return stop


class StreamOptions(_Body):
    """Options of a stream."""

    include_usage: bool = False
    include_obfuscation: bool = False


class ChatRequest(_Labelled):
    """Body of `/v1/chat/completions`; `top_k` is ours."""

    model: str
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=1000)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] = 1
    seed: Seed | None = None
    stop: Annotated[list[str], Field(max_length=4), BeforeValidator(_listed)] = []
    stream: bool = False
    stream_options: StreamOptions | None = None
    frequency_penalty: Zero | None = None
    presence_penalty: Zero | None = None
    parallel_tool_calls: Any = None  # there are no tools to call
    logprobs: Literal[False] | None = None
    response_format: dict[Literal["type"], Literal["text"]] | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """Strings that end an answer; they are not part of it."""
        return tuple(text for text in self.stop if text)

    def length(self, limits: ServeLimits) -> int | None:
        """Tokens that an answer may have; None: nobody says."""
        asked = self.max_completion_tokens or self.max_tokens
        return None if asked is None else min(asked, limits.tokens)

    def conversation(self, limits: ServeLimits) -> list[dict[str, Any]]:
        """The messages as pipelines take them; pictures are checked, and opened by who runs them.

        Raises:
            InputError: too much text, too many pictures, one that can't be read, or no question at
                the end.
        """
        told, characters, pictures, pixels = [], 0, 0, 0
        for message in self.messages:
            content: list[dict[str, Any]] = []
            for part in message.content:
                if isinstance(part, TextPart):
                    characters += len(part.text)
                    content.append({"type": "text", "text": part.text})
                    continue
                pictures += 1
                if pictures > limits.pictures:
                    raise InputError(f"a request holds at most {limits.pictures} pictures")
                data, size = _picture(part.image_url.url)
                pixels += size
                if pixels > limits.pixels:
                    raise InputError(
                        f"the pictures have {pixels:,} pixels, more than {limits.pixels:,}; make "
                        "them smaller"
                    )
                content.append({"type": "image", "image": data})
            role = "system" if message.role == "developer" else message.role
            told.append({"role": role, "content": content})
        if characters > limits.characters:
            raise InputError(
                f"the messages have {characters:,} characters, more than {limits.characters:,}"
            )
        check_conversation(told)
        return told


class PictureRequest(_Labelled):
    """Body of `/v1/images/generations`; `seed` and `guidance_scale` are ours."""

    prompt: Annotated[str, Field(min_length=1)]
    model: str | None = None
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    size: str | None = None
    response_format: Literal["b64_json"] | None = None
    output_format: Literal["png"] | None = None
    quality: Literal["auto", "standard"] | None = None  # what others' scripts say for "as usual"
    background: Literal["auto"] | None = None
    moderation: Literal["auto", "low"] | None = None
    seed: Seed | None = None
    guidance_scale: Annotated[float, Field(ge=1, le=30)] | None = None

    def sides(self, limits: ServeLimits) -> tuple[int, int] | None:
        """Width and height in pixels; None: the model's own.

        Raises:
            InputError: the size is none, or the prompt is too long.
        """
        if len(self.prompt) > limits.characters:
            raise InputError(
                f"the prompt has {len(self.prompt):,} characters, more than {limits.characters:,}"
            )
        if self.size in (None, "auto"):
            return None
        found = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})", str(self.size))
        if found is None:
            raise InputError(f"size must be such as 128x128, or auto, not {self.size!r}")
        return int(found[1]), int(found[2])


def parsed(kind: type[_Body], body: bytes) -> Any:
    """A request of `kind`.

    Raises:
        InputError: the body is not of its form: the first thing that is wrong.
    """
    try:
        return kind.model_validate_json(_without_nulls(body))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            raise InputError(f"this server does not honour {where}; leave it out") from None
        told = first["msg"].removeprefix("Value error, ")
        raise InputError(f"{where or 'the body'}: {told}") from None


def _picture(url: str) -> tuple[bytes, int]:
    """A picture's file, and its pixels."""
    found = _DATA.fullmatch(url)
    if found is None:
        raise InputError(
            "a picture must be a data URL, data:image/png;base64,…: nothing is downloaded here"
        )
    try:
        data = base64.b64decode(found[1], validate=True)
    except (binascii.Error, ValueError):
        raise InputError("a picture's base64 can't be read") from None
    width, height = check_picture(data, WEB_FORMATS)
    return data, width * height


def _without_nulls(body: bytes) -> bytes:
    """A body without fields that are null: they are not given."""

    def given(fields: Any, *inner: str) -> Any:
        """Drop nulls of an object, and of those in its list of this name."""
        if not isinstance(fields, dict):
            return fields
        kept = {name: value for name, value in fields.items() if value is not None}
        for name in inner[:1]:
            if isinstance(kept.get(name), list):
                kept[name] = [given(one, *inner[1:]) for one in kept[name]]
        return kept

    try:
        return to_json(given(json.loads(body), "messages", "content")).encode()
    except (ValueError, RecursionError):
        return body  # what is wrong with it is said where it is read
