"""What never reaches the page's server: bodies without an end, and addresses for it to fetch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from starlette.datastructures import Headers
from starlette.formparsers import MultiPartException
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .limits import Limits

ENVELOPE = 10_000  # bytes of an upload's request around its file
_ADDRESS = re.compile(r"\s*[a-z][a-z0-9+.-]*://", re.IGNORECASE)


class Gate:
    """ASGI middleware in front of Gradio, which fetches an address that stands where a file's path
    should, and bounds each file of an upload but neither their number nor other requests.

    Args:
        app: what is behind it.
        limits: of a visitor's request.
    """

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self.app, self.limits = app, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with a line that says why not."""
        if scope["type"] == "http":
            try:
                receive = await self._checked(scope, receive)
            except _Refused as refusal:
                await PlainTextResponse(refusal.message, refusal.code)(scope, receive, send)
                return
        await self.app(scope, receive, send)

    async def _checked(self, scope: Scope, receive: Receive) -> Receive:
        """What the app receives in place of a request's body: the same, as far as it may be."""
        if _ADDRESS.search(scope["path"]):
            raise _Refused(403, "this server fetches no addresses")
        upload = scope["path"].endswith("/upload")
        most = self.limits.upload_bytes + ENVELOPE if upload else self.limits.request_bytes
        if int(Headers(scope=scope).get("content-length", 0)) > most:
            raise _TooLarge(most)
        bounded = _bounded(receive, most)
        if upload or scope["method"] in ("GET", "HEAD"):  # an upload is not held in memory
            return bounded
        body = await _read(bounded)
        _check(body)
        return _again(body, receive)


class _Refused(MultiPartException):
    """As Gradio knows errors of an upload that it is reading: it removes what it wrote."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class _TooLarge(_Refused):
    """In the words by which Gradio tells that it is to answer 413."""

    def __init__(self, most: int) -> None:
        super().__init__(413, f"the request exceeds the maximum allowed size of {most:,} bytes")


def _bounded(receive: Receive, most: int) -> Receive:
    """Receives a body of `most` bytes, whatever its header says, and raises after them."""
    left = most

    async def bounded() -> Message:
        nonlocal left
        message = await receive()
        left -= len(message.get("body", b""))
        if left < 0:
            raise _TooLarge(most)
        return message

    return bounded


async def _read(receive: Receive) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


def _again(body: bytes, receive: Receive) -> Receive:
    """Receives a body that was read, and then what comes after it."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return first.pop() if first else await receive()

    return again


def _check(body: bytes) -> None:
    """Raise unless a body is JSON, or nothing, in which no file is an address."""
    try:
        found = json.loads(body or b"null")
    except (ValueError, RecursionError) as error:
        raise _Refused(400, "the request is no JSON") from error
    for value in _objects(found):
        if isinstance(path := value.get("path"), str) and _ADDRESS.match(path):
            raise _Refused(403, "this server fetches no addresses; upload the file")


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """All JSON objects in a value."""
    inside = [value]
    while inside:
        value = inside.pop()
        if isinstance(value, dict):
            yield value
        if isinstance(value, dict | list):
            inside += value.values() if isinstance(value, dict) else value
