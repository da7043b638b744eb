"""Conversations of text benchmarks are read whole, and wrong lines are named."""

from __future__ import annotations

import json

import pytest

from mmspec.errors import InputError
from mmspec.eval.data.conversations import Conversation, load_conversations, read_conversations
from mmspec.eval.suite import load_suite

LINES = [
    {"question_id": 81, "category": "writing", "turns": ["Write a poem.", "Shorter."]},
    {"question_id": 82, "category": "writing", "turns": ["Write a story."]},
    {"question_id": 83, "category": "writing", "turns": ["Write a play."], "reference": None},
    {"question_id": 201, "category": "qa", "turns": ["Who?"]},
    {"turns": ["Where?"]},
]


def file(tmp_path, lines):
    path = tmp_path / "question.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_categories_take_turns(tmp_path):
    found = read_conversations(file(tmp_path, LINES))
    assert [one.prompt for one in found] == [
        *("Write a poem.", "Who?", "Where?", "Write a story.", "Write a play.")
    ]
    assert found[0] == Conversation(("Write a poem.", "Shorter."), "writing", "81")
    assert found[2] == Conversation(("Where?",))
    assert found[0].metadata()["turns"] == ("Write a poem.", "Shorter.")


def test_the_suite_takes_the_users(tmp_path):
    suite = load_suite("spec-bench")
    assert len(load_conversations(suite, file(tmp_path, LINES))) == 5
    with pytest.raises(InputError, match="no prompts of its own: --prompts FILE"):
        load_conversations(suite, None)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"category": "qa"}, "line 1: no 'turns'"),
        ({"turns": []}, "line 1: 'turns' must be a list of texts, none of them empty"),
        ({"turns": ["a", " "]}, "line 1: 'turns' must be a list of texts, none of them empty"),
        ({"turns": [{"user": "a"}]}, "line 1: 'turns' must be text"),
        ({"turns": ["a"], "category": 3}, "line 1: 'category' must be text"),
        ({"turns": ["a"], "question_id": 1.5}, "line 1: 'question_id' must be"),
    ],
)
def test_wrong_lines_are_named(tmp_path, line, message):
    with pytest.raises(InputError, match=message):
        read_conversations(file(tmp_path, [line]))


def test_an_empty_file_is_refused(tmp_path):
    with pytest.raises(InputError, match="holds no conversations"):
        read_conversations(file(tmp_path, []))
