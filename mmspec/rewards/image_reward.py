"""ImageReward: a human's preference between pictures of a prompt, learned from rankings.

Xu et al. 2023, "ImageReward: Learning and Evaluating Human Preferences for Text-to-Image
Generation", section 3. A BLIP ViT-L/16 sees the picture, BERT reads the prompt with
cross-attention to it, and a linear stack turns BERT's first output into a number.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .base import NetworkReward
from .registry import RewardPart

if TYPE_CHECKING:
    import torch
    from PIL import Image
    from torch import Tensor

WEIGHTS = "ImageReward.pt"
LENGTH = 35  # tokens
MEAN, STD = 0.16717362830052426, 1.0333394966054072  # of the reward over the authors' data
IMAGE_REWARD = RewardPart(
    "image_reward",
    "mmspec.rewards.image_reward:ImageReward",
    weights="a folder with ImageReward.pt and med_config.json (of THUDM/ImageReward) and "
    "vocab.txt (of google-bert/bert-base-uncased)",
    bounds=(-5, 5),
)


class ImageReward(NetworkReward):
    """The reward `(r − 0.1672) / 1.0333`: mean 0, deviation 1 over the authors' data.

    Prompts are cut at 35 tokens. Pictures are brought to 224 pixels on their shorter side and
    cropped to the square in the middle.
    """

    name = "image_reward"

    @classmethod
    def from_pretrained(
        cls, path: str | Path, *, device: str | torch.device = "cpu", batch_size: int = 32
    ) -> ImageReward:
        """The published model.

        Args:
            path: a folder with `ImageReward.pt` and `med_config.json` (of THUDM/ImageReward) and
                `vocab.txt` or `tokenizer.json` (of bert-base-uncased), or the first of the files.

        Raises:
            InputError: a file is missing or unreadable, a tensor is missing, unexpected or of
                another shape, or the vocabulary is another.
        """
        from .networks.image_reward import load_network, load_tokenizer, preprocessing

        path = Path(path)
        weights = path / WEIGHTS if path.is_dir() else path
        network = load_network(weights)
        tokenizer = load_tokenizer(weights.parent, network.text.config.vocab_size)
        return cls(network.to(device), preprocessing(), tokenizer, batch_size)

    def _score(self, words: list[str], places: list[int], pictures: list[Image.Image]) -> Tensor:
        import torch

        pixels = torch.stack([self.preprocess(picture) for picture in pictures])
        text = self._tokens(words, LENGTH, "max_length")
        ids, mask = text.input_ids[places], text.attention_mask[places]
        return (self.network(pixels.to(self.device), ids, mask) - MEAN) / STD
