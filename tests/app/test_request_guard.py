"""What the guard counts of uploads before they are files."""

from __future__ import annotations

import asyncio

from mmspec.app.limits import Limits
from mmspec.app.request_guard import RequestGuard


def test_uploads_on_their_way_have_a_size_together(tmp_path):
    """Also one that does not declare its size: it may become the largest."""
    answers: list[int] = []

    async def send(message) -> None:
        answers.extend([message["status"]] if "status" in message else [])

    async def visits() -> tuple[list[int], list[int]]:
        go, inside = asyncio.Event(), []

        async def app(scope, receive, send) -> None:
            inside.append(int(dict(scope["headers"]).get(b"content-length", -1)))
            await go.wait()

        guard = RequestGuard(
            app, Limits(upload_bytes=60_000, uploads_bytes=100_000), tmp_path, False
        )

        async def upload(size: int | None) -> None:
            headers = [] if size is None else [(b"content-length", str(size).encode())]
            scope = {
                "type": "http",
                "method": "POST",
                "path": "/gradio_api/upload",
                "headers": headers,
            }
            await guard(scope, asyncio.Event().wait, send)

        at_once = [asyncio.create_task(upload(size)) for size in (60_000, None, 50_000, 30_000)]
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(*at_once)
        first = list(inside)
        await upload(None)
        return first, inside[len(first) :]

    assert asyncio.run(visits()) == ([60_000, 30_000], [-1])
    assert answers == [503, 503]
