"""The scan of Mamba-2's state space over trees: every token reads what its own path says."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mmspec.models.tree_scan import parents_of, state_behind, tree_conv, tree_scan
from mmspec.models.tree_scan_naive import tree_conv_naive, tree_scan_naive

TREES, TOKENS, HEADS, SIZE, GROUPS, PLACES, CHANNELS = 4, 9, 4, 3, 2, 5, 7
EXACT = {"rtol": 1e-12, "atol": 1e-12}


def families(shape: str) -> torch.Tensor:
    """Chains, stars of roots or random forests `[S, T, T]`, each a different one."""
    rng = np.random.default_rng(3)
    out = torch.eye(TOKENS, dtype=torch.bool).repeat(TREES, 1, 1)
    for tree in out:
        for n in range(1, TOKENS):
            parent = {"chain": n - 1, "roots": -1}.get(shape, int(rng.integers(-1, n)))
            if parent >= 0:
                tree[n] |= tree[parent]
    return out


def numbers(steep: float = 1.0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return {
        "x": normal(TREES, TOKENS, HEADS, SIZE),
        "step": normal(TREES, TOKENS, HEADS).exp(),
        "decay": -steep * normal(HEADS).exp(),
        "b": normal(TREES, TOKENS, GROUPS, PLACES),
        "c": normal(TREES, TOKENS, GROUPS, PLACES),
        "state": normal(TREES, HEADS, SIZE, PLACES),
    }


@pytest.mark.parametrize("shape", ["chain", "roots", "forest"])
@pytest.mark.parametrize("steep", [1e-3, 1.0, 500.0])  # the last: e to a branch's sum is infinite
def test_scan_is_that_of_every_path(shape, steep):
    family, given = families(shape), numbers(steep)
    out, states = tree_scan_naive(**given, family=family)
    torch.testing.assert_close(tree_scan(**given, family=family), out, **EXACT)
    del given["c"]
    for tokens in torch.randint(TOKENS, (3, TREES), generator=torch.Generator().manual_seed(2)):
        found = state_behind(**given, family=family, last=tokens)
        torch.testing.assert_close(found, states[torch.arange(TREES), tokens], **EXACT)


@pytest.mark.parametrize("shape", ["chain", "roots", "forest"])
@pytest.mark.parametrize("width", [1, 2, 4])
def test_convolution_reads_ancestors(shape, width):
    family = families(shape)
    generator = torch.Generator().manual_seed(4)
    sizes = (TREES, TOKENS, CHANNELS), (TREES, width - 1, CHANNELS), (CHANNELS, width), (CHANNELS,)
    inputs, state, weight, bias = (
        torch.randn(*size, generator=generator, dtype=torch.float64) for size in sizes
    )
    for own in (bias, None):
        found = tree_conv(inputs, parents_of(family), state, weight, own)
        torch.testing.assert_close(
            found, tree_conv_naive(inputs, family, state, weight, own), **EXACT
        )


def test_replaying_a_path_goes_on_as_the_tree_did():
    """An accepted path as a chain, then more behind it: as if all had been one tree."""
    family, given = families("forest"), numbers()
    step, decay, b, state = (given[name] for name in ("step", "decay", "b", "state"))
    token = TOKENS - 1
    for n in range(TREES):
        path = family[n, token].nonzero()[:, 0]
        chain = torch.ones(1, len(path), len(path), dtype=torch.bool).tril()
        own = {
            name: value[n : n + 1, path] if name in ("x", "step", "b") else value
            for name, value in given.items()
            if name != "c"
        } | {"state": state[n : n + 1]}
        replayed = state_behind(**own, family=chain, last=torch.tensor([len(path) - 1]))
        there = state_behind(given["x"], step, decay, b, family, state, torch.tensor([token] * 4))
        torch.testing.assert_close(replayed[0], there[n], **EXACT)
