"""Load on the server: clients in a closed loop, a speculative and a plain one in turn."""

from __future__ import annotations

import base64
import http.client
import io
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]
from PIL import Image

from mmspec.errors import InputError
from mmspec.eval.measure.bootstrap import ratio_interval
from mmspec.worlds.shapes.render import render
from mmspec.worlds.shapes.scene import sample

START = 180.0  # seconds that a server may take to load its models
TOKENS = 48  # of an answer
PICTURES = 8  # a request in so many asks for a picture to be drawn, the others ask about one
QUESTIONS = ("Describe the picture in detail.", "What is the shape of the largest object?")
CAPTIONS = ("a photo of a red circle", "a photo of three yellow stars")


@dataclass
class Load:
    """Counts of what a server did in its turns.

    Attributes:
        answered, errors: requests.
        tokens, pictures: of texts, and pictures that were drawn, of every turn.
        seconds: of every request.
        spent: of every turn.
        bytes: of the server's memory, at the beginning and after every turn.
    """

    answered: int = 0
    errors: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    pictures: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    spent: list[float] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)


def measure_serving(clients: int, seconds: float, turns: int) -> dict[str, Any]:
    """Load a server that speculates and a plain one, each for `seconds` in `turns` turns.

    Both run all the while; one is asked at a time. Clients ask again as soon as they are answered.

    Raises:
        InputError: a server does not start.
    """
    methods = {"speculative": [], "plain": ["--method", "vlm=plain", "--method", "image=plain"]}
    bodies = _bodies()
    loads = {name: Load() for name in methods}
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(_server([*more, "--waiting", str(4 * clients)]))
            for name, more in methods.items()
        }
        for name, (address, process) in servers.items():
            _turn(address, bodies, clients, 5.0, Load())  # first calls are slow ones
            loads[name].bytes.append(process.memory_info().rss)
        for turn in range(turns):
            order = list(servers) if turn % 2 == 0 else list(servers)[::-1]
            for name in order:
                address, process = servers[name]
                _turn(address, bodies, clients, seconds / turns, loads[name])
                loads[name].bytes.append(process.memory_info().rss)
    return {"clients": clients, **{name: _figures(load) for name, load in loads.items()}} | {
        "speedup": _speedup(loads["speculative"], loads["plain"])
    }


def _figures(load: Load) -> dict[str, Any]:
    spread = np.percentile(load.seconds or [0.0], [50, 95, 99]).round(3).tolist()
    rate, drawn = (sum(of) / sum(load.spent) for of in (load.tokens, load.pictures))
    sizes = [round(size / 2**20) for size in load.bytes]
    return {
        "answered": load.answered,
        "errors": load.errors[:5],
        "tokens_per_second": round(rate, 1),
        "tokens_per_second_by_turn": [round(one, 1) for one in _rates(load)],
        "pictures_per_second": round(drawn, 2),
        "seconds_p50_p95_p99": spread,
        "megabytes": sizes,
        "megabytes_grown": sizes[-1] - sizes[1],  # since its first turn, in which caches fill
    }


def _speedup(ours: Load, plain: Load) -> list[float]:
    """Tokens a second over the plain server's, by turn: the median and its 95 % interval."""
    both = zip(_rates(ours), _rates(plain), strict=True)
    ratio, (low, high) = ratio_interval([a / b for a, b in both])
    return [round(x, 3) for x in (ratio, low, high)]


def _rates(load: Load) -> list[float]:
    return [count / spent for count, spent in zip(load.tokens, load.spent, strict=True)]


def _bodies() -> list[tuple[str, dict[str, Any]]]:
    """Requests, in the order in which clients take them."""
    out: list[tuple[str, dict[str, Any]]] = []
    for seed in range(64):
        if seed % PICTURES == 0:
            words = CAPTIONS[seed // PICTURES % len(CAPTIONS)]
            out.append(("/v1/images/generations", {"prompt": words}))
            continue
        file = io.BytesIO()
        _, scene = sample(np.random.default_rng(seed), "two_object")
        Image.fromarray(render(scene, 128)).save(file, "PNG")
        url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
        parts = [
            {"type": "image_url", "image_url": {"url": url}},
            {"type": "text", "text": QUESTIONS[seed % len(QUESTIONS)]},
        ]
        told = {"model": "embedded-vlm", "messages": [{"role": "user", "content": parts}]}
        out.append(("/v1/chat/completions", told | {"max_tokens": TOKENS, "temperature": 0}))
    return out


@contextmanager
def _server(options: Sequence[str]) -> Iterator[tuple[str, psutil.Process]]:
    """A server in a process of its own: its address, and the process."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    command = [sys.executable, "-m", "mmspec", "serve", "--port", str(port), *options]
    said = tempfile.TemporaryFile()  # noqa: SIM115  # it is gone with the process
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said)
    address, started = f"http://127.0.0.1:{port}", time.monotonic()
    try:
        while True:
            try:
                urllib.request.urlopen(f"{address}/health", timeout=5).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() - started > START:
                    said.seek(0)
                    why = said.read().decode()[-300:]
                    raise InputError(f"the server does not start: {why}") from None
                time.sleep(0.5)
        yield address, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


def _turn(
    address: str, bodies: list[tuple[str, dict[str, Any]]], clients: int, seconds: float, load: Load
) -> None:
    """Let clients ask for so long; those that wait at the end are waited for."""
    began, lock = time.monotonic(), threading.Lock()
    tokens, pictures, number = [0], [0], [0]

    def ask() -> None:
        while time.monotonic() - began < seconds:
            with lock:
                route, body = bodies[number[0] % len(bodies)]
                number[0] += 1
            asked = time.monotonic()
            try:
                told = _post(address + route, body)
            except (OSError, ValueError, http.client.HTTPException) as error:
                with lock:
                    load.errors.append(str(error)[:100])
                continue
            with lock:
                load.answered += 1
                load.seconds.append(time.monotonic() - asked)
                tokens[0] += told.get("usage", {}).get("completion_tokens", 0)
                pictures[0] += len(told.get("data", ()))

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    load.tokens.append(tokens[0])
    load.pictures.append(pictures[0])
    load.spent.append(time.monotonic() - began)


def _post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=300) as told:
        out: dict[str, Any] = json.loads(told.read())
    return out
