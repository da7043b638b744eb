"""PickScore: a CLIP tuned on the choices of the users of a picture generator.

Kirstain et al. 2023, "Pick-a-Pic: An Open Dataset of User Preferences for Text-to-Image
Generation", section 3. The published model is a ViT-H CLIP in transformers' format.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError
from .base import NetworkReward
from .registry import RewardPart

if TYPE_CHECKING:
    import torch
    from PIL import Image
    from torch import Tensor

PICK_SCORE = RewardPart(
    "pick_score",
    "mmspec.rewards.pick_score:PickScore",
    weights="the folder of yuvalkirstain/PickScore_v1, with model.safetensors",
    bounds=(-100, 100),
)


class PickScore(NetworkReward):
    """`exp(s) · cos` of the prompt's and the picture's embeddings, s the learned logit scale.

    The difference of two pictures' scores is the log odds that the first is chosen.

    Its pictures are resized by Pillow, as the authors did.
    """

    name = "pick_score"

    @classmethod
    def from_pretrained(
        cls, path: str | Path, *, device: str | torch.device = "cpu", batch_size: int = 32
    ) -> PickScore:
        """The published model.

        Args:
            path: the folder of yuvalkirstain/PickScore_v1: `config.json`, `model.safetensors`,
                `preprocessor_config.json` and the tokenizer's files.

        Raises:
            InputError: a file is missing or unreadable, a tensor is missing, unexpected or of
                another shape, or the vocabulary is another.
        """
        import torch
        from transformers import CLIPImageProcessorPil, CLIPModel, CLIPTokenizer

        from ..models.loading import load_component

        folder = Path(path)
        model = load_component(CLIPModel, folder, torch.float32)
        if not (folder / "preprocessor_config.json").is_file():
            raise InputError(f"no preprocessor_config.json in {folder}")
        preprocess = load_component(CLIPImageProcessorPil, folder, torch.float32)
        tokenizer = load_component(CLIPTokenizer, folder, torch.float32)
        found, wanted = len(tokenizer), model.config.text_config.vocab_size
        if found != wanted:  # without its files the library makes a tokenizer of nothing
            raise InputError(f"the tokenizer in {folder} has {found} words, expected {wanted}")
        return cls(model.to(device), preprocess, tokenizer, batch_size)

    def _score(self, words: list[str], places: list[int], pictures: list[Image.Image]) -> Tensor:
        pixels = self.preprocess(pictures, return_tensors="pt").to(self.device)
        length = self.network.config.text_config.max_position_embeddings
        out = self.network(**self._tokens(words, length), **pixels)
        return out.logits_per_image[range(len(places)), places]
