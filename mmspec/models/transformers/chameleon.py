"""Chameleon with an image decoder: the network of Anole and of Lumina-mGPT.

transformers has the rest of it. Three forms of checkpoints are published, all with `model_type`
chameleon: Anole's for transformers, which holds the image decoder under `model.vqmodel.`
(leloy/Anole-7b-v0.1-hf, the form written here); Chameleon's, which lacks the decoder; and
Lumina-mGPT's (Alpha-VLLM/Lumina-mGPT-7B-768 and its siblings), which lacks the image tokenizer and
has its query and key norms per shard of its training, where transformers has them per head. What is
missing is read from Meta's `vqgan.ckpt` beside the checkpoint.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor
from transformers import ChameleonConfig, ChameleonForConditionalGeneration

from ...errors import InputError
from ..loading import read_weights
from .chameleon_vq import ChameleonVQDecoder, read_vqgan

ANOLE, LUMINA = "anole", "lumina-mgpt"
IMAGE_TOKENIZER = "model.vqmodel."
# where Meta and the authors of Anole publish the image tokenizer, and shorter names
VQGAN_FILES = ("tokenizer/vqgan.ckpt", "vqgan.ckpt", "vqgan.safetensors")


class ChameleonForImageGeneration(ChameleonForConditionalGeneration):
    """transformers' Chameleon, its image tokenizer with a decoder.

    `config.image_layout` says how pictures lie in its sequences: "anole" or "lumina-mgpt". A
    checkpoint whose configuration does not say it has Lumina-mGPT's layout if its query norms are
    stored as Lumina-mGPT's authors do, else Anole's; `save_pretrained` writes it down.
    """

    config: ChameleonConfig
    layouts: ClassVar = (ANOLE, LUMINA)

    def __init__(self, config: ChameleonConfig) -> None:
        if not config.vocabulary_map:
            raise InputError("the configuration has no vocabulary_map: which words are codes?")
        super().__init__(config)
        layout = getattr(config, "image_layout", ANOLE)
        if layout not in self.layouts:
            raise InputError(f"image_layout must be {' or '.join(self.layouts)}, not {layout!r}")
        config.image_layout = layout
        self.model.vqmodel.decoder = ChameleonVQDecoder(config.vq_config)
        self.post_init()

    @classmethod
    def from_pretrained(cls, folder: str | Path, **kwargs: Any) -> Any:
        """A folder in any of the published forms; `kwargs` as in transformers.

        Raises:
            InputError: unreadable, or no image decoder in the folder.
        """
        folder = Path(folder)
        config = ChameleonConfig.from_pretrained(folder)
        weights = read_weights(folder, "model.safetensors")
        if any(_by_shard(name, tensor, config) for name, tensor in weights.items()):
            config.image_layout = getattr(config, "image_layout", LUMINA)
        weights = {name: _by_head(name, tensor, config) for name, tensor in weights.items()}
        if not any(name.startswith(f"{IMAGE_TOKENIZER}decoder.") for name in weights):
            weights = _image_tokenizer(folder) | weights
        return super().from_pretrained(None, config=config, state_dict=weights, **kwargs)

    def decode_image(self, codes: Tensor, rows: int, columns: int) -> Tensor:
        """Pixels `[B, 3, H, W]`, nominally in [-1, 1], of codes `[B, rows · columns]`."""
        tokenizer = self.model.vqmodel
        latents = tokenizer.quantize.embedding(codes).unflatten(1, (rows, columns))
        return tokenizer.decoder(
            tokenizer.post_quant_conv(latents.permute(0, 3, 1, 2).contiguous())
        )


def _image_tokenizer(folder: Path) -> dict[str, Tensor]:
    """The tensors of the `vqgan.ckpt` beside a checkpoint, named as in its folder's weights."""
    for name in VQGAN_FILES:
        if (folder / name).exists():
            weights = read_vqgan(folder / name)
            return {f"{IMAGE_TOKENIZER}{key}": value for key, value in weights.items()}
    raise InputError(
        "there is no image decoder; copy tokenizer/vqgan.ckpt of Meta's Chameleon or of "
        "GAIR/Anole-7b-v0.1 into the folder"
    )


def _heads(name: str, config: ChameleonConfig) -> int:
    """For how many heads a tensor holds norms; 0: it holds none."""
    queries: int = config.num_attention_heads
    keys: int = config.num_key_value_heads or queries
    return queries if ".q_norm." in name else keys if ".k_norm." in name else 0


def _by_shard(name: str, tensor: Tensor, config: ChameleonConfig) -> bool:
    """Whether a tensor holds one norm per shard, `[model_parallel_size, head_dim]`."""
    heads = _heads(name, config)
    return heads > 0 and tensor.ndim == 2 and len(tensor) == config.model_parallel_size != heads


def _by_head(name: str, tensor: Tensor, config: ChameleonConfig) -> Tensor:
    """The same norms per head, `[heads, head_dim]`: neighbouring heads share a shard's."""
    if not _by_shard(name, tensor, config):
        return tensor
    return tensor.repeat_interleave(_heads(name, config) // len(tensor), 0)
