"""Guard of the server's memory: how many bytes of requests are here at a time."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .refusals import RefusedError
from .requests import ServeLimits


class BodyGuard:
    """Counts the bytes of every request from when they arrive until it is answered.

    Reading on raises a `RefusedError` where a request has too many, or all that are here together.

    Args:
        limits: `body_bytes` and `held_bytes`.
    """

    def __init__(self, app: ASGIApp, limits: ServeLimits) -> None:
        self.app, self.limits = app, limits
        self.held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size = 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            news = len(message.get("body", b""))
            size += news
            self.held += news
            if size > self.limits.body_bytes:
                raise RefusedError(
                    413, f"the request has more than {self.limits.body_bytes:,} bytes"
                )
            if news and self.held > self.limits.held_bytes:
                raise RefusedError(429, "requests here are too large together; try again later")
            return message

        try:
            await self.app(scope, counted, send)
        finally:
            self.held -= size
