"""The base of the recipes: settings, networks that are loaded, first weights and optimizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from transformers import T5EncoderModel

from ..models.loading import load_component, load_strict, read_weights
from .card import ship, write_card
from .muon import Muon
from .trainer import TrainConfig

# parts of names: matrices that Muon does not suit, such as those of the first and last layers
OUTER = (
    *("embed", "shared", "output", "relative_attention_bias"),
    *("z_proj", "input_proj", "final_layer", "time_projection", "head.head"),
)
SETTLE = 300  # first steps of a target that goes on
# Of all evaluations, whatever seed a run has: runs that go on with another one stay comparable.
HELD_OUT_SEED = (0, 10**6)


class Captioned(nn.Module):
    """A transformer and its caption encoder, which was trained before and stays as it is."""

    def __init__(self, transformer: Any, text_encoder: T5EncoderModel) -> None:
        super().__init__()
        self.transformer: Any = transformer
        self.text_encoder = text_encoder.requires_grad_(False)

    def settle(self, step: int, readers: Sequence[str]) -> None:
        """Let all of the transformer learn, or in the first steps only what reads captions.

        For a target that goes on: its caption encoder and the reader of its patches may be new, and
        the rest would unlearn before these lead anywhere.

        Args:
            step: of the run.
            readers: parts of the names of the weights that read captions.
        """
        for name, weight in self.transformer.named_parameters():
            weight.requires_grad_(step >= SETTLE or any(part in name for part in readers))


class BaseRecipe:
    """A `Recipe` with all that does not depend on what is trained.

    Args:
        config: length, batch and device of the run.
        pipeline: folder of the pipeline; components are read from it, and the trained one is added.
        rate: learning rate.
        init: of most recipes, the component whose weights to start from; None: from nothing.

    Attributes:
        origin: folder of the weights that it starts from; None: from nothing.
        kind: class of the pipeline.
        name: of the component.
        texts: of its card, where they are always the same.
        tokenizer: of the captions.
        adamw: weight decay, where AdamW alone moves all weights; None: see `hybrid_optimizers`.
    """

    model: Any
    tokenizer: Any
    name: str
    texts: ClassVar[dict[str, str]]
    origin: Path | None = None
    adamw: float | None = None
    kind = "ImagePipeline"
    done = 0.0

    def __init__(self, config: TrainConfig, pipeline: Path, rate: float) -> None:
        self.config, self.pipeline, self.rate = config, pipeline, rate

    def component(self, kind: type, name: str) -> Any:
        """A component of the pipeline, frozen, in float32 on the device of the run."""
        part = load_component(kind, self.pipeline / name, torch.float32)
        if not isinstance(part, nn.Module):
            return part
        return part.to(self.config.device).requires_grad_(False)

    def start(self, init: str | None, model: nn.Module | None = None) -> bool:
        """Take the first weights from a component of the pipeline; whether there are any to take.

        Args:
            init: its name; None: the weights stay.
            model: takes them; None: the recipe's.
        """
        if init is None:
            return False
        self.origin = self.pipeline / init
        model = self.model if model is None else model
        load_strict(model, read_weights(self.origin), self.origin)
        model.float()  # stored as halves
        return True

    def optimizers(self) -> Sequence[torch.optim.Optimizer]:
        if self.adamw is not None:
            weights, betas = self.model.parameters(), (0.9, 0.98)
            return [torch.optim.AdamW(weights, self.rate, betas, weight_decay=self.adamw)]
        return hybrid_optimizers(self.model, self.rate, self.config.precision)

    def held_out_rng(self) -> np.random.Generator:
        """The chance of an evaluation, the same every time and in every run."""
        return np.random.default_rng(HELD_OUT_SEED)

    def card(self, record: dict[str, Any]) -> dict[str, str]:
        """The texts of the component's card, see `write_card`."""
        return self.texts

    def export(self, model: nn.Module, record: dict[str, Any]) -> None:
        model = model.half()
        if isinstance(model, Captioned):
            model = model.transformer
        folder = ship(self.pipeline, self.name, model, self.kind)
        write_card(folder, record=record, **self.card(record))


def _inside(name: str, weight: Tensor) -> bool:
    """Test whether it is a matrix inside the blocks."""
    return weight.ndim == 2 and not any(part in name for part in OUTER)


def hybrid_optimizers(
    model: nn.Module,
    rate: float,
    precision: str,
    inner: Callable[[str, Tensor], bool] = _inside,
    decay: float = 0.95,
) -> list[torch.optim.Optimizer]:
    """Muon for the weights that are `inner`, AdamW for embeddings, heads and vectors.

    Args:
        decay: of AdamW's running squares.
    """
    matrices: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            (matrices if inner(name, weight) else rest).append(weight)
    made: list[torch.optim.Optimizer] = []  # neither takes an empty list
    if matrices:
        made.append(Muon(matrices, rate, weight_decay=0.01, dtype=getattr(torch, precision)))
    if rest:
        made.append(torch.optim.AdamW(rest, rate, betas=(0.9, decay), weight_decay=0.0))
    return made
