"""Figures of a running server, in Prometheus' form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from .jobs import Job

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_ROWS = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """Counters of requests since the server began; rates of acceptance follow from them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own: dict[str, Any] = {"registry": self.registry}
        self.requests = Counter("mmspec_requests", "Requests by outcome", ["model", "code"], **own)
        self.latency = Histogram(
            "mmspec_request_seconds",
            "From arrival to the end",
            ["model"],
            buckets=_SECONDS,
            **own,
        )
        self.first = Histogram(
            "mmspec_first_token_seconds",
            "From arrival to the first token",
            ["model"],
            buckets=_SECONDS,
            **own,
        )
        named = ["model", "method"]
        self.emitted = Counter("mmspec_tokens", "Tokens of outputs", named, **own)
        self.calls = Counter("mmspec_target_calls", "Calls of the target, a row each", named, **own)
        self.drafted = Counter("mmspec_drafted_tokens", "Tokens that were drafted", named, **own)
        self.accepted = Counter("mmspec_accepted_tokens", "Drafted tokens that stood", named, **own)
        self.per_call = Gauge("mmspec_tokens_per_call", "Tokens a call, so far", named, **own)
        self.rate = Gauge("mmspec_acceptance", "Part of drafts that stood, so far", named, **own)
        self._sums: dict[tuple[str, str], list[int]] = {}

    def _generation(self, model: str, usage: Mapping[str, Any]) -> None:
        """Hear what an answer took, as its last news say."""
        name = model, usage["method"]
        counts = [usage[of] for of in ("emitted", "calls", "drafted", "accepted")]
        many = self.emitted, self.calls, self.drafted, self.accepted
        for counter, count in zip(many, counts, strict=True):
            counter.labels(*name).inc(count)
        sums = self._sums.setdefault(name, [0] * 4)
        self._sums[name] = sums = [a + b for a, b in zip(sums, counts, strict=True)]
        emitted, calls, drafted, accepted = sums
        self.per_call.labels(*name).set(emitted / max(1, calls))
        self.rate.labels(*name).set(accepted / max(1, drafted))

    def began(self, model: str, seconds: float) -> None:
        """Hear of a request's first token or picture, so long after it arrived."""
        self.first.labels(model).observe(seconds)

    def answered(self, model: str, code: int, seconds: float, usage: Mapping[str, Any]) -> None:
        """Hear of a request's end; `usage` is what its last news say, if it was answered."""
        if usage:
            self._generation(model, usage)
        self.requests.labels(model, str(code)).inc()
        self.latency.labels(model).observe(seconds)

    def refused(self, code: int) -> None:
        """Hear of a request that no model saw."""
        self.requests.labels("", str(code)).inc()

    def text(self) -> bytes:
        """Text of the figures in Prometheus' form."""
        return generate_latest(self.registry)


class RunMetrics(Metrics):
    """Counters of a process that runs batches itself: its line, their rows and seconds, too."""

    def __init__(self) -> None:
        super().__init__()
        own: dict[str, Any] = {"registry": self.registry}
        self.waiting = Gauge("mmspec_waiting", "Requests that wait", **own)
        self.rows = Histogram("mmspec_batch_rows", "Rows of a batch", buckets=_ROWS, **own)
        self.busy = Counter("mmspec_busy_seconds", "Seconds in which a batch ran", **own)

    def batch(self, jobs: Sequence[Job], seconds: float) -> None:
        """Hear that a batch is over."""
        self.rows.observe(sum(job.rows for job in jobs))
        self.busy.inc(seconds)
