"""Metrics declare themselves: all are found without torch, and one of another package works."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from mmspec import declarations
from mmspec.cli.main import main
from mmspec.errors import InputError
from mmspec.eval.metrics.registry import all_metrics, check_weights, metrics_for
from mmspec.registry import LEFT_OUT
from mmspec.rewards.registry import REWARDS

TOY = '''
import numpy as np

from mmspec.eval.metrics.base import VideoMetric
from mmspec.rewards.registry import RewardPart


class Brightness:
    """The mean grey value, and 1000 for each word of the prompt."""

    name = "brightness"

    @classmethod
    def from_pretrained(cls, path, device):
        return cls()

    def score(self, prompts, images):
        import torch

        grey = [float(np.asarray(image.convert("L")).mean()) for image in images]
        words = [1000 * len(prompt.split()) for prompt in prompts]
        return torch.tensor([g + w for g, w in zip(grey, words)])


BRIGHTNESS = RewardPart("brightness", "toy_metrics:Brightness", bounds=(0, 255))
LENGTH = VideoMetric(
    name="length",
    summary="frames of a video",
    video_scorer=lambda given: lambda metadata, frames: {"length": float(len(frames))},
)
'''


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package of somebody else's with two metrics, found by its entry points."""
    (tmp_path / "toy_metrics.py").write_text(TOY)
    info = tmp_path / "toy_metrics-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-metrics\nVersion: 1\n")
    points = "[mmspec.metrics]\nbrightness = toy_metrics:BRIGHTNESS\nlength = toy_metrics:LENGTH\n"
    (info / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(str(tmp_path))
    forget()  # as in a process that starts
    yield
    monkeypatch.undo()
    forget()


def forget() -> None:
    """What was found."""
    declarations.collect.cache_clear()
    declarations._of_others.cache_clear()
    LEFT_OUT.clear()


def test_a_metric_of_another_package_scores_a_folder(installed, tmp_path, capfd):
    images = tmp_path / "images"
    images.mkdir()
    for i in range(4):
        Image.fromarray(np.full((8, 8, 3), 10 * i, np.uint8)).save(images / f"{i}.png")
    lines = [{"file_name": f"{i}.png", "caption": "two words"} for i in range(4)]
    (tmp_path / "captions.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    command = ["eval", "run", "--suite", "image-folders", "--metrics", "brightness"]
    command += ["--images", str(images), "--captions", str(tmp_path / "captions.jsonl")]
    assert main([*command, "-o", str(tmp_path / "out")]) == 0
    found = json.loads((tmp_path / "out" / "scores.json").read_text())["metrics"]["brightness"]
    assert found["value"] == pytest.approx(2015)
    assert "brightness  2015" in capfd.readouterr().out
    check_weights(["brightness"])
    assert "length" in metrics_for("videos")
    assert main([*command[:-6], "--metrics", "brightnes", "-o", str(tmp_path / "out")]) == 2
    assert "did you mean 'brightness'" in capfd.readouterr().err


def test_a_metric_of_another_package_scores_videos(installed, tmp_path):
    for i in range(3):
        picture = Image.fromarray(np.full((8, 8, 3), i, np.uint8))
        (tmp_path / "videos" / "a").mkdir(parents=True, exist_ok=True)
        picture.save(tmp_path / "videos" / "a" / f"{i}.png")
    (tmp_path / "p.jsonl").write_text('{"video": "a", "prompt": "p"}\n')
    command = ["eval", "run", "--suite", "video", "--metrics", "length,temporal_flicker"]
    command += ["--videos", str(tmp_path / "videos"), "--prompts", str(tmp_path / "p.jsonl")]
    assert main([*command, "-o", str(tmp_path / "out")]) == 0
    found = json.loads((tmp_path / "out" / "scores.json").read_text())["metrics"]
    assert found["length"]["value"] == 3
    assert found["temporal_flicker"]["value"] == pytest.approx(254 / 255)


def test_a_broken_package_is_left_out(installed, tmp_path, capfd):
    (tmp_path / "toy_metrics.py").write_text("import nothing_of_that_name\n")
    sys.modules.pop("toy_metrics", None)
    said = "package toy-metrics is left out: No module named 'nothing_of_that_name'"
    with pytest.warns(UserWarning, match=said):
        assert "clip_score" in REWARDS.names()
    with pytest.raises(InputError, match=f"unknown reward 'brightness'.*; {said}"):
        REWARDS.get("brightness")
    with pytest.raises(InputError, match=f"unknown network .* 'brightness'.*; {said}"):
        check_weights(["brightness"])


def test_metrics_are_told_apart_within_what_a_suite_may_name():
    for source in ("images", "answers", "videos"):
        names = [metric.name for metric in all_metrics() if source in metric.sources]
        assert len(names) == len(set(names)) > 2
    for metric in all_metrics():
        low, high = metric.bounds
        assert low < high
        assert metric.summary


def test_metrics_and_suites_are_listed_without_their_libraries():
    code = (
        "import sys; from mmspec.eval.metrics.registry import all_metrics; all_metrics(); "
        "heavy = {'torch', 'open_clip', 'transformers', 'scipy', 'lpips', 'torchvision'}; "
        "print(heavy & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
