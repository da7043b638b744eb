"""What one answer of an expert, or of a verdict, is counted as."""

from __future__ import annotations

from types import SimpleNamespace

from mmspec.eval.modalities.vlm.experts import _answer, _judge
from mmspec.eval.run.samples import output_tokens
from mmspec.pipelines.verdict.verdict import VerdictError


def counters(answers) -> dict:
    return {"emitted": answers.stats.emitted}


def test_an_expert_alone_puts_out_its_own_tokens():
    """So its seconds a token are those of its answer; no call of the target is behind it."""

    def answer(picture, question):
        expert.tokens += 7
        return "red"

    expert = SimpleNamespace(name="small", tokens=3, answer=answer)
    found = _answer(expert, None, "which colour?")
    assert found.text == ["red"]
    assert output_tokens(counters(found)) == 7
    assert found.stats.nfe == found.stats.mean_acceptance_length == 0


def test_a_verdict_without_an_answer_took_its_time():
    """A row of no seconds could be compared with none."""

    def verdict(picture, question):
        raise VerdictError("no expert is left")

    found = _judge(verdict, None, "which colour?")
    assert found.text == [""]
    assert found.stats.loop_seconds > 0
    assert output_tokens(counters(found)) == 1
