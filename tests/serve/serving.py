"""A server of a test, in a thread of this process."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager

import uvicorn

from mmspec.serve.app import build_app


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextmanager
def running(backend, limits, keys=()):
    """The address of a server over `backend`."""
    port = free_port()
    app = build_app(backend, limits, keys)
    config = uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()
