"""Mask2Former's post-processing against transformers' and a slow reading; a tiny checkpoint."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import (
    Mask2FormerConfig,
    Mask2FormerForUniversalSegmentation,
    Mask2FormerImageProcessor,
    SwinConfig,
)

from mmspec.errors import InputError
from mmspec.eval.judges.coco import CLASSES
from mmspec.eval.judges.mask2former import Mask2FormerDetector, box_of, instances

SIDE = 384  # transformers cuts masks at this size
OLD_SPELLING = {
    "motorcycle": "motorbike",
    "airplane": "aeroplane",
    "couch": "sofa",
    "potted plant": "pottedplant",
    "dining table": "diningtable",
    "tv": "tvmonitor",
    "computer mouse": "mouse",
    "tv remote": "remote",
    "computer keyboard": "keyboard",
}


def logits(seed: int, queries: int = 12, classes: int = 5, grid: int = 12):
    """Random class and mask logits: some queries sure of a class, some masks empty or full."""
    generator = torch.Generator().manual_seed(seed)
    by_class = 3 * torch.randn(queries, classes + 1, generator=generator)
    masks = 3 * torch.randn(queries, grid, grid, generator=generator)
    masks[0], masks[1] = -5.0, 5.0
    by_class[0, 0] = by_class[1, 1] = by_class[2, 2] = by_class[2, 3] = 9.0
    return by_class, masks


def library(class_logits, mask_logits, threshold):
    """(label, score, mask) by transformers, for one picture of 384 × 384."""
    output = SimpleNamespace(
        class_queries_logits=class_logits[None], masks_queries_logits=mask_logits[None]
    )
    [result] = Mask2FormerImageProcessor().post_process_instance_segmentation(
        output, threshold=threshold, target_sizes=[(SIDE, SIDE)], return_binary_maps=True
    )
    infos = result["segments_info"]
    pairs = zip(infos, result["segmentation"], strict=True)
    rows = [(info["label_id"], info["score"], mask > 0) for info, mask in pairs]
    return sorted(rows, key=lambda row: (-row[1], row[0]))


@pytest.mark.parametrize("threshold", [0.0, 0.1, 0.3, 0.7])
@pytest.mark.parametrize("seed", range(4))
def test_equals_transformers_at_its_own_resolution(seed, threshold):
    by_class, masks = logits(seed)
    scores, labels, found = instances(by_class, masks, (SIDE, SIDE), (SIDE, SIDE), threshold)
    rows = list(zip(labels.tolist(), scores.tolist(), found, strict=True))
    rows.sort(key=lambda row: (-row[1], row[0]))
    expected = library(by_class, masks, threshold)
    assert len(rows) == len(expected) > 1
    for (label, score, mask), (label_, score_, mask_) in zip(rows, expected, strict=True):
        assert label == label_
        assert score == pytest.approx(score_, abs=1e-6)  # the library rounds to six digits
        assert torch.equal(mask, mask_)


def slow_resize(grid: np.ndarray, height: int, width: int) -> np.ndarray:
    """Bilinear, pixel centres at halves, edges repeated: one pixel at a time."""
    out = np.empty((height, width))
    for row in range(height):
        for column in range(width):
            y = min(max((row + 0.5) * grid.shape[0] / height - 0.5, 0), grid.shape[0] - 1)
            x = min(max((column + 0.5) * grid.shape[1] / width - 0.5, 0), grid.shape[1] - 1)
            top, left = int(y), int(x)
            below, right = min(top + 1, grid.shape[0] - 1), min(left + 1, grid.shape[1] - 1)
            upper = grid[top, left] * (1 - (x - left)) + grid[top, right] * (x - left)
            lower = grid[below, left] * (1 - (x - left)) + grid[below, right] * (x - left)
            out[row, column] = upper * (1 - (y - top)) + lower * (y - top)
    return out


def test_equals_a_slow_reading_at_other_sizes():
    by_class, masks = logits(7, queries=6, classes=3, grid=5)
    by_class, masks = by_class.double(), masks.double()
    network, picture, threshold = (20, 24), (13, 17), 0.2
    candidates = []
    for query, row in enumerate(by_class.tolist()):
        total = sum(math.exp(value) for value in row)
        candidates += [(math.exp(value) / total, query, k) for k, value in enumerate(row[:-1])]
    expected = []
    for probability, query, label in sorted(candidates, reverse=True)[:6]:
        mask = slow_resize(slow_resize(masks[query].numpy(), *network), *picture)
        inside = [1 / (1 + math.exp(-value)) for value in mask.flat if value > 0]
        score = probability * (sum(inside) / len(inside) if inside else 0)
        if score > threshold:
            expected.append((label, score, mask > 0))
    scores, labels, found = instances(by_class, masks, network, picture, threshold)
    assert len(scores) == len(expected) > 2
    rows = zip(labels.tolist(), scores.tolist(), found.numpy(), strict=True)
    rows = sorted(rows, key=lambda row: -row[1])
    expected.sort(key=lambda row: -row[1])
    for (label, score, mask), (label_, score_, mask_) in zip(rows, expected, strict=True):
        assert (label, score) == (label_, pytest.approx(score_, rel=1e-6))
        assert np.array_equal(mask, mask_)


def test_nothing_likely_gives_nothing():
    by_class, masks = logits(0)
    by_class[:, -1] = 50.0
    scores, labels, found = instances(by_class, masks, (8, 8), (6, 7), 0.3)
    assert (len(scores), len(labels), tuple(found.shape)) == (0, 0, (0, 6, 7))


def test_boxes_end_after_the_last_pixel():
    mask = np.zeros((9, 11), bool)
    mask[3, 4] = True
    assert box_of(mask) == (4, 3, 5, 4)
    mask[6, 2] = True
    assert box_of(mask) == (2, 3, 5, 7)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny random checkpoint in the published format, classes in the old spelling."""
    names = [OLD_SPELLING.get(name, name) for name in CLASSES]
    backbone = SwinConfig(
        embed_dim=8,
        depths=[1, 1, 1, 1],
        num_heads=[1, 1, 2, 2],
        window_size=4,
        image_size=64,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )
    config = Mask2FormerConfig(
        backbone_config=backbone,
        feature_size=32,
        mask_feature_size=32,
        hidden_dim=32,
        encoder_feedforward_dim=16,
        dim_feedforward=16,
        encoder_layers=1,
        decoder_layers=2,
        num_attention_heads=2,
        num_queries=7,
        id2label=dict(enumerate(names)),
        label2id={name: i for i, name in enumerate(names)},
    )
    path = tmp_path_factory.mktemp("mask2former") / "tiny"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        Mask2FormerForUniversalSegmentation(config).save_pretrained(path)
    Mask2FormerImageProcessor(size={"height": SIDE, "width": SIDE}).save_pretrained(path)
    return path


def picture(width: int, height: int) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels)


def test_a_checkpoint_detects_what_transformers_does(folder):
    image = picture(SIDE, SIDE)
    detector = Mask2FormerDetector(folder, shortest_edge=SIDE, longest_edge=SIDE)
    found = sorted(detector.detect(image, 0.0), key=lambda hit: -hit.confidence)
    model = Mask2FormerForUniversalSegmentation.from_pretrained(folder).eval()
    processor = Mask2FormerImageProcessor.from_pretrained(folder)
    with torch.inference_mode():
        output = model(**processor(images=image, return_tensors="pt"))
    expected = library(output.class_queries_logits[0], output.masks_queries_logits[0], 0.0)
    assert len(found) == len(expected) > 1
    for hit, (label, score, mask) in zip(found, expected, strict=True):
        assert hit.label == CLASSES[label]
        assert hit.confidence == pytest.approx(score, abs=1e-5)
        assert np.array_equal(hit.mask, mask.numpy())


def test_masks_have_the_pictures_size_and_boxes_lie_inside(folder):
    detector = Mask2FormerDetector(folder, shortest_edge=64, longest_edge=96)
    found = detector.detect(picture(50, 30).convert("RGBA"), 0.0)
    assert found
    for hit in found:
        assert hit.mask.shape == (30, 50)
        assert hit.mask.any()
        x0, y0, x1, y1 = hit.box
        assert 0 <= x0 < x1 <= 50
        assert 0 <= y0 < y1 <= 30


def copied(folder, to, rename):
    config = Mask2FormerConfig.from_pretrained(folder)
    names = [rename.get(name, name) for name in config.id2label.values()]
    config.id2label = dict(enumerate(names))
    config.label2id = {name: i for i, name in enumerate(names)}
    config.save_pretrained(to)
    Mask2FormerImageProcessor.from_pretrained(folder).save_pretrained(to)
    save_file(load_file(folder / "model.safetensors"), to / "model.safetensors", {"format": "pt"})


def test_a_class_that_is_missing_is_named(folder, tmp_path):
    copied(folder, tmp_path, {"toaster": "brick"})
    with pytest.raises(InputError, match=r"'toaster'.*1 of 80"):
        Mask2FormerDetector(tmp_path)


def test_a_tensor_that_is_missing_is_named(folder, tmp_path):
    copied(folder, tmp_path, {})
    weights = load_file(tmp_path / "model.safetensors")
    del weights["class_predictor.weight"]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=r"class_predictor\.weight"):
        Mask2FormerDetector(tmp_path)


def test_a_folder_that_is_missing_is_named(tmp_path):
    with pytest.raises(InputError, match="nowhere"):
        Mask2FormerDetector(tmp_path / "nowhere")
