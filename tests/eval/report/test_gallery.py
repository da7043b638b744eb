"""The grid of pictures: which samples, which words under them, and what is never embedded."""

from __future__ import annotations

import base64
import io
import json
from collections import Counter

import numpy as np
from PIL import Image

from mmspec.eval.report.gallery import SIDE, gallery
from mmspec.eval.report.samples import read_samples
from mmspec.eval.schema import Report


def grid(folder):
    return gallery(Report.read(folder), read_samples(folder), folder)


def lines(folder):
    return [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]


def decode(uri: str) -> Image.Image:
    head, _, data = uri.partition(",")
    assert head == "data:image/png;base64"
    return Image.open(io.BytesIO(base64.b64decode(data)))


def test_rows_are_spread_over_the_tags(finished):
    rows = grid(finished)
    assert Counter(row.tag for row in rows) == dict.fromkeys({row.tag for row in rows}, 2)
    assert len(rows) == 12
    assert len({row.prompt for row in rows}) == 12


def test_cells_are_the_samples_and_pictures_of_the_run(finished):
    judged = {(x["method"], x["prompt"], x["seed"]): x for x in lines(finished) if "scores" in x}
    for row in grid(finished):
        assert [p.method for p in row.outputs] == list(Report.read(finished).methods)
        for picture in row.outputs:
            line = judged[picture.method, row.prompt, row.seed]
            assert picture.score == ("right" if line["scores"]["geneval"] else "wrong")
            assert picture.reason == line["reason"]
            assert row.prompt in picture.alt
            assert picture.method in picture.alt
            shown = np.asarray(decode(picture.uri))
            np.testing.assert_array_equal(shown, np.asarray(Image.open(finished / line["picture"])))


def test_scores_that_are_not_right_or_wrong_are_numbers(run):
    report = Report.read(run)
    for row in report.methods.values():
        row.quality = {"clip_score": row.quality["clip_score"]}
    report.write(run)
    first = next(x for x in lines(run) if "scores" in x)
    assert grid(run)[0].outputs[0].score == f"{first['scores']['clip_score']:.2f}"


def test_what_can_not_be_read_is_missing(run):
    (run / "pictures/plain/00000.png").unlink()
    (run / "pictures/draft/00000.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    rows = grid(run)
    assert [p.uri != "" for p in rows[0].outputs] == [False, False, True, True, True, True]
    assert all(p.uri for row in rows[1:] for p in row.outputs)


def test_no_file_outside_the_folder_is_carried_away(run):
    secret = run.parent / "secret.png"
    Image.new("RGB", (4, 4)).save(secret)
    (run / "pictures/link.png").symlink_to(secret)
    places = {0: "../secret.png", 1: str(secret), 2: "pictures/link.png"}
    changed = [
        {**x, "picture": places[x["index"]]} if x.get("picture") and x["index"] < 3 else x
        for x in lines(run)
    ]
    (run / "samples.jsonl").write_text("".join(json.dumps(x) + "\n" for x in changed))
    rows = grid(run)
    assert not any(p.uri for row in rows[:3] for p in row.outputs)
    assert all(p.uri for row in rows[3:] for p in row.outputs)


def test_large_pictures_are_made_smaller(run):
    Image.new("RGB", (600, 300), "red").save(run / "pictures/plain/00000.png")
    assert decode(grid(run)[0].outputs[0].uri).size == (SIDE, SIDE // 2)


def test_without_pictures_there_is_no_grid(run):
    plain = [{k: v for k, v in x.items() if k != "picture"} for x in lines(run)]
    (run / "samples.jsonl").write_text("".join(json.dumps(x) + "\n" for x in plain))
    assert grid(run) == []
