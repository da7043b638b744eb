"""Replicas on Ray Serve: one of two dies under load, and nobody who asked notices."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import httpx
import pytest
from serving import free_port, running

from mmspec.cli.main import main
from mmspec.errors import InputError
from mmspec.serve.batcher import BROKEN, ENDS
from mmspec.serve.jobs import News
from mmspec.serve.loading import Offered
from mmspec.serve.metrics import Metrics, RunMetrics
from mmspec.serve.requests import ServeLimits
from mmspec.serve.scale_out import Told


def kinds(news) -> list[tuple]:
    return [tuple(one) for one in news]


def test_what_a_client_has_is_not_told_twice():
    told = Told(2)
    assert kinds(told.new(News("text", 0, "ab"))) == [("text", 0, "ab")]
    assert kinds(told.new(News("text", 1, "x"))) == [("text", 1, "x")]
    assert kinds(told.new(News("finish", 1, "stop"))) == [("finish", 1, "stop")]
    told.again()
    assert kinds(told.new(News("text", 0, "a"))) == []
    assert kinds(told.new(News("text", 1, "x"))) == []
    assert kinds(told.new(News("finish", 1, "stop"))) == []
    assert kinds(told.new(News("text", 0, "bcd"))) == [("text", 0, "cd")]
    assert kinds(told.new(News("finish", 0, "length"))) == [("finish", 0, "length")]
    assert kinds(told.new(News("usage", 0, {}))) == [("usage", 0, {})]


def test_an_answer_that_is_shorter_the_second_time_is_an_error():
    told = Told(1)
    list(told.new(News("text", 0, "a red circle")))
    told.again()
    list(told.new(News("text", 0, "a red")))
    (error,) = told.new(News("finish", 0, "stop"))
    assert error.value.status == 503


def test_an_answer_that_is_another_the_second_time_is_an_error():
    told = Told(1)
    list(told.new(News("text", 0, "a red circle")))
    told.again()
    (error,) = told.new(News("text", 0, "a blue"))
    assert error.value.status == 503


class Stream:
    """News of a replica that never come."""

    cancelled = False

    def __aiter__(self):
        return self

    async def __anext__(self):
        await asyncio.Event().wait()

    def cancel(self):
        self.cancelled = True


def asking(remote):
    """The backend over replicas that a call of `remote` asks."""
    from mmspec.serve.scale_out import RayBackend

    asked = SimpleNamespace(news=SimpleNamespace(remote=remote))
    return RayBackend({"m": "chat"}, SimpleNamespace(options=lambda stream: asked), 60.0)


def test_who_waits_for_a_replica_at_the_end_is_told():
    stream = Stream()
    backend = asking(lambda *_: stream)

    async def told() -> News:
        news = await backend.submit("m", None, 1, [0])
        first = asyncio.create_task(anext(news))
        await asyncio.sleep(0.01)
        threading.Thread(target=backend.end).start()
        heard = await asyncio.wait_for(first, 60)
        await news.aclose()
        await asyncio.sleep(0.01)
        return heard

    assert asyncio.run(told()) == News("error", value=ENDS)
    assert stream.cancelled
    backend.end()  # nobody is left to be told


def test_replicas_that_cannot_be_asked_are_an_error():
    def remote(*_):
        raise RuntimeError("no controller")

    async def told() -> list[News]:
        return [one async for one in await asking(remote).submit("m", None, 1, [0])]

    assert asyncio.run(told()) == [News("error", value=BROKEN)]


@pytest.mark.slow  # Ray starts
def test_one_of_two_replicas_dies_under_load():
    import ray

    from mmspec.serve.scale_out import scaled_out

    limits = ServeLimits(rows=4, waiting=64, tokens=48)
    offered = [Offered("vlm", "embedded-vlm")]
    body = {"model": "embedded-vlm", "max_tokens": 48, "temperature": 1.0}
    body["messages"] = [{"role": "user", "content": "Describe the picture in detail."}]

    def ask(seed: int, stream: bool = False) -> str:
        told = httpx.post(
            f"{address}/v1/chat/completions",
            json={**body, "seed": seed, "stream": stream},
            timeout=120,
        )
        assert told.status_code == 200, told.text
        if not stream:
            return told.json()["choices"][0]["message"]["content"]
        assert told.text.endswith("data: [DONE]\n\n")
        assert "error" not in told.text
        return told.text

    with scaled_out(offered, limits, (2, 2)) as backend, running(backend, limits) as address:
        alone = [ask(seed) for seed in range(4)]

        def replicas() -> list[str]:
            actors = ray.util.list_named_actors(all_namespaces=True)
            return [
                one["name"]
                for one in actors
                if "SERVE_REPLICA" in one["name"] and "#model#" in one["name"]
            ]

        assert len(replicas()) == 2
        with ThreadPoolExecutor(12) as many:
            whole = many.map(ask, list(range(4)) * 6)
            streams = many.map(lambda seed: ask(seed, True), list(range(4)) * 2)
            answers = [next(whole)]  # the others are under way, or wait
            ray.kill(ray.get_actor(replicas()[0], namespace="serve"))
            answers += whole
            assert len(list(streams)) == 8
        assert answers == alone * 6
        figures = httpx.get(f"{address}/metrics").text
        assert 'mmspec_requests_total{code="200",model="embedded-vlm"}' in figures
        assert 'code="50' not in figures
        assert "mmspec_first_token_seconds_count" in figures
        assert "mmspec_waiting" not in figures  # the front knows of none, and says none
        assert httpx.get(f"{address}/health").json() == {"status": "ok"}


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (Exception("1\n2\nThe current node timed out.\n"), "the current node timed out"),
        (ConnectionError("The current node timed out."), "the current node timed out"),
        (AssertionError(), "AssertionError"),
    ],
)
def test_a_cluster_that_does_not_start_is_one_line(monkeypatch, error, told):
    """And Serve is not asked to end: it would start a cluster for it."""
    from mmspec.serve import scale_out

    def init(**_):
        raise error

    def shutdown():
        raise AssertionError("nothing has begun")

    monkeypatch.setattr(scale_out.ray, "init", init)
    monkeypatch.setattr(scale_out.serve, "shutdown", shutdown)
    asked = [Offered("vlm", "embedded-vlm")], ServeLimits(), (1, 1)
    told = f"(?i)^the replicas can't start: {told}.?$"
    with pytest.raises(InputError, match=told), scale_out.scaled_out(*asked):
        pass


def test_serve_that_does_not_start_on_a_cluster_of_others_is_one_line(monkeypatch):
    """There is no application of ours to delete, and that does not take the line's place."""
    from mmspec.serve import scale_out

    def start(**_):
        raise RuntimeError("no room")

    def delete(name):
        deleted.append(name)
        raise scale_out.RayServeException("There is no Serve instance running on this Ray cluster.")

    deleted: list[str] = []
    monkeypatch.setattr(scale_out.ray, "init", lambda **_: None)
    monkeypatch.setattr(scale_out.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(scale_out.serve, "start", start)
    monkeypatch.setattr(scale_out.serve, "delete", delete)
    asked = [Offered("vlm", "embedded-vlm")], ServeLimits(), (1, 1)
    with (
        pytest.raises(InputError, match="can't start: no room"),
        scale_out.scaled_out(*asked, "their:6379"),
    ):
        pass
    assert deleted == ["mmspec"]


@pytest.mark.parametrize(
    ("offered", "told"),
    [
        ([Offered("vlm", "/no/such")], "no model folder at /no/such"),
        ([Offered("vlm", "a/m"), Offered("text", "b/m")], "two models are named 'm'"),
    ],
)
def test_models_that_there_are_not_start_no_ray(monkeypatch, offered, told):
    from mmspec.serve import scale_out

    monkeypatch.setattr(scale_out.ray, "init", None)
    monkeypatch.setattr(scale_out, "_end", None)
    asked = offered, ServeLimits(), (1, 1)
    with pytest.raises(InputError, match=f"^{told}"), scale_out.scaled_out(*asked):
        pass


def test_what_a_replica_refuses_is_the_line(monkeypatch):
    """Of Ray's report of it, which is long."""
    from mmspec.serve import scale_out

    raised = "Traceback (most recent call last):\n  File ...\nmmspec.errors.InputError: no head"
    message = f"The deployment failed to start 3 times in a row.\n{raised}\n"
    app = SimpleNamespace(deployments={"model": SimpleNamespace(message=message)})
    status = SimpleNamespace(applications={"mmspec": app})

    def start(**_):
        raise RuntimeError("Deploying application mmspec failed")

    monkeypatch.setattr(scale_out.ray, "init", lambda **_: None)
    monkeypatch.setattr(scale_out.serve, "start", start)
    monkeypatch.setattr(scale_out.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(scale_out.serve, "status", lambda: status)
    monkeypatch.setattr(scale_out, "_end", lambda address: None)
    asked = [Offered("vlm", "embedded-vlm")], ServeLimits(), (1, 1)
    told = "^the replicas can't start: no head$"
    with pytest.raises(InputError, match=told), scale_out.scaled_out(*asked):
        pass


@pytest.mark.parametrize("kept", [signal.SIG_IGN, lambda number, frame: None])
def test_ray_does_not_take_the_answer_to_sigterm_away(monkeypatch, kept):
    from mmspec.serve import scale_out

    def init(**_):
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))

    def start(**_):
        assert signal.getsignal(signal.SIGTERM) is kept
        raise RuntimeError("seen")

    monkeypatch.setattr(scale_out.ray, "init", init)
    monkeypatch.setattr(scale_out.serve, "start", start)
    monkeypatch.setattr(scale_out.ray, "cluster_resources", lambda: {"CPU": 1.0})
    asked = [Offered("vlm", "embedded-vlm")], ServeLimits(), (1, 1)
    before = signal.signal(signal.SIGTERM, kept)
    try:
        with pytest.raises(InputError, match="seen"), scale_out.scaled_out(*asked):
            pass
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_signal_while_ray_starts_ends_with_the_code_of_shells(monkeypatch):
    from mmspec.serve import scale_out

    def init(**_):  # what Ray itself does by then
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

    monkeypatch.setattr(scale_out.ray, "init", init)
    asked = [Offered("vlm", "embedded-vlm")], ServeLimits(), (1, 1)
    with pytest.raises(SystemExit) as ended, scale_out.scaled_out(*asked):
        pass
    assert ended.value.code == 128 + signal.SIGTERM


def served_until(sent: int) -> tuple[int, str]:
    """The code with which the command ends behind a signal, and what it says on stderr."""
    command = [sys.executable, "-m", "mmspec", "serve", "--replicas", "1", "--port"]
    command += [str(free_port()), "--model", "vlm=embedded-vlm"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # a shell's background jobs, and what they start, ignore it otherwise
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, **pipes, preexec_fn=heard) as process:
        try:
            assert "The server is at" in process.stdout.readline()
            process.send_signal(sent)
            _, said = process.communicate(timeout=180)
        finally:
            process.kill()
    return process.returncode, said


@pytest.mark.slow  # Ray starts
@pytest.mark.parametrize(
    ("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "sigterm"]
)
def test_the_command_ends_in_good_order(sent, code):
    ended, said = served_until(sent)
    assert ended == code, said
    assert "Aborted" not in said
    assert "*** SIG" not in said  # the trace of a crash


def test_ray_is_told_how_many_replicas_there_may_be():
    from mmspec.serve.scale_out import model_deployment

    limits, here = ServeLimits(rows=6, waiting=50), [Offered("vlm", "embedded-vlm")]
    made = model_deployment(here, limits, (1, 4))
    found = made._deployment_config.autoscaling_config
    assert (found.min_replicas, found.max_replicas, found.target_ongoing_requests) == (1, 4, 6)
    assert made.max_ongoing_requests == 12
    assert made.max_queued_requests == 50
    fixed = model_deployment(here, limits, (3, 3))
    assert fixed.num_replicas == 3
    assert fixed._deployment_config.autoscaling_config is None
    assert made.ray_actor_options == {"num_cpus": 1}
    beside = [*here, Offered("image", "embedded-image", device="cuda:0")]
    assert model_deployment(beside, limits, (1, 1)).ray_actor_options["num_gpus"] == 1


@pytest.mark.parametrize(
    ("device", "has", "wrong"),
    [
        ("cpu", {"CPU": 4.0}, None),
        ("cpu", {"CPU": 3.0}, "4 replicas need 4 CPUs, and this machine has 3"),
        ("cuda", {"CPU": 8.0, "GPU": 4.0}, None),
        ("cuda", {"CPU": 8.0, "GPU": 1.0}, "4 replicas need 4 GPUs, and this machine has 1"),
        ("cuda", {"CPU": 8.0}, "4 replicas need 4 GPUs, and this machine has 0"),
    ],
)
def test_more_replicas_than_there_is_room_for_are_refused(device, has, wrong):
    """Ray would wait for room for ever, without a line."""
    from mmspec.serve.scale_out import check_room

    here = [Offered("vlm", "embedded-vlm", device=device)]
    if wrong is None:
        check_room(here, 4, has)
        return
    with pytest.raises(InputError, match=wrong):
        check_room(here, 4, has)


def test_room_is_looked_for_on_this_machine_alone(monkeypatch):
    """In one line; others' clusters may grow."""
    from mmspec.serve import scale_out

    def start(**_):
        raise RuntimeError("seen")

    monkeypatch.setattr(scale_out.ray, "init", lambda **_: None)
    monkeypatch.setattr(scale_out.ray, "cluster_resources", lambda: {"CPU": 3.0})
    monkeypatch.setattr(scale_out.serve, "start", start)
    asked = [Offered("vlm", "embedded-vlm")], ServeLimits(), (4, 8)
    with pytest.raises(InputError, match=r"^4 replicas need 4 CPUs"), scale_out.scaled_out(*asked):
        pass
    with pytest.raises(InputError, match="seen"), scale_out.scaled_out(*asked, "far:6379"):
        pass


def test_a_device_of_a_cluster_is_not_looked_for_here(capsys, monkeypatch):
    def never(device):
        raise AssertionError(device)

    monkeypatch.setattr("mmspec.cli.serve.check_device", never)
    command = ["serve", "--cluster", "far:6379", "--device", "cuda", "--port", str(free_port())]
    assert main(command) == 2
    assert "--cluster is for --replicas" in capsys.readouterr().err


def test_the_front_tells_its_own_figures_only():
    metrics = Metrics()
    metrics.began("m", 0.2)
    metrics.answered("m", 200, 0.5, {})
    text = metrics.text().decode()
    assert 'mmspec_first_token_seconds_count{model="m"} 1.0' in text
    queue = ("mmspec_waiting", "mmspec_batch_rows", "mmspec_busy_seconds")
    assert not any(name in text for name in queue)
    assert all(name in RunMetrics().text().decode() for name in queue)
