"""A byte order mark in front of a text is no part of it, whoever reads it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from mmspec import assets
from mmspec.errors import InputError
from mmspec.eval.data.answers import read_predictions, read_vqav2
from mmspec.eval.data.captions import read_captions
from mmspec.eval.data.clip_prompts import read_clip_prompts
from mmspec.eval.data.geneval_files import read_metadata
from mmspec.eval.data.picture_questions import read_picture_questions
from mmspec.eval.data.prompts import read_prompts
from mmspec.eval.schema import Report
from mmspec.eval.suite import SUITES, load_suite
from mmspec.files import read_object, read_text
from mmspec.train.vlm.prompts import FilePrompts


@pytest.fixture
def marked(tmp_path):
    """Writes a text with a mark in front."""

    def write(name, text):
        path = tmp_path / name
        path.write_bytes(b"\xef\xbb\xbf" + text.encode())
        return path

    return write


def test_text_without_the_mark(marked, tmp_path):
    assert read_text(marked("a.txt", "gré")) == "gré"
    assert read_text(marked("b.txt", "\ufeffx")) == "\ufeffx"  # only the one in front
    (tmp_path / "c.txt").write_bytes("gré".encode("latin-1"))
    for path, said in (("c.txt", "can't read .*c.txt: .*utf-8"), ("d.txt", "can't read .*d.txt")):
        with pytest.raises(InputError, match=said) as caught:
            read_text(tmp_path / path)
        assert "\n" not in str(caught.value)


def test_readers_skip_the_mark(marked, tmp_path):
    assert read_object(marked("config.json", '{"a": 1}')) == {"a": 1}
    assert read_prompts(marked("p.txt", "a cat"))[0].prompt == "a cat"
    assert read_prompts(marked("p.jsonl", '{"prompt": "a cat"}'))[0].prompt == "a cat"
    captions = read_captions(marked("c.jsonl", '{"image": "1.png", "caption": "a cat"}'))
    assert captions.by_id == {"1": ("a cat",)}
    (answer,) = read_predictions(marked("a.json", '[{"question_id": 1, "answer": "x"}]'))
    assert answer.question_id == "1"
    assert read_vqav2(marked("q.json", '{"questions": []}')) == []
    line = {"tag": "single_object", "prompt": "a cat", "include": [{"class": "cat", "count": 1}]}
    assert read_metadata(marked("m.jsonl", json.dumps(line))) == [line]
    suite = load_suite(str(marked("own.yaml", (SUITES / "speed.yaml").read_text())))
    assert suite.source == "prompts"
    for name in ("1.png", "2.png"):
        Image.new("RGB", (2, 2)).save(tmp_path / name)
    rows = [{"image": f"{n}.png", "question": "what?"} for n in (1, 2)]
    text = "\n".join(map(json.dumps, rows))
    assert FilePrompts(marked("own.jsonl", text)).described.startswith("1 pictures")


def test_readers_of_our_own_files_too(marked):
    home = Path(assets.__file__).resolve().parent
    report = next(home.glob("reports/*/report.json"))
    assert Report.read(marked("report.json", report.read_text())) == Report.read(report)
    readers = {"vlm-questions.jsonl": read_picture_questions, "clips.jsonl": read_clip_prompts}
    for name, read in readers.items():
        text = (home / "prompts" / name).read_text().splitlines()[0]
        assert len(read(marked(name, text))) == 1
