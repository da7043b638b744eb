"""Attention in two parts is attention in one."""

from __future__ import annotations

import pytest
import torch

from mmspec.engine.draft import Draft
from mmspec.engine.laws import OneHot
from mmspec.models import merged_attention as module
from mmspec.models.call_masks import additive, tree_mask
from mmspec.models.merged_attention import merged_attention, open_entries, worth_merging
from mmspec.models.merged_attention_naive import attention_naive

PARENTS = [[-1, -1, 0, 1, 1], [-1, 0, 1, 2, -1]]  # of nodes, by row
FIRST = [7, 4]  # the root's slots: one row's text is shorter
LENGTH = FIRST[0] + 6


def masked(dtype: torch.dtype) -> torch.Tensor:
    """The mask of trees behind texts of different lengths `[2, 6, length]`."""
    draft = Draft(torch.zeros(2, 5).long(), torch.tensor([5, 5]), OneHot(), torch.tensor(PARENTS))
    allowed = tree_mask(draft, torch.tensor(FIRST)[:, None], torch.arange(LENGTH))
    return additive(allowed, dtype)


@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
@pytest.mark.parametrize("heads", [2, 6])
@pytest.mark.parametrize("entries", [0, 1, FIRST[1]])
def test_parts_are_merged_to_the_whole(dtype, close, heads, entries):
    generator = torch.Generator().manual_seed(0)
    shapes = (2, heads, 6, 8), (2, 2, LENGTH, 8), (2, 2, LENGTH, 8)
    q, k, v = (torch.randn(*s, generator=generator, dtype=torch.float64).to(dtype) for s in shapes)
    k[:, :, 0] *= 4  # much or little weight lies in front
    mask = masked(dtype)
    found = merged_attention(q, k, v, mask[:, None], entries)
    wanted = attention_naive(q.double(), k.double(), v.double(), mask.double())
    torch.testing.assert_close(found.double(), wanted, rtol=close, atol=close)
    one = merged_attention(q[:1], k[:1], v[:1], mask[0], entries)  # one mask for all rows
    torch.testing.assert_close(one.double(), wanted[:1], rtol=close, atol=close)


def test_what_all_read(monkeypatch):
    mask = masked(torch.float64)
    assert open_entries(mask) == FIRST[1]  # nodes read the root too, which reads nothing behind
    assert open_entries(mask[:1]) == FIRST[0]
    assert open_entries(torch.zeros(3, 7)) == 6
    padded = mask.clone()
    padded[1, :, 0] = -torch.inf
    assert open_entries(padded) == 0
    assert worth_merging(mask, 6, LENGTH) == 0  # far too short
    monkeypatch.setattr(module, "LONG", FIRST[1])
    monkeypatch.setattr(module, "WIDE", 6)
    assert worth_merging(mask, 6, LENGTH) == FIRST[1]
    assert worth_merging(mask, 5, LENGTH) == 0
    assert worth_merging(None, 6, LENGTH) == 0
    assert worth_merging(padded, 6, LENGTH) == 0


@torch.inference_mode()
@pytest.mark.parametrize("kv_heads", [None, 2])
def test_a_targets_laws_are_the_same(kv_heads, tiny_llamagen, guided_rows, monkeypatch):
    """Trees behind texts of different lengths, whose text is attended to by itself."""
    model = tiny_llamagen(n_kv_head=kv_heads)
    generator = torch.Generator().manual_seed(3)
    text, nodes = (
        torch.randint(16, (2, 5), generator=generator),
        torch.tensor([[3, 5, 1, 2, 4]] * 2),
    )
    draft = Draft(nodes, torch.tensor([5, 5]), OneHot(), torch.tensor(PARENTS))
    fronts: list[int] = []
    told = module._told

    def counted(q, k, v, **more):
        fronts.append(k.shape[2])
        return told(q, k, v, **more)

    def laws() -> torch.Tensor:
        target, *_ = guided_rows(model, [0, 0])
        target.start(2)
        target.extend(text, [-1, -1])
        return target.extend(torch.cat([text[:, :1], nodes], dim=1), [4, 2], draft)

    whole = laws()
    monkeypatch.setattr(module, "_told", counted)
    monkeypatch.setattr(module, "LONG", 2)
    monkeypatch.setattr(module, "WIDE", 6)
    torch.testing.assert_close(laws(), whole, rtol=1e-10, atol=1e-12)
    assert len(fronts) >= 2 * len(model.layers)  # both parts of every layer
