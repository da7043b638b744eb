"""Falcon's lessons: what a block sees, and where it glances."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from toy_vlm import batch_of, tiny_head, tiny_llava

from mmspec.train.heads.glancing import Blocks, blocks_of, glances, read_blocks, share_of
from mmspec.train.heads.head_losses import head_loss

TEXT = [[2, 1, 2, 3, 1, 1, 2]]


@pytest.fixture(scope="module")
def lesson():
    model = tiny_llava()
    batch = batch_of(model, rows=TEXT)
    return tiny_head("falcon", model), batch


def blocks_at(batch, size=2):
    place = torch.arange(batch.mask.shape[1])[None] % size
    return Blocks(place, torch.zeros_like(batch.mask))


@torch.no_grad()
def test_a_column_sees_its_block_and_no_later_one(lesson):
    head, batch = lesson
    blocks = blocks_at(batch)
    before, index, _ = read_blocks(head, batch, blocks)
    changed = replace(batch, embedded=batch.embedded.clone())
    changed.embedded[0, 7] += 1  # the second column of the block of 6 and 7
    after = read_blocks(head, changed, blocks)[0]
    moved = {int(c) for c, d in zip(index[0], (after - before).abs().sum(-1)[0]) if d > 1e-9}  # noqa: B905
    assert moved == set(range(6, batch.mask.shape[1]))


@torch.no_grad()
def test_what_is_glanced_at_is_the_pair_of_a_block_further_on(lesson):
    head, batch = lesson
    blocks = blocks_at(batch)
    glanced = blocks.glanced.clone()
    glanced[0, 8] = True
    seen, *_ = read_blocks(head, batch, replace(blocks, glanced=glanced))
    other = replace(batch, embedded=batch.embedded.clone(), features=batch.features.clone())
    other.embedded[0, 8] = batch.embedded[0, 10]
    other.features[0, 7] = batch.features[0, 9]  # the state in front of column 8
    assert torch.allclose(seen, read_blocks(head, other, blocks)[0], atol=1e-12)
    assert not torch.allclose(seen, read_blocks(head, batch, blocks)[0], atol=1e-3)


def test_first_columns_are_drawn_as_often_as_is_said():
    torch.manual_seed(0)
    place = torch.arange(40).expand(3, -1) % 2
    said = (torch.arange(40) >= 11).expand(3, -1)
    chosen = glances(said, place, 2, torch.tensor([0, 5, 99]))
    assert chosen.sum(1).tolist() == [0, 5, 14]
    assert not bool((chosen & ((place != 0) | ~said)).any())


def test_longer_blocks_have_runs_behind_their_first_columns():
    torch.manual_seed(0)
    place = torch.arange(4000)[None] % 4
    chosen = glances(torch.ones_like(place, dtype=torch.bool), place, 4, torch.tensor([2000]))
    runs = chosen.view(-1, 4)
    assert int(runs[:, 0].sum()) == 500  # 2000 // 4
    assert not bool(runs[~runs[:, 0]].any())
    assert not bool(runs[:, 3].any())
    for n in (1, 2):  # runs are of 0, 1 or 2 columns, each as often
        assert float(runs[:, n].sum() / 500) == pytest.approx(1 - n / 3, abs=0.08)
    assert not bool((runs[:, 2] & ~runs[:, 1]).any())


def test_shares_fall_from_045_to_010():
    assert [share_of(done) for done in (0.0, 0.5, 1.0)] == pytest.approx([0.45, 0.275, 0.1])


def test_wrong_places_alone_are_counted(lesson):
    """As many glances as a share of the places at which the likeliest token is another."""
    head, batch = lesson
    torch.manual_seed(1)
    assert not bool(blocks_of(head, batch, 0.0).glanced.any())
    torch.manual_seed(1)
    many = int(blocks_of(head, batch, 1.0).glanced.sum())
    torch.manual_seed(1)
    assert 0 < int(blocks_of(head, batch, 0.4).glanced.sum()) < many
    loss, figures = head_loss(head, batch, glance=0.4)
    assert torch.isfinite(loss)
    assert set(figures) == {"acceptance_1", "acceptance_2"}
