"""Refusals in the form of OpenAI's errors."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as StarletteHTTPException

from .batcher import BROKEN
from .jobs import JobError

GONE = 499  # the status of a request whose client went away; nobody is told it


class RefusedError(Exception):
    """A request that gets an error in OpenAI's form."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class FailedError(RefusedError):
    """A request that a model saw, and that came to nothing."""


async def refused(request: Request, error: Exception) -> Response:
    """Answer a refused request; one that a model saw is counted with its request."""
    assert isinstance(error, RefusedError)
    if not isinstance(error, FailedError) and error.status != GONE:
        request.app.state.backend.refused(error.status)
    return error_response(error.status, error.message)


async def unknown(request: Request, error: Exception) -> Response:
    """Answer for routes and methods that there are not: those that there are."""
    assert isinstance(error, StarletteHTTPException)
    told = f"{request.method} {request.url.path}: {error.detail}"
    known = [route.path for route in request.app.routes if route.path.startswith("/v1/")]
    if error.status_code == 404:
        told += f"; this server has {', '.join(sorted(path for path in known if '{' not in path))}"
    return error_response(error.status_code, told)


async def broken(request: Request, error: Exception) -> Response:
    """Answer where something went wrong; the log says what."""
    return error_response(*BROKEN)


def error_response(status: int, message: str) -> Response:
    """An error as OpenAI's clients read it."""
    headers = {"Retry-After": "1"} if status == 429 else {}
    if status in (503, 504):  # OpenAI's client would ask again by itself, with the same end
        headers["x-should-retry"] = "false"
    return JSONResponse(shape(JobError(status, message)), status, headers)


def shape(error: JobError) -> dict[str, Any]:
    """The body of an error."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    return {"error": {"message": error.message, "type": kind, "param": None, "code": None}}
