"""Parts of the training forward against independent references."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from mmspec.models.llamagen.transformer import attend


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("padded", [True, False])
def test_attention_in_training_equals_the_fused_kernel(padded, kv_heads):
    generator = torch.Generator().manual_seed(0)
    shape = dict(dtype=torch.float64, generator=generator)
    q = torch.randn(2, 4, 7, 6, **shape).requires_grad_()
    k, v = (torch.randn(2, kv_heads, 7, 6, **shape).requires_grad_() for _ in range(2))
    allowed = torch.ones(7, 7, dtype=torch.bool).tril().repeat(2, 1, 1, 1)
    if padded:
        allowed[1, :, 3:, :2] = False
    added = torch.where(allowed, 0.0, -torch.inf)
    reference = F.scaled_dot_product_attention(
        q, k.repeat_interleave(4 // kv_heads, 1), v.repeat_interleave(4 // kv_heads, 1), allowed
    )
    weights = torch.randn(reference.shape, **shape)
    wanted = torch.autograd.grad((reference * weights).sum(), (q, k, v))
    masks = [added] if padded else [added, None]  # None: causal
    for mask in masks:
        for out in (attend(q, k, v, mask), attend(q.detach(), k.detach(), v.detach(), mask)):
            assert torch.allclose(out, reference, atol=1e-12, rtol=0)
        out = attend(q, k, v, mask)
        for ours, theirs in zip(
            torch.autograd.grad((out * weights).sum(), (q, k, v)), wanted, strict=True
        ):
            assert torch.allclose(ours, theirs, atol=1e-12, rtol=0)
