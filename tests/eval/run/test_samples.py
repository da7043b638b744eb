"""The log of samples survives being cut off anywhere: nothing is lost, nothing counts twice."""

from __future__ import annotations

import json

import pytest

from mmspec.errors import InputError
from mmspec.eval.run.job import Outcome, Unit
from mmspec.eval.run.run_folder import RunFolder
from mmspec.eval.run.samples import SampleLog

UNITS = {
    f"u{i}": [{"kind": "quality", "value": 10 * i + j} for j in range(i + 1)] for i in range(3)
}


def whole(log: SampleLog) -> list[int]:
    return sorted(line["value"] for line in log.of("quality"))


EVERYTHING = sorted(line["value"] for lines in UNITS.values() for line in lines)


@pytest.fixture
def written(tmp_path):
    log = SampleLog(tmp_path / "samples.jsonl")
    for unit, lines in UNITS.items():
        log.add(unit, lines)
    assert whole(log) == EVERYTHING
    return log.path


def test_cut_off_at_every_byte(written, tmp_path):
    content = written.read_bytes()
    for size in range(len(content) + 1):
        path = tmp_path / "cut.jsonl"
        path.write_bytes(content[:size])
        log = SampleLog(path)
        assert all(line["unit"] in log.done for line in log.lines)
        # a unit is kept as soon as its last line is whole
        assert log.done == {
            json.loads(line)["unit"]
            for line in content[:size].split(b"\n")
            if line.endswith(b'"end"}')
        }
        for unit in UNITS.keys() - log.done:
            log.add(unit, UNITS[unit])
        again = SampleLog(path)
        assert whole(log) == whole(again) == EVERYTHING
        assert again.done == UNITS.keys()
    assert path.read_text().count('"end"') == len(UNITS)


def test_finished_units_are_kept(written):
    content = written.read_bytes()
    first = content.index(b'"end"}\n') + len(b'"end"}\n')
    written.write_bytes(content[: first + 9])
    log = SampleLog(written)
    assert log.done == {"u0"}
    assert written.read_bytes() == content[:first]  # the torn rest is gone


def test_a_unit_counts_once(written):
    log = SampleLog(written)
    with pytest.raises(ValueError, match="u1 is there already"):
        log.add("u1", UNITS["u1"])


@pytest.mark.parametrize("text", ["nonsense", "[1]", '{"unit": "u"}', "\xff"])
def test_a_line_that_is_none(written, text):
    lines = written.read_bytes().split(b"\n")
    lines.insert(1, text.encode("latin-1"))
    written.write_bytes(b"\n".join(lines))
    with pytest.raises(InputError, match=r"samples\.jsonl, line 2"):
        SampleLog(written)


def test_folder_goes_on_with_the_same_settings_only(tmp_path):
    outcome = Outcome(Unit("quality", 0, 1, "sjd"), [{"kind": "quality"}], {"p/a.png": b"x"})
    with RunFolder(tmp_path / "run", {"seed": 0, "sizes": (1, 2)}) as folder:
        folder.add(outcome)
        with pytest.raises(InputError, match="another run writes"):
            RunFolder(tmp_path / "run", {"seed": 0, "sizes": (1, 2)})
    assert (tmp_path / "run" / "p" / "a.png").read_bytes() == b"x"
    with RunFolder(tmp_path / "run", {"seed": 0, "sizes": (1, 2)}) as folder:
        assert folder.log.done == {"quality/sjd/0+1"}
    with pytest.raises(InputError, match=r"other settings \(seed, more differ\)"):
        RunFolder(tmp_path / "run", {"seed": 1, "sizes": (1, 2), "more": 1})
    (tmp_path / "run" / "run.json").unlink()
    with pytest.raises(InputError, match="unknown run"):
        RunFolder(tmp_path / "run", {"seed": 0})


def test_pictures_come_before_their_lines(tmp_path, monkeypatch):
    """Killed between the two, there is a picture too many, never a line without one."""
    with RunFolder(tmp_path, {}) as folder:
        monkeypatch.setattr(folder.log, "add", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            folder.add(Outcome(Unit("quality"), [{"kind": "quality"}], {"a.png": b"x"}))
    assert (tmp_path / "a.png").exists()
    assert not (tmp_path / "samples.jsonl").exists()


def test_lines_are_json(written):
    assert all(json.loads(line)["unit"] in UNITS for line in written.read_text().splitlines())
