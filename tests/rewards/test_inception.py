"""Inception-v3 with random weights: torch-fidelity's own pipeline on the same file and pictures.

The weights are random but in the published layout, with activations of a natural size; features
agree to 1e-5, single precision in batches of other sizes.
"""

from __future__ import annotations

import json
import pickle
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from PIL import ExifTags, Image, ImageFilter
from safetensors.torch import save_file
from torch_fidelity import feature_extractor_inceptionv3 as published

from mmspec.cli.main import main
from mmspec.errors import InputError
from mmspec.rewards.base import rows_alike, select, sizes, to_uint8
from mmspec.rewards.inception import InceptionV3


@pytest.fixture(scope="module")
def state() -> dict[str, torch.Tensor]:
    """Random tensors under the names that the library's class has."""

    class Unloaded(published.FeatureExtractorInceptionV3):
        def load_state_dict(self, *args, **kwargs):
            pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(published, "load_state_dict_from_url", lambda *args, **kwargs: {})
        network = Unloaded("random", ["2048"])
    generator = torch.Generator().manual_seed(0)
    for name, weight in network.state_dict().items():
        if weight.ndim > 1:
            fan = weight[0].numel()
            torch.nn.init.normal_(weight, std=(2 / fan) ** 0.5, generator=generator)
        elif name.endswith("bn.bias"):
            torch.nn.init.normal_(weight, std=0.1, generator=generator)
    return dict(network.state_dict())


@pytest.fixture(scope="module")
def weights(state, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("inception") / "weights-inception-2015-12-05.pth"
    torch.save(OrderedDict(state), path)
    return path


@pytest.fixture(scope="module")
def inception(weights) -> InceptionV3:
    return InceptionV3.from_pretrained(weights, batch_size=5)


@pytest.fixture(scope="module")
def folders(crops, tmp_path_factory):
    """Two folders of 12 PNGs: crops and, blurred, other crops."""
    root = tmp_path_factory.mktemp("pictures")
    sets = {"real": crops[:48:4], "made": [c.filter(ImageFilter.GaussianBlur(2)) for c in crops]}
    for name, pictures in sets.items():
        (root / name).mkdir()
        for number, picture in enumerate(pictures[-12:]):
            picture.save(root / name / f"{number:02}.png")
    return root / "real", root / "made"


def test_layout_is_that_of_torchvision(state):
    """The published files are made for torchvision's class, without its auxiliary classifier."""
    from torchvision.models import Inception3

    with torch.device("meta"):
        network = Inception3(num_classes=1008, aux_logits=False, init_weights=False)
    expected = {name: tensor.shape for name, tensor in network.state_dict().items()}
    assert {name: tensor.shape for name, tensor in state.items()} == expected


def test_library_alone(inception, weights, crops):
    """The library's own class on the same file, one picture at a time."""
    network = published.FeatureExtractorInceptionV3("oracle", ["2048"], str(weights))
    expected = torch.cat([network(to_uint8([crop]))[0] for crop in crops[::16]])
    found = inception.features(crops[::16])
    assert found.shape == (4, 2048)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 * float(expected.max()))
    assert found.std(0).max() > 0.1 * found.mean()  # pictures are told apart
    torch.testing.assert_close(inception.features(to_uint8(crops[::16])), found)


@pytest.mark.slow
def test_command_agrees_with_torch_fidelity(weights, folders, tmp_path):
    """FID and KID of two folders of photographs' crops, by `mmspec eval run`, to 1e-5 and 1e-4.

    The covariances have rank 11 of 2048, the hardest case for a matrix root.
    """
    from torch_fidelity import calculate_metrics

    oracle = calculate_metrics(
        input1=str(folders[0]),
        input2=str(folders[1]),
        fid=True,
        kid=True,
        kid_subsets=1,
        kid_subset_size=12,
        feature_extractor="inception-v3-compat",
        feature_extractor_weights_path=str(weights),
        batch_size=4,
        cuda=False,
        cache=False,
        save_cpu_ram=True,
        verbose=False,
    )
    command = ["eval", "run", "--suite", "image-folders", "--metrics", "fid,kid"]
    command += ["--reference", str(folders[0]), "--images", str(folders[1])]
    command += ["--weights", f"inception-v3={weights}", "-o", str(tmp_path)]
    assert main(command) == 0
    found = json.loads((tmp_path / "scores.json").read_text())["metrics"]
    expected = oracle["kernel_inception_distance_mean"]
    assert found["kid"]["value"] == pytest.approx(expected, rel=1e-4)
    expected = oracle["frechet_inception_distance"]
    assert found["fid"]["value"] == pytest.approx(expected, rel=1e-5)
    notes = found["fid"]["notes"]
    assert "12 real pictures for 2048 features: the covariance has no full" in notes[0]


def test_sizes_may_differ(inception, crops):
    pictures = [crops[0], crops[9].resize((80, 50)), crops[18], crops[27].resize((80, 50))]
    alone = torch.cat([inception.features([picture]) for picture in pictures])
    found = inception.features(pictures)
    torch.testing.assert_close(found, alone, rtol=1e-5, atol=1e-5 * float(alone.max()))


def test_old_files_without_counters(state, tmp_path):
    """Files from before batch norms counted their batches, in PyTorch's old format too."""
    old = {name: w for name, w in state.items() if not name.endswith("num_batches_tracked")}
    assert len(old) < len(state)
    torch.save(OrderedDict(old), tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    save_file(old, tmp_path / "old.safetensors")
    for name in ("old.pth", "old.safetensors"):
        loaded = InceptionV3.from_pretrained(tmp_path / name).network.state_dict()
        assert all(torch.equal(loaded[key], tensor) for key, tensor in old.items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("Mixed_7c.branch1x1.conv.weight"), 'Missing key.*"Mixed_7c.branch1x1'),
        (lambda s: s.update({"AuxLogits.fc.bias": torch.zeros(3)}), "Unexpected key.*AuxLogits"),
        (lambda s: s.update({"fc.bias": torch.zeros(1000)}), "size mismatch for fc.bias"),
    ],
)
def test_weights_that_do_not_fit(state, tmp_path, change, message):
    other = dict(state)
    change(other)
    save_file(other, tmp_path / "other.safetensors")
    with pytest.raises(InputError, match=message) as error:
        InceptionV3.from_pretrained(tmp_path / "other.safetensors")
    assert "\n" not in str(error.value)


class Harm:
    """Unpickling it would write a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def test_no_file_is_run(tmp_path):
    (tmp_path / "weights.pth").write_bytes(pickle.dumps(Harm(tmp_path / "harmed"), protocol=2))
    torch.save(Harm(tmp_path / "harmed"), tmp_path / "zip.pth")
    for name in ("weights.pth", "zip.pth"):
        with pytest.raises(InputError, match=f"can't read weights .*{name}") as error:
            InceptionV3.from_pretrained(tmp_path / name)
        assert "\n" not in str(error.value)
    assert not (tmp_path / "harmed").exists()


def test_files_that_hold_no_weights(tmp_path):
    with pytest.raises(InputError, match="no weights file"):
        InceptionV3.from_pretrained(tmp_path / "absent.pth")
    for name in ("noise.pth", "noise.safetensors"):
        (tmp_path / name).write_bytes(b"no weights at all")
        with pytest.raises(InputError, match="can't read weights"):
            InceptionV3.from_pretrained(tmp_path / name)
    torch.save({"state_dict": {"fc.bias": torch.zeros(2)}}, tmp_path / "nested.pth")
    with pytest.raises(InputError, match=r"holds no state dict: save the network's"):
        InceptionV3.from_pretrained(tmp_path / "nested.pth")


def test_batch_size(inception):
    with pytest.raises(InputError, match="batch size 0 is less than 1"):
        InceptionV3(inception.network, batch_size=0)


def test_turned_pictures_have_the_size_that_they_are_seen_in():
    """As a phone stores them: on their side, and EXIF says so."""
    turned, plain = Image.new("RGB", (8, 4)), Image.new("RGB", (8, 4))
    turned.getexif()[ExifTags.Base.Orientation] = 6
    images = [turned, plain]
    found = [select(images, rows).shape[-2:] for rows in rows_alike(sizes(images), 32)]
    assert found == [(8, 4), (4, 8)]
