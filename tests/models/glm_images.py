"""A tiny random GLM-Image: diffusers' pipeline and its language model."""

from __future__ import annotations

import torch
from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    GlmImagePipeline,
    GlmImageTransformer2DModel,
)
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import (
    ByT5Tokenizer,
    GlmImageConfig,
    GlmImageForConditionalGeneration,
    GlmImageProcessor,
    PreTrainedTokenizerFast,
    T5Config,
    T5EncoderModel,
)
from transformers.models.glm_image.image_processing_pil_glm_image import GlmImageImageProcessorPil

CODES, START, END = 96, 96, 97  # codes, then what opens and closes a picture
VISION, PAD, PLACEHOLDER = 100, 100, 101  # logits; then words that are never drawn
WORDS = "".join(chr(c) for c in range(32, 127))
TEMPLATE = (
    "{% for m in messages %}{% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}<|dit_96|><|image|><|dit_97|>{% else %}{{ c['text'] }}{% endif %}"
    "{% endfor %}{% endfor %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    """A word for every image token, special ones, and every printable letter."""
    names = [f"<|dit_{n}|>" for n in range(VISION)]
    special = [*names, "<pad>", "<|image|>", "<sop>", "<eop>"]
    words = {word: n for n, word in enumerate([*special, *WORDS])}
    made = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    made.add_special_tokens(special)
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        bos_token=f"<|dit_{START}|>",
        eos_token=f"<|dit_{END}|>",
        pad_token="<pad>",
        padding_side="left",
        extra_special_tokens={
            "image_token": "<|image|>",
            "grid_bos_token": "<sop>",
            "grid_eos_token": "<eop>",
        },
    )


def network() -> GlmImageForConditionalGeneration:
    config = GlmImageConfig(
        text_config={
            "vocab_size": VISION + 4 + len(WORDS),
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 512,
            "vision_vocab_size": VISION,
            "pad_token_id": PAD,
            "eos_token_id": END,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [4, 2, 2],
            },
        },
        vision_config={
            "depth": 1,
            "hidden_size": 32,
            "num_heads": 2,
            "image_size": 32,
            "patch_size": 8,
            "intermediate_size": 32,
        },
        vq_config={"embed_dim": 32, "num_embeddings": CODES, "latent_channels": 32},
        image_token_id=PLACEHOLDER,
        image_start_token_id=START,
        image_end_token_id=END,
    )
    torch.manual_seed(1)
    model = GlmImageForConditionalGeneration(config)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, mean=float(weight.ndim == 1), std=0.3)
    # laws that lean on what stands where more than on the last token
    text = model.model.language_model
    text.embed_tokens.weight.data *= 0.1
    for layer in text.layers:
        layer.self_attn.q_proj.weight.data *= 2
    return model.eval()


def glm_image() -> GlmImagePipeline:
    """The whole pipeline."""
    with torch.random.fork_rng():
        pipe = GlmImagePipeline(
            ByT5Tokenizer(),
            GlmImageProcessor(
                GlmImageImageProcessorPil(patch_size=8, temporal_patch_size=1, merge_size=1),
                tokenizer(),
                chat_template=TEMPLATE,
            ),
            T5EncoderModel(
                T5Config(vocab_size=384, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
            ),
            network(),
            AutoencoderKL(
                block_out_channels=(4, 4, 4, 4),
                down_block_types=["DownEncoderBlock2D"] * 4,
                up_block_types=["UpDecoderBlock2D"] * 4,
                latent_channels=4,
                norm_num_groups=4,
                latents_mean=[0.0] * 4,
                latents_std=[1.0] * 4,
            ),
            GlmImageTransformer2DModel(
                patch_size=2,
                in_channels=4,
                out_channels=4,
                num_layers=1,
                attention_head_dim=8,
                num_attention_heads=2,
                text_embed_dim=16,
                time_embed_dim=16,
                condition_dim=8,
                prior_vq_quantizer_codebook_size=CODES,
            ),
            FlowMatchEulerDiscreteScheduler(),
        )
    # random weights would end a picture anywhere
    pipe.vision_language_encoder.generation_config.suppress_tokens = list(range(CODES, VISION))
    return pipe
