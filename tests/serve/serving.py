"""A server of a test, in a thread of this process; requests to it, and its figures."""

from __future__ import annotations

import base64
import io
import socket
import threading
import time
from contextlib import contextmanager

import httpx
import numpy as np
import uvicorn
from PIL import Image

from mmspec.serve.app import build_app
from mmspec.serve.requests import ServeLimits
from mmspec.worlds.shapes.render import render
from mmspec.worlds.shapes.scene import sample

KEY = "a secret"
LIMITS = ServeLimits(rows=4, waiting=40, seconds=60.0, tokens=64, body_bytes=100_000)
DESCRIBE = "Describe the picture in detail."


def scene(seed: int) -> Image.Image:
    return Image.fromarray(render(sample(np.random.default_rng(seed), "two_object")[1], 128))


def asked(seed: int = 3, text: str = DESCRIBE) -> list[dict]:
    file = io.BytesIO()
    scene(seed).save(file, "PNG")
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}]
    return [{"role": "user", "content": parts}]


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


def figures(address: str) -> dict[str, float]:
    text = httpx.get(f"{address}/metrics", headers={"Authorization": f"Bearer {KEY}"}).text
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}
