"""Guard of the page's server against bodies without an end, more files than it may hold,
addresses for it to fetch, pages of other hosts, and what the page itself never asks for."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.formparsers import MultiPartException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..hosts import is_loopback
from .limits import Limits

ENVELOPE = 10_000  # bytes of an upload's request around its file
# what the page asks for, by method; Gradio would answer much more
_READ = re.compile(
    r"/|/config|/theme\.css|/favicon\.ico|/(assets|static)/.+"
    r"|/gradio_api/(startup-events|heartbeat/[^/]+|queue/data|upload_progress|file=.+)"
)
_WRITTEN = re.compile(r"/gradio_api/(queue/join|run/predict|cancel|reset|upload)")
_ADDRESS = re.compile(r"\s*[a-z][a-z0-9+.-]*://", re.IGNORECASE)


class RequestGuard:
    """ASGI middleware in front of Gradio, which fetches an address that stands where a file's path
    should, and bounds each file of an upload but neither their number, nor what is held of them,
    nor other requests.

    Args:
        scratch: the folder that uploads are written to.
        local: answer only requests that name this machine as their host. A page of
            another host that leads here (DNS rebinding) would else have what its visitor has.
    """

    def __init__(self, app: ASGIApp, limits: Limits, scratch: Path, local: bool) -> None:
        self.app, self.limits, self.scratch, self.local = app, limits, scratch, local
        self._coming = 0  # bytes of uploads that are on their way

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with a line that says why not."""
        upload = 0
        if scope["type"] == "http":
            try:
                receive, upload = await self._checked(scope, receive)
            except _Refused as refusal:
                await PlainTextResponse(refusal.message, refusal.code)(scope, receive, send)
                return
            except ClientDisconnect:  # nobody waits for an answer
                return
        self._coming += upload
        try:
            await self.app(scope, receive, send)
        finally:
            self._coming -= upload

    async def _checked(self, scope: Scope, receive: Receive) -> tuple[Receive, int]:
        """Check a request; returns what the app receives as its body, and the most bytes of an
        upload."""
        if self.local and not is_loopback(_host(scope)):
            raise _Refused(403, "this server answers to localhost and 127.0.0.1 alone")
        if _ADDRESS.search(scope["path"]):
            raise _Refused(403, "this server fetches no addresses")
        reads = scope["method"] in ("GET", "HEAD")
        if not reads and not _own(Headers(scope=scope)):
            raise _Refused(403, "this server takes requests of its own page alone")
        if not (_READ if reads else _WRITTEN).fullmatch(scope["path"]):
            raise _Refused(404, "this page has nothing there")
        upload = scope["path"].endswith("/upload")
        most = self.limits.upload_bytes + ENVELOPE if upload else self.limits.request_bytes
        declared = Headers(scope=scope).get("content-length")
        if int(declared or 0) > most:
            raise _TooLarge(most)
        bounded = _bounded(receive, most)
        if upload:  # is not held in memory
            size = most if declared is None else int(declared)
            if _held(self.scratch) + self._coming + size > self.limits.uploads_bytes:
                raise _Refused(503, "the server holds too many uploads; try again in an hour")
            return bounded, size
        if reads:
            return bounded, 0
        body = await Request(scope, bounded).body()
        _check(body)
        return _again(body, receive), 0


class _Refused(MultiPartException):
    """An error that Gradio knows while it reads an upload: it removes what it wrote."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class _TooLarge(_Refused):
    """An error in the words by which Gradio tells that it is to answer 413."""

    def __init__(self, most: int) -> None:
        super().__init__(413, f"the request exceeds the maximum allowed size of {most:,} bytes")


def _host(scope: Scope) -> str:
    """The host that a request names, without its port; "": none."""
    try:
        return urlsplit(f"//{Headers(scope=scope).get('host', '')}").hostname or ""
    except ValueError:  # half of an IPv6 address
        return ""


def _own(headers: Headers) -> bool:
    """True if a request comes from the server's own page, or from no page.

    A browser names the page that a request comes from (RFC 6454, section 7). Behind a proxy the
    page's host is the one that the proxy was asked for.
    """
    origin = headers.get("origin")
    if origin is None:
        return True
    named = [headers.get("host", ""), headers.get("x-forwarded-host", "").split(",")[0]]
    scheme, _, place = origin.lower().partition("://")
    usual = {"http": ":80", "https": ":443"}.get(scheme, "")
    return bool(place) and place.removesuffix(usual) in {
        name.strip().lower().removesuffix(usual) for name in named
    }


def _held(folder: Path) -> int:
    size = 0
    for file in folder.rglob("*"):
        with suppress(FileNotFoundError):  # it was removed since
            size += file.stat().st_size
    return size


def _bounded(receive: Receive, most: int) -> Receive:
    """Receive a body of `most` bytes, whatever its header says, and raise after them."""
    left = most

    async def bounded() -> Message:
        nonlocal left
        message = await receive()
        left -= len(message.get("body", b""))
        if left < 0:
            raise _TooLarge(most)
        return message

    return bounded


def _again(body: bytes, receive: Receive) -> Receive:
    """Receive a body that was read, and then what comes after it."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return first.pop() if first else await receive()

    return again


def _check(body: bytes) -> None:
    """Raise unless a body is JSON, or nothing, in which no file is an address."""

    def look(value: dict[str, Any]) -> None:
        if isinstance(path := value.get("path"), str) and _ADDRESS.match(path):
            raise _Refused(403, "this server fetches no addresses; upload the file")

    try:
        json.loads(body or b"null", object_hook=look)
    except (ValueError, RecursionError) as error:
        raise _Refused(400, "the request is no JSON") from error
