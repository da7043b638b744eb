"""The server: routes on a port, until the process is asked to end."""

from __future__ import annotations

from types import FrameType
from typing import Any

import uvicorn

from .backend import Backend
from .requests import ServeLimits

GRACE = 10  # seconds that answers have to be sent when the server ends


class EndingServer(uvicorn.Server):
    """A server that tells its backend first when it is asked to end."""

    def __init__(self, config: uvicorn.Config, backend: Backend) -> None:
        super().__init__(config)
        self.backend = backend

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.backend.end()  # or connections would wait for answers that are long in coming
        super().handle_exit(sig, frame)


def run_server(
    app: Any, backend: Backend, host: str, port: int, limits: ServeLimits, batches: int = 1
) -> None:
    """Serve until the process is asked to end.

    Args:
        app, backend: see `build_app`.
        host, port: where.
        limits: of which `waiting` and `rows` bound connections, too.
        batches: that run at a time, of all models and replicas.
    """
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        limit_concurrency=2 * (limits.waiting + limits.rows * batches) + 16,
        timeout_graceful_shutdown=GRACE,
    )
    EndingServer(config, backend).run()
