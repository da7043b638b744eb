"""Shared by all tests: helper modules on the path, and a small random image transformer."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "engine"))  # for `toys`, under importmode=importlib


@pytest.fixture(scope="session")
def tiny_llamagen():
    """Builds `LlamaGenTransformer`s with random weights; equal arguments, equal weights."""
    import torch

    from mmspec.models.llamagen import LlamaGenTransformer

    def build(
        *, grid=4, vocab=16, prefix=5, n_kv_head=None, rotary_prefix="identity", dtype=torch.float64
    ):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = LlamaGenTransformer(
                vocab_size=vocab,
                block_size=grid * grid,
                dim=32,
                n_layer=2,
                n_head=4,
                n_kv_head=n_kv_head,
                multiple_of=16,
                caption_dim=8,
                cls_token_num=prefix,
                rotary_prefix=rotary_prefix,
            )
            for weight in model.parameters():
                # norms too: the decoder folds them away, which ones would hide
                torch.nn.init.normal_(weight, mean=float(weight.ndim == 1), std=0.3)
        model.eval()
        return model.double() if dtype == torch.float64 else model

    return build


@pytest.fixture(scope="session")
def guided_rows():
    """Builds the `GuidedDecoder` of some rows of a batch of captions; equal rows, equal inputs."""
    import torch

    from mmspec.engine.warp import Warp
    from mmspec.models.decoder import Decoder
    from mmspec.models.guided import GuidedDecoder

    def build(
        model, pads, rows=None, *, scale=2.0, warp=None, limit=None, scratch=8, uncond_pads=None
    ):
        """`pads[b]`: padded columns of caption b; the unconditional twin has the same unless said.

        Returns the decoder, the prefix `[R, T, D]` and its mask `[R, T]`.
        """
        with torch.random.fork_rng():
            torch.manual_seed(1)
            count, width = len(pads), model.prefix_length
            captions = torch.randn(count, width, model.config.caption_dim)
        rows = list(range(count)) if rows is None else rows
        columns = torch.arange(width)
        with torch.inference_mode():
            prefix = model.cls_embedding(captions.to(model.output.weight.dtype))[rows]
            mask = (columns >= torch.tensor(pads)[:, None])[rows]
            if scale is not None:
                prefix = torch.cat([prefix, model.cls_embedding.unconditional(len(rows))])
                twin = (columns >= torch.tensor(uncond_pads or pads)[:, None])[rows]
                mask = torch.cat([mask, twin])
            guided = GuidedDecoder(
                Decoder(model),
                prefix,
                mask,
                scale,
                warp or Warp(),
                model.grid**2 if limit is None else limit,
                model.grid,
                scratch,
            )
        return guided, prefix, mask

    return build
