"""Whole runs of block video on a tiny model: rows, clips, seconds, what is refused."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from wans import tiny_pipeline

from mmspec import VideoPipeline
from mmspec.cli.main import main
from mmspec.errors import InputError
from mmspec.eval.contact_sheet import contact_sheet
from mmspec.eval.data.clip_prompts import read_clip_prompts
from mmspec.eval.judges.clips import ClipJudge
from mmspec.eval.modalities.base import modality
from mmspec.eval.run.executor import Worker
from mmspec.eval.schema import Report
from mmspec.eval.schema_parts import EqualShare
from mmspec.eval.suite import PROMPTS, SUITES, load_suite
from mmspec.methods import serving
from mmspec.methods.names import parse_method
from mmspec.models.embedded import embedded_folder
from mmspec.worlds.video_world.vocabulary import Timing

CALL = {"height": 16, "width": 16, "num_frames": 13, "num_inference_steps": 2}
SUITE = """
summary: s
source: prompts
pipeline: video
prompts: clips.jsonl
metrics: [attributes, motion]
speed: 2
quality: 3
margin: 0.02
call: {height: 16, width: 16, num_frames: 13, num_inference_steps: 2}
sceptics: {hasty: {num_inference_steps: 1}}
"""
SDVG, CHANCE = "sdvg[tau=0]", "random-routing[draft_share=1]"
METHODS = ("drafter-only", "sdvg[tau=100]", SDVG, CHANCE)
ROWS = ["plain", *METHODS, "plain:hasty"]
TIMES = (
    *("seconds", "decode_seconds", "phase_seconds", "peak_memory", "energy", "environment"),
    *("date", "checksum"),
)
PARTS = {"draft", "decode", "reward", "regenerate", "commit"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "video"
    tiny_pipeline().save_pretrained(path)
    return path


@pytest.fixture
def pipe(folder) -> VideoPipeline:
    made = VideoPipeline.from_pretrained(folder)
    made.set_progress_bar_config(disable=True)
    return made


def command(folder: Path, at: Path, out: Path, suite: str = SUITE) -> list[str]:
    at.mkdir(parents=True, exist_ok=True)
    (at / "mine.yaml").write_text(suite)
    words = ["eval", "run", "--suite", str(at / "mine.yaml"), "--pipeline", "video"]
    return [*words, "--model", str(folder), "--seed", "7", "-o", str(out)]


@pytest.fixture(scope="module")
def finished(folder, tmp_path_factory) -> Path:
    """A run that nobody disturbed."""
    path = tmp_path_factory.mktemp("finished")
    words = command(folder, path, path / "out")
    assert main([*words, "--methods", ",".join(METHODS)]) == 0
    return path / "out"


@pytest.fixture
def report(finished) -> Report:
    return Report.read(finished)


def lines(out: Path, kind: str) -> list[dict]:
    texts = (out / "samples.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, texts) if line["kind"] == kind]


@pytest.mark.slow
def test_what_a_run_writes(finished, report):
    assert sorted(path.name for path in finished.iterdir()) == [
        *("calls.svg", "frontier.svg", "pictures", "report.html", "report.json"),
        *("report.md", "run.json", "samples.jsonl"),
    ]
    rows = report.methods
    assert list(rows) == ROWS
    roles = ["baseline", "sceptic", "method", "method", "sceptic", "sceptic"]
    assert [row.role for row in rows.values()] == roles
    assert {name for name, row in rows.items() if row.contract == "exact"} == {"plain"}
    for name, row in rows.items():
        assert (row.n, row.n_speed) == (3, 2)
        assert (row.speedup_median is None) == (name == "plain")
        assert list(row.quality) == ["attributes", "motion"]
    shares = {name: row.drafted_share for name, row in rows.items()}
    half = dict.fromkeys((SDVG, CHANCE), 0.5)  # of two blocks the first is forced
    assert shares == dict.fromkeys(ROWS, 0) | {"drafter-only": 1} | half
    asked = {name for name, row in rows.items() if "reward" in row.phase_seconds}
    assert asked == {SDVG, "sdvg[tau=100]"}
    assert set(rows["sdvg[tau=100]"].phase_seconds) == {"encode", "rest", *PARTS}
    assert "regenerate" not in rows["drafter-only"].phase_seconds
    # all drafts stand in both, by the reward and by chance
    assert {n: row.at_equal_share for n, row in rows.items() if row.at_equal_share} == {
        SDVG: {"random-routing": EqualShare(0.0, None, ["plain", CHANCE], 1.0)},
        CHANCE: {"sdvg": EqualShare(0.0, None, ["sdvg[tau=100]", SDVG], 1.0)},
    }


def test_clips_and_scores_are_those_of_direct_calls(pipe, finished):
    """Timed ones, and the one that is judged only."""
    prompts = read_clip_prompts(PROMPTS / "clips.jsonl")
    told = {(x["method"], x["index"]): x for x in lines(finished, "quality")}
    assert set(told) == {(name, index) for name in ROWS for index in range(3)}
    assert len(lines(finished, "quality")) == len(told)  # each once, however it came about
    judge = ClipJudge(Timing(latents=2, factor=4))
    for name in ROWS:
        call = CALL | ({"num_inference_steps": 1} if name == "plain:hasty" else {})
        method = "plain" if name == "plain:hasty" else name
        pipe.enable_speculation(parse_method(method)[1])
        for index in range(3):
            out = pipe(
                prompts[index].prompt, generator=torch.Generator().manual_seed(7 + index), **call
            )
            line = told[name, index]
            assert (line["seed"], line["prompt"]) == (7 + index, prompts[index].prompt)
            assert line["made_by"] == out.made_by[0]
            (frames,) = out.frames
            scores, why = judge(prompts[index], frames)
            assert line["scores"] == {n: scores[n] for n in ("attributes", "motion")}
            assert line["reason"] == why
            blocks = list(zip(out.made_by[0], (frames[:5], frames[5:]), strict=True))
            shown = np.asarray(Image.open(finished / line["picture"]))
            assert np.array_equal(shown, np.asarray(contact_sheet(blocks)))


def test_speed_is_that_of_whole_clips(finished, report):
    timed = {(x["method"], x["index"]): x for x in lines(finished, "speed")}
    assert set(timed) == {(name, index) for name in ROWS for index in range(2)}
    for (name, _), line in timed.items():
        assert line["decode_seconds"] == line["seconds"] > sum(line["stats"]["parts"].values())
        assert set(line["stats"]["parts"]) == PARTS & set(report.methods[name].phase_seconds)
    for name in ROWS[1:]:
        ratios = [timed["plain", i]["seconds"] / timed[name, i]["seconds"] for i in range(2)]
        assert report.methods[name].speedup_median == pytest.approx(statistics.median(ratios))
        mean = statistics.fmean(timed[name, i]["seconds"] for i in range(2))
        assert sum(report.methods[name].phase_seconds.values()) == pytest.approx(mean)


def test_pages_show_all_of_it(finished, report):
    figure = (finished / "frontier.svg").read_text()
    assert all(name in figure for name in ("drafter-only", "sdvg", "random-routing", "plain:hasty"))
    text, page = ((finished / name).read_text() for name in ("report.md", "report.html"))
    columns = next(line for line in text.splitlines() if line.startswith("| method | contract"))
    assert "| drafted " in columns
    share = report.methods["plain:hasty"].quality["attributes"].share_of_plain
    assert f"{100 * share:.1f} % of plain's" in text
    assert "| regenerate | commit | rest |" in text
    assert "plain (0 %) and 1 (100 %)" in text
    assert "plain (0 %) and 1 (100 %)" in page
    assert "seconds of the token loop" not in text + page
    assert "framed in" in page
    assert page.count("data:image/png") == 3 * len(ROWS)


def timeless(out: Path) -> list[str]:
    """The samples without their times, sorted, as text."""
    found = []
    for text in (out / "samples.jsonl").read_text().splitlines():
        line = json.loads(text)
        for name in TIMES:
            line.pop(name, None)
        for name in ("seconds", "parts", "latency"):
            line.get("stats", {}).pop(name, None)
        found.append(json.dumps(line, sort_keys=True))
    return sorted(found)


def test_an_interrupted_run_goes_on(folder, finished, tmp_path, monkeypatch):
    real, done = Worker.run, []

    def fragile(self, unit):
        if len(done) == 4:
            raise KeyboardInterrupt
        done.append(unit)
        return real(self, unit)

    words = [*command(folder, tmp_path, tmp_path / "out"), "--methods", ",".join(METHODS)]
    monkeypatch.setattr(Worker, "run", fragile)
    assert main(words) == 130
    assert not (tmp_path / "out" / "report.json").exists()
    monkeypatch.setattr(Worker, "run", real)
    assert main(words) == 0
    assert timeless(tmp_path / "out") == timeless(finished)


def test_rows_of_advantages(folder, tmp_path):
    """An oracle is an upper bound, which pays for both models; its row is no sceptic's."""
    words = command(folder, tmp_path, tmp_path / "out")
    asked, bound = "arbitrage[advantage_tau=0]", "oracle-routing[gain_tau=100]"
    assert main([*words, "--methods", f"{asked},{bound}"]) == 0
    rows = Report.read(tmp_path / "out").methods
    assert [row.role for row in rows.values()] == ["baseline", "method", "oracle", "sceptic"]
    plain = rows["plain"]
    assert (rows[asked].drafted_share, rows[bound].drafted_share) == (0, 0.5)
    for name in (asked, bound):
        assert rows[name].contract == "lossy"
        assert rows[name].nfe_per_sample == plain.nfe_per_sample
    assert rows[asked].quality["attributes"].value == plain.quality["attributes"].value
    page = (tmp_path / "out" / "report.html").read_text()
    assert "An upper bound" in page


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sdvg", "sdvg-frontier"])
def test_a_limited_run_of_the_shipped_suites(folder, tmp_path, capsys, name):
    """By every method that there is; the tiny model's own clips are not square."""
    text = (SUITES / f"{name}.yaml").read_text() + "call: {num_frames: 13}\n"
    words = command(folder, tmp_path, tmp_path / "out", text)
    assert main([*words, "--limit", "1", "--size", "16", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    sceptics = {f"plain:{sceptic}" for sceptic in load_suite(name).sceptics}
    assert sceptics == {"plain:steps-4", "plain:steps-2"}
    assert set(told["methods"]) == set(serving("video")) | sceptics
    assert not told["for_reporting"]
    assert list(told["methods"]["plain"]["quality"])[:3] == ["correctness", "attributes", "motion"]
    assert load_suite("sdvg").speed == load_suite("sdvg").quality == 100


def test_a_suite_without_a_judge_is_timed_alone(folder, tmp_path, capsys):
    """Any captions, any size."""
    suite = "summary: s\nsource: prompts\npipeline: video\nspeed: 1\ncall: {num_frames: 5}\n"
    (tmp_path / "mine.txt").write_text("a cat on a skateboard\n")
    words = command(folder, tmp_path, tmp_path / "out", suite)
    words += ["--prompts", str(tmp_path / "mine.txt"), "--methods", "random-routing", "--json"]
    assert main(words) == 0
    row = json.loads(capsys.readouterr().out)["methods"]["random-routing"]
    assert (row["n_speed"], row["quality"], row["at_equal_share"]) == (1, {}, {})
    assert row["drafted_share"] == 0  # of one block, which is forced


def test_a_reward_of_ones_own(folder, tmp_path, capsys):
    """The embedded one, from a folder that is named: the same rewards."""
    suite = SUITE.replace("speed: 2", "speed: 0").replace("quality: 3", "quality: 1")
    clip = embedded_folder("clip")
    row = "sdvg[tau=0,reward=shapes_clip_score]"
    words = [*command(folder, tmp_path, tmp_path / "out", suite), "--methods", row]
    assert main([*words, "--weights", f"shapes_clip_score={clip}"]) == 0
    assert main([*words[:-3], str(tmp_path / "other"), *words[-2:]]) == 0
    counts = [lines(tmp_path / out, "counts") for out in ("out", "other")]
    told = [next(x["stats"]["rewards"] for x in of if x["method"] != "plain") for of in counts]
    assert told[0] == told[1]
    assert len(told[0][0][1]) == 8  # frames of the block that was drafted
    words += ["--weights", f"image_reward={clip}"]
    assert main(words) == 2
    assert "suite mine has no use for image_reward" in capsys.readouterr().err


def test_a_published_reward(folder, tmp_path, monkeypatch):
    """Loaded once, from the weights that are named, before the rows are checked."""
    weights, loaded = tmp_path / "weights", []
    weights.mkdir()

    class Brightness:
        name = "image_reward"

        def score(self, prompts, images):
            return images.float().mean((1, 2, 3)) / 255

    def load(*given):
        loaded.append(given)
        return Brightness()

    monkeypatch.setattr("mmspec.eval.modalities.video.load_reward", load)
    suite = SUITE.replace("speed: 2", "speed: 0").replace("quality: 3", "quality: 1")
    words = command(folder, tmp_path, tmp_path / "out", suite)
    words += ["--methods", "sdvg[tau=0,reward=image_reward]"]
    assert main([*words, "--weights", f"image_reward={weights}"]) == 0
    assert loaded == [("image_reward", weights, "cpu")]
    (routed,) = (x for x in lines(tmp_path / "out", "counts") if x["method"].startswith("sdvg"))
    assert routed["stats"]["made_by"] == [["target", "drafter"]]


def test_methods_that_can_run(pipe):
    measured = modality("video")
    assert set(measured.methods(pipe, CALL)) == set(serving("video"))
    alone = VideoPipeline(**{**pipe.components, "drafter": None})
    assert measured.methods(alone, CALL) == ("plain", "x-cache", "random-reuse")
    with pytest.raises(InputError, match="say which --methods"):
        measured.methods(None, CALL)


@pytest.mark.parametrize(
    ("change", "more", "said"),
    [
        ({}, ["--methods", "sjd"], "sjd"),
        ({}, ["--batch-sizes", "1,2"], "clips of a batch take turns"),
        ({}, ["--device-map", "auto"], "--device-map spreads models of token ids"),
        ({}, ["--weights", "clip_score=x"], "suite mine has no use for clip_score"),
        ({}, ["--methods", "sdvg[tau=0,reward=image_reward]"], "needs --weights image_reward=PATH"),
        (
            {},
            ["--methods", "sdvg[tau=0,reward=image_reward]", "--weights", "image_reward=missing"],
            "no missing (image_reward should be a folder with ImageReward.pt",
        ),
        (
            {},
            ["--methods", "sdvg,sdvg[reward=pick_score]", "--weights", "pick_score=missing"],
            "rows ask router and pick_score: one run has weights of one reward",
        ),
        ({}, ["--model", "missing"], "no model folder at missing"),
        ({}, ["--pipeline", "image"], "is for --pipeline video"),
        ({"width: 16": "width: 24"}, [], "plain: the judge takes square frames"),
        ({"width: 16": "width: 20"}, [], "plain: width must be a multiple of 8 pixels, not 20"),
        ({"num_frames: 13": "num_frames: 14"}, [], "num_frames must be of whole blocks"),
        (
            {"steps: 1}": "steps: 0}"},
            [],
            "plain:hasty: steps are counted: a whole number from 1, not 0",
        ),
        ({"steps: 1}": "steps: soon}"}, [], "plain:hasty: num_inference_steps must be an integer"),
        ({"hasty: {num": "hasty: {window: 2, num"}, [], "call argument 'window'"),
        ({"attributes, motion": "attributes, geneval"}, [], "metric 'geneval'"),
        ({"clips.jsonl": "shapes-held-out.jsonl"}, [], "the tag must be one of move"),
    ],
)
def test_refused_in_one_line(folder, tmp_path, capsys, change, more, said):
    suite = SUITE
    for old, new in change.items():
        assert old in suite
        suite = suite.replace(old, new)
    words = command(folder, tmp_path, tmp_path / "out", suite)
    assert main([*words, "--methods", "plain", *more]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert not (tmp_path / "out").exists()
