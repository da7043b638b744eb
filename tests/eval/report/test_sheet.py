"""Random samples on one picture: whose they are, what stands under them, what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from mmspec.cli.main import main
from mmspec.errors import InputError
from mmspec.eval.report import sheet
from mmspec.eval.report.sheet import COLUMNS, GAP, SIDE, sample_sheet

COUNT = 60


@pytest.fixture
def run(tmp_path):
    """A run of plain squares whose shade is their number; every fourth is wrong."""
    folder, lines = tmp_path / "run", []
    (folder / "pictures").mkdir(parents=True)
    for number in range(COUNT):
        path = f"pictures/{number}.png"
        Image.new("RGB", (16, 16), (4 * number,) * 3).save(folder / path)
        line = {"unit": f"quality/plain/{number}+1", "kind": "quality", "method": "plain"}
        line |= {"index": number, "seed": number, "prompt": f"a square of shade {number}"}
        line |= {"scores": {"geneval": float(number % 4 > 0), "other": 0.5}, "picture": path}
        lines.append(line | {"reason": "" if number % 4 else "too pale"})
        lines.append({"unit": line["unit"], "kind": "end"})
    write(folder, lines)
    return folder


def write(folder, lines):
    (folder / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def read(folder):
    return [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]


def shades(picture) -> list[int]:
    """Numbers of the squares, in reading order."""
    pixels = np.asarray(picture)
    tops, found = np.flatnonzero((np.diff(pixels[:, GAP, 0].astype(int), prepend=255)) != 0), []
    for top in tops:
        row = pixels[top, GAP :: SIDE + GAP]
        if (pixels[top : top + SIDE, GAP] == pixels[top, GAP]).all() and top + SIDE < len(pixels):
            found += [int(shade[0]) // 4 for shade in row if shade[0] < 4 * COUNT]
    return found


def test_samples_are_random_and_the_same_again(run):
    first = shades(sample_sheet(run, "plain", 24))
    assert len(first) == len(set(first)) == 24
    assert first == sorted(first) == shades(sample_sheet(run, "plain", 24))
    assert first != list(range(24)) != shades(sample_sheet(run, "plain", 24, seed=1))
    assert len(shades(sample_sheet(run, "plain", 100))) == COUNT


def test_a_few_samples_take_a_line_of_their_own(run):
    assert sample_sheet(run, "plain", 2).width == GAP + 2 * (SIDE + GAP)
    assert sample_sheet(run, "plain", 20).width == GAP + COLUMNS * (SIDE + GAP)


def test_texts_are_the_prompt_the_answer_and_the_judges_word(run, monkeypatch):
    said = []
    write_text = sheet.ImageDraw.ImageDraw.text

    def text(self, place, line, *rest):
        said.append(line)
        write_text(self, place, line, *rest)

    monkeypatch.setattr(sheet.ImageDraw.ImageDraw, "text", text)
    chosen = shades(sample_sheet(run, "plain", 8))
    for number in chosen:
        start = said.index(f"a square of shade {number}")
        assert said[start + 1] == ("right" if number % 4 else "wrong: too pale")
    lines = read(run)
    for line in lines[::2]:  # as of answers about a picture
        line |= {
            "shown": line.pop("picture"),
            "text": f"It is {line['index']}.",
            "scores": {"t": 1},
        }
    lines[-2]["scores"] = {"t": 0.25}  # so 1 is no yes
    write(run, lines)
    said.clear()
    for number in shades(sample_sheet(run, "plain", 8)):
        start = said.index(f"It is {number}.")
        assert said[start - 1] == f"a square of shade {number}"
        assert said[start + 1] == ("t 0.25" if number == COUNT - 1 else "t 1.00")


@pytest.mark.parametrize(
    ("name", "kind"), [("a.png", "PNG"), ("a.webp", "WEBP"), ("a.jpg", "JPEG")]
)
def test_command(run, tmp_path, capsys, name, kind):
    out = tmp_path / name
    assert main(["eval", "sheet", str(run), "--count", "3", "-o", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    with Image.open(out) as picture:
        assert picture.format == kind
        assert picture.size == sample_sheet(run, "plain", 3).size


def test_refused(run, tmp_path, capsys):
    out = str(tmp_path / "a.bmp")
    assert main(["eval", "sheet", str(run), "-o", out]) == 2
    assert "its name must end in .png, .webp, .jpg" in capsys.readouterr().err
    assert main(["eval", "sheet", str(run), "--count", "0", "-o", out]) == 2
    with pytest.raises(InputError, match="unknown method 'plan'; did you mean 'plain'"):
        sample_sheet(run, "plan")
    with pytest.raises(InputError, match="no judged samples; name a folder of"):
        sample_sheet(tmp_path, "plain")
    secret = tmp_path / "secret.png"
    (run / "pictures" / "3.png").rename(secret)
    lines = read(run)
    lines[6]["picture"] = "../secret.png"
    write(run, lines)
    with pytest.raises(InputError, match="lacks the picture of sample 3; run it again"):
        sample_sheet(run, "plain", COUNT)
