"""Examples that frozen models make once: what was made before a stop is kept."""

from __future__ import annotations

import pytest
import torch

from mmspec.train.labelled import gathered


def test_what_was_made_before_a_stop_is_kept(tmp_path):
    asked = []

    def made(first, end):
        if stopped and first:
            raise KeyboardInterrupt
        asked.append(first)
        return (torch.arange(first, end),)

    stopped = True
    with pytest.raises(KeyboardInterrupt):
        gathered(tmp_path / "train.pt", "train", 5, 2, made)
    stopped = False
    (found,) = gathered(tmp_path / "train.pt", "train", 5, 2, made)
    assert asked == [0, 2, 4]
    assert found.tolist() == [0, 1, 2, 3, 4]
    assert not found.is_inference()
    assert [path.name for path in tmp_path.iterdir()] == ["train.pt"]
    (again,) = gathered(tmp_path / "train.pt", "train", 5, 2, made)
    assert torch.equal(again, found)
    assert len(asked) == 3
