"""The neighbour table equals a plain sort by (distance, id)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.spatial import cKDTree

from mmspec.errors import InputError
from mmspec.models import codebook_neighbours as neighbours
from mmspec.models.codebook_neighbours import Neighbours, nearest_codes


def sorted_table(codes: np.ndarray, k: int) -> list[list[int]]:
    """Whole numbers in, so that distances are exact and ties are ties."""
    table = []
    for i, code in enumerate(codes):
        others = [(int(((code - other) ** 2).sum()), j) for j, other in enumerate(codes) if j != i]
        table.append([j for _, j in sorted(others)[:k]])
    return table


@pytest.mark.parametrize("chunk", [1, 100, 2**22])  # one row at a time, some, all
@pytest.mark.parametrize("k", [0, 1, 7, 39])
def test_ties_and_duplicates_go_to_the_lower_id(monkeypatch, k, chunk):
    """40 codes on a grid of 3 × 3 × 3 places: many share one, and most distances are shared."""
    monkeypatch.setattr(neighbours, "_ENTRIES", chunk)
    codes = np.random.default_rng(0).integers(0, 3, (40, 3))
    table = nearest_codes(torch.tensor(codes).float(), k)
    assert table.dtype == torch.long
    assert table.shape == (40, k)
    assert table.tolist() == sorted_table(codes, k)


def test_equals_a_search_tree():
    codes = torch.nn.functional.normalize(
        torch.randn(3000, 8, generator=torch.manual_seed(0)), dim=1
    )
    table = nearest_codes(codes, 20)
    distance, near = cKDTree(codes.double().numpy()).query(codes.double().numpy(), 21)
    assert (near[:, 0] == np.arange(3000)).all()
    ours = (codes[:, None] - codes[table]).double().norm(dim=-1)
    assert np.abs(ours.numpy() - distance[:, 1:]).max() < 1e-6
    assert (table.numpy() == near[:, 1:]).mean() > 0.999  # else float32 takes them for equal


@pytest.mark.parametrize("k", [-1, 4])
def test_too_many_neighbours_are_refused(k):
    with pytest.raises(InputError, match="take 0 to 3"):
        nearest_codes(torch.eye(4), k)
    known = Neighbours()
    known(torch.eye(4), 3)
    with pytest.raises(InputError, match="take 0 to 3"):
        known(torch.eye(4), k)


def test_broken_codebook_is_refused():
    with pytest.raises(InputError, match="not finite"):
        nearest_codes(torch.tensor([[0.0], [float("nan")]]), 1)


def test_table_is_built_once_for_a_codebook(monkeypatch):
    built = []

    def counted(codes, k):
        built.append(k)
        return nearest_codes(codes, k)

    monkeypatch.setattr(neighbours, "nearest_codes", counted)
    codes, known = torch.rand(30, 4, generator=torch.manual_seed(1)), Neighbours()
    for k in (5, 5, 3, 0, 7, 5):
        assert torch.equal(known(codes.clone(), k), nearest_codes(codes, k))
    assert built == [5, 7]
    codes[3] = codes[9]  # in place
    assert torch.equal(known(codes, 5), nearest_codes(codes, 5))
    with torch.inference_mode():
        assert torch.equal(known(codes * 1.0, 5), nearest_codes(codes, 5))
    assert built == [5, 7, 5]
