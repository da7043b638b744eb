"""Nearest neighbours among the codes of a VQ codebook."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import InputError

_ENTRIES = 2**22  # distances in memory at a time


@torch.no_grad()
def nearest_codes(codebook: Tensor, k: int) -> Tensor:
    """The k nearest other codes of every code by L2 distance, nearest first.

    A code is not its own neighbour; its duplicates are, at distance 0. Ties go to the lower id.
    Distances are those of float32.

    Args:
        codebook: codes `[V, C]` as they are compared and decoded (normalized if the tokenizer
            normalizes them).
        k: neighbours per code, at most V − 1.

    Returns:
        Ids `[V, k]` on the codebook's device.

    Raises:
        InputError: k is not in [0, V − 1], or a code is no finite number.
    """
    codes = codebook.float()
    size = len(codes)
    if not 0 <= k < size:
        raise InputError(f"{k} neighbours of {size} codes: take 0 to {size - 1}")
    if not codes.isfinite().all():
        raise InputError("the codebook holds numbers that are not finite: load it again")
    ids = torch.arange(size, device=codes.device)
    table = torch.empty(size, k, dtype=torch.long, device=codes.device)
    for rows in ids.split(max(1, _ENTRIES // size)):
        # pair by pair: a product of matrices would round equal distances apart
        exact = "donot_use_mm_for_euclid_dist"
        distance = torch.cdist(codes[rows], codes, compute_mode=exact)
        # the bits of a positive float sort as it does, and the id below them decides ties
        key = (distance.view(torch.int32).long() << 32) | ids
        key.scatter_(1, rows[:, None], torch.iinfo(torch.long).max)
        table[rows] = key.topk(k, dim=1, largest=False).values & (2**32 - 1)
    return table


class Neighbours:
    """The table of one codebook, built when it is first asked for.

    It is built again for other codes, another device, or more neighbours; fewer are its first
    columns. Codes are compared by value, since a normalized codebook is a new tensor every time.
    """

    def __init__(self) -> None:
        self._codes, self._table = torch.empty(0), torch.empty(0, 0, dtype=torch.long)

    def __call__(self, codebook: Tensor, k: int) -> Tensor:
        """`nearest_codes(codebook, k)`."""
        known = self._codes.device == codebook.device and torch.equal(self._codes, codebook)
        if not known or not 0 <= k <= self._table.shape[1]:
            self._table = nearest_codes(codebook, k)
            self._codes = codebook.detach().clone()
        return self._table[:, :k]
