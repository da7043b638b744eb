"""Guard in front of the routes: keys, hosts, and bodies that no page of another site can send."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from ..hosts import is_loopback
from .jobs import JobError
from .refusals import error_response

OPEN = ("/health",)  # what needs no key


class KeyGuard:
    """Lets through who shows a key, and bodies that no page of another site can send.

    Args:
        posts: paths of routes that take bodies.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: Sequence[str],
        local: bool,
        refused: Callable[[int], None],
        posts: Sequence[str],
    ) -> None:
        self.app, self.keys = app, [key.encode() for key in keys]
        self.local, self.refused, self.posts = local, refused, posts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        guarded = scope["type"] == "http" and scope["path"] not in OPEN
        fault = self._fault(scope) if guarded else None
        if fault is None:
            await self.app(scope, receive, send)
            return
        self.refused(fault.status)
        await error_response(*fault)(scope, receive, send)

    def _fault(self, scope: Scope) -> JobError | None:
        headers = dict(scope["headers"])
        shown = headers.get(b"authorization", b"").removeprefix(b"Bearer ").strip()
        if self.keys and not any(hmac.compare_digest(shown, key) for key in self.keys):
            return JobError(401, "no valid API key; send Authorization: Bearer KEY")
        if self.local and not is_loopback(_host(headers.get(b"host", b""))):
            return JobError(403, "ask by this machine's own name, such as http://127.0.0.1")
        kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        posts = scope["method"] == "POST" and scope["path"] in self.posts
        if posts and kind != b"application/json":
            return JobError(415, "send JSON, with Content-Type: application/json")
        return None


def _host(header: bytes) -> str:
    """The name in a Host header, without its port; "": it is none."""
    try:
        return urlsplit("//" + header.decode("latin-1")).hostname or ""
    except ValueError:
        return ""
