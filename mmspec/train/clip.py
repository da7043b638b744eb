"""Recipe of the embedded CLIP: pictures and captions of the shapes world, contrasted.

The loss is CLIP's (Radford et al. 2021, figure 3) with two changes. A caption that may be true of
another's picture is left out of the contrast, for the world's captions often are. And every picture
is also held against captions that are nearly right, its own and those of the others (Yuksekgonul et
al. 2023, section 4), without which a small model learns which shapes there are and little of what
belongs where. A few of the others' are true of it; they count as wrong all the same.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from ..files import atomic_folder, write_json
from ..worlds.shapes import TASKS, Prompt, Scene, render, sample
from ..worlds.shapes.foils import foil, may_hold
from ..worlds.shapes.scene import in_turn
from ..worlds.shapes.vocabulary import Split
from .base import BaseRecipe
from .batches import MIX
from .card import write_card
from .tokenizers import PREFIX, caption_ids, caption_tokenizer
from .trainer import Loss, TrainConfig

SIDE = 64  # pixels; larger pictures are brought to it
EMBEDDED: dict[str, Any] = {
    "embed_dim": 128,
    "vision_cfg": {"layers": [1, 1, 1, 1], "width": 32, "image_size": SIDE},
    "text_cfg": {
        "context_length": PREFIX,
        "hf_tokenizer_name": "shapes-world words, in this folder",
        "width": 128,
        "heads": 4,
        "layers": 3,
        "pool_type": "eos",
        "eos_id": 1,
    },
}
# pixels from [0, 1] to [-1, 1]
PREPROCESS = {"mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bicubic"}
CANDIDATES, CONTESTS = 100, 10  # captions of a retrieval, and retrievals, of an evaluation
Drawn = tuple[Prompt, Scene]


@dataclass
class Pairs:
    """Pictures with their captions.

    Attributes:
        pictures: uint8 `[B, S, S, 3]`.
        captions, foils: true and nearly true ones, B of each.
        doubtful: `[B, B]`, True where caption j may be true of picture i though it is another's.
    """

    pictures: Tensor
    captions: list[str]
    foils: list[str]
    doubtful: Tensor


def draw_pairs(size: int, rng: np.random.Generator, step: int) -> Pairs:
    """The pictures and captions of a training step, the tasks in turn."""
    drawn = [sample(rng, task) for task in in_turn(rng, MIX, size)]
    return _paired(rng, drawn, "train", _doubtful(drawn))


def _paired(rng: np.random.Generator, drawn: list[Drawn], split: Split, doubtful: Tensor) -> Pairs:
    pictures = torch.from_numpy(np.stack([render(scene, SIDE) for _, scene in drawn]))
    foils = [foil(rng, prompt, split) for prompt, _ in drawn]
    return Pairs(pictures, [prompt.prompt for prompt, _ in drawn], foils, doubtful)


def contrast(image: Tensor, text: Tensor, scale: Tensor, doubtful: Tensor) -> Tensor:
    """The loss in nats.

    Args:
        image: unit vectors `[B, D]`.
        text: unit vectors of the true captions, then of the foils `[2B, D]`.
        scale: inverse temperature.
        doubtful: as in `Pairs`; the diagonal is never left out.
    """
    size = len(image)
    logits = scale * image @ text.T  # [B, 2B]
    own = torch.eye(size, dtype=torch.bool, device=image.device)
    logits[:, :size] = logits[:, :size].masked_fill(doubtful & ~own, -torch.inf)
    target = torch.arange(size, device=image.device)
    to_text = F.cross_entropy(logits, target)
    to_image = F.cross_entropy(logits[:, :size].T, target)
    return (to_text + to_image) / 2


class ClipRecipe(BaseRecipe):
    """Trains a model of open_clip's `CLIP` class and saves it as open_clip's `local-dir:` reads it.

    Args:
        config, rate: see `BaseRecipe`.
        pipeline: folder that receives `clip`.
    """

    def __init__(self, config: TrainConfig, pipeline: Path, rate: float = 1e-3) -> None:
        from open_clip import CLIP

        super().__init__(config, pipeline, rate)
        self.draw = partial(draw_pairs, config.batch_size)
        self.tokenizer = caption_tokenizer()
        self.settings = copy.deepcopy(EMBEDDED)
        self.settings["text_cfg"]["vocab_size"] = len(self.tokenizer)
        self.model: nn.Module = CLIP(**self.settings)

    def optimizers(self) -> Sequence[torch.optim.Optimizer]:
        weights = list(self.model.parameters())
        matrices, vectors = ([p for p in weights if (p.ndim > 1) == two] for two in (True, False))
        groups: Any = [{"params": matrices, "weight_decay": 0.05}, {"params": vectors}]
        return [torch.optim.AdamW(groups, self.rate, betas=(0.9, 0.98), weight_decay=0.0)]

    def loss(self, batch: Pairs, rng: np.random.Generator, step: int) -> Loss:
        pixels = _worn(self._pixels(batch), rng)
        image, text = self._embed(self.model, pixels, batch.captions + batch.foils)
        temperature: Tensor = self.model.get_parameter("logit_scale")
        with torch.no_grad():  # CLIP's bound, section 2.5
            temperature.clamp_(max=float(np.log(100)))
        scale = temperature.exp().float()
        doubtful = batch.doubtful.to(image.device)
        return contrast(image, text, scale, doubtful), {"scale": float(scale.detach())}

    @torch.inference_mode()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Retrieval among 100 captions, and how often the true one beats the nearly true one."""
        rng = self.held_out_rng()
        shares = []
        for _ in range(CONTESTS):
            pairs = _distinct_pairs(rng, CANDIDATES)
            image, text = self._embed(model, self._pixels(pairs), pairs.captions + pairs.foils)
            likeness = image @ text.T
            own = torch.arange(CANDIDATES, device=image.device)
            true, false = likeness[:, :CANDIDATES], likeness[:, CANDIDATES:]
            above = true.diagonal() > false.diagonal()
            right = torch.stack([true.argmax(1) == own, true.argmax(0) == own, above])
            shares.append(right.double().mean(1))
        caption, picture, foiled = torch.stack(shares).mean(0).tolist()
        return {
            f"caption of a picture among {CANDIDATES}": caption,
            f"picture of a caption among {CANDIDATES}": picture,
            "true caption above a nearly true one": foiled,
        }

    def export(self, model: nn.Module, record: dict[str, Any]) -> None:
        folder = self.pipeline / "clip"
        model = model.cpu().half()
        weights = {name: value.contiguous() for name, value in model.state_dict().items()}
        settings = {"model_cfg": self.settings, "preprocess_cfg": PREPROCESS}
        with atomic_folder(folder) as part:
            save_file(weights, part / "open_clip_model.safetensors", {"format": "pt"})
            write_json(part / "open_clip_config.json", settings)
            self.tokenizer.save_pretrained(part)
        write_card(
            folder,
            title="CLIP of the shapes world",
            purpose="tells how well a picture fits a caption, and gives features of pictures",
            limits="anything but the shapes world; what is finer than 64 pixels show",
            record=record,
        )

    def _pixels(self, batch: Pairs) -> Tensor:
        pixels = batch.pictures.to(self.config.device).permute(0, 3, 1, 2)
        return pixels.float().div_(127.5).sub_(1)

    def _embed(self, model: Any, pixels: Tensor, captions: list[str]) -> tuple[Tensor, Tensor]:
        tokens = caption_ids(self.tokenizer, captions).to(pixels.device)
        image = model.encode_image(pixels, normalize=True)
        text = model.encode_text(tokens, normalize=True)
        return image.float(), text.float()


def _worn(pixels: Tensor, rng: np.random.Generator) -> Tensor:
    """Pictures as decoders give them: half of them softened, with a little noise."""
    size = len(pixels)
    blur = torch.from_numpy(rng.uniform(0, 1, (size, 1, 1, 1)).astype(np.float32))
    blur = (blur * torch.from_numpy(rng.random((size, 1, 1, 1)) < 0.5)).to(pixels.device)
    soft = F.avg_pool2d(F.pad(pixels, (1, 1, 1, 1), mode="replicate"), 3, 1)
    noise = torch.from_numpy(rng.standard_normal(pixels.shape, dtype=np.float32) * 0.04)
    return pixels.lerp(soft, blur) + noise.to(pixels.device)


def _doubtful(drawn: list[Drawn]) -> Tensor:
    """Mark where caption j may be true of picture i, `[B, B]`; compares equal shapes only."""
    alike: dict[tuple[str, ...], list[int]] = {}
    for i, (_, scene) in enumerate(drawn):
        alike.setdefault(tuple(sorted(item.shape for item in scene.items)), []).append(i)
    doubtful = torch.zeros(len(drawn), len(drawn), dtype=torch.bool)
    for group in alike.values():
        for i, j in itertools.product(group, repeat=2):
            doubtful[i, j] = may_hold(drawn[j][0], drawn[i][1])
    return doubtful


def _distinct_pairs(rng: np.random.Generator, size: int) -> Pairs:
    """Held-out pairs, no caption twice, none that may be true of another's picture."""
    drawn: list[Drawn] = []
    while len(drawn) < size:
        prompt, scene = sample(rng, TASKS[int(rng.integers(len(TASKS)))], "held_out")
        if not any(may_hold(prompt, s) or may_hold(p, scene) for p, s in drawn):
            drawn.append((prompt, scene))
    return _paired(rng, drawn, "held_out", torch.eye(size, dtype=torch.bool))
