"""Tiny pipelines of continuous tokens, of random weights."""

from __future__ import annotations

import torch
from diffusers import AutoencoderKL
from transformers import T5Config, T5EncoderModel

from mmspec import ContinuousImagePipeline
from mmspec.models.mar.transformer import MarTransformer
from mmspec.train.caption_encoder import TEXT_ENCODER
from mmspec.train.tokenizers import caption_tokenizer


def random_weights(model: torch.nn.Module, std: float = 0.15) -> None:
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=std)


def tiny_mar(**changes) -> MarTransformer:
    sizes = dict(
        token_dim=4,
        grid=4,
        buffer_size=16,
        encoder_embed_dim=16,
        encoder_depth=1,
        encoder_num_heads=2,
        decoder_embed_dim=16,
        decoder_depth=1,
        decoder_num_heads=2,
        diffloss_d=1,
        diffloss_w=16,
        condition="caption",
        caption_dim=32,
    )
    model = MarTransformer(**{**sizes, **changes})
    random_weights(model)
    return model.eval()


def tiny_vae() -> AutoencoderKL:
    """Of 12 channels: pixels in patches of 2×2."""
    return AutoencoderKL(
        in_channels=12,
        out_channels=12,
        block_out_channels=(16, 16),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4,
        norm_num_groups=4,
        scaling_factor=0.5,
    ).eval()


def captioned_pipeline() -> ContinuousImagePipeline:
    """Told captions; 4×4 tokens of 4 numbers, 16 px."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        words = caption_tokenizer()
        size = dict(d_model=32, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
        encoder = T5EncoderModel(T5Config(vocab_size=len(words), **{**TEXT_ENCODER, **size}))
        drafter = tiny_mar(diffloss_w=8)
        made = ContinuousImagePipeline(tiny_mar(), tiny_vae(), encoder.eval(), words, drafter)
    made.set_progress_bar_config(disable=True)
    return made


def seeds(*numbers: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(number) for number in numbers]
