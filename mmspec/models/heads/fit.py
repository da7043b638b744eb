"""The target that a head was trained for, told by sizes and by weights of its output layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from ...errors import InputError
from ..llamagen.transformer import LlamaGenTransformer

_SAMPLES = 16  # weights of the output layer that tell one target from another


@dataclass(frozen=True)
class TargetFit:
    """The target that a head was made for.

    Attributes:
        fingerprint: evenly spaced weights of its output layer.
    """

    model_type: str
    hidden_size: int
    vocab_size: int
    num_layers: int
    fingerprint: Sequence[float]

    @classmethod
    def of(cls, model: PreTrainedModel | LlamaGenTransformer) -> TargetFit:
        """The fit of a LlamaGen, or of a transformers model with an output layer."""
        if isinstance(model, LlamaGenTransformer):
            kind, weight = model.config.model_type, model.output.weight.detach()
            width, depth = model.config.dim, model.config.n_layer
        else:
            text: Any = model.config.get_text_config()
            kind, weight = model.config.model_type, model.get_output_embeddings().weight.detach()
            width, depth = text.hidden_size, text.num_hidden_layers
        at = torch.linspace(0, weight.numel() - 1, _SAMPLES, dtype=torch.float64).long()
        samples = weight.flatten()[at.to(weight.device)]
        return cls(kind, width, weight.shape[0], depth, samples.double().tolist())

    @classmethod
    def read(cls, fields: Any) -> TargetFit:
        """The fit of a configuration's `mmspec_target`.

        Raises:
            InputError: it is none.
        """
        try:
            return cls(**fields)
        except TypeError as error:
            raise InputError(f"mmspec_target of the head's config.json: {error}") from error

    def check(
        self,
        model: PreTrainedModel | LlamaGenTransformer,
        what: str = "draft head",
        of: str = "target",
    ) -> None:
        """Raise an `InputError` unless the head is for `model`; its dtype does not matter.

        `what` is what the head is called, and `of` what the model is to it.
        """
        other = TargetFit.of(model)
        for name in ("model_type", "hidden_size", "vocab_size", "num_layers"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                raise InputError(
                    f"the {what} is for a {of} with {name} {mine}, and this one has "
                    f"{theirs}; load the {what.split()[-1]} that was trained for this {of}"
                )
        mine, theirs = (torch.tensor(list(fit.fingerprint)) for fit in (self, other))
        # a cast to half precision moves a weight by less than 1 % or 1e-6
        if not torch.allclose(mine, theirs, rtol=1e-2, atol=1e-6):
            raise InputError(
                f"the {what} is for a {of} with other weights in its output layer; train it on "
                "this one"
            )
