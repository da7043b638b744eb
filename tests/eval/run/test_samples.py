"""The log of samples survives being cut off anywhere: nothing is lost, nothing counts twice."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

import pytest

from mmspec.errors import InputError
from mmspec.eval.report.samples import read_samples
from mmspec.eval.run.job import Outcome, Unit, quality_units
from mmspec.eval.run.run_folder import RunFolder
from mmspec.eval.run.samples import SampleLog, read_log

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


def test_cut_off_at_every_byte(written, tmp_path, monkeypatch):
    monkeypatch.setattr("os.fsync", lambda handle: None)  # a thousand of them take long
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
    with pytest.raises(InputError, match=r"samples\.jsonl:2: not "):
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


def edited(path, change) -> str:
    """Errors of a file of samples whose lines were changed, by its writer and its reader."""
    lines = path.read_bytes().split(b"\n")
    change(lines)
    path.write_bytes(b"\n".join(lines))
    told = set()
    for read in (SampleLog, read_log):
        with pytest.raises(InputError) as caught:
            read(path)
        told.add(str(caught.value))
    (line,) = told
    assert "\n" not in line
    return line


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda lines: lines.pop(3), "unit u1 lacks lines: 1, and 2 were written"),
        (lambda lines: lines.pop(5), "unit u2 lacks lines: 2, and 3 were written"),
        (lambda lines: lines.insert(3, lines[3]), "unit u1 has surplus lines: 3, and 2 were"),
        (lambda lines: lines.insert(6, lines[3]), "line 7 of unit u1 stands behind the unit's end"),
        (lambda lines: lines.insert(4, lines[4]), "unit u1 ends twice, in line 6 again"),
        (
            lambda lines: lines.__setitem__(3, lines[3].replace(b"11", b"12")),
            "the lines of unit u1 are not those that were written",
        ),
        (
            lambda lines: lines.__setitem__(slice(2, 4), [lines[3], lines[2]]),
            "the lines of unit u1 are not those that were written",
        ),
    ],
)
def test_a_line_that_is_lost_or_doubled_is_named(written, change, told):
    line = edited(written, change)
    assert line.startswith(f"{written}: {told}")
    assert line.endswith("take the unit's lines out, and the run does it again")


def test_a_unit_without_its_lines_is_done_again(written):
    """A unit that lacks its lines is done again, as the message says."""
    lines = [line for line in written.read_bytes().split(b"\n") if b'"u1"' not in line]
    written.write_bytes(b"\n".join(lines))
    log = SampleLog(written)
    assert log.done == {"u0", "u2"}
    log.add("u1", UNITS["u1"])
    assert whole(SampleLog(written)) == EVERYTHING


def test_files_of_earlier_versions_are_read(written):
    """Their units end without a number or a checksum."""
    lines = [json.loads(line) for line in written.read_text().splitlines()]
    old = [{k: line[k] for k in ("unit", "kind", "value") if k in line} for line in lines]
    written.write_text("".join(json.dumps(line) + "\n" for line in old))
    log = SampleLog(written)
    assert whole(log) == EVERYTHING
    assert (log.seconds, log.date) == (None, None)
    log.add("u3", [{"kind": "quality", "value": 99}], 1.5)
    assert whole(SampleLog(written)) == [*EVERYTHING, 99]


@pytest.mark.parametrize("seconds", ["NaN", "Infinity", "null", '"1"'])
def test_seconds_that_are_none_are_refused(tmp_path, seconds):
    """Files of earlier versions may have them: a median of them would be none either."""
    path = tmp_path / "samples.jsonl"
    path.write_text(
        f'{{"unit": "u", "kind": "speed", "seconds": {seconds}}}\n{{"unit": "u", "kind": "end"}}\n'
    )
    with pytest.raises(InputError, match=r"samples\.jsonl:1: .*seconds must be a number"):
        SampleLog(path)


def test_a_log_tells_when_and_how_long(tmp_path):
    log = SampleLog(tmp_path / "samples.jsonl")
    assert (log.seconds, log.date) == (None, None)
    log.add("a", [], 1.5)
    log.add("b", [], 2.0)
    again = SampleLog(log.path)
    assert again.seconds == log.seconds == 3.5
    assert datetime.fromisoformat(again.date or "").utcoffset() == timedelta(0)


def test_numbers_that_are_none_are_null(tmp_path):
    """Numbers of a run that goes on are those that were written."""
    log = SampleLog(tmp_path / "samples.jsonl")
    log.add("a", [{"kind": "quality", "scores": {"reward": float("nan")}, "at": (1, 2)}])
    assert log.lines == SampleLog(log.path).lines
    assert log.lines[0]["scores"] == {"reward": None}


def test_a_folder_in_the_place_of_the_file(tmp_path):
    (tmp_path / "samples.jsonl").mkdir()
    (tmp_path / "run.json").write_text("{}")
    for read in (lambda: RunFolder(tmp_path, {}), lambda: read_samples(tmp_path)):
        with pytest.raises(InputError, match=r"can't read .*samples\.jsonl: Is a directory"):
            read()


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000])
def test_settings_that_are_none(tmp_path, text):
    """Broken settings are an error in a run with samples; without samples they are written anew."""
    outcome = Outcome(Unit("quality"), [{"kind": "quality"}])
    with RunFolder(tmp_path, {"seed": 0}) as folder:
        folder.add(outcome)
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(InputError, match=r"run\.json") as caught:
        RunFolder(tmp_path, {"seed": 0})
    assert "\n" not in str(caught.value)
    (tmp_path / "samples.jsonl").unlink()
    with RunFolder(tmp_path, {"seed": 0}):
        assert json.loads((tmp_path / "run.json").read_text()) == {"seed": 0}


def test_a_full_disk_leaves_whole_units(written, full_disk):
    log, before = SampleLog(written), written.read_bytes()
    with full_disk(len(before) + 10), pytest.raises(InputError, match=r"can't write .*too large"):
        log.add("u3", [{"kind": "quality", "value": 99}])
    assert written.read_bytes() == before
    assert log.done == UNITS.keys()


def test_units_whose_pictures_were_deleted_are_done_again(tmp_path):
    def outcome(first: int) -> Outcome:
        names = [f"pictures/sjd/{first + i}.png" for i in range(2)]
        lines = [{"kind": "quality", "picture": name} for name in names]
        counts = {"kind": "counts", "method": "sjd"}
        return Outcome(
            Unit("quality", first, 2, "sjd"), [*lines, counts], dict.fromkeys(names, b"")
        )

    with RunFolder(tmp_path, {}) as folder:
        for first in (0, 2, 4):
            folder.add(outcome(first))
    (tmp_path / "pictures" / "sjd" / "3.png").unlink()
    with RunFolder(tmp_path, {}) as folder:
        assert folder.log.done == {"quality/sjd/0+2", "quality/sjd/4+2"}
        assert len(folder.log.of("quality")) == 4
        assert len(folder.log.of("counts")) == 2
        folder.add(outcome(2))
    with RunFolder(tmp_path, {}) as folder:
        assert len(folder.log.of("quality")) == 6


def test_what_is_missing_is_asked_for_in_runs():
    """Samples that are there stand between those that are not."""
    units = list(quality_units(["sjd"], 30, {"sjd": {4, 5, 6, 7, 20, 25}}))
    asked = [list(range(unit.first, unit.first + unit.count)) for unit in units]
    assert [i for own in asked for i in own] == [
        i for i in range(30) if i not in {4, 5, 6, 7, 20, 25}
    ]
    assert [unit.key for unit in units] == [
        *("quality/sjd/0+4", "quality/sjd/8+12", "quality/sjd/21+3"),
        *("quality/sjd/24+1", "quality/sjd/26+4"),
    ]
