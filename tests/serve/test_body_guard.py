"""Bytes of requests that are here at a time, and what of a body is not even read."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import httpx
import pytest

from mmspec.serve.app import build_app
from mmspec.serve.jobs import News
from mmspec.serve.requests import ServeLimits

USAGE = {"prompt": 1, "written": 1, "emitted": 1, "calls": 1, "method": "plain"}
CHAT = "/v1/chat/completions"


class Waiting:
    """A backend whose answers wait until they may come."""

    def __init__(self):
        self.models, self.codes = {"m": "chat"}, []
        self.asked, self.may = 0, asyncio.Event()

    async def submit(self, model, asked, rows, seeds, seconds=None):
        self.asked += 1

        async def news():
            await self.may.wait()
            yield News("finish", 0, "stop")
            yield News("usage", 0, USAGE)

        return news()

    def answered(self, model, code, seconds, usage):
        self.codes.append(code)

    def refused(self, code):
        self.codes.append(code)


def body(size: int, **more) -> dict:
    """A request of about so many bytes."""
    return {"model": "m", "messages": [{"role": "user", "content": "x" * size}], **more}


@asynccontextmanager
async def client(limits):
    backend = Waiting()
    way = httpx.ASGITransport(build_app(backend, limits))
    async with httpx.AsyncClient(transport=way, base_url="http://127.0.0.1") as made:
        yield made, backend


@pytest.mark.parametrize("stream", [False, True])
def test_requests_that_are_too_large_together_are_refused_until_one_is_answered(stream):
    async def run():
        async with client(ServeLimits(held_bytes=3000)) as (ask, backend):
            first = asyncio.create_task(ask.post(CHAT, json=body(2000, stream=stream)))
            while not backend.asked:
                await asyncio.sleep(0.01)
            more = await ask.post(CHAT, json=body(2000))
            assert more.status_code == 429
            assert more.headers["Retry-After"] == "1"
            assert "too large together" in more.json()["error"]["message"]
            backend.may.set()
            assert (await first).status_code == 200
            for _ in range(3):  # nothing of those before is left
                assert (await ask.post(CHAT, json=body(2000))).status_code == 200
            assert backend.codes == [429, *[200] * 4]

    asyncio.run(run())


def test_a_request_that_is_too_large_is_refused_before_it_has_arrived():
    async def run():
        async def chunks():
            for n in range(100):
                sent.append(n)
                yield b"x" * 100

        sent: list[int] = []
        async with client(ServeLimits(body_bytes=1000)) as (ask, backend):
            headers = {"Content-Type": "application/json"}
            told = await ask.post(CHAT, content=chunks(), headers=headers)
        assert told.status_code == 413
        assert "more than 1,000 bytes" in told.json()["error"]["message"]
        assert len(sent) <= 12
        assert backend.codes == [413]

    asyncio.run(run())


@pytest.mark.parametrize("piece", ["[],", '{"a":0},', "0,"])
def test_a_body_of_small_values_alone_is_not_read(piece, monkeypatch):
    """Twenty million bytes of them would become gigabytes."""

    async def run():
        async with client(ServeLimits(characters=50)) as (ask, _):
            many = '{"model": "m", "messages": [], "metadata": [' + piece * 200 + "0]}"
            headers = {"Content-Type": "application/json"}
            told = await ask.post(CHAT, content=many, headers=headers)
            assert told.status_code == 413
            assert "brackets and commas" in told.json()["error"]["message"]

    def never(*_):
        raise AssertionError("it was read")

    monkeypatch.setattr("mmspec.serve.app.parsed", never)
    asyncio.run(run())
