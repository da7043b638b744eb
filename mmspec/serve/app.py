"""OpenAI's routes: `/v1/chat/completions`, `/v1/images/generations`, `/v1/models`; `/health` and
`/metrics` beside them.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import ClientDisconnect

from .. import __version__
from ..errors import InputError
from ..files import to_json
from .backend import Backend, BusyError, ChatAsked, PictureAsked
from .body_guard import BodyGuard
from .jobs import News
from .key_guard import KeyGuard
from .refusals import GONE, FailedError, RefusedError, broken, refused, shape, unknown
from .requests import ChatRequest, PictureRequest, ServeLimits, parsed


def build_app(
    backend: Backend, limits: ServeLimits, keys: Sequence[str] = (), local: bool = True
) -> FastAPI:
    """The server as an ASGI application.

    Args:
        backend: does the work.
        limits: of requests.
        keys: one of which a client must show; none: everybody may ask.
        local: without keys, only requests to this machine by its own name are heard: a page whose
            name was turned to this machine's address is none.
    """
    app = FastAPI(
        title="mmspec", version=__version__, docs_url=None, redoc_url=None, openapi_url=None
    )
    app.state.backend, app.state.limits = backend, limits
    posts = {"/v1/chat/completions": chat, "/v1/images/generations": pictures}
    guard: dict[str, Any] = {"keys": keys, "local": local and not keys, "posts": [*posts]}
    app.add_middleware(BodyGuard, limits=limits)
    app.add_middleware(KeyGuard, refused=backend.refused, **guard)
    app.add_exception_handler(RefusedError, refused)
    app.add_exception_handler(StarletteHTTPException, unknown)
    app.add_exception_handler(Exception, broken)
    app.add_api_route("/health", health, methods=["GET"])
    app.add_api_route("/metrics", metrics, methods=["GET"])
    app.add_api_route("/v1/models", models, methods=["GET"])
    app.add_api_route("/v1/models/{name:path}", one_model, methods=["GET"])
    for path, route in posts.items():
        app.add_api_route(path, route, methods=["POST"])
    return app


async def health(request: Request) -> Response:
    """Say whether the server can answer, and how many requests wait."""
    backend = _backend(request)
    fine = await backend.healthy()
    body: dict[str, Any] = {"status": "ok" if fine else "failing"}
    if (waiting := await backend.waiting()) is not None:
        body["waiting"] = waiting
    return JSONResponse(body, 200 if fine else 503)


async def metrics(request: Request) -> Response:
    """Figures in Prometheus' form."""
    kind = "text/plain; version=0.0.4; charset=utf-8"
    return Response(await _backend(request).metrics(), media_type=kind)


async def models(request: Request) -> Response:
    """The models' names."""
    names = _backend(request).models
    rows = [{"id": n, "object": "model", "created": 0, "owned_by": "mmspec"} for n in names]
    return JSONResponse({"object": "list", "data": rows})


async def one_model(request: Request, name: str) -> Response:
    """A model by its name."""
    if name not in _backend(request).models:
        raise RefusedError(404, f"no model {name!r} here")
    return JSONResponse({"id": name, "object": "model", "created": 0, "owned_by": "mmspec"})


async def chat(request: Request) -> Response:
    """Answer a conversation, whole or as a stream."""
    limits: ServeLimits = request.app.state.limits
    asked: ChatRequest = await _body(request, ChatRequest)
    name = _named(request, asked.model, "chat")
    job = ChatAsked(
        await _checked(lambda: asked.conversation(limits)),
        *(asked.temperature, asked.top_p, asked.top_k),
        asked.length(limits),
        asked.stops,
        asked.seed is not None,
    )
    news = await _submitted(request, name, job, asked.n, asked.seed)
    head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": name}
    if asked.stream:
        told = asked.stream_options is not None and asked.stream_options.include_usage
        # what is wrong with a request is an error, no stream
        first = await _unless_gone(request, news)
        if first is None:
            raise RefusedError(503, "the server ends")
        _raise(first)
        stream = _stream(first, news, head, asked.n, told)
        return StreamingResponse(stream, media_type="text/event-stream")
    texts, finish = [""] * asked.n, [""] * asked.n
    usage: dict[str, Any] = {}
    async for one in _while_connected(request, news):
        _raise(one)
        if one.kind == "text":
            texts[one.choice] += one.value
        elif one.kind == "finish":
            finish[one.choice] = one.value
        elif one.kind == "usage":
            usage = one.value
    choices = [
        {
            "index": n,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": None,
            "finish_reason": why,
        }
        for n, (text, why) in enumerate(zip(texts, finish, strict=True))
    ]
    body = {**head, "object": "chat.completion", "choices": choices}
    return JSONResponse({**body, "usage": _usage(usage), "mmspec": _speed(usage)})


async def pictures(request: Request) -> Response:
    """Draw pictures, as PNG in base64."""
    limits: ServeLimits = request.app.state.limits
    asked: PictureRequest = await _body(request, PictureRequest)
    name = _named(request, asked.model, "picture")
    sides = await _checked(lambda: asked.sides(limits))
    job = PictureAsked(asked.prompt, sides, asked.guidance_scale, asked.seed is not None)
    news = await _submitted(request, name, job, asked.n or 1, asked.seed)
    data: list[dict[str, str]] = [{}] * (asked.n or 1)
    usage: dict[str, Any] = {}
    async for one in _while_connected(request, news):
        _raise(one)
        if one.kind == "picture":
            data[one.choice] = {"b64_json": base64.b64encode(one.value).decode()}
        elif one.kind == "usage":
            usage = one.value
    return JSONResponse({"created": int(time.time()), "data": data, "mmspec": _speed(usage)})


def _backend(request: Request) -> Backend:
    backend: Backend = request.app.state.backend
    return backend


async def _body(request: Request, kind: Any) -> Any:
    """The request's body, of bounded size and of its form, that arrives in time."""
    limits: ServeLimits = request.app.state.limits
    try:
        read = await asyncio.wait_for(request.body(), limits.seconds)
    except ClientDisconnect:
        request.app.state.backend.refused(GONE)
        raise RefusedError(GONE, "the client is gone") from None
    except asyncio.TimeoutError:
        raise RefusedError(408, "the request took too long to arrive") from None
    if sum(map(read.count, b"[{,")) > limits.parts:
        raise RefusedError(413, f"the request has more than {limits.parts:,} brackets and commas")
    return await _checked(lambda: parsed(kind, read))


async def _checked(make: Callable[[], Any]) -> Any:
    """What is made beside the event loop: reading pictures takes its time."""
    try:
        return await asyncio.to_thread(make)
    except InputError as error:
        raise RefusedError(400, str(error)) from error


def _named(request: Request, name: str | None, kind: str) -> str:
    """The model of a request; None: the first of its kind."""
    known = [n for n, what in _backend(request).models.items() if what == kind]
    if name is None and known:
        return known[0]
    if name not in known:
        listed = ", ".join(known) or "none"
        raise RefusedError(404, f"no model {name!r} for this route here; there are: {listed}")
    return name


async def _submitted(
    request: Request, name: str, asked: Any, rows: int, seed: int | None
) -> AsyncGenerator[News, None]:
    seed = secrets.randbelow(2**53) if seed is None else seed
    started, backend = time.monotonic(), _backend(request)
    most: int = request.app.state.limits.rows
    if rows > most:
        raise RefusedError(400, f"n is at most {most} here")
    try:
        news = await backend.submit(name, asked, rows, [seed + n for n in range(rows)])
    except BusyError:
        raise RefusedError(429, "too many requests wait here; try again in a moment") from None

    async def counted() -> AsyncGenerator[News, None]:
        code, usage = GONE, {}
        try:
            async for one in news:
                if one.kind == "usage":
                    code, usage = 200, one.value
                elif one.kind == "error":
                    code = one.value.status
                yield one
        except Exception:
            code = 500
            raise
        finally:
            await news.aclose()
            backend.answered(name, code, time.monotonic() - started, usage)

    return counted()


async def _while_connected(
    request: Request, news: AsyncGenerator[News, None]
) -> AsyncIterator[News]:
    """All news, until the client is gone."""
    while (one := await _unless_gone(request, news)) is not None:
        yield one


async def _unless_gone(request: Request, news: AsyncGenerator[News, None]) -> News | None:
    """The next news; None: there are no more.

    Raises:
        RefusedError: the client went away, and the request is cancelled.
    """
    gone = asyncio.ensure_future(_disconnected(request))
    step = asyncio.ensure_future(anext(news, None))
    try:
        await asyncio.wait({step, gone}, return_when=asyncio.FIRST_COMPLETED)
        if step.done():
            return step.result()
        raise RefusedError(GONE, "the client is gone")
    finally:
        gone.cancel()
        if not step.done():
            step.cancel()
            with suppress(asyncio.CancelledError):
                await step
            await news.aclose()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _stream(
    first: News, news: AsyncGenerator[News, None], head: Mapping[str, Any], choices: int, told: bool
) -> AsyncIterator[str]:
    """Server-sent events; a client that goes away cancels this."""
    head = {**head, "object": "chat.completion.chunk"}

    def event(choice: int, delta: Mapping[str, Any], why: str | None = None) -> str:
        one = {"index": choice, "delta": delta, "logprobs": None, "finish_reason": why}
        body = {**head, "choices": [one], **({"usage": None} if told else {})}
        return f"data: {to_json(body)}\n\n"

    try:
        for choice in range(choices):
            yield event(choice, {"role": "assistant", "content": ""})
        one: News | None = first
        while one is not None:
            if one.kind == "text":
                yield event(one.choice, {"content": one.value})
            elif one.kind == "finish":
                yield event(one.choice, {}, one.value)
            elif one.kind == "error":
                yield f"data: {to_json(shape(one.value))}\n\n"
            elif one.kind == "usage" and told:
                body = {**head, "choices": [], "usage": _usage(one.value)}
                yield f"data: {to_json({**body, 'mmspec': _speed(one.value)})}\n\n"
            one = await anext(news, None)
        yield "data: [DONE]\n\n"
    finally:
        await news.aclose()


def _usage(counts: Mapping[str, Any]) -> dict[str, int]:
    prompt, written = counts.get("prompt", 0), counts.get("written", 0)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
    }


def _speed(counts: Mapping[str, Any]) -> dict[str, Any]:
    """What speculation saved: calls of the target, and tokens a call."""
    calls = counts["calls"]
    speed = {"target_calls": calls, "tokens_per_call": counts["emitted"] / max(1, calls)}
    return {"method": counts["method"], **speed}


def _raise(news: News) -> None:
    """Tell of a job's error, which is counted with its request."""
    if news.kind == "error":
        raise FailedError(*news.value)
