"""A model that both sides run: mmspec's plain loop, and transformers' own `generate`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

import mmspec
from mmspec.models.transformers.cache_view import cache_name

Cache = Literal["dynamic", "static"]
PROMPT = "a photo of a red circle left of a blue square"


class Subject(ABC):
    """A model with random or embedded weights, and the call that its users make.

    Attributes:
        temperature: of both sides; 0 is greedy, where both must give the same tokens.
        guided: a guidance pair runs for every row.
        same: both sides compute the same network; where not, they only do the same work.
    """

    temperature: float = 1.0
    guided: ClassVar[bool] = True
    same: ClassVar[bool] = True

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Device of the network."""

    @abstractmethod
    def ours(self, rows: int, seed: int) -> Tensor:
        """Tokens `[rows, n]` of mmspec's plain loop, called as a user calls it."""

    @abstractmethod
    def theirs(self, rows: int, cache: Cache) -> Tensor:
        """Tokens `[rows, n]` of transformers' `generate`."""

    @property
    def drawing(self) -> dict[str, Any]:
        """Arguments of `generate` that say how tokens are drawn."""
        return {"do_sample": True} if self.temperature else {"do_sample": False}


class DrawnSubject(Subject):
    """A model behind one of mmspec's image pipelines.

    Args:
        pipe: the pipeline; it is set to draw plainly.
        size: its call's height and width in pixels, if it has a choice.
    """

    def __init__(self, pipe: Any, **size: int) -> None:
        self.pipe, self.size = pipe, size
        pipe.set_progress_bar_config(disable=True)
        pipe.enable_speculation("plain")

    @property
    def device(self) -> torch.device:
        return torch.device(self.pipe.device)

    @property
    def network(self) -> Any:
        """The model of transformers."""
        return self.pipe.model

    def ours(self, rows: int, seed: int) -> Tensor:
        out = self.pipe(
            [PROMPT] * rows,
            temperature=self.temperature,
            generator=[torch.Generator().manual_seed(seed + row) for row in range(rows)],
            output_type="tokens",
            **self.size,
        )
        tokens: Tensor = out.images
        return tokens


class GeneratingSubject(Subject):
    """A model whose users call `generate`, before and after `mmspec.enable_speculation`.

    Args:
        model: of transformers.
        inputs: those of `generate` for so many rows.
        tokens: that every row gets.
    """

    guided = False

    def __init__(
        self, model: PreTrainedModel, inputs: Callable[[int], dict[str, Any]], tokens: int
    ) -> None:
        self.model, self.inputs, self.tokens = model, inputs, tokens
        model.generation_config.eos_token_id = None
        mmspec.enable_speculation(model, "plain")

    @property
    def device(self) -> torch.device:
        return torch.device(self.model.device)

    def ours(self, rows: int, seed: int) -> Tensor:
        torch.manual_seed(seed)
        return self._generate(self.model.generate, rows)

    def theirs(self, rows: int, cache: Cache) -> Tensor:
        original: Any = type(self.model).generate
        return self._generate(original.__get__(self.model), rows, cache_implementation=cache)

    def _generate(self, generate: Callable[..., Any], rows: int, **more: Any) -> Tensor:
        inputs = self.inputs(rows)
        asked = {"max_new_tokens": self.tokens, "top_k": 0, **self.drawing, **more}
        out: Tensor = generate(**inputs, **asked)
        return out[:, inputs["input_ids"].shape[1] :]


def own_cache(model: PreTrainedModel, cache: Cache) -> dict[str, Any]:
    """Argument of a `generate` that makes a static cache unless it is given another."""
    return {cache_name(model): DynamicCache()} if cache == "dynamic" else {}
