"""Length "auto" of a model's own `generate`: calls choose how far drafts go, or plain decoding."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from ...methods import SpecConfig
from ...models.transformers.cache_view import CACHE_NAMES
from ..load_switch import any_seed, choices_of
from .call_arguments import asked_of

if TYPE_CHECKING:
    from .generate import SpeculativeGeneration

F = TypeVar("F", bound=Callable[..., Any])


def sized(function: F) -> F:
    """Decorate `SpeculativeGeneration.generate`: each call makes the choice of its `switch`.

    As in a pipeline, nothing is chosen, and drafts have their usual size, where the call's sample
    would be another one: torch has been seeded, and it isn't greedy; or it goes on with a cache.
    Nor is there a choice where a listener wants to hear of every generation.
    """
    signature = inspect.signature(function)

    @wraps(function)
    def call(self: SpeculativeGeneration, *args: Any, **kwargs: Any) -> Any:
        modality = self.target.modality
        choices = choices_of(self.config.config, modality)
        bound = signature.bind(self, *args, **kwargs)
        given = {**bound.arguments, **bound.arguments.get("kwargs", {})}
        if len(choices) == 1 or not _free(self, given):
            return function(self, *args, **kwargs)
        drawn = bool(asked_of(self.model, given, "do_sample"))  # where fewer drafts stand
        place = str(self.model.device), str(self.model.dtype), drawn
        grows = choices[0].resolve(modality).drafter.window
        with self.switch.call(choices, _rows(self, given), place, grows) as (config, told):
            chosen = self if config == choices[0] else _resized(self, config)
            if chosen.drafting.drafter is None:
                bound.arguments.pop("drafter_inputs", None)
            chosen.guard, bound.arguments["self"] = self.switch.guard, chosen
            try:
                out = function(*bound.args, **bound.kwargs)
            finally:
                chosen.guard = None
            told(self.model.speculation_stats.emitted, self.at_once)
        return out

    return call  # type: ignore[return-value]  # the same signature


def _resized(own: SpeculativeGeneration, config: SpecConfig) -> SpeculativeGeneration:
    """The generation of another choice, which learns apart what its calls cost."""
    if config not in own.sizes:
        beside = own.drafting.beside.only(config.resolve(own.target.modality))
        own.sizes[config] = type(own)(own.model, config, beside)
    other = own.sizes[config]
    other.seeds, other.on_round, other.at_once = own.seeds, own.on_round, own.at_once
    return other


def _free(own: SpeculativeGeneration, given: Mapping[str, Any]) -> bool:
    """True if a call's output may be another sample, or is the same by every exact method."""
    goes_on = any(given.get(name) is not None for name in CACHE_NAMES)
    if goes_on or own.memory is not None or own.listener is not None:
        return False
    return any_seed(own.seeds) or not asked_of(own.model, given, "do_sample")


def _rows(own: SpeculativeGeneration, given: Mapping[str, Any]) -> int:
    """Rows of a call; of a prompt of nothing but a start there is one."""
    prompts = (given.get(name) for name in ("inputs", "input_ids", "inputs_embeds"))
    count = next((len(prompt) for prompt in prompts if prompt is not None), 1)
    return max(1, count * (asked_of(own.model, given, "num_return_sequences") or 1))
