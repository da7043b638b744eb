"""Questions about pictures from files: the world's lists, one's own, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from mmspec.errors import InputError
from mmspec.eval.data.picture_questions import read_picture_questions
from mmspec.worlds.shapes.exchanges import draw, held_out_descriptions, held_out_questions


def test_the_worlds_questions_know_their_pictures_and_their_truth(tmp_path):
    lines = [*held_out_questions(1), *held_out_descriptions(4)]
    (tmp_path / "asked.jsonl").write_text("\n".join(json.dumps(line.line()) for line in lines))
    items = read_picture_questions(tmp_path / "asked.jsonl")
    assert [(i.prompt, i.tag, i.answer) for i in items] == [
        (line.question, line.kind, line.answer) for line in lines
    ]
    for item, line in zip(items, lines, strict=True):
        np.testing.assert_array_equal(np.asarray(item.picture(64)), draw(line.picture(), 64))
        if "description" in line.kind:
            assert item.scores(line.answer) == {"truthfulness": 1.0, "coverage": 1.0}
            assert item.scores("There is nothing.")["truthfulness"] < 1
        else:
            assert item.scores(line.answer) == {"accuracy": 1.0}
            assert item.scores("a heap of sand") == {"accuracy": 0.0}


def test_own_questions(tmp_path):
    Image.new("RGB", (9, 5), "red").save(tmp_path / "red.png")
    known = {"image": "red.png", "question": "Which color?", "answer": "Red", "kind": "colors"}
    rows = [known, {"image": "red.png", "question": "And?"}]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    first, second = read_picture_questions(tmp_path / "own.jsonl")
    assert first.picture(64).size == (9, 5)  # as it is
    assert (first.tag, first.scores("the red"), first.scores("blue")) == (
        "colors",
        {"accuracy": 1.0},
        {"accuracy": 0.0},
    )
    assert (second.tag, second.scores("anything")) == ("", {})
    assert json.loads(json.dumps(second.metadata()))["prompt"] == "And?"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "holds no questions"),
        ("[1]", "line 1"),
        ('{"image": "no.png", "question": "q"}', "line 1: no picture .*no.png"),
        ('{"image": "no.png"}', "line 1: no 'question'"),
        ('{"question": "q"}', "line 1: no 'image'"),
        ('{"image": "no.png", "question": " "}', "question is empty"),
        ('{"id": "a", "seed": [1], "kind": "colors", "question": "q", "answer": "a"}', "three"),
        ('{"id": "a", "seed": [1,2,3], "kind": "x", "question": "q", "answer": "a"}', "line 1"),
        (
            '{"id": "a", "seed": [1,2,3], "kind": "colors", "question": "q", "answer": "a"}',
            "line 1: question a does not fit its seed",
        ),
    ],
)
def test_lines_refused(tmp_path, line, said):
    (tmp_path / "own.jsonl").write_text(line)
    with pytest.raises(InputError, match=said):
        read_picture_questions(tmp_path / "own.jsonl")
