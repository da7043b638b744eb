"""Attention of a question: the weights of its tokens, and neighbours on the grid."""

from __future__ import annotations

import pytest
import torch

from mmspec.compress.draft_attention import draft_attention, on_grid, question_attention
from mmspec.errors import InputError


def test_later_tokens_of_a_question_count_more():
    weights = torch.zeros(2, 1, 4, 4)
    weights[0, 0, 1, 0] = 0.9  # no token of the question
    weights[0, 0, 2, 0], weights[0, 0, 2, 1] = 0.5, 0.6
    weights[0, 0, 3, 0] = 0.2
    weights[1, 0, 3, 1] = 0.4
    asked = torch.tensor([[False, False, True, True], [False, False, False, True]])
    paid = question_attention(weights, asked)
    assert torch.allclose(paid[:, :2], torch.tensor([[0.25, 0.3], [0.0, 0.4]]))


def test_heads_do_not_share_their_attention():
    weights = torch.tensor([[0.1, 0.7], [0.6, 0.2]])[None, :, None]  # [1, 2, 1, 2]
    paid = question_attention(weights, torch.tensor([[True]]))
    assert torch.allclose(paid, torch.tensor([[0.6, 0.7]]))


def test_a_token_brings_its_neighbours_on_the_grid():
    features = torch.arange(20.0)[None, :, None]
    attention = torch.zeros(1, 20)
    attention[0, 7] = 1.0  # row 1, column 2 of 4 × 5
    made = draft_attention(features, 9, attention, (4, 5))
    assert made.index.tolist() == [[1, 2, 3, 6, 7, 8, 11, 12, 13]]
    assert draft_attention(features, 1, attention, (4, 5)).index.tolist() == [[7]]
    line = draft_attention(features, 3, attention)  # 20 tokens fill no square
    assert line.index.tolist() == [[6, 7, 8]]


def test_scores_on_another_grid():
    scores = torch.tensor([[0.0, 1.0, 0.0, 1.0]])
    wide = on_grid(scores, (2, 2), (2, 4))
    assert torch.allclose(wide, torch.tensor([[0.0, 0.25, 0.75, 1.0] * 2]))
    assert on_grid(scores, (2, 2), (2, 2)) is scores
    assert on_grid(scores, (2, 2), (3, 5)).shape == (1, 15)
    line = torch.zeros(1, 5)
    for given, old, new in ((scores, (2, 2), (1, 5)), (line, (1, 5), (2, 2))):
        with pytest.raises(InputError, match="stand on no grids that fit each other"):
            on_grid(given, old, new)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_dtypes(dtype):
    attention = torch.rand(2, 9, generator=torch.Generator().manual_seed(0)).to(dtype)
    made = draft_attention(torch.ones(2, 9, 3, dtype=dtype), 4, attention)
    assert made.features.dtype == dtype
    assert made.index.shape == (2, 4)
