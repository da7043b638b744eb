"""What a folder holds for Speculative Verdict: experts and templates."""

from __future__ import annotations

import json

import pytest

from mmspec.errors import InputError
from mmspec.pipelines.verdict.expert import REASON
from mmspec.pipelines.verdict.folder import VerdictWords, experts_in, verdict_words
from mmspec.pipelines.verdict.verdict import Opinion, verdict_prompt

HEARD = [Opinion("a", "red", path="It is red."), Opinion("b", "blue", path="Blue, I think.")]


def test_published_words_where_a_folder_has_none(tmp_path):
    words = verdict_words(tmp_path)
    assert words.reason == REASON
    assert words.prompt("what colour", HEARD) == verdict_prompt("what colour", HEARD)


def test_words_of_a_folder(tmp_path):
    told = {"reason": "Describe it.", "ask": "{paths}\n{question}"}
    (tmp_path / "verdict.json").write_text(json.dumps(told))
    words = verdict_words(tmp_path)
    assert words == VerdictWords(**told)
    assert words.prompt("What?", HEARD) == "It is red.\nBlue, I think.\nWhat?"


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"ask": "{} {question}"}, "ask may hold {paths}, {question}"),
        ({"reason": "{paths}"}, "reason may hold {question}"),
        ({"reason": "{"}, "reason is no template"),
        ({"reason": 3}, "reason is no template"),
        ({"resaon": "a"}, "did you mean 'reason'"),
        ([], "does not hold a JSON object"),
    ],
)
def test_words_refused(tmp_path, told, said):
    (tmp_path / "verdict.json").write_text(json.dumps(told))
    with pytest.raises(InputError) as error:
        verdict_words(tmp_path)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_experts_of_a_folder(tmp_path):
    assert experts_in(tmp_path) == {}
    for name in ("experts/b", "experts/a", "drafter", "experts/empty"):
        (tmp_path / name).mkdir(parents=True)
        if name != "experts/empty":
            (tmp_path / name / "config.json").write_text("{}")
    assert list(experts_in(tmp_path)) == ["drafter", "a", "b"]
