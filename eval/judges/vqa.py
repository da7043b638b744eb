"""Yes-or-no questions about pictures, answered by BLIP.

Li et al. 2022, "BLIP: Bootstrapping Language-Image Pre-training for Unified Vision-Language
Understanding and Generation"; the network is transformers'.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from ...picture import open_picture
from ...rewards.base import rows_alike

if TYPE_CHECKING:
    import torch


class BlipAnswerer:
    """BLIP's visual question answering from a local folder.

    The answer is generated greedily and is yes if it is that word, as in the official DPG-Bench.

    Args:
        folder: model (safetensors) and processor, such as a copy of `Salesforce/blip-vqa-base`.
        name: what reports call the network (`dpg_<name>`); the folder's name unless said.
        device: where the network runs.
        batch: questions at a time.

    Raises:
        InputError: the folder does not fit.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        name: str | None = None,
        device: str | torch.device = "cpu",
        batch: int = 16,
    ) -> None:
        import torch
        from transformers import BlipForQuestionAnswering, BlipProcessor

        from ...models.loading import load_component

        folder = Path(folder)
        self.name = name or folder.resolve().name
        self.device = torch.device(device)
        self._batch = batch
        self._processor = load_component(BlipProcessor, folder, torch.float32)
        self._model = load_component(BlipForQuestionAnswering, folder, torch.float32)
        self._model.to(self.device)

    def answer(self, images: Sequence[Image.Image], questions: Sequence[str]) -> list[bool]:
        """True for each answer of yes; `questions[i]` is about `images[i]`."""
        return [text.strip().lower() == "yes" for text in self.texts(images, questions)]

    def texts(self, images: Sequence[Image.Image], questions: Sequence[str]) -> list[str]:
        """The answers in BLIP's own words."""
        pairs = list(zip(images, questions, strict=True))
        said = [""] * len(pairs)
        # of one length: transformers' decoder would read padding as text
        lengths = map(len, self._processor.tokenizer(list(questions))["input_ids"])
        for rows in rows_alike(lengths, self._batch):
            inputs = self._processor(
                images=[open_picture(pairs[row][0]) for row in rows],
                text=[pairs[row][1] for row in rows],
                return_tensors="pt",
            ).to(self.device)
            # transformers' generate keeps no gradients
            tokens = self._model.generate(**inputs, do_sample=False, num_beams=1, max_new_tokens=10)
            texts = self._processor.batch_decode(tokens, skip_special_tokens=True)
            for row, text in zip(rows, texts, strict=True):
                said[row] = text
        return said
