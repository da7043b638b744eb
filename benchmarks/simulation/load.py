"""Requests that arrive by chance and wait for each other: latency by load."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import simpy

from .schedules import Process

LOADS = (0.3, 0.6, 0.9)  # arrivals in the time that plain decoding takes for one request
REQUESTS = 4000


def latency(seconds: Sequence[float], gap: float) -> float:
    """Mean seconds from a request's arrival to its end, where one is served at a time.

    Args:
        seconds: that requests take, each as likely.
        gap: mean seconds between arrivals, which know nothing of each other.
    """
    coins, env, took = np.random.default_rng(0), simpy.Environment(), list[float]()
    server = simpy.Resource(env)
    arrivals = coins.exponential(gap, REQUESTS)
    which = coins.integers(len(seconds), size=REQUESTS)

    def served(need: float) -> Process:
        arrived = env.now
        with server.request() as turn:
            yield turn
            yield env.timeout(need)
        took.append(env.now - arrived)

    def arriving() -> Process:
        for wait, number in zip(arrivals, which, strict=True):
            yield env.timeout(wait)
            env.process(served(seconds[number]))

    env.process(arriving())
    env.run()
    return float(np.mean(took))
