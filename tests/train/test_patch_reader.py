"""Dense labels: what a reader is asked, its loss by hand, and that it teaches what it reads."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mmspec.train.batches import MIXED, SCENE_LABELS, labelled_batch, scene_batch
from mmspec.train.patch_reader import PatchReader
from mmspec.train.vlm.data import all_labels, label_sizes
from mmspec.worlds.shapes.exchanges import sample_picture
from mmspec.worlds.shapes.patches import patch_labels
from mmspec.worlds.shapes.prompts import mixed_caption
from mmspec.worlds.shapes.scene import sample_mixed
from mmspec.worlds.shapes.vocabulary import COLORS


def test_loss_by_hand():
    """Of two labels, patches without one weigh a fifth."""
    torch.manual_seed(0)
    reader = PatchReader(4, {"a": 3, "b": 2}, nothing=0.2)
    hidden, labels = torch.randn(5, 4), torch.tensor([[0, 1], [2, 0], [1, 1], [0, 0], [2, 1]])
    logits, total = hidden @ reader.output.weight.T + reader.output.bias, 0.0
    for place, (first, size) in enumerate([(0, 3), (3, 2)]):
        nats = -logits[:, first : first + size].log_softmax(-1)
        weights = [0.2 if row[place] == 0 else 1.0 for row in labels.tolist()]
        own = [w * nats[n, labels[n, place]] for n, w in enumerate(weights)]
        total = total + sum(own) / sum(weights)
    assert float(reader.loss(hidden, labels)) == pytest.approx(float(total), abs=1e-6)


def test_a_scenes_labels_are_of_its_picture():
    """The patches that show a colour have it in their middle, up to the tint and the rim."""
    captions, pixels, labels = labelled_batch(np.random.default_rng(4), 12, 128, 16)
    again = scene_batch(np.random.default_rng(4), 12, 128)
    assert captions == again[0]
    assert torch.equal(pixels, again[1])
    assert labels.shape == (12, 256, len(SCENE_LABELS))
    middle = (pixels[:, :, 4::8, 4::8].flatten(2).transpose(1, 2) + 1) * 127.5
    palette = torch.tensor([(0, 0, 0), *COLORS.values()], dtype=torch.float32)
    shown = labels[..., 1] > 0
    assert torch.equal(shown, labels[..., 0] > 0)
    off = (middle - palette[labels[..., 1]]).abs().amax(-1)[shown]
    assert (off < 10).float().mean() > 0.7
    wrong = (middle - palette[labels[..., 1].roll(1, 0)]).abs().amax(-1)[shown]
    assert (wrong < 10).float().mean() < 0.3


def test_a_share_of_the_captions_is_of_mixed_scenes():
    """Three kinds of things are in no caption of the tasks."""

    def three(captions: list[str]) -> float:
        return float(np.mean([caption.count(" and ") >= 2 for caption in captions]))

    rng = np.random.default_rng(6)
    mixed = [[(item.shape, item.color) for item in sample_mixed(rng).items] for _ in range(2000)]
    share = MIXED * three([mixed_caption(rng, items) for items in mixed])
    captions = scene_batch(np.random.default_rng(5), 400, 16)[0]
    four_deviations = 4 * (share * (1 - share) / len(captions)) ** 0.5
    assert 0 < three(captions) == pytest.approx(share, abs=four_deviations)
    held_out = scene_batch(np.random.default_rng(5), 60, 16, "held_out")[0]
    assert max(caption.count(" and ") for caption in held_out) == 1


def test_a_picture_is_asked_what_it_shows_and_where():
    pictures = [sample_picture(np.random.default_rng(n), "description") for n in range(3)]
    labels = all_labels(pictures, 6, 16)
    assert labels.shape == (3, 36, len(label_sizes(6)))
    assert np.array_equal(labels[1, :, :3].view(6, 6, 3), patch_labels(pictures[1], 6, 16))
    assert labels[2, 6 * 2 + 4, 3:].tolist() == [3, 5]  # row and column, from 1
    assert all(labels[..., n].max() < size for n, size in enumerate(label_sizes(6).values()))
