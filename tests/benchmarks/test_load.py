"""The benchmark of length "auto" by load: ratios by hand, and a run of a small pipeline."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from benchmarks.__main__ import main
from benchmarks.load.measure import (
    ENOUGH,
    AtSize,
    LoadRecord,
    OfModality,
    configs_of,
    steps,
    summed,
)
from benchmarks.load.page import load_figure, load_markdown, load_notes
from mmspec import SpecConfig
from mmspec.pipelines.image.pipeline import ImagePipeline


def called(method: str, tokens: int, seconds: float, rounds: int, alone: int):
    stats = SimpleNamespace(method=method, emitted=[tokens], rounds=[0] * rounds, alone=alone)
    return SimpleNamespace(stats=stats, seconds=seconds)


def test_ratios_are_of_all_calls_and_of_each():
    pairs = [
        {"plain": called("plain", 10, 5.0, 10, 10), "auto": called("scd", 10, 10.0, 6, 3)},
        {"plain": called("plain", 10, 5.0, 10, 10), "auto": called("plain", 10, 5.0, 10, 10)},
        {"plain": called("plain", 20, 10.0, 20, 20), "auto": called("scd", 20, 5.0, 4, 0)},
    ]
    found = summed(pairs)
    assert found.speedup == pytest.approx((40 / 20) / (40 / 20))
    assert found.median == 1.0
    assert found.first == 0.5
    assert found.ci95 is None  # of three
    assert found.plain_calls == pytest.approx(1 / 3)
    assert found.plain_rounds == pytest.approx(13 / 20)
    assert found.holds


def test_the_page_says_where_it_is_slower_than_it_may_be():
    sizes = {
        1: AtSize(1.5, 1.6, (1.4, 1.7), 1.2, 0.0, 0.1),
        32: AtSize(ENOUGH - 0.02, 0.99, None, 0.8, 0.9, 0.95),
    }
    record = LoadRecord({}, 8, 0, {"image": OfModality("scd", "exact", "tokens", sizes)})
    (note,) = load_notes(record)
    assert note == "image, batch 32: 0.950 times plain decoding, below 0.97"
    page = load_markdown(record)
    assert note in page
    assert "first 0.80×" in page
    assert "plain: 90 % of calls, 95 % of rounds" in page
    assert "</svg>" in load_figure(record)


def test_the_default_takes_turns_and_a_lossy_one_is_given_the_length(tiny_folder):
    pipe = ImagePipeline.from_pretrained(tiny_folder)
    found = configs_of(pipe, "image")
    assert found["auto"].length == "auto"
    assert found["plain"] == SpecConfig("plain")

    class Video:
        speculation = SpecConfig("sdvg")

        def enable_speculation(self):
            """It has its default."""

    assert configs_of(Video(), "video")["auto"] == SpecConfig("sdvg", length="auto")


def test_the_command_writes_a_page(tiny_folder, tmp_path, capsys):
    out = tmp_path / "out"
    how = ["--modality", "image", "--model", str(tiny_folder), "--method", "scd"]
    assert main(["load", *how, "--batches", "1,3", "--turns", "2", "-o", str(out)]) == 0
    told = json.loads((out / "load.json").read_text())
    one = told["modalities"]["image"]
    assert (one["method"], one["unit"]) == ("scd", "tokens")
    assert set(one["sizes"]) == {"1", "3"}
    assert all(size["speedup"] > 0 for size in one["sizes"].values())
    assert "batch 3" in capsys.readouterr().out
    assert (out / "load.md").exists()
    assert steps((1, 3), 2) == 12


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--modality", "sound"], "unknown modality 'sound'"),
        (["--method", "scd"], "are of one modality"),
        (["--modality", "image", "--suite", "vlm"], "suite vlm is of vlm, not of image"),
    ],
)
def test_what_can_not_be_is_said(options, told, tmp_path, capsys):
    assert main(["load", *options, "-o", str(tmp_path / "out")]) == 2
    assert told in capsys.readouterr().err
