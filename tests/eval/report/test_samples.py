"""Reading `samples.jsonl`: kinds, torn ends, unfinished units, and lines that are wrong."""

from __future__ import annotations

import json

import pytest

from mmspec.errors import InputError
from mmspec.eval.report.samples import read_samples

JUDGED = {
    "unit": "a",
    "kind": "quality",
    "method": "scd",
    "index": 3,
    "prompt": "a star",
    "tag": "colors",
    "seed": 8,
    "scores": {"geneval": 1, "clip_score": None},
    "reason": "",
    "picture": "pictures/scd/00003.png",
}
TIMED = {
    "unit": "b",
    "kind": "speed",
    "method": "scd",
    "index": 3,
    "batch": 1,
    "prompt": "a star",
    "seed": 8,
    "seconds": 0.5,
    "decode_seconds": 0.4,
}


def write(folder, *lines, end="\n"):
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    (folder / "samples.jsonl").write_text("\n".join(texts) + end)


def test_fields_and_kinds(tmp_path):
    batch = {**TIMED, "batch": 4, "prompt": ["a", "b", "c", "d"]}
    write(tmp_path, JUDGED, TIMED, batch, {"unit": "c", "kind": "costs"})
    samples = read_samples(tmp_path)
    key = (3, 8, "a star")
    assert list(samples.quality) == list(samples.speed) == ["scd"]
    assert list(samples.quality["scd"]) == list(samples.speed["scd"]) == [key]
    assert samples.quality["scd"][key].scores == {"geneval": 1}
    assert samples.quality["scd"][key].tag == "colors"
    assert samples.speed["scd"][key].decode_seconds == 0.4


def test_no_file_is_no_samples(tmp_path):
    samples = read_samples(tmp_path)
    assert (samples.quality, samples.speed) == ({}, {})


def test_a_torn_last_line_is_passed_over(tmp_path):
    write(tmp_path, JUDGED, json.dumps(TIMED)[:40], end="")
    samples = read_samples(tmp_path)
    assert samples.quality
    assert not samples.speed


def test_units_without_their_end_do_not_count(tmp_path):
    write(tmp_path, JUDGED, {"unit": "a", "kind": "end"}, TIMED)
    samples = read_samples(tmp_path)
    assert samples.quality
    assert not samples.speed


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"kind": "qual', "not JSON"),
        ("[]", "an object with a kind"),
        ({k: v for k, v in JUDGED.items() if k != "index"}, "index: field required"),
        (
            {**JUDGED, "scores": {"geneval": "high"}},
            "scores.geneval: input should be a valid number",
        ),
        ({**JUDGED, "scores": [1]}, "scores: input should be an object, not [1]"),
        ({**JUDGED, "prompt": 5}, "prompt: input should be a valid string, not 5"),
        ({**TIMED, "seconds": float("nan")}, "seconds must be a number, not nan"),
        ({**TIMED, "decode_seconds": float("inf")}, "decode_seconds must be a number, not inf"),
        ({**TIMED, "stats": {"emitted": ["x"]}}, "not a sample: emitted: "),
        ({**TIMED, "decode_seconds": None}, "decode_seconds must be a number, not None"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, message):
    write(tmp_path, JUDGED, line, TIMED)
    with pytest.raises(InputError, match=r"not JSON|run the suite again") as error:
        read_samples(tmp_path)
    assert f"{tmp_path / 'samples.jsonl'}:2: " in str(error.value)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
