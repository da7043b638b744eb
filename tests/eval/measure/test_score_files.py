"""`mmspec eval run` on files of the user's: pictures, answers, videos; and what it refuses."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from mmspec.cli.main import main
from mmspec.eval.measure import score_files as given
from mmspec.eval.measure.score_files import mean_with_interval
from mmspec.eval.metrics.temporal_flicker import temporal_flicker
from mmspec.worlds.shapes import render, sample


@pytest.fixture
def run(capfd, tmp_path):
    """Exit code, standard output and standard error of `mmspec eval run` into `tmp_path / out`."""

    def call(*options):
        command = ["eval", "run", *map(str, options), "-o", str(tmp_path / "out")]
        try:
            code = main(command)
        except SystemExit as stop:
            code = stop.code
        out, err = capfd.readouterr()
        return code, out, err

    return call


def scores(tmp_path) -> dict:
    return json.loads((tmp_path / "out" / "scores.json").read_text())


def refused(result, *parts) -> None:
    code, out, err = result
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert all(part in err for part in parts), err


# --- answers --------------------------------------------------------------------------------------


@pytest.fixture
def vqa(tmp_path):
    """Two VQAv2 questions in the published format, ten annotators each, and predictions."""
    questions = {
        "data_subtype": "val2014",
        "questions": [
            {"question_id": 1, "image_id": 7, "question": "what colour?"},
            {"question_id": 2, "image_id": 8, "question": "how many?"},
        ],
    }
    said = {1: ["red"] * 8 + ["blue"] * 2, 2: ["2"] * 4 + ["3"] * 6}
    annotations = {
        "annotations": [
            {
                "question_id": key,
                "image_id": 6 + key,
                "answer_type": "other" if key == 1 else "number",
                "answers": [{"answer": a, "answer_id": i} for i, a in enumerate(answers, 1)],
            }
            for key, answers in said.items()
        ]
    }
    (tmp_path / "q.json").write_text(json.dumps(questions))
    (tmp_path / "a.json").write_text(json.dumps(annotations))
    (tmp_path / "p.jsonl").write_text(
        '{"question_id": 1, "answer": "Red."}\n{"question_id": 2, "answer": "two"}\n'
    )
    files = ("--questions", "q.json", "--annotations", "a.json", "--predictions", "p.jsonl")
    return ["--suite", "vqav2", *(tmp_path / f if "." in f else f for f in files)]


def test_vqav2(run, vqa, tmp_path):
    code, out, _ = run(*vqa)
    assert code == 0
    record = scores(tmp_path)
    # "red" is said by eight; "two" becomes "2", said by four
    assert record["metrics"]["vqav2"]["value"] == pytest.approx(1.0)
    assert record["metrics"]["vqav2"]["parts"] == {"number": 1.0, "other": 1.0}
    assert (record["n"], record["missing"]) == (2, 0)
    assert "vqav2  1" in out
    lines = (tmp_path / "out" / "samples.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["1", "2"]
    assert "--suite vqav2" in record["command"]


def test_a_subject_may_have_a_slash(run, vqa, tmp_path):
    """As VQAv2's "yes/no" has, which is no subject "no"."""
    file = tmp_path / "a.json"
    file.write_text(file.read_text().replace('"other"', '"yes/no"'))
    assert run(*vqa)[0] == 0
    assert scores(tmp_path)["metrics"]["vqav2"]["parts"] == {"number": 1.0, "yes/no": 1.0}


def test_missing_predictions_would_mislead(run, vqa, tmp_path):
    (tmp_path / "p.jsonl").write_text('{"question_id": 1, "answer": "red"}\n')
    refused(run(*vqa), "no prediction for question 2", "1 of 2")
    assert not (tmp_path / "out").exists()
    code, out, _ = run(*vqa, "--partial")
    assert code == 0
    assert "1 questions have no prediction" in out
    assert scores(tmp_path)["n"] == 1


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("p.jsonl", '{"question_id": 1, "answer": "red"}\nnot JSON\n', "p.jsonl"),
        ("p.jsonl", '{"question_id": 1, "answer": "a"}\n' * 2, "question 1"),
        ("q.json", "{", "q.json"),
        ("a.json", '{"annotations": []}', "question 1 has no annotation"),
    ],
)
def test_bad_answers(run, vqa, tmp_path, file, text, said):
    (tmp_path / file).write_text(text)
    refused(run(*vqa), said)
    assert not (tmp_path / "out").exists()


def test_few_answers_have_no_interval(run, vqa, tmp_path):
    assert run(*vqa)[0] == 0
    assert "ci95" not in scores(tmp_path)["metrics"]["vqav2"]


def test_answers_that_are_all_right_may_hide_a_wrong_one():
    """By the rule of three, as in runs."""
    found = mean_with_interval([1.0] * 30)
    assert found["value"] == 1
    assert found["ci95"] == pytest.approx((0.9, 1.1))
    assert "ci95" not in mean_with_interval([1.0] * 4)


def test_a_suite_without_metrics_scores_no_files(run, tmp_path):
    refused(run("--suite", "speed", "--images", tmp_path), "no metric that scores files")


def test_what_is_missing_is_named(run, vqa):
    refused(run("--suite", "vqav2"), "--questions PATH")
    refused(run(*vqa[:6]), "--predictions PATH")
    refused(run("--suite", "image-folders"), "--images PATH")
    refused(run("--suite", "video"), "--videos PATH")


@pytest.mark.parametrize(
    ("benchmark", "answer", "prediction", "expected"),
    [
        ("chartqa", ["100"], "104", 1.0),
        ("docvqa", ["hello"], "hellp", 0.8),
        ("textvqa", ["stop"] * 10, "Stop", 1.0),
    ],
)
def test_common_format(run, tmp_path, benchmark, answer, prediction, expected):
    question = {"question_id": "a", "question": "?", "answers": answer}
    (tmp_path / "q.jsonl").write_text(json.dumps(question) + "\n")
    (tmp_path / "p.json").write_text(json.dumps([{"question_id": "a", "answer": prediction}]))
    files = ("--questions", tmp_path / "q.jsonl", "--predictions", tmp_path / "p.json")
    assert run("--suite", benchmark, *files)[0] == 0
    assert scores(tmp_path)["metrics"][benchmark]["value"] == pytest.approx(expected)


# --- pictures -------------------------------------------------------------------------------------


@pytest.fixture
def folders(tmp_path):
    """Pictures of scenes, a noisier copy of each, and their captions."""
    rng = np.random.default_rng(0)
    captions = []
    for name in ("real", "made"):
        (tmp_path / name).mkdir()
    for i in range(12):
        prompt, scene = sample(rng, "color_attr", "held_out")
        picture = render(scene)
        noise = rng.normal(0, 12, picture.shape)
        Image.fromarray(picture).save(tmp_path / "real" / f"{i:02d}.png")
        worn = np.clip(picture + noise, 0, 255).astype(np.uint8)
        Image.fromarray(worn).save(tmp_path / "made" / f"{i:02d}.png")
        captions.append({"file_name": f"{i:02d}.png", "caption": prompt.prompt})
    (tmp_path / "captions.jsonl").write_text("".join(json.dumps(c) + "\n" for c in captions))
    return [
        *("--suite", "image-folders", "--images", tmp_path / "made"),
        *("--reference", tmp_path / "real", "--captions", tmp_path / "captions.jsonl"),
    ]


def test_image_folders(run, folders, tmp_path):
    metrics = "frechet_shapes_clip,kid_shapes_clip,shapes_clip_score"
    code, out, _ = run(*folders, "--metrics", metrics)
    assert code == 0
    record = scores(tmp_path)
    assert list(record["metrics"]) == metrics.split(",")
    assert record["metrics"]["frechet_shapes_clip"]["value"] > 0
    assert "12 generated pictures for" in out  # far too few, and it says so
    low, high = record["metrics"]["shapes_clip_score"]["ci95"]
    assert low < record["metrics"]["shapes_clip_score"]["value"] < high
    assert len((tmp_path / "out" / "samples.jsonl").read_text().splitlines()) == 12


def test_bad_pictures(run, folders, tmp_path):
    metrics = ("--metrics", "frechet_shapes_clip,shapes_clip_score")
    picture = tmp_path / "made" / "03.png"
    content = picture.read_bytes()
    picture.write_bytes(content[:200])
    refused(run(*folders, *metrics), "03.png")
    picture.unlink()
    refused(run(*folders, *metrics), "captions have no picture", "'03'")
    picture.write_bytes(content)
    Image.open(picture).save(tmp_path / "made" / "03.jpg")
    refused(run(*folders, *metrics), "same id '03'")
    picture.with_suffix(".jpg").unlink()
    assert not (tmp_path / "out").exists()
    refused(run(*folders[:-2], "--metrics", "fid"), "inception-v3=PATH")
    refused(run(*folders, "--metrics", "fidd"), "did you mean 'fid'")
    refused(run(*folders, "--weights", "fid"), "NAME=PATH")


# --- videos ---------------------------------------------------------------------------------------


def test_videos(run, tmp_path):
    """A folder of frames a video: a scene that stands still, and one that jumps."""
    rng = np.random.default_rng(0)
    lines = []
    for name, moves in (("still", False), ("jumping", True)):
        folder = tmp_path / "videos" / name
        folder.mkdir(parents=True)
        prompt, scene = sample(rng, "colors", "held_out")
        for t in range(4):
            if moves and t:
                prompt, scene = sample(rng, "colors", "held_out")
            Image.fromarray(render(scene)).save(folder / f"{t:03d}.png")
        clause = {**prompt.include[0], "motion": "still"}
        lines.append({"video": name, "prompt": prompt.prompt, "include": [clause]})
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    where = ("--suite", "video", "--videos", tmp_path / "videos", "--prompts", prompts)
    assert run(*where)[0] == 0
    metrics = scores(tmp_path)["metrics"]
    found = [json.loads(x) for x in (tmp_path / "out" / "samples.jsonl").read_text().splitlines()]
    assert [line["id"] for line in found] == ["still", "jumping"]
    assert found[0]["temporal_flicker"] == 1
    frames = [Image.open(p) for p in sorted((tmp_path / "videos" / "jumping").glob("*.png"))]
    assert found[1]["temporal_flicker"] == temporal_flicker(frames) < 1
    assert [line["motion"] for line in found] == [1, 0]
    assert metrics["motion"]["value"] == 0.5
    assert {"shapes_clip_score_mean", "shapes_clip_score_worst_frame"} <= metrics.keys()
    assert found[0]["shapes_clip_score_worst_frame"] <= found[0]["shapes_clip_score_mean"]

    prompts.write_text(json.dumps(lines[0]) + "\n")
    refused(run(*where), "jumping has no line")
    prompts.write_text(prompts.read_text() * 2)
    refused(run(*where), "prompts.jsonl", "already")
    prompts.write_text('{"video": "flying", "prompt": "p"}\n')
    refused(run(*where), "flying")


# --- judges ---------------------------------------------------------------------------------------


def test_geneval_of_a_folder(run, tmp_path, monkeypatch):
    """GenEval's own layout; the networks are stood in for, their weights asked for."""
    metadata = {
        "tag": "single_object",
        "include": [{"class": "dog", "count": 1}],
        "prompt": "a photo of a dog",
    }
    (tmp_path / "metadata.jsonl").write_text(json.dumps(metadata) + "\n")
    folder = tmp_path / "made" / "00000"
    (folder / "samples").mkdir(parents=True)
    (folder / "metadata.jsonl").write_text(json.dumps(metadata))
    for i in range(4):
        Image.new("RGB", (8, 8), (i, i, i)).save(folder / "samples" / f"{i:04d}.png")
    where = ("--suite", "geneval", "--images", tmp_path / "made")
    refused(run(*where), "--prompts PATH")
    where = (*where, "--prompts", tmp_path / "metadata.jsonl")
    refused(run(*where), "mask2former=PATH")

    class Judge:
        name = "fake"

        def judge(self, prompts, images):
            return [(image.getpixel((0, 0))[0] < 3, "why") for image in images]

    monkeypatch.setattr(
        "mmspec.eval.judges.geneval.GenEvalJudge.from_pretrained", lambda *_, **__: Judge()
    )
    weights = ("--weights", f"mask2former={tmp_path}", "--weights", f"clip={tmp_path}")
    assert run(*where, *weights)[0] == 0
    found = scores(tmp_path)
    assert found["n"] == 4
    assert found["metrics"]["geneval"]["parts"] == {"single_object": 0.75}
    (folder / "samples" / "0003.png").unlink()
    refused(run(*where, *weights), "3 pictures, expected 4")


def test_scores_are_written_whole(run, vqa, tmp_path, monkeypatch):
    monkeypatch.setattr(given, "environment", lambda: {"x": object()})
    with pytest.raises(TypeError):
        run(*vqa)
    assert not (tmp_path / "out" / "scores.json").exists()
