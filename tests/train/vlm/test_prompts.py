"""Questions of one's own, from whose answers draft heads learn."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mmspec.errors import InputError
from mmspec.train.vlm.prompts import FilePrompts


def write(path: Path, count: int) -> Path:
    (path / "pictures").mkdir()
    rows = []
    for n in range(count):
        Image.new("RGB", (20 + n, 24), (n, 2 * n, 90)).save(path / "pictures" / f"{n}.png")
        rows.append(json.dumps({"image": f"pictures/{n}.png", "question": f"What is {n}?"}))
    file = path / "asked.jsonl"
    file.write_text("\n".join(rows) + "\n\n")
    return file


def test_lines_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.chdir("/")  # paths start at the file's folder
    prompts = FilePrompts(write(tmp_path, 40))
    held_out = prompts.held_out()
    assert held_out.texts == [f"What is {n}?" for n in (0, 10, 20, 30)]
    assert [picture.width for picture in held_out.pictures] == [20, 30, 40, 50]
    rng = np.random.default_rng(0)
    drawn = [text for _ in range(40) for text in prompts.draw(rng, 8).texts]
    assert set(drawn) == {f"What is {n}?" for n in range(40)} - set(held_out.texts)


GOOD = '{"image": "pictures/0.png", "question": "What?"}\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has 0 questions"),
        (GOOD, "has 1 questions"),
        (GOOD + "{'image': 1}", "line 2: not JSON"),
        (GOOD + "[1, 2]", "line 2 must be"),
        (GOOD + "\n" + '{"image": "pictures/0.png"}', "line 3 has no question"),
        ('{"image": "pictures/0.png", "question": " "}', "line 1 has no question"),
        ('{"image": ["a.png"], "question": "What?"}', "line 1 has no image"),
        ('{"image": "pictures/9.png", "question": "What?"}', "line 1: no picture .*9.png"),
    ],
)
def test_bad_lines(tmp_path, text, message):
    file = write(tmp_path, 1)
    file.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        FilePrompts(file)
    assert "\n" not in str(caught.value)


def test_files_that_are_none(tmp_path):
    with pytest.raises(InputError, match="can't read"):
        FilePrompts(tmp_path / "none.jsonl")
    file = write(tmp_path, 2)
    (tmp_path / "pictures" / "1.png").write_bytes(b"\x89PNG no picture")
    with pytest.raises(InputError, match=r"line 2: can't read .*1\.png"):
        FilePrompts(file)  # and not when its turn comes, hours later
