"""Metrics over folders: figures are those of the metrics themselves, and lacks are named."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import ImageFilter

from mmspec.errors import InputError
from mmspec.eval.data.captions import Captions
from mmspec.eval.data.folders import read_images
from mmspec.eval.measure.image_sets import score_folders
from mmspec.eval.metrics.base import FolderMetric
from mmspec.eval.metrics.frechet import frechet_distance
from mmspec.eval.metrics.kid import polynomial_mmd
from mmspec.eval.metrics.registry import metrics_of
from mmspec.rewards.base import to_pil

N = 10
METRICS = metrics_of(FolderMetric)


class Colours:
    """Mean and deviation of each channel; counts how many pictures it has seen."""

    def __init__(self, name):
        self.name, self.seen = name, 0

    def features(self, images):
        self.seen += len(images)
        pixels = [torch.tensor(np.asarray(i), dtype=torch.float32) / 255 for i in to_pil(images)]
        return torch.stack([torch.cat([p.mean((0, 1)), p.std((0, 1))]) for p in pixels])


class Brightness:
    """The mean grey value, and 1 for each word of the prompt."""

    def __init__(self, name):
        self.name = name

    def score(self, prompts, images):
        grey = [float(np.asarray(i.convert("L")).mean()) for i in to_pil(images)]
        words = [len(prompt.split()) for prompt in prompts]
        return torch.tensor([g + w for g, w in zip(grey, words, strict=True)])


@pytest.fixture
def registry(monkeypatch):
    """Stands in for the rewards' registry, and lists what it was asked for."""
    module = SimpleNamespace(asked=[])

    def load_features(name, weights, device):
        module.asked.append((name, weights, device))
        names = {"inception-v3": "inception-v3-colours", "shapes_clip": "shapes-clip"}
        module.extractor = Colours(names[name])
        return module.extractor

    def load_reward(name, weights, device):
        module.asked.append((name, weights, device))
        return Brightness(f"{name}-v0")

    module.load_features, module.load_reward = load_features, load_reward
    where = "mmspec.eval.metrics"
    monkeypatch.setattr(f"{where}.features.load_features", lambda *a: module.load_features(*a))
    monkeypatch.setattr(f"{where}.reward.load_reward", lambda *a: module.load_reward(*a))
    return module


@pytest.fixture
def sets(tmp_path, crops):
    """Blurred crops of two sizes under `made`, the same names as they were under `real`."""
    for name in ("made", "real"):
        (tmp_path / name).mkdir()
        for number, crop in enumerate(crops[: 2 * N : 2]):
            picture = crop.resize((48, 64)) if number % 3 == 0 else crop
            if name == "made":
                picture = picture.filter(ImageFilter.GaussianBlur(2))
            picture.save(tmp_path / name / f"{number}.png")
    return read_images(tmp_path / "made"), read_images(tmp_path / "real")


@pytest.fixture
def captions(sets, tmp_path):
    """`0.png` has three captions, the rest one."""
    by_id = dict.fromkeys(sets[0].ids, ("one two",))
    return Captions(tmp_path / "c.json", {**by_id, "0": ("one", "one two", "one two three four")})


@pytest.fixture
def weights(tmp_path):
    """Files that exist; the stand-ins don't look into them."""
    names = {name for metric in METRICS.values() for name in metric.weights_of()}
    for name in names:
        (tmp_path / f"{name}.pth").touch()
    return {name: tmp_path / f"{name}.pth" for name in names}


def colours(folder):
    extractor = Colours("colours")
    return extractor.features([file.load() for file in folder.files.values()]).double().numpy()


def test_distances_share_features(sets, registry, weights):
    """Distances share one pass, whatever the batches; NumPy's statistics agree to 1e-9."""
    made, real = sets
    path, told = weights["inception-v3"], []
    result = score_folders(
        made,
        reference=real,
        metrics=["kid", "fid"],
        weights={"inception-v3": path},
        batch_size=3,
        progress=lambda done, total: told.append((done, total)),
    )
    assert registry.asked == [("inception-v3", path, "cpu")]
    assert registry.extractor.seen == 2 * N
    assert (told[0], told[-1], len(told)) == ((3, 2 * N), (2 * N, 2 * N), 8)
    x, y = colours(real), colours(made)
    fid = frechet_distance(x.mean(0), np.cov(x.T), y.mean(0), np.cov(y.T))
    assert (result["n"], result["n_reference"]) == (N, N)
    assert list(result["metrics"]) == ["kid", "fid"]
    for name, expected in (("fid", fid), ("kid", polynomial_mmd(x, y))):
        entry = result["metrics"][name]
        assert entry["value"] == pytest.approx(expected, rel=1e-9)
        assert entry["extractor"] == "inception-v3-colours"
    assert "10 real pictures, 10000 or more" in result["metrics"]["fid"]["notes"][0]
    assert "subsets of 10 pictures" in result["metrics"]["kid"]["notes"][0]


def test_deviation_of_kid_and_the_seed(sets, registry, tmp_path):
    made, _ = sets
    for number in range(N):
        (tmp_path / "real" / f"more{number}.png").write_bytes(
            (tmp_path / "real" / f"{number}.png").read_bytes()
        )
    options = dict(reference=read_images(tmp_path / "real"), metrics=["kid_shapes_clip"])
    one, same, other = (score_folders(made, seed=seed, **options) for seed in (1, 1, 2))
    assert one == same != other
    assert one["metrics"]["kid_shapes_clip"]["std"] > 0
    assert one["n_reference"] == 2 * N


def test_other_features_have_other_names(sets, registry, weights):
    made, real = sets
    result = score_folders(made, reference=real, metrics=["frechet_shapes_clip"])
    assert registry.asked == [("shapes_clip", None, "cpu")]
    assert result["metrics"]["frechet_shapes_clip"]["extractor"] == "shapes-clip"
    registry.load_features = lambda *_: Colours("clip")
    some = {"inception-v3": weights["inception-v3"]}
    with pytest.raises(InputError, match="clip gives frechet_clip, which is not fid"):
        score_folders(made, reference=real, metrics=["fid"], weights=some)


def test_rewards(sets, captions, registry, weights):
    """The mean over captions, then over pictures, and a normal interval around it."""
    made, _ = sets
    lines = []
    result = score_folders(
        made,
        captions=captions,
        metrics=["shapes_clip_score", "image_reward"],
        weights={"image_reward": weights["image_reward"]},
        batch_size=4,
        device="meta",
        on_line=lines.append,
    )
    assert registry.asked == [
        ("shapes_clip_score", None, "meta"),
        ("image_reward", weights["image_reward"], "meta"),
    ]
    grey = [np.asarray(file.load().convert("L")).mean() for file in made.files.values()]
    values = np.array(grey) + np.array([7 / 3] + [2] * (N - 1))
    entry = result["metrics"]["image_reward"]
    assert entry["value"] == pytest.approx(values.mean(), rel=1e-6)
    spread = 1.96 * np.std(values, ddof=1) / N**0.5
    interval = [values.mean() - spread, values.mean() + spread]
    assert entry["ci95"] == pytest.approx(interval, rel=1e-6)
    assert entry["reward"] == "image_reward-v0"
    assert entry["notes"] == ["1 pictures have several captions and score their mean"]
    assert result["n_reference"] is None
    own = {line["id"]: line["value"] for line in lines if line["metric"] == "image_reward"}
    assert list(own) == made.ids
    assert list(own.values()) == pytest.approx(values.tolist(), rel=1e-6)
    assert len(lines) == 2 * N


def test_lpips(sets, tmp_path):
    """The mean of the pairs one by one, whose sizes differ; an AlexNet of random weights."""
    from torchvision import models

    from mmspec.eval.metrics.lpips import LPIPS

    made, real = sets
    path = tmp_path / "alexnet.pth"
    torch.manual_seed(0)
    torch.save(models.alexnet(weights=None).state_dict(), path)
    lines, told = [], []
    result = score_folders(
        made,
        reference=real,
        metrics=["lpips"],
        weights={"lpips": path},
        batch_size=4,
        on_line=lines.append,
        progress=lambda *counts: told.append(counts),
    )
    lpips = LPIPS.from_pretrained(path)
    pairs = [(made.files[name].load(), real.files[name].load()) for name in made.ids]
    values = [float(lpips.distances([a], [b])) for a, b in pairs]
    entry = result["metrics"]["lpips"]
    assert entry["value"] == pytest.approx(np.mean(values), rel=1e-5)
    assert entry["backbone"] == "alex"
    assert [line["id"] for line in lines] == made.ids
    assert told[-1] == (2 * N, 2 * N)


def test_one_picture_has_no_interval(sets, captions, registry, tmp_path):
    (tmp_path / "one").mkdir()
    sets[0].files["0"].load().save(tmp_path / "one" / "0.png")
    images = read_images(tmp_path / "one")
    one = Captions(captions.source, {"0": ("one",)})
    result = score_folders(images, captions=one, metrics=["shapes_clip_score"])
    assert set(result["metrics"]["shapes_clip_score"]) == {"value", "reward", "notes"}
    with pytest.raises(InputError, match=r"frechet_shapes_clip needs 2 pictures .*one has 1"):
        score_folders(images, reference=sets[1], metrics=["frechet_shapes_clip"])


@pytest.mark.parametrize(
    ("metrics", "given", "message"),
    [
        ([], set(), "no metrics; choose from fid, frechet_shapes_clip, kid"),
        (["fld"], set(), "unknown metric 'fld'; did you mean 'fid'?"),
        (["fid", "fid"], {"reference", "weights"}, "metric fid is asked for twice"),
        (["fid"], {"weights"}, "fid needs a reference: pass a folder"),
        (["lpips"], {"weights"}, "lpips needs a reference: pass a folder"),
        (["hpsv2"], {"weights"}, "hpsv2 needs captions: pass the pictures' prompts"),
        (["pick_score"], {"captions"}, "pick_score needs weights: pass pick_score=PATH"),
        (["kid"], {"reference"}, "kid needs weights: pass inception-v3=PATH"),
        (["kid"], {"reference", "all"}, "unknown network"),
        (["kid"], {"reference", "gone"}, "no weights of inception-v3 at"),
        (["kid_shapes_clip"], {"itself"}, "would be compared with itself"),
        (["shapes_clip_score"], {"fewer"}, "9 pictures have no caption"),
        (["lpips"], {"odd", "weights"}, "1 only in"),
        (["shapes_clip_score"], {"captions", "batch"}, "batch size 0 is less than 1"),
    ],
)
def test_what_is_lacking(sets, captions, registry, weights, metrics, given, message):
    """Each is found before a network is loaded."""
    made, real = sets
    call = {}
    if given & {"weights", "gone"}:
        call["weights"] = {METRICS[m].network: weights[METRICS[m].network] for m in metrics}
    if "all" in given:
        call["weights"] = weights
    if "gone" in given:
        weights["inception-v3"].unlink()
    if "odd" in given:
        (real.folder / "0.png").rename(real.folder / "zero.png")
        real = read_images(real.folder)
    if given & {"reference", "odd"}:
        call["reference"] = real
    if "itself" in given:
        call["reference"] = read_images(made.folder / ".." / "made")
    if "captions" in given:
        call["captions"] = captions
    if "fewer" in given:
        call["captions"] = Captions(captions.source, {"0": ("one",)})
    if "batch" in given:
        call["batch_size"] = 0
    with pytest.raises(InputError, match=re.escape(message)):
        score_folders(made, metrics=metrics, **call)
    assert registry.asked == []


def test_small_pictures_are_named_before_lpips_runs(sets, weights, tmp_path):
    for name in ("tiny_a", "tiny_b"):
        (tmp_path / name).mkdir()
        sets[0].files["1"].load().resize((31, 64)).save(tmp_path / name / "x.png")
    pair = [read_images(tmp_path / name) for name in ("tiny_a", "tiny_b")]
    some = {"lpips": weights["lpips"]}
    with pytest.raises(InputError, match=r"tiny_a/x\.png: lpips needs 32 pixels a side"):
        score_folders(pair[0], reference=pair[1], metrics=["lpips"], weights=some)
