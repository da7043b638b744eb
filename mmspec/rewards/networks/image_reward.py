"""The networks of ImageReward: BLIP's sees the picture, BERT reads the prompt.

The networks are transformers'; the checkpoint is the authors', whose tensor names are mapped here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchvision import transforms
from transformers import (
    BertTokenizer,
    BlipTextConfig,
    BlipTextModel,
    BlipVisionConfig,
    BlipVisionModel,
)

from ...errors import InputError, reason
from ...files import read_object
from ...models.bounded_init import bounded_init
from ...models.loading import cast, check_tensors, load_component
from ...models.weights import WRAPPED, read_tensors

TEXT_CONFIG = "med_config.json"
SIDE, PATCH = 224, 16  # pixels
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
VIT = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}  # ViT-L

# what is taken from the prompt's configuration
_TEXT_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
    "hidden_act",
    "layer_norm_eps",
    "pad_token_id",
)
# tensor names of transformers' models as the checkpoint has them, in this order
_PUBLISHED = (
    (r"^vision\.embeddings\.class_embedding$", "blip.visual_encoder.cls_token"),
    (r"^vision\.embeddings\.position_embedding$", "blip.visual_encoder.pos_embed"),
    (r"^vision\.embeddings\.patch_embedding\.", "blip.visual_encoder.patch_embed.proj."),
    (r"^vision\.post_layernorm\.", "blip.visual_encoder.norm."),
    (r"^vision\.encoder\.layers\.", "blip.visual_encoder.blocks."),
    (r"\.layer_norm([12])\.", r".norm\1."),
    (r"\.self_attn\.qkv\.", ".attn.qkv."),
    (r"\.self_attn\.projection\.", ".attn.proj."),
    (r"^text\.", "blip.text_encoder."),
    (r"^mlp\.", "mlp.layers."),
)


def preprocessing() -> Any:
    """A picture to pixels `[3, 224, 224]`."""
    return transforms.Compose(
        [
            transforms.Resize(SIDE, transforms.InterpolationMode.BICUBIC),
            transforms.CenterCrop(SIDE),
            transforms.ToTensor(),
            transforms.Normalize(CLIP_MEAN, CLIP_STD),
        ]
    )


class ImageRewardNetwork(nn.Module):
    """The picture's encoder, the prompt's, and the linear stack, as trained."""

    def __init__(self, vision: BlipVisionConfig, text: BlipTextConfig) -> None:
        super().__init__()
        self.vision = BlipVisionModel(vision)
        self.text = BlipTextModel(text, add_pooling_layer=False)
        self.mlp = nn.Sequential(
            nn.Linear(text.hidden_size, 1024),
            nn.Dropout(0.2),
            nn.Linear(1024, 128),
            nn.Dropout(0.2),
            nn.Linear(128, 64),
            nn.Dropout(0.1),
            nn.Linear(64, 16),
            nn.Linear(16, 1),
        )

    def forward(self, pixels: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        """The raw reward `[B]` of `pixels [B, 3, 224, 224]` for tokens and their mask `[B, T]`."""
        seen = self.vision(pixels).last_hidden_state  # [B, 1 + 14², D]
        # the configuration of a decoder brings the cross-attention; no causal mask goes with it
        read = self.text(
            ids, attention_mask=mask, encoder_hidden_states=seen, is_decoder=False
        ).last_hidden_state
        return self.mlp(read[:, 0])[:, 0]


def load_network(path: Path) -> ImageRewardNetwork:
    """The networks of `ImageReward.pt` in float32, sized by `med_config.json` beside it."""
    weights = read_tensors(path, WRAPPED)
    with torch.device("meta"), bounded_init(weights, path.with_name(TEXT_CONFIG)):
        network = build_network(path.with_name(TEXT_CONFIG))
    ours = network.state_dict()
    expected = {published_name(name): value for name, value in ours.items()}
    unused = {name: value for name, value in unused_tensors(network).items() if name in weights}
    check_tensors({**expected, **unused}, weights, path, "ImageReward")
    network.load_state_dict({name: weights[published_name(name)] for name in ours}, assign=True)
    # derived, so not among the weights
    positions = torch.arange(network.text.config.max_position_embeddings)
    network.text.embeddings.position_ids = positions[None]
    return cast(network, torch.float32)


def build_network(text_config: Path) -> ImageRewardNetwork:
    """The networks without their weights, the prompt's sized by `med_config.json`."""
    vision = BlipVisionConfig(
        image_size=SIDE,
        patch_size=PATCH,
        layer_norm_eps=1e-6,
        intermediate_size=4 * VIT["hidden_size"],
        **VIT,
    )
    published = read_object(text_config)
    absent = [key for key in _TEXT_SIZES if key not in published]
    if absent:
        raise InputError(f"{text_config} has no {absent[0]}")
    try:
        text = BlipTextConfig(
            encoder_hidden_size=VIT["hidden_size"], **{key: published[key] for key in _TEXT_SIZES}
        )
        return ImageRewardNetwork(vision, text)
    except InputError:
        raise
    except Exception as error:  # the configuration's checks raise classes of their own
        raise InputError(f"{text_config} is no BERT configuration: {reason(error)}") from error


def published_name(name: str) -> str:
    """Name in the checkpoint of a tensor of `ImageRewardNetwork`."""
    for pattern, replacement in _PUBLISHED:
        name = re.sub(pattern, replacement, name)
    return name


def unused_tensors(network: ImageRewardNetwork) -> dict[str, Tensor]:
    """Tensors that the checkpoint may hold beside the reward's own, without values.

    BLIP's two projections of its contrastive loss, frozen in training, and BERT's positions.
    """
    text, width = network.text.config, network.vision.config.hidden_size
    places = text.max_position_embeddings
    with torch.device("meta"):
        return {
            "blip.text_encoder.embeddings.position_ids": torch.arange(places)[None],
            "blip.vision_proj.weight": torch.empty(256, width),
            "blip.vision_proj.bias": torch.empty(256),
            "blip.text_proj.weight": torch.empty(256, text.hidden_size),
            "blip.text_proj.bias": torch.empty(256),
        }


def load_tokenizer(folder: Path, vocab_size: int) -> Any:
    """bert-base-uncased from a folder, with `[DEC]` and `[ENC]` as BLIP adds them."""
    if not any((folder / name).is_file() for name in ("vocab.txt", "tokenizer.json")):
        raise InputError(f"no vocab.txt in {folder}; copy bert-base-uncased's there")
    tokenizer = load_component(BertTokenizer, folder, torch.float32)
    tokenizer.add_tokens(["[DEC]", "[ENC]"], special_tokens=True)
    if len(tokenizer) != vocab_size:
        raise InputError(
            f"the vocabulary in {folder} has {len(tokenizer)} words with BLIP's own two, "
            f"expected {vocab_size}: is it bert-base-uncased's?"
        )
    return tokenizer
