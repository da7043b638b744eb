"""How requests and the server end: clients that leave, time that is over, signals."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace

import httpx
import pytest
from serving import KEY, LIMITS, asked, figures, free_port, running

from mmspec.serve import backend as serving_backend
from mmspec.serve import jobs, web_server
from mmspec.serve.requests import ServeLimits


def left_while_streaming(where: str, body: dict, headers: dict) -> None:
    with httpx.stream("POST", where, json={**body, "stream": True}, headers=headers) as told:
        next(told.iter_lines())


def left_while_waiting(where: str, body: dict, headers: dict) -> None:
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(where, json=body, headers=headers, timeout=httpx.Timeout(60, read=1.0))


def left_before_the_first_word(where: str, body: dict, headers: dict) -> None:
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            where,
            json={**body, "stream": True},
            headers=headers,
            timeout=httpx.Timeout(60, read=0.05),
        )


def until(true: Callable[[], bool]) -> None:
    """Wait for what is going to be; a minute is no measure of a machine."""
    for _ in range(1200):
        if true():
            return
        time.sleep(0.05)
    raise AssertionError("it is not so after a minute")


def test_a_client_that_goes_away_frees_its_place(address, backend):
    """Streams and whole answers: the batch ends as soon as nobody needs it."""
    # greedily a long answer, of many rounds
    body = {"model": "embedded-vlm", "messages": asked(), "max_tokens": 64, "temperature": 0}
    slow = threading.Event()
    runner = backend.batcher.runners["embedded-vlm"]
    usual = runner.pipe._after_round

    def held(*args, **state):
        slow.wait(0.5)
        return usual(*args, **state)

    runner.pipe._after_round = held
    gone = 'mmspec_requests_total{code="499",model="embedded-vlm"}'
    before = figures(address).get(gone, 0.0)
    try:
        for n, leave in enumerate(
            (left_while_streaming, left_while_waiting, left_before_the_first_word), 1
        ):
            leave(f"{address}/v1/chat/completions", body, {"Authorization": f"Bearer {KEY}"})
            # who reads no more may be gone before the server has begun: first it is counted
            until(lambda n=n: figures(address).get(gone, 0.0) >= before + n)
            until(lambda: not backend.batcher._running and not backend.batcher.waiting)
    finally:
        del runner.pipe._after_round


@pytest.mark.parametrize(
    ("seconds", "status", "message"),
    [(0.0, 503, "the request waited too long"), (1000.0, 504, "the answer took too long")],
)
def test_what_takes_too_long_ends(backend, monkeypatch, seconds, status, message):
    """By a clock that stands still but in rounds, of which each takes longer than there is."""
    now = [0.0]
    monkeypatch.setattr(jobs, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(serving_backend, "time", SimpleNamespace(monotonic=lambda: now[0] - 1))
    short = ServeLimits(**{**vars(LIMITS), "seconds": seconds})
    backend.limits, usual = short, backend.limits
    pipe = backend.batcher.runners["embedded-vlm"].pipe
    own = pipe._after_round

    def slow(*args, **state):
        now[0] += 2000.0
        return own(*args, **state)

    pipe._after_round = slow
    body = {"model": "embedded-vlm", "messages": asked(), "max_tokens": 64, "temperature": 0}
    try:
        with running(backend, LIMITS) as where:
            told = httpx.post(f"{where}/v1/chat/completions", json=body)
    finally:
        backend.limits = usual
        del pipe._after_round
    assert told.status_code == status
    assert told.json()["error"]["message"].startswith(message)
    assert told.headers["x-should-retry"] == "false"


@pytest.mark.slow
def test_the_process_ends_when_it_is_asked_to(tmp_path):
    """With an answer under way: it is told, and the process ends in good order."""
    port = free_port()
    command = [sys.executable, "-m", "mmspec", "serve", "--port", str(port), "--model"]
    process = subprocess.Popen([*command, "vlm=embedded-vlm", "--method", "vlm=plain"])
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            with suppress(httpx.HTTPError):
                httpx.get(f"{address}/health")
                break
            time.sleep(0.2)
        body = {"model": "embedded-vlm", "messages": asked(), "temperature": 2.0, "n": 8}
        with ThreadPoolExecutor(1) as one:
            answer = one.submit(
                httpx.post, f"{address}/v1/chat/completions", json=body, timeout=180
            )
            for _ in range(600):
                if httpx.get(f"{address}/metrics").text.count("mmspec_first_token_seconds_count{"):
                    break
                time.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            assert process.wait(180) == 128 + signal.SIGTERM
            told = answer.result()
        assert told.status_code in (200, 503)
    finally:
        process.kill()


class Half:
    """A request of which the first half is sent."""

    def __init__(self, address: str) -> None:
        place = httpx.URL(address)
        self.socket = socket.create_connection((place.host, place.port), timeout=30)
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"
        head += f"Authorization: Bearer {KEY}\r\nContent-Type: application/json\r\n\r\n{{"
        self.socket.sendall(head.encode())

    def told(self) -> str:
        """All that comes until the server ends the connection."""
        return b"".join(iter(lambda: self.socket.recv(4096), b"")).decode()


@pytest.mark.slow
def test_a_request_that_does_not_arrive_ends(backend):
    short = ServeLimits(**{**vars(LIMITS), "seconds": 0.2})
    with running(backend, short, [KEY]) as where:
        half = Half(where)
        with half.socket:  # so that a server that waits for it can end, too
            told = half.told()
    assert told.startswith("HTTP/1.1 408")
    assert "the request took too long to arrive" in told


def test_a_client_that_leaves_in_the_middle_of_its_request(address, capfd):
    """No trace in the log; it is counted."""
    gone = 'mmspec_requests_total{code="499",model=""}'
    before = figures(address).get(gone, 0.0)
    Half(address).socket.close()
    until(lambda: figures(address).get(gone, 0.0) == before + 1)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("batches", [1, 4])
def test_all_that_run_and_wait_are_let_in(monkeypatch, batches):
    """And a few that only look; who comes beyond these is told by the queue, with 429."""
    made = []
    server = SimpleNamespace(run=lambda: None)
    monkeypatch.setattr(web_server, "EndingServer", lambda config, _: made.append(config) or server)
    limits = ServeLimits(rows=64, waiting=16)
    web_server.run_server(None, None, "127.0.0.1", free_port(), limits, batches)
    assert made[0].limit_concurrency > 64 * batches + 16 + 1
