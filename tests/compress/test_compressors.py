"""What all compressors promise alike."""

from __future__ import annotations

import pytest
import torch

from mmspec.compress.base import complement, compress, top
from mmspec.compress.visionzip import visionzip
from mmspec.errors import InputError
from mmspec.methods import parts

NAMES = list(parts("compressor"))
ROWS, TOKENS, CHANNELS = 3, 36, 10


def given(seed=0, rows=ROWS, tokens=TOKENS, dtype=torch.float64):
    """Features and whatever a compressor may ask for."""
    random = torch.Generator().manual_seed(seed)
    features = torch.randn(rows, tokens, CHANNELS, generator=random, dtype=torch.float64)
    attention = torch.randn(rows, tokens, generator=random, dtype=torch.float64).mul(3).softmax(1)
    keys = torch.randn(rows, tokens, 7, generator=random, dtype=torch.float64)
    return features.to(dtype), dict(attention=attention.to(dtype), keys=keys.to(dtype))


@pytest.mark.parametrize("name", NAMES)
def test_keeping_all_is_the_identity(name):
    features, inputs = given()
    made = compress(name, features, TOKENS, **inputs)
    torch.testing.assert_close(made.features, features, rtol=0, atol=1e-12)
    assert torch.equal(made.index, torch.arange(TOKENS).expand(ROWS, -1))
    assert made.mask.all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("keep", [1, 2, 9, 24, 30])
def test_shapes_and_order(name, keep):
    features, inputs = given()
    made = compress(name, features, keep, **inputs)
    assert made.features.shape == (ROWS, keep, CHANNELS)
    assert made.index.shape == made.mask.shape == (ROWS, keep)
    assert made.mask.all()
    assert (made.index.diff(dim=1) > 0).all()
    assert ((made.index >= 0) & (made.index < TOKENS)).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_dtype_is_kept(name, dtype):
    features, inputs = given(dtype=dtype)
    made = compress(name, features, 9, **inputs)
    assert made.features.dtype == dtype
    wide = compress(name, features.float(), 9, **{k: v.float() for k, v in inputs.items()})
    assert torch.equal(made.index, wide.index)
    assert torch.equal(made.features, wide.features.to(dtype))


@pytest.mark.parametrize(("name", "keep"), [*((name, 4) for name in NAMES), ("prumerge", None)])
def test_rows_do_not_see_each_other(name, keep):
    features, inputs = given()
    made = compress(name, features, keep, **inputs)
    for row in range(ROWS):
        one = {k: v[row : row + 1] for k, v in inputs.items()}
        alone = compress(name, features[row : row + 1], keep, **one)
        real = made.mask[row]
        assert real.sum() == alone.mask.sum()
        assert torch.equal(made.index[row][real], alone.index[0])
        torch.testing.assert_close(made.features[row][real], alone.features[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("keep", [1, 4, 9])
def test_equal_tokens(name, keep):
    """Nothing to tell tokens apart: the result is finite, and the first ones win."""
    channels = 4  # cosines of ones are exact
    features = torch.ones(2, TOKENS, channels)
    inputs = dict(attention=torch.full((2, TOKENS), 1 / TOKENS), keys=torch.ones(2, TOKENS, 4))
    made = compress(name, features, keep, **inputs)
    assert made.features.isfinite().all()
    assert (made.index.diff(dim=1) > 0).all()
    if name in ("fastv", "divprune", "prumerge"):
        assert torch.equal(made.index, torch.arange(keep).expand(2, -1))
    if name in ("fastv", "divprune", "tome", "pool"):
        torch.testing.assert_close(made.features, torch.ones(2, keep, channels))


@pytest.mark.parametrize("name", NAMES)
def test_zero_features_stay_finite(name):
    _, inputs = given()
    inputs["keys"] = torch.zeros_like(inputs["keys"])
    made = compress(name, torch.zeros(ROWS, TOKENS, CHANNELS), 4, **inputs)
    assert torch.equal(made.features, torch.zeros(ROWS, 4, CHANNELS))


@pytest.mark.parametrize("name", ["fastv", "divprune", "prumerge"])
def test_permuted_tokens_are_chosen_alike(name):
    """Selections look at no place, so that they follow the tokens wherever those stand."""
    features, inputs = given(1)
    order = torch.randperm(TOKENS, generator=torch.Generator().manual_seed(2))
    made = compress(name, features, 7, **inputs)
    moved = compress(name, features[:, order], 7, **{k: v[:, order] for k, v in inputs.items()})
    back = order[moved.index]  # where they stood
    assert torch.equal(back.sort(1).values, made.index)
    sorted_back = moved.features.gather(1, back.argsort(1)[..., None].expand(-1, -1, CHANNELS))
    torch.testing.assert_close(sorted_back, made.features, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("keep", [0, -1, TOKENS + 1, 2.0, True])
def test_wrong_counts_are_refused(name, keep):
    features, inputs = given()
    with pytest.raises(InputError, match=f"^can't keep .* of {TOKENS} visual tokens; pass 1 to"):
        compress(name, features, keep, **inputs)


def test_wrong_inputs_are_refused():
    features, inputs = given()
    with pytest.raises(InputError, match=r"unknown compressor 'vision-zip'; did you mean 'visionz"):
        compress("vision-zip", features, 4, **inputs)
    with pytest.raises(InputError, match=r"'visionzip' needs attention and keys"):
        compress("visionzip", features, 4)
    with pytest.raises(InputError, match=r"'tome' doesn't choose how many"):
        compress("tome", features)
    with pytest.raises(InputError, match=r"attention has shape \(3, 5\); pass \(3, 36\)"):
        compress("fastv", features, 4, attention=inputs["attention"][:, :5])
    with pytest.raises(InputError, match=r"keys have shape \(3, 5, 7\); pass \(3, 36, K\)"):
        compress("tome", features, 4, keys=inputs["keys"][:, :5])
    with pytest.raises(InputError, match=r"features have shape \(36, 10\)"):
        compress("divprune", features[0], 4)
    with pytest.raises(InputError, match="can't make 5 of 4 tokens contextual"):
        visionzip(features, 4, **inputs, contextual=5)
    with pytest.raises(InputError, match=r"features have shape \(36, 10\)"):
        compress("prumerge", features[0], **inputs)


def test_top_prefers_the_first_of_equals():
    scores = torch.tensor([[1.0, 3.0, 1.0, 3.0, 1.0], [0.0, 0.0, 0.0, 0.0, 5.0]])
    assert top(scores, 3).tolist() == [[0, 1, 3], [0, 1, 4]]
    assert complement(torch.tensor([[1, 3], [4, 0]]), 5).tolist() == [[0, 2, 4], [1, 2, 3]]


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_on_a_device(name):
    features, inputs = given()
    made = compress(name, features, 9, **inputs)
    away = compress(name, features.cuda(), 9, **{k: v.cuda() for k, v in inputs.items()})
    assert torch.equal(away.index.cpu(), made.index)
    torch.testing.assert_close(away.features.cpu(), made.features, rtol=0, atol=1e-12)
