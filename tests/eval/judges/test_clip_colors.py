"""Colours by CLIP against open_clip's own zero-shot classifier, with a tiny random network."""

from __future__ import annotations

import json

import numpy as np
import open_clip
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from mmspec.errors import InputError
from mmspec.eval.judges.clip_colors import NAMES, ClipColors, masked_crop

MODEL = "tiny-for-colors"
TEN = "red, orange, yellow, green, blue, purple, pink, brown, black, white"


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Random weights of a small architecture that open_clip is told of."""
    folder = tmp_path_factory.mktemp("clip")
    config = {
        "embed_dim": 16,
        "quick_gelu": True,
        "vision_cfg": {
            "image_size": 32, "layers": 1, "width": 16, "head_width": 8, "patch_size": 8,
        },
        "text_cfg": {
            "context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1,
        },
    }  # fmt: skip
    (folder / f"{MODEL}.json").write_text(json.dumps(config))
    open_clip.add_model_config(folder)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = open_clip.create_model(MODEL)
    path = folder / "weights.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, path)
    return path


def crops(count: int) -> list[Image.Image]:
    rng = np.random.default_rng(3)
    tints = rng.integers(0, 256, (count, 1, 1, 3))
    noise = rng.integers(-40, 41, (count, 40, 28, 3))
    return [Image.fromarray(p) for p in np.clip(tints + noise, 0, 255).astype(np.uint8)]


@pytest.mark.parametrize("label", ["dog", "computer mouse"])
def test_equals_open_clips_zero_shot_classifier(weights, label):
    model, _, transform = open_clip.create_model_and_transforms(MODEL, pretrained=str(weights))
    model.eval()
    templates = [
        lambda c: f"a photo of a {c} {label}",
        lambda c: f"a photo of a {c}-colored {label}",
        lambda c: f"a photo of a {c} object",
    ]
    colors = TEN.split(", ")
    pictures = crops(40)
    with torch.inference_mode():
        heads = open_clip.build_zero_shot_classifier(
            model, open_clip.get_tokenizer(MODEL), colors, templates, num_classes_per_batch=None
        )
        features = model.encode_image(torch.stack([transform(crop) for crop in pictures]))
        features = features / features.norm(dim=-1, keepdim=True)
        margins = (features @ heads).topk(2).values.diff().abs()
        assert margins.min() > 1e-6  # no answer hangs on rounding
        expected = [colors[i] for i in (features @ heads).argmax(-1).tolist()]
    judge = ClipColors(weights, model=MODEL)
    assert judge.classify(pictures, label) == expected
    assert [judge.classify([crop], label)[0] for crop in pictures] == expected
    assert len(set(expected)) > 1


def test_colors_are_genevals_in_its_order():
    expected = TEN.split(", ")
    assert list(NAMES) == expected


def test_the_default_architecture_is_openais():
    quick = open_clip.get_model_config("ViT-L-14-quickgelu")
    plain = open_clip.get_model_config("ViT-L-14")
    assert quick["quick_gelu"]
    assert {key: quick[key] for key in ("embed_dim", "vision_cfg", "text_cfg")} == {
        key: plain[key] for key in ("embed_dim", "vision_cfg", "text_cfg")
    }
    assert open_clip.get_pretrained_cfg("ViT-L-14", "openai")["quick_gelu"]


def test_outside_the_mask_is_grey():
    pixels = np.random.default_rng(0).integers(0, 256, (8, 9, 3), np.uint8)
    mask = np.zeros((8, 9), bool)
    mask[2, 3] = mask[5, 6] = mask[4, 4] = True
    crop = np.asarray(masked_crop(Image.fromarray(pixels), mask, (3.0, 2.0, 7.0, 6.0)))
    assert crop.shape == (4, 4, 3)
    for y in range(4):
        for x in range(4):
            inside = mask[2 + y, 3 + x]
            assert tuple(crop[y, x]) == (tuple(pixels[2 + y, 3 + x]) if inside else (153,) * 3)


def test_bad_weights_are_one_line(weights, tmp_path):
    with pytest.raises(InputError, match=r"no file .*nowhere"):
        ClipColors(tmp_path / "nowhere.safetensors", model=MODEL)
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"not weights")
    with pytest.raises(InputError, match="broken") as caught:
        ClipColors(broken, model=MODEL)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="ViT-B-32"):
        ClipColors(weights, model="ViT-B-32")
