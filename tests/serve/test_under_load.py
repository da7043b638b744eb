"""Speculation that a server leaves out: the same words, and nobody asks the head."""

from __future__ import annotations

import pytest
from serving import LIMITS, asked

from mmspec.models.target import TokenTarget
from mmspec.serve.backend import ChatAsked
from mmspec.serve.jobs import Job
from mmspec.serve.loading import Offered
from mmspec.serve.metrics import RunMetrics
from mmspec.serve.requests import ChatRequest


@pytest.fixture(autouse=True)
def no_draft_pays(monkeypatch):
    time, score = [0.0], TokenTarget.score

    def scored(target, context, draft):
        time[0] += 1 + 1.5 * draft.nodes
        return score(target, context, draft)

    monkeypatch.setattr(TokenTarget, "score", scored)
    monkeypatch.setattr("mmspec.engine.length.guard.now", lambda: time[0])


class Served:
    """A model as it is offered, and how often parts of its heads have run."""

    def __init__(self, method: str | None = None) -> None:
        self.runner = Offered("vlm", "embedded-vlm", method).load(RunMetrics(), LIMITS)
        self.calls = 0
        for head in self.runner.pipe.heads.values():
            for part in head.modules():  # a head as a whole is never called
                part.register_forward_hook(self._called)
        self.messages = ChatRequest(model="m", messages=asked()).conversation(LIMITS)

    def _called(self, *_: object) -> None:
        self.calls += 1

    def answers(self, times: int) -> list[tuple[str, str]]:
        """Method and text of answers to the same request."""
        found = []
        for _ in range(times):
            said = []
            want = ChatAsked(self.messages, 0.0, 1.0, 0, 24, ())
            self.runner.run([Job("m", want, want.key, 1, [0], said.append, float("inf"))])
            text = "".join(one.value for one in said if one.kind == "text")
            found.append((said[-1].value["method"], text))
        return found


def test_a_server_without_drafts_says_the_same_and_calls_no_drafter():
    """Off, the head is neither read in nor asked: its network is not even run."""
    served = Served()
    first = served.answers(4)  # each size of drafts has its try
    assert served.calls
    served.calls = 0
    last = served.answers(2)
    assert first[0][0] == "eagle"
    assert [method for method, _ in last] == ["plain"] * 2
    assert not served.calls
    assert len({text for _, text in first + last}) == 1
    assert last[0][1]


def test_a_method_that_is_named_always_runs():
    served = Served("eagle")
    assert {method for method, _ in served.answers(5)} == {"eagle"}
    served.calls = 0
    served.answers(1)
    assert served.calls
