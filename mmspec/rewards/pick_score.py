"""PickScore: a CLIP tuned on the choices of the users of a picture generator.

Kirstain et al. 2023, "Pick-a-Pic: An Open Dataset of User Preferences for Text-to-Image
Generation", section 3. The published model is a ViT-H CLIP in transformers' format.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError
from .base import Images, batches, check_pairs, distinct, to_pil
from .part import RewardPart

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import CLIPImageProcessorPil, CLIPModel, CLIPTokenizer

PICK_SCORE = RewardPart(
    "pick_score",
    "mmspec.rewards.pick_score:PickScore",
    weights="the folder of yuvalkirstain/PickScore_v1, with model.safetensors",
    bounds=(-100, 100),
)


class PickScore:
    """`exp(s) · cos` of the prompt's and the picture's embeddings, s the learned logit scale.

    The difference of two pictures' scores is the log odds that the first is chosen.

    Args:
        model: the tuned CLIP.
        preprocess: its picture processor; Pillow's, as the authors used, for its resizing.
        tokenizer: its tokenizer.
        batch_size: most pictures in one forward.
    """

    name = "pick_score"

    def __init__(
        self,
        model: CLIPModel,
        preprocess: CLIPImageProcessorPil,
        tokenizer: CLIPTokenizer,
        batch_size: int = 32,
    ) -> None:
        self.model, self.preprocess, self.tokenizer = model, preprocess, tokenizer
        self.batch_size = batch_size

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

    @property
    def device(self) -> torch.device:
        """Where the model lies."""
        return self.model.device

    def score(self, prompts: Sequence[str], images: Images) -> Tensor:
        """Float32 scores `[N]` on the CPU; `prompts[i]` belongs to `images[i]`.

        Raises:
            ValueError: not one prompt per picture.
        """
        import torch

        from ..models.truncation import lost_words, tell_lost

        check_pairs(prompts, images)
        scores = torch.empty(len(prompts))
        with torch.inference_mode():
            for part in batches(len(prompts), self.batch_size):
                pixels = self.preprocess(to_pil(images[part]), return_tensors="pt")
                words, places = distinct(prompts[part])
                length = self.model.config.text_config.max_position_embeddings
                tell_lost(lost_words(self.tokenizer, words, length), length, self.name)
                text = self.tokenizer(
                    words, padding=True, truncation=True, max_length=length, return_tensors="pt"
                )
                out = self.model(**text.to(self.device), **pixels.to(self.device))
                scores[part] = out.logits_per_image[range(len(places)), places]
        return scores
