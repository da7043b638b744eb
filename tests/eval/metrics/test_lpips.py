"""LPIPS with random backbones: torchmetrics' own port with the same tensors, to 1e-5."""

from __future__ import annotations

import json

import pytest
import torch
from PIL import ImageFilter
from torchvision import models

from mmspec.cli.main import main
from mmspec.errors import InputError
from mmspec.eval.metrics.lpips import LPIPS
from mmspec.rewards.base import to_uint8


def random_weights(name: str) -> dict[str, torch.Tensor]:
    """Of a backbone in torchvision's layout, with activations of a natural size."""
    with torch.device("meta"):
        layers = getattr(models, name)(weights=None).features
    layers = layers.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(0)
    for weight in layers.parameters():
        fan = weight[0].numel() if weight.ndim > 1 else 100
        torch.nn.init.normal_(weight, std=(2 / fan) ** 0.5, generator=generator)
    weights = {f"features.{key}": value for key, value in layers.state_dict().items()}
    return {**weights, "classifier.6.bias": torch.zeros(1000)}


@pytest.fixture(scope="module")
def alexnet(tmp_path_factory):
    path = tmp_path_factory.mktemp("lpips") / "alexnet.pth"
    torch.save(random_weights("alexnet"), path)
    return path


def oracle(net: str, weights: dict[str, torch.Tensor]):
    """Torchmetrics' port; its backbone's parameters are filled in the order of the layers."""
    from torchmetrics.functional.image.lpips import _LPIPS

    port = _LPIPS(net=net, pnet_rand=True)
    tensors = [value for key, value in weights.items() if key.startswith("features.")]
    with torch.no_grad():
        for parameter, value in zip(port.net.parameters(), tensors, strict=True):
            parameter.copy_(value)
    return port.eval()


def unlike(crops) -> list:
    """A blurred twin of each crop, the more the later it comes."""
    return [crop.filter(ImageFilter.GaussianBlur(1 + i / 4)) for i, crop in enumerate(crops)]


@pytest.mark.parametrize(("name", "net"), [("alexnet", "alex"), ("vgg16", "vgg")])
def test_torchmetrics_with_the_same_tensors(crops, tmp_path, name, net):
    weights = random_weights(name)
    torch.save(weights, tmp_path / "weights.pth")
    lpips = LPIPS.from_pretrained(tmp_path / "weights.pth", batch_size=3)
    assert lpips.backbone == net
    images, references = crops[::8], unlike(crops[::8])
    found = lpips.distances(images, references)
    pair = [to_uint8(side).float() / 255 for side in (images, references)]
    with torch.inference_mode():
        expected = oracle(net, weights)(*pair, normalize=True).flatten()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)
    assert found.min() > 1e-5  # far above the absolute tolerance


def test_command_agrees_with_torchmetrics(crops, alexnet, tmp_path):
    """LPIPS of like-named pictures of two folders, by `mmspec eval run`."""
    sets = {"made": unlike(crops[::8]), "real": crops[::8]}
    for name, pictures in sets.items():
        (tmp_path / name).mkdir()
        for i, picture in enumerate(pictures):
            picture.save(tmp_path / name / f"{i}.png")
    command = ["eval", "run", "--suite", "image-folders", "--metrics", "lpips"]
    command += ["--images", str(tmp_path / "made"), "--reference", str(tmp_path / "real")]
    command += ["--weights", f"lpips={alexnet}", "-o", str(tmp_path / "out")]
    assert main(command) == 0
    found = json.loads((tmp_path / "out" / "scores.json").read_text())["metrics"]["lpips"]
    pair = [to_uint8(side).float() / 255 for side in sets.values()]
    with torch.inference_mode():
        weights = torch.load(alexnet, weights_only=True)
        expected = oracle("alex", weights)(*pair, normalize=True).mean()
    assert found["value"] == pytest.approx(float(expected), rel=1e-5)
    assert found["backbone"] == "alex"


def test_equal_pictures_have_no_distance(alexnet, crops):
    lpips = LPIPS.from_pretrained(alexnet)
    assert lpips.distances(crops[:4], crops[:4]).abs().max() == 0
    both = [lpips.distances(*pair) for pair in ((crops[:4], crops[4:8]), (crops[4:8], crops[:4]))]
    torch.testing.assert_close(*both)


def test_sizes_may_differ_between_pairs(alexnet, crops):
    lpips = LPIPS.from_pretrained(alexnet)
    images = [crop.resize((64, 48)) if i % 2 else crop for i, crop in enumerate(crops[:5])]
    references = unlike(images)
    alone = [lpips.distances([a], [b]) for a, b in zip(images, references, strict=True)]
    torch.testing.assert_close(lpips.distances(images, references), torch.cat(alone))


def test_loading_leaves_the_random_state_alone(alexnet):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    LPIPS.from_pretrained(alexnet)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("features.3.bias"), r"missing tensor features.3.bias"),
        (
            lambda w: w.update({"features.4.bias": torch.zeros(1)}),
            r"unexpected tensor features.4.bias",
        ),
        (
            lambda w: w.update({"features.6.bias": torch.zeros(1)}),
            r"features.6.bias has shape \(1,\)",
        ),
        (lambda w: w.pop("features.0.weight"), "neither torchvision's AlexNet nor its VGG-16"),
    ],
)
def test_weights_that_do_not_fit(tmp_path, change, message):
    weights = random_weights("alexnet")
    change(weights)
    torch.save(weights, tmp_path / "w.pth")
    with pytest.raises(InputError, match=message):
        LPIPS.from_pretrained(tmp_path / "w.pth")


def test_squeezenet_is_not_taken_for_vgg(tmp_path):
    torch.save(random_weights("squeezenet1_1"), tmp_path / "w.pth")
    with pytest.raises(InputError, match="does not fit vgg16"):
        LPIPS.from_pretrained(tmp_path / "w.pth")


def test_the_least_pictures_and_batches(alexnet, crops):
    lpips = LPIPS.from_pretrained(alexnet)
    least = [crops[0].resize((32, 32))]
    assert lpips.distances(least, unlike(least)) > 0
    with pytest.raises(InputError, match="batch size 0"):
        LPIPS.from_pretrained(alexnet, batch_size=0)
