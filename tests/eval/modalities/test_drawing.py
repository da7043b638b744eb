"""Scorers of single pictures: the suite's judge is asked, with the weights that the user gave."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from PIL import Image

from mmspec.errors import InputError
from mmspec.eval.modalities.drawing import check_files, make_scorers
from mmspec.eval.run.job import Job
from mmspec.eval.suite import load_suite
from mmspec.worlds.shapes import Prompt

PROMPTS = (
    Prompt("a photo of a dog", "single_object", [{"class": "dog", "count": 1}]),
    Prompt("a photo of a cat", "single_object", [{"class": "cat", "count": 1}]),
)
PICTURES = [Image.new("RGB", (8, 8), (i, 0, 0)) for i in range(2)]


def job(suite: str, **fields) -> Job:
    found = load_suite(suite)
    fields = {"files": {}, **fields}
    metrics = fields.pop("metrics", found.metrics)
    return Job(replace(found, metrics=metrics), PROMPTS, {}, {}, **fields)


def test_mask2former_judges_the_official_suite(monkeypatch):
    asked = []

    class Judge:
        def judge(self, prompts, images):
            asked.append([p["include"][0]["class"] for p in prompts])
            return [(True, ""), (False, "no cat")]

    def load(detector, clip, device):
        asked.append((str(detector), str(clip), device))
        return Judge()

    monkeypatch.setattr("mmspec.eval.judges.geneval.GenEvalJudge.from_pretrained", load)
    files = {"mask2former": "m2f", "clip": "vit.safetensors"}
    [(name, scorer)] = make_scorers(job("geneval", files=files)).items()
    assert name == "geneval"
    assert scorer(PROMPTS, PICTURES) == [(1.0, ""), (0.0, "no cat")]
    assert asked == [("m2f", "vit.safetensors", "cpu"), ["dog", "cat"]]
    with pytest.raises(InputError, match="clip=PATH"):
        check_files(job("geneval", files={"mask2former": "m2f"}))


def test_dpg_zeroes_what_hangs_on_a_no(tmp_path, monkeypatch):
    columns = ["item_id", "text", "keywords", "proposition_id", "dependency", "category_broad"]
    columns += ["category_detailed", "tuple", "question_natural_language"]
    rows = [",".join(columns)]
    for item, prompt in enumerate(PROMPTS):
        for number, parent in ((1, 0), (2, 1)):
            row = f"{item},{prompt.prompt},,{number},{parent},entity,whole,entity - whole (x),Q?"
            rows.append(row.replace("Q?", f"question {number}?"))
    (tmp_path / "dpg.csv").write_text("\n".join(rows) + "\n")

    class Judge:
        def answer(self, images, questions):
            red = images[0].getpixel((0, 0))[0]
            assert questions == ["question 1?", "question 2?"]
            return [red == 0, True]

    monkeypatch.setattr("mmspec.eval.judges.vqa.BlipAnswerer", lambda *_, **__: Judge())
    files = {"prompts": str(tmp_path / "dpg.csv"), "blip_vqa": "blip"}
    [(_, scorer)] = make_scorers(job("dpg-bench", files=files)).items()
    assert [score for score, _ in scorer(PROMPTS, PICTURES)] == [100, 0]


def test_rewards_get_their_weights(tmp_path, monkeypatch):
    class Reward:
        def score(self, prompts, images):
            assert prompts == [p.prompt for p in PROMPTS]
            return torch.tensor([0.5, -1.0])

    asked = []

    def load(name, path, device):
        asked.append((name, path and str(path), device))
        return Reward()

    monkeypatch.setattr("mmspec.eval.metrics.reward.load_reward", load)
    metrics = ("image_reward", "shapes_clip_score", "frechet_shapes_clip")
    wanted = job(
        "shapes-full", metrics=metrics, files={"image_reward": str(tmp_path)}, device="cuda"
    )
    check_files(wanted)
    scorers = make_scorers(wanted)
    assert list(scorers) == ["image_reward", "shapes_clip_score"]  # sets are no single pictures
    assert asked == [("image_reward", str(tmp_path), "cuda"), ("shapes_clip_score", None, "cuda")]
    assert scorers["image_reward"](PROMPTS, PICTURES) == [(0.5, ""), (-1.0, "")]
    with pytest.raises(InputError, match="image_reward=PATH: a folder with ImageReward"):
        check_files(job("shapes-full", metrics=metrics))
