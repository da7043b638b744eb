"""Tiny block-causal Wans, video autoencoders and their pipelines of random weights."""

from __future__ import annotations

import torch
from diffusers import AutoencoderKLWan
from transformers import T5Config, T5EncoderModel

from mmspec import VideoPipeline
from mmspec.models.wan.cache import WanCache
from mmspec.models.wan.frame_router import FrameRouter
from mmspec.models.wan.transformer import WanTransformer
from mmspec.train.tokenizers import caption_tokenizer

TINY = dict(
    text_len=6,
    in_dim=4,
    out_dim=4,
    dim=48,
    ffn_dim=40,
    freq_dim=32,
    text_dim=10,
    num_heads=2,
    num_layers=2,
    num_frame_per_block=2,
)
SIZE = (4, 6)  # of its latents; 6 tokens a frame


def tiny_wan(dtype: torch.dtype = torch.float64, **changes) -> WanTransformer:
    """Equal arguments, equal weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = WanTransformer(**{**TINY, **changes})
        for weight in model.parameters():
            # norms around 1, which a network that leaves them out would not notice
            torch.nn.init.normal_(weight, mean=float(weight.ndim == 1), std=0.2)
    return torch.nn.Module.to(model, dtype).eval()


def rand(*size: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*size, generator=generator, dtype=torch.float64).to(dtype)


def latents(rows: int, frames: int, seed: int = 0) -> torch.Tensor:
    return rand(rows, frames, 4, *SIZE, seed=seed)


def begin(model: WanTransformer, rows: int = 1, limit: int | None = 8, **options) -> WanCache:
    """A cache of `rows` clips of random texts, equal rows of equal texts."""
    return model.start(rand(8, 4, 10, seed=99)[:rows], *SIZE, limit, **options)


def tiny_vae(downsample: tuple[bool, ...] = (True, True), **changes) -> AutoencoderKLWan:
    sizes = dict(
        base_dim=4,
        z_dim=3,
        dim_mult=[1] * (len(downsample) + 1),
        num_res_blocks=1,
        temperal_downsample=list(downsample),
        latents_mean=[0.3, -0.2, 0.1],
        latents_std=[1.5, 0.7, 2.0],
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        vae = AutoencoderKLWan(**{**sizes, **changes})
        for name, weight in vae.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(weight, std=0.1)
    return vae.double().eval()


def tiny_pipeline(dtype: torch.dtype = torch.float32, drafter: bool = True) -> VideoPipeline:
    """Blocks of 2 latent frames, 5 and then 8 pictures of 16×24 px; text of the shapes world."""
    sizes = dict(
        in_dim=3,
        out_dim=3,
        text_len=24,
        text_dim=16,
        window=2,
        sink=1,
        sample_height=4,
        sample_width=6,
        sample_frames=6,
    )
    words = caption_tokenizer()
    small = dict(d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        encoder = T5EncoderModel(T5Config(vocab_size=len(words), **small)).eval()
        sizes_of = dict(text_len=24, text_dim=16, widths=(8, 16))
        router = FrameRouter(len(words), **sizes_of).eval()
        advantage = FrameRouter(len(words), **sizes_of, unit=1.0, usual=0.0).eval()
    pipe = VideoPipeline(
        tiny_wan(dtype, **sizes),
        torch.nn.Module.to(tiny_vae(), dtype),
        torch.nn.Module.to(encoder, dtype),
        words,
        tiny_wan(dtype, **sizes, dim=24, num_layers=1) if drafter else None,
        torch.nn.Module.to(router, dtype) if drafter else None,
        torch.nn.Module.to(advantage, dtype) if drafter else None,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe
