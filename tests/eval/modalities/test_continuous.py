"""Whole runs of continuous tokens on a tiny model: rows, counters, distances, what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from mars import captioned_pipeline, seeds, tiny_mar, tiny_vae
from PIL import Image

from mmspec import ContinuousImagePipeline, SpecConfig
from mmspec.cli.main import main
from mmspec.errors import InputError
from mmspec.eval.data.prompts import load_prompts
from mmspec.eval.metrics.frechet import frechet_distance
from mmspec.eval.modalities.base import modality
from mmspec.eval.run.executor import Worker
from mmspec.eval.schema import Report
from mmspec.eval.suite import SUITES, load_suite
from mmspec.eval.variants import SHIFT
from mmspec.methods import serving
from mmspec.rewards.registry import load_features

CALL = {"guidance_scale": 3.0, "diffusion_steps": 6, "num_iterations": 5}
SCEPTICS = {"few": {"num_iterations": 3}, "disa": {"diffusion_steps": (6, 3)}}
METHODS = ("gamma-maximal", "cspd", "cspd-independent", "drafter-only")
ROWS = [
    *("plain", "gamma-maximal", "cspd", "cspd-independent", "drafter-only"),
    *("plain:few", "plain:disa", "plain:again"),
]
SUITE = """
summary: s
source: prompts
pipeline: continuous
prompts: shapes-held-out.jsonl
metrics: [geneval, frechet_shapes_clip]
reference: shapes
speed: 2
quality: 3
margin: 0.02
call: {guidance_scale: 3.0, diffusion_steps: 6, num_iterations: 5}
sceptics: {few: {num_iterations: 3}, disa: {diffusion_steps: [6, 3]}}
again: true
"""
TIMES = (
    *("seconds", "decode_seconds", "phase_seconds", "peak_memory", "energy", "environment"),
    *("date", "checksum"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "continuous"
    captioned_pipeline().save_pretrained(path)
    return path


@pytest.fixture
def pipe(folder) -> ContinuousImagePipeline:
    made = ContinuousImagePipeline.from_pretrained(folder)
    made.set_progress_bar_config(disable=True)
    return made


def command(folder: Path, at: Path, out: Path, suite: str = SUITE) -> list[str]:
    at.mkdir(parents=True, exist_ok=True)
    (at / "mine.yaml").write_text(suite)
    words = ["eval", "run", "--suite", str(at / "mine.yaml"), "--pipeline", "continuous"]
    return [*words, "--model", str(folder), "-o", str(out)]


@pytest.fixture(scope="module")
def finished(folder, tmp_path_factory) -> Path:
    """A run that nobody disturbed."""
    path = tmp_path_factory.mktemp("finished")
    words = command(folder, path, path / "out")
    assert main([*words, "--methods", ",".join(METHODS), "--batch-sizes", "1,3"]) == 0
    return path / "out"


@pytest.fixture
def report(finished) -> Report:
    return Report.read(finished)


def prompts(indices: range) -> list[str]:
    known = load_prompts(load_suite("continuous"), None)
    return [known[index].prompt for index in indices]


def calls() -> Iterator[tuple[str, str, dict, int]]:
    """Rows with their method, arguments and shift of seeds, as they are meant."""
    for name in ("plain", *METHODS):
        yield name, name, CALL, 0
    for name, own in SCEPTICS.items():
        yield f"plain:{name}", "plain", {**CALL, **own}, 0
    yield "plain:again", "plain", CALL, SHIFT


def lines(out: Path) -> list[dict]:
    return [json.loads(text) for text in (out / "samples.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_what_a_run_writes(finished, report):
    assert sorted(path.name for path in finished.iterdir()) == [
        *("batch.svg", "calls.svg", "frontier.svg", "pictures", "report.html", "report.json"),
        *("report.md", "run.json", "samples.jsonl"),
    ]
    assert (report.pipeline, report.target_entropy, report.for_reporting) == (
        "continuous",
        None,
        True,
    )
    rows = report.methods
    assert list(rows) == ROWS
    roles = ["baseline", "method", "method", "method", "sceptic", "sceptic", "sceptic", "again"]
    assert [row.role for row in rows.values()] == roles
    lossy = {"cspd-independent", "drafter-only", "plain:few", "plain:disa"}
    assert {name for name, row in rows.items() if row.contract == "lossy"} == lossy
    assert {row.contract for name, row in rows.items() if name not in lossy} == {"exact"}
    assert rows["cspd-independent"].knob == "softening"
    assert report.settings["sceptics"] == json.loads(json.dumps(SCEPTICS))
    for name, row in rows.items():
        assert (row.n, row.n_speed, list(row.throughput)) == (3, 2, [3])
        assert (row.tv_per_step, row.ideal_speedup) == (None, None)
        assert (row.speedup_median is None) == (name == "plain")
        assert set(row.phase_seconds) >= {"encode", "decode", "reward"}
    assert rows["plain:again"].quality["geneval"].verdict == ""  # nobody waits for it
    assert rows["plain:disa"].quality["geneval"].verdict == "undecided"


def test_sceptics_stand_beside_the_methods(finished):
    for name in ("frontier.svg", "batch.svg"):
        text = (finished / name).read_text()
        assert all(row in text for row in ROWS[:-1])
        assert "plain:again" not in text
    assert "in batches of 3, times" in (finished / "batch.svg").read_text()
    head = (finished / "calls.svg").read_text()
    assert "head in sequence than plain" in head
    assert "plain:few" in head
    text, page = ((finished / name).read_text() for name in ("report.md", "report.html"))
    columns = next(line for line in text.splitlines() if line.startswith("| method | contract"))
    for column in ("head calls", "head rows", "backbone calls", "steps per call"):
        assert f"| {column} " in columns
        assert column in page
    assert "NFE" not in text + page
    assert "plain:few (the sceptic's row)" in text
    assert "plain:again (other seeds)" in text


def test_counters_are_those_of_direct_calls(pipe, report):
    for name, method, call, shift in calls():
        row = report.methods[name]
        pipe.enable_speculation(SpecConfig(method=method))
        alone = [
            pipe(prompt, generator=seeds(index + shift), **call).stats
            for index, prompt in enumerate(prompts(range(2)))
        ]
        for counter in (
            *("head_calls", "head_rows", "backbone_calls"),
            *("drafter_head_calls", "drafter_backbone_calls"),
        ):
            told = getattr(row, f"{counter}_per_sample")
            assert told == sum(getattr(stats, counter) for stats in alone) / 2, counter
        three = range(3)
        batch = pipe(prompts(three), generator=seeds(*(i + shift for i in three)), **call).stats
        assert row.nfe_per_sample == batch.nfe  # of the judged ones
        assert row.mean_acceptance_length == batch.mean_acceptance_length
        assert row.acceptance_by_position == batch.acceptance_by_position
        timed = [
            pipe(
                prompts(range(first, first + 3)),
                generator=seeds(*(i + shift for i in range(first, first + 3))),
                **call,
            ).stats.head_calls
            for first in (0, 3)
        ]
        assert row.throughput[3].head_calls == sum(timed) / 2
    plain, few, disa = (report.methods[n] for n in ("plain", "plain:few", "plain:disa"))
    assert (plain.head_calls_per_sample, plain.backbone_calls_per_sample) == (5 * 6, 5)
    assert plain.head_rows_per_sample == 16 * 6 * 2
    assert (few.head_calls_per_sample, few.backbone_calls_per_sample) == (3 * 6, 3)
    assert disa.head_calls_per_sample == 6 + 5 + 4 + 3 + 3


def test_pictures_are_those_of_direct_calls(pipe, finished):
    for name, method, call, shift in calls():
        pipe.enable_speculation(SpecConfig(method=method))
        three = range(3)
        images = pipe(prompts(three), generator=seeds(*(i + shift for i in three)), **call).images
        for index, image in enumerate(images):
            kept = np.asarray(Image.open(finished / f"pictures/{name}/{index:05d}.png"))
            assert np.array_equal(kept, np.asarray(image))
    told = {(x["method"], x["index"]): x["seed"] for x in lines(finished) if x["kind"] == "quality"}
    assert told["plain", 2] == 2
    assert told["plain:again", 2] == 2 + SHIFT


def test_differences_of_distances_stand_over_those_of_other_seeds(report):
    (note,) = [note for note in report.notes if "over that of other seeds" in note]
    rows = report.methods
    changes = {n: r.quality["frechet_shapes_clip"].difference_to_plain for n, r in rows.items()}
    floor = abs(changes["plain:again"])
    assert note.startswith("frechet_shapes_clip: differences to plain's over that of other seeds")
    assert f"({floor:.3g})" in note
    for name in ("cspd", "plain:few"):
        assert f"{name} {changes[name] / floor:+.1f}" in note
    assert "plain:again" not in note.split(": ", 2)[-1]
    quality = {name: row.quality["geneval"] for name, row in rows.items()}
    for name, found in quality.items():
        share = found.value / quality["plain"].value if quality["plain"].value else None
        assert found.share_of_plain == (None if name == "plain" else share)


def test_distances_to_what_plain_draws_with_other_seeds(finished, report):
    extractor = load_features("shapes_clip", None, "cpu")

    def features(name):
        paths = [finished / f"pictures/{name}/{index:05d}.png" for index in range(3)]
        found = extractor.features([Image.open(path).convert("RGB") for path in paths])
        return found.numpy().astype(np.float64)

    def distance(a, b):
        moments = [m for x in (a, b) for m in (x.mean(0), np.cov(x, rowvar=False))]
        return frechet_distance(*moments)

    sets = {name: features(name) for name in ROWS}
    metric = "frechet_shapes_clip_to_plain"
    floor = distance(sets["plain:again"], sets["plain"])
    for name in ROWS[:-1]:
        found = report.methods[name].quality[metric]
        assert found.value == pytest.approx(distance(sets["plain:again"], sets[name]), abs=1e-6)
        if name != "plain":
            assert found.difference_to_plain == pytest.approx(found.value - floor, abs=1e-6)
    assert report.methods["plain"].quality[metric].difference_to_plain is None
    assert metric not in report.methods["plain:again"].quality
    assert "frechet_shapes_clip" in report.methods["plain:again"].quality


def timeless(out: Path) -> list[str]:
    """The samples without their times, sorted, as text."""
    found = []
    for line in lines(out):
        for name in TIMES:
            line.pop(name, None)
        for name in ("seconds", "latency"):
            line.get("stats", {}).pop(name, None)
        found.append(json.dumps(line, sort_keys=True))
    return sorted(found)


@pytest.mark.slow
def test_an_interrupted_run_goes_on(folder, finished, tmp_path, monkeypatch):
    real, done = Worker.run, []

    def fragile(self, unit):
        if len(done) == 7:
            raise KeyboardInterrupt
        done.append(unit)
        return real(self, unit)

    words = command(folder, tmp_path, tmp_path / "out")
    words += ["--methods", ",".join(METHODS), "--batch-sizes", "1,3"]
    monkeypatch.setattr(Worker, "run", fragile)
    assert main(words) == 130
    assert not (tmp_path / "out" / "report.json").exists()
    monkeypatch.setattr(Worker, "run", real)
    assert main(words) == 0
    assert timeless(tmp_path / "out") == timeless(finished)
    monkeypatch.setattr(Worker, "run", None)  # nobody may be asked for a unit
    assert main(words) == 0


@pytest.mark.slow
def test_a_limited_run_of_the_shipped_suite_by_every_method(folder, tmp_path, capsys, monkeypatch):
    """Default methods: all that the folder's parts and the suite's arguments allow."""
    text = (SUITES / "continuous.yaml").read_text()
    shipped = text.replace("diffusion_steps: 100", "diffusion_steps: 6")
    assert shipped != text  # a hundred steps of every row would take a minute
    words = command(folder, tmp_path, tmp_path / "out", shipped)
    assert main([*words, "--limit", "1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told["methods"]) == {
        *serving("continuous"),
        *("plain:iterations-16", "plain:iterations-8", "plain:disa", "plain:again"),
    }
    assert not told["for_reporting"]
    assert told["methods"]["plain:iterations-8"]["backbone_calls_per_sample"] == 8
    assert "shapes_clip_score" in told["methods"]["plain"]["quality"]


def test_methods_that_can_run(pipe):
    measured = modality("continuous")
    every = set(serving("continuous"))
    assert set(measured.methods(pipe, CALL)) == every
    assert set(measured.methods(pipe, {**CALL, "temperature": 0.0})) == {"plain", "drafter-only"}
    alone = ContinuousImagePipeline(**{**pipe.components, "drafter": None})
    assert set(measured.methods(alone, CALL)) == {
        *("plain", "gamma-maximal", "gaussian-block", "reflection"),
    }
    with pytest.raises(InputError, match="say which --methods"):
        measured.methods(None, CALL)


@pytest.mark.parametrize(
    ("change", "more", "said"),
    [
        ({}, ["--methods", "sjd"], "sjd"),
        ({}, ["--size", "32"], "draws 16×16 px, not 32"),
        ({}, ["--device-map", "auto"], "--device-map spreads models of token ids"),
        ({}, ["--model", "missing"], "no model folder at missing"),
        ({}, ["--prompts", "missing.jsonl"], "missing.jsonl"),
        ({}, ["--pipeline", "image"], "is for --pipeline continuous"),
        ({"iterations: 3": "iterations: 17"}, [], "plain:few: iterations must be from 1 to 16"),
        (
            {"[6, 3]": "[6, 3, 1]"},
            [],
            "diffusion_steps must be an integer or a list of 2",
        ),
        (
            {"[6, 3]": "[6, fast]"},
            [],
            "diffusion_steps must be an integer or a list of 2",
        ),
        (
            {"iterations: 5": "iterations: soon"},
            [],
            "num_iterations must be an integer",
        ),
        ({"scale: 3.0": "scale: much"}, [], "guidance_scale must be a number or None, not 'much'"),
        ({"steps: [6, 3]": "stops: [6, 3]"}, [], "did you mean"),
        ({"guidance_scale": "class_labels"}, [], "call argument 'class_labels'"),
        ({"again: true": "blank: true"}, [], "blank is not for pipeline continuous"),
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


@pytest.fixture(scope="module")
def of_classes(tmp_path_factory) -> Path:
    """A tiny model of five classes."""
    path = tmp_path_factory.mktemp("classes")
    with torch.random.fork_rng():
        torch.manual_seed(1)
        told = tiny_mar(condition="class", class_num=5)
        ContinuousImagePipeline(told, tiny_vae()).save_pretrained(path)
    return path


CLASSES = """
summary: s
source: prompts
pipeline: continuous
metrics: [frechet_shapes_clip]
speed: 2
quality: 3
call: {diffusion_steps: 4, num_iterations: 5}
sceptics: {iterations-3: {num_iterations: 3}}
"""


TIMED = CLASSES.replace("metrics: [frechet_shapes_clip]\n", "").replace("quality: 3\n", "")


def test_a_model_that_is_told_classes(of_classes, tmp_path):
    """Prompts are class numbers: speed, and distances between sets, by the same counters."""
    (tmp_path / "classes.txt").write_text("3\n0\n4\n")
    (tmp_path / "truth").mkdir()
    for n in range(3):
        picture = np.random.default_rng(n).integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(picture).save(tmp_path / "truth" / f"{n}.png")
    words = command(of_classes, tmp_path, tmp_path / "out", CLASSES)
    words += ["--prompts", str(tmp_path / "classes.txt"), "--methods", "reflection"]
    assert main([*words, "--reference", str(tmp_path / "truth")]) == 0
    report = Report.read(tmp_path / "out")
    assert list(report.methods) == ["plain", "reflection", "plain:iterations-3"]
    heads = [row.head_calls_per_sample for row in report.methods.values()]
    assert (heads[0], heads[2]) == (20, 12)
    assert all(row.quality["frechet_shapes_clip"].value > 0 for row in report.methods.values())
    pipe = ContinuousImagePipeline.from_pretrained(of_classes)
    pipe.set_progress_bar_config(disable=True)
    call = {"num_iterations": 5, "diffusion_steps": 4}
    images = pipe(class_labels=[3, 0, 4], generator=seeds(0, 1, 2), **call).images
    kept = np.asarray(Image.open(tmp_path / "out/pictures/plain/00002.png"))
    assert np.array_equal(kept, np.asarray(images[2]))


@pytest.mark.parametrize(
    ("suite", "prompts", "said"),
    [
        (SUITE, None, "told classes, and geneval needs captions"),
        (TIMED, "3\n5\n", "told classes, numbers from 0 to 4, not ['3', '5']"),
        (TIMED, "a dog\n", "told classes, numbers from 0 to 4, not ['a dog']"),
        (CLASSES + "reference: shapes\n", None, "prompts"),
    ],
)
def test_what_a_model_of_classes_can_not_be_asked(
    of_classes, suite, prompts, said, tmp_path, capsys
):
    words = command(of_classes, tmp_path, tmp_path / "out", suite)
    if prompts is not None:
        (tmp_path / "classes.txt").write_text(prompts)
        words += ["--prompts", str(tmp_path / "classes.txt")]
    assert main([*words, "--methods", "plain"]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_suite_of_classes_is_of_the_released_models():
    suite = load_suite("continuous-classes")
    told = [int(item.prompt) for item in load_prompts(suite, None)]
    assert len(set(told)) == len(told) == suite.speed
    assert 0 <= min(told) <= max(told) < 1000
    assert {own["num_iterations"] for own in suite.sceptics.values()} == {64, 32}
