"""ImageReward: a human's preference between pictures of a prompt, learned from rankings.

Xu et al. 2023, "ImageReward: Learning and Evaluating Human Preferences for Text-to-Image
Generation", section 3. A BLIP ViT-L/16 sees the picture, BERT reads the prompt with
cross-attention to it, and a linear stack turns BERT's first output into a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .base import Images, batches, check_pairs, to_pil
from .part import RewardPart

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import BertTokenizer

    from .networks.image_reward import ImageRewardNetwork

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


class ImageReward:
    """The reward `(r − 0.1672) / 1.0333`: mean 0, deviation 1 over the authors' data.

    Prompts are cut at 35 tokens. Pictures are brought to 224 pixels on their shorter side and
    cropped to the square in the middle.

    Args:
        network: what `load_network` returns.
        tokenizer: bert-base-uncased with the two tokens that BLIP adds.
        batch_size: most pictures in one forward.
    """

    name = "image_reward"

    def __init__(
        self, network: ImageRewardNetwork, tokenizer: BertTokenizer, batch_size: int = 32
    ) -> None:
        from .networks.image_reward import preprocessing

        self.network, self.tokenizer, self.batch_size = network, tokenizer, batch_size
        self._preprocess = preprocessing()

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
        from .networks.image_reward import load_network, load_tokenizer

        path = Path(path)
        weights = path / WEIGHTS if path.is_dir() else path
        network = load_network(weights)
        tokenizer = load_tokenizer(weights.parent, network.text.config.vocab_size)
        return cls(network.to(device), tokenizer, batch_size)

    @property
    def device(self) -> torch.device:
        """Where the network lies."""
        return next(self.network.parameters()).device

    def score(self, prompts: Sequence[str], images: Images) -> Tensor:
        """Float32 rewards `[N]` on the CPU; `prompts[i]` belongs to `images[i]`.

        Raises:
            ValueError: not one prompt per picture.
        """
        import torch

        from ..models.truncation import lost_words, tell_lost

        check_pairs(prompts, images)
        rewards = torch.empty(len(prompts))
        with torch.inference_mode():
            for part in batches(len(prompts), self.batch_size):
                pixels = torch.stack([self._preprocess(image) for image in to_pil(images[part])])
                words = list(prompts[part])
                tell_lost(lost_words(self.tokenizer, words, LENGTH), LENGTH, self.name)
                text = self.tokenizer(
                    words,
                    padding="max_length",
                    truncation=True,
                    max_length=LENGTH,
                    return_tensors="pt",
                ).to(self.device)
                out = self.network(pixels.to(self.device), text.input_ids, text.attention_mask)
                rewards[part] = (out - MEAN) / STD
        return rewards
