"""Folders that another run writes, full disks and damaged files: one line of every command."""

from __future__ import annotations

import errno
import json

import pytest

from mmspec.cli.main import main
from mmspec.files import locked

PROMPT = "a photo of a red circle"


@pytest.fixture
def refused(capfd):
    """Runs a command that is to be refused; gives its line."""

    def call(*words: object, code: int = 2) -> str:
        capfd.readouterr()
        assert main([str(word) for word in words]) == code
        out, err = capfd.readouterr()
        assert out == ""
        (line,) = (text for text in err.splitlines() if text.startswith("mmspec: error: "))
        assert "Traceback" not in err
        return line

    return call


@pytest.mark.parametrize(
    "words",
    [
        ("generate", PROMPT, "-o"),
        ("eval", "run", "--suite", "speed", "--methods", "sjd", "--limit", 1, "-o"),
    ],
)
def test_a_folder_that_another_run_writes(refused, tiny_folder, tmp_path, words):
    out = tmp_path / "out"
    with locked(out):
        line = refused(*words, out, "--model", tiny_folder)
    assert f"another run writes to {out}; wait for it" in line
    assert list(tmp_path.iterdir()) == []


def test_a_report_is_not_drawn_while_its_run_goes_on(refused, tmp_path):
    with locked(tmp_path):
        assert "another run writes to" in refused("eval", "report", tmp_path)


def test_a_clips_folder_that_another_run_writes(refused, tmp_path):
    from wans import tiny_pipeline

    tiny_pipeline().save_pretrained(tmp_path / "model")
    words = ["video", "a red circle moves right", "--model", tmp_path / "model", "--blocks", 1]
    with locked(tmp_path / "out"):
        line = refused(*words, "--steps", 1, "--method", "plain", "-o", tmp_path / "out")
    assert "another run writes to" in line
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_full_disk(refused, tiny_folder, tmp_path, full_disk):
    with full_disk(200):
        line = refused("generate", PROMPT, "--model", tiny_folder, "-o", tmp_path / "out")
    assert line.endswith("File too large")
    assert list(tmp_path.iterdir()) == []


def test_what_the_system_refuses(refused, monkeypatch, tmp_path):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/some/file")

    monkeypatch.setattr("mmspec.cli.options.open_pipeline", full)
    line = refused("generate", PROMPT, "-o", tmp_path / "out", code=1)
    assert line == "mmspec: error: /some/file: No space left on device"


DAMAGED = {"empty": "", "list": "[]", "broken": "{", "deep": "[" * 100_000}


@pytest.mark.parametrize("content", [*DAMAGED.values(), None], ids=[*DAMAGED, "folder"])
def test_damaged_files_of_a_run(refused, tmp_path, content):
    for name, words in (
        ("report.json", ("eval", "report", tmp_path)),
        ("report.json", ("eval", "compare", tmp_path, tmp_path)),
        ("report.json", ("eval", "table", tmp_path)),
        ("suite.yaml", ("eval", "validate", tmp_path / "suite.yaml")),
    ):
        file = tmp_path / name
        if content is None:
            file.mkdir(exist_ok=True)
        else:
            file.write_text(content)
        assert name in refused(*words)


@pytest.mark.parametrize(
    "content", ['{"prompt": 3}', "[]", "{", '{"a":' * 50_000, "\x00\x01", '{"prompt": ""}']
)
def test_damaged_prompts(refused, tmp_path, content):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(content)
    words = ("eval", "run", "--suite", "speed", "--prompts", prompts, "-o", tmp_path / "out")
    assert "prompts.jsonl" in refused(*words)


@pytest.mark.parametrize("content", [*DAMAGED.values(), json.dumps({"a": 1})])
def test_damaged_questions_to_learn_from(refused, tmp_path, content):
    """They are read before any model is."""
    from mmspec.errors import InputError
    from mmspec.train.vlm.prompts import FilePrompts

    (tmp_path / "data.jsonl").write_text(content)
    with pytest.raises(InputError, match=r"data\.jsonl") as caught:
        FilePrompts(tmp_path / "data.jsonl")
    assert "\n" not in str(caught.value)
