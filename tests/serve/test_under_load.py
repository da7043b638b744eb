"""Speculation that a server leaves out: the same words, and nobody asks the head."""

from __future__ import annotations

from serving import LIMITS, asked

from mmspec.models.target import TokenTarget
from mmspec.serve.backend import ChatAsked
from mmspec.serve.jobs import Job
from mmspec.serve.loading import Offered
from mmspec.serve.metrics import RunMetrics
from mmspec.serve.requests import ChatRequest


def test_a_server_without_drafts_says_the_same_and_calls_no_drafter(monkeypatch):
    """Off, the head is neither read in nor asked: its network is not even run."""
    time, score = [0.0], TokenTarget.score

    def scored(target, context, draft):
        time[0] += 1 + 1.5 * draft.nodes  # no draft pays
        return score(target, context, draft)

    monkeypatch.setattr(TokenTarget, "score", scored)
    monkeypatch.setattr("mmspec.engine.length.guard.now", lambda: time[0])
    runner = Offered("vlm", "embedded-vlm").load(RunMetrics(), LIMITS)
    calls = []
    for head in runner.pipe.heads.values():
        head.register_forward_hook(lambda *_: calls.append(1))
    methods = []
    messages = ChatRequest(model="m", messages=asked()).conversation(LIMITS)

    def run() -> str:
        said = []
        want = ChatAsked(messages, 0.0, 1.0, 0, 24, ())
        runner.run([Job("m", want, want.key, 1, [0], said.append, float("inf"))])
        methods.append(said[-1].value["method"])
        return "".join(one.value for one in said if one.kind == "text")

    heard = [run() for _ in range(4)]  # each size of drafts has its try
    calls.clear()
    heard += [run() for _ in range(2)]
    assert methods[0] == "eagle"
    assert methods[-2:] == ["plain"] * 2
    assert not calls
    assert len(set(heard)) == 1
    assert heard[0]


def test_a_method_that_is_named_always_runs():
    assert (
        Offered("vlm", "embedded-vlm", "eagle").load(RunMetrics(), LIMITS).pipe.switch.ledgers == {}
    )
