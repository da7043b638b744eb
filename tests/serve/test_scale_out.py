"""Replicas on Ray Serve: one of two dies under load, and nobody who asked notices."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from serving import free_port

from mmspec.serve.jobs import News
from mmspec.serve.loading import Offered
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


@pytest.mark.slow  # Ray starts
def test_one_of_two_replicas_dies_under_load():
    import ray

    from mmspec.serve.scale_out import scaled_out

    port = free_port()
    limits = ServeLimits(rows=4, waiting=64, tokens=48)
    offered = [Offered("vlm", "embedded-vlm")]
    body = {"model": "embedded-vlm", "max_tokens": 48, "temperature": 1.0}
    body["messages"] = [{"role": "user", "content": "Describe the picture in detail."}]
    address = f"http://127.0.0.1:{port}"

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

    with scaled_out(offered, limits, (), True, (2, 2), "127.0.0.1", port):
        alone = [ask(seed) for seed in range(4)]

        def replicas() -> list[str]:
            actors = ray.util.list_named_actors(all_namespaces=True)
            return [
                one["name"]
                for one in actors
                if "SERVE_REPLICA" in one["name"] and "#model#" in one["name"]
            ]

        assert len(replicas()) == 2
        died = threading.Event()

        def kill() -> None:
            time.sleep(1.0)
            ray.kill(ray.get_actor(replicas()[0], namespace="serve"))
            died.set()

        threading.Thread(target=kill).start()
        with ThreadPoolExecutor(12) as many:
            whole = many.map(ask, list(range(4)) * 12)
            streams = many.map(lambda seed: ask(seed, True), list(range(4)) * 3)
            answers = list(whole)
            assert len(list(streams)) == 12
        assert died.is_set()
        assert answers == alone * 12
        figures = httpx.get(f"{address}/metrics").text
        assert 'mmspec_requests_total{code="200",model="embedded-vlm"}' in figures
        assert 'code="50' not in figures
