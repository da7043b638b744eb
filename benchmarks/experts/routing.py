"""Experts that tokens go to: counted by hooks, and predicted as if routers threw dice."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from mmspec.errors import InputError
from mmspec.models.transformers.rounded_experts import is_experts

CHOICE = "top_k_index"  # transformers' name for what a layer's experts are told by their router


def expert_layers(model: nn.Module) -> list[nn.Module]:
    """The modules that hold a layer's experts, first to last.

    Raises:
        InputError: there are none, or this version of transformers has them in another form.
    """
    found = [m for m in model.modules() if is_experts(m)]
    if not found:
        raise InputError(
            f"{type(model).__name__} has no sparse experts that can be counted; take a model such "
            "as Mixtral or Qwen3-MoE"
        )
    return found


@contextmanager
def watched(model: nn.Module) -> Iterator[list[list[Tensor]]]:
    """Surround calls of a model; gives by layer the experts `[tokens, K]` of each of its calls."""
    routes: list[list[Tensor]] = []
    hooks = []
    for layer in expert_layers(model):
        routes.append([])
        hooks.append(layer.register_forward_pre_hook(_Hook(layer, routes[-1]), with_kwargs=True))
    try:
        yield routes
    finally:
        for hook in hooks:
            hook.remove()


class _Hook:
    """Keep what the experts of a layer are told."""

    def __init__(self, layer: nn.Module, calls: list[Tensor]) -> None:
        self.taken, self.calls = inspect.signature(type(layer).forward), calls

    def __call__(self, layer: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        chosen: Tensor = self.taken.bind(layer, *given, **named).arguments[CHOICE]
        self.calls.append(chosen.detach().flatten(0, -2).clone())


def touched(chosen: Tensor) -> int:
    """Number of distinct experts among the choices `[tokens, K]`."""
    return len(chosen.unique())


def touched_by(routes: Tensor, tokens: int) -> float:
    """Mean number of distinct experts in calls of `tokens` tokens that follow each other.

    Args:
        routes: of a text in a layer `[S, K]`, S at least `tokens`.
    """
    counts = [touched(call) for call in routes.unfold(0, tokens, 1)]
    return sum(counts) / len(counts)


def expected(experts: int, chosen: int, tokens: float) -> float:
    """Experts N(t) = E (1 − (1 − K/E)^t) that t tokens touch if each chooses K of E by chance.

    Huang et al. 2025 (MoESD), section 3.

    Args:
        experts: E. chosen: K. tokens: t.
    """
    return experts * (1 - (1 - chosen / experts) ** tokens)
