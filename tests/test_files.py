"""Files are read or refused in one line, and written whole or not at all, on a full disk too."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from mmspec.errors import InputError
from mmspec.files import (
    atomic_folder,
    locked,
    parse_json,
    read_json,
    read_object,
    read_text,
    to_json,
    write_atomic,
    write_json,
)


def refused(call, *args) -> str:
    """The one line of an `InputError`."""
    with pytest.raises(InputError) as caught:
        call(*args)
    assert "\n" not in str(caught.value)
    return str(caught.value)


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "not JSON: it is empty"),
        (b" \n", "not JSON: it is empty"),
        (b"{", "line 1 column|not JSON"),
        (b'{"a": 1,\n}', "line 2: not JSON"),
        (b"\xff\xfe", "can't decode"),
        (DEEP.encode(), "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b"1" * 5000, "not JSON: Exceeds the limit"),
        (b"[1]", "does not hold a JSON object"),
        (b"null", "does not hold a JSON object"),
    ],
)
def test_files_that_are_no_object(tmp_path, content, told):
    path = tmp_path / "run.json"
    path.write_bytes(content)
    line = refused(read_object, path)
    assert str(path) in line
    assert any(part in line for part in told.split("|")), line


def test_a_folder_or_nothing_in_the_place_of_a_file(tmp_path):
    for read in (read_text, read_json, read_object):
        assert "Is a directory" in refused(read, tmp_path)
        assert "No such file" in refused(read, tmp_path / "none")


def test_a_byte_order_mark_is_no_text(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"a": "é"}', encoding="utf-8-sig")
    assert read_object(path) == {"a": "é"}


def test_lines_are_named_as_the_caller_calls_them():
    assert refused(parse_json, "{", "f.jsonl, line 3").startswith("f.jsonl, line 3: not JSON")


def test_numbers_that_are_none_are_null(tmp_path):
    value = {"a": math.nan, "b": [1.5, math.inf, (-math.inf, 2)], "c": {"d": math.nan}}
    wanted = {"a": None, "b": [1.5, None, [None, 2]], "c": {"d": None}}

    def refuse(name: str) -> None:
        raise AssertionError(name)

    text = write_json(tmp_path / "a.json", value).read_text()
    assert json.loads(text, parse_constant=refuse) == wanted
    assert json.loads(to_json(value), parse_constant=refuse) == wanted


def test_all_json_is_written_by_one_function():
    """No `json.dump` but in `files.py`: only there numbers that are none become null."""
    root = Path(__file__).resolve().parents[1]
    found = [
        f"{file.relative_to(root)}:{number}"
        for room in ("mmspec", "pipelines", "eval")
        for file in (root / room).rglob("*.py")
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if "json.dump" in line and file.name != "files.py"
    ]
    assert found == []


def test_a_full_disk_leaves_the_old_file(tmp_path, full_disk):
    path = write_atomic(tmp_path / "f", "old")
    with full_disk(1000):
        assert refused(write_atomic, path, b"x" * 5000) == f"can't write {path}: File too large"
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_interruption_leaves_nothing(tmp_path, monkeypatch):
    def stop(*_) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", stop)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(tmp_path / "new" / "f", "text")
    assert list((tmp_path / "new").iterdir()) == []


def test_what_can_not_be_a_file_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    assert "can't write" in refused(write_atomic, tmp_path / "file" / "f", "")
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    assert "irectory" in refused(write_atomic, tmp_path / "folder", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_a_folder_takes_files_that_are_whole(tmp_path):
    """Weights of an earlier save, cut up in another way, go; what else is there stays."""
    home = tmp_path / "model"
    (home / "unet").mkdir(parents=True)
    for name in ("a-00001-of-00002.safetensors", "a.safetensors.index.json", "config.json", "card"):
        (home / "unet" / name).write_text("old")
    with atomic_folder(home) as part:
        (part / "unet").mkdir()
        (part / "unet" / "a.safetensors").write_text("new")
        (part / "unet" / "a.safetensors").chmod(0o600)
        (part / "unet" / "config.json").write_text("new")
        assert (home / "unet" / "config.json").read_text() == "old"
    there = {path.name: path.read_text() for path in (home / "unet").iterdir()}
    assert there == {"a.safetensors": "new", "config.json": "new", "card": "old"}
    modes = {path.stat().st_mode & 0o777 for path in (home / "unet").glob("*.safetensors")}
    assert modes == {(home.stat().st_mode & 0o666)}
    assert [path.name for path in home.iterdir()] == ["unet"]


def test_a_folder_that_broke_off_is_as_it_was(tmp_path, full_disk):
    import torch
    from safetensors.torch import save_file

    home, new = tmp_path / "model", tmp_path / "a" / "b"
    home.mkdir()
    (home / "w.safetensors").write_text("old")
    for folder in (home, new):
        refusal = pytest.raises(InputError, match=r"can't write .*File too large")
        with full_disk(2000), refusal, atomic_folder(folder) as part:
            save_file({"w": torch.zeros(5000)}, part / "w.safetensors")
    assert (home / "w.safetensors").read_text() == "old"
    assert [path.name for path in home.iterdir()] == ["w.safetensors"]
    assert not (tmp_path / "a").exists()


def test_one_writer_at_a_time(tmp_path):
    """Of this process and of others; the lock ends with the block, and leaves nothing behind."""
    home = tmp_path / "a" / "b"
    code = "import sys; from mmspec.files import locked; from pathlib import Path\n"
    code += "with locked(Path(sys.argv[1])): pass"

    def other() -> str:
        ran = subprocess.run([sys.executable, "-c", code, home], capture_output=True, text=True)
        return ran.stderr

    with locked(home):
        assert "another run writes to" in refused(lambda: locked(home).__enter__())
        assert f"another run writes to {home}; wait for it, or name another folder" in other()
        (home / "f").write_text("")
    assert other() == ""
    assert list(home.iterdir()) == [home / "f"]
    with pytest.raises(KeyError), locked(tmp_path / "c" / "d"):
        raise KeyError
    assert not (tmp_path / "c").exists()


def test_a_file_is_no_folder_to_lock(tmp_path):
    (tmp_path / "f").write_text("")
    assert refused(lambda: locked(tmp_path / "f").__enter__()).startswith("can't write to")
