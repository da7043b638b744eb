"""Arguments of a call of `generate`: what is refused, and what is taken out for our own loop."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel
from transformers.generation import StoppingCriteriaList

from ...errors import InputError, reason
from ...models.transformers.cache_view import CACHE_NAMES
from ...models.transformers.prompted import refuse
from ..arguments import check_value
from ..stopping import StopText
from .handed_cache import HandedCache

# these say how fast, not what; the last ones are names of earlier versions, which published
# configurations still have
_CACHES = (
    *(None, "dynamic", "dynamic_full", "static"),
    *("sliding_window", "hybrid", "hybrid_chunked", "offloaded_hybrid", "offloaded_hybrid_chunked"),
)
_REFUSED = (
    "custom_generate",
    "assistant_model",
    "synced_gpus",
    "token_healing",
    "output_attentions",
    "output_hidden_states",
)
_TENSORS = ("input_ids", "attention_mask", "inputs_embeds")
# what `generate` is told of how to generate; the rest of its arguments is the model's
_HOW = {*GenerationConfig().to_dict(), *inspect.signature(GenerationMixin.generate).parameters}


def asked_of(model: PreTrainedModel, named: Mapping[str, Any], name: str) -> Any:
    """Setting of a call: as it is `named`, or in its generation_config, or in the model's own."""
    configs = named.get("generation_config"), model.generation_config
    given = (named.get(name), *(getattr(config, name, None) for config in configs))
    return next((value for value in given if value is not None), None)


@dataclass(frozen=True)
class CallArguments:
    """Arguments that a call was given, taken apart.

    Attributes:
        named: goes on to transformers by name.
        given: of it, what is the model's: ids, masks, pictures.
        stopping_criteria: with the call's stop strings among them.
        cache: that the caller hands in; None: there is none.
    """

    named: dict[str, Any]
    given: dict[str, Any]
    stopping_criteria: Any
    cache: HandedCache | None

    @classmethod
    def read(
        cls,
        model: PreTrainedModel,
        inputs: Tensor | None,
        config: GenerationConfig | None,
        stopping_criteria: Any,
        named: dict[str, Any],
    ) -> CallArguments:
        """Take a call's arguments apart.

        Raises:
            InputError: an argument asks for what speculation can't give.
        """
        for name in _TENSORS:
            check_value(name, named.get(name), Tensor | None)
        asked = partial(asked_of, model, {**named, "generation_config": config})
        strings, tokenizer = named.pop("stop_strings", None), named.pop("tokenizer", None)
        if strings is not None:  # transformers loses the tokenizer on its way to a loop of ours
            if tokenizer is None:
                raise InputError("stop_strings need tokenizer= beside them")
            more = [*(stopping_criteria or []), StopText(tokenizer, strings)]
            stopping_criteria = StoppingCriteriaList(more)
            named["stop_strings"] = None  # nor those of a configuration
        elif asked("stop_strings") is not None:
            refuse("stop_strings in a generation config; give them to generate itself")
        for name in _REFUSED:
            if asked(name) not in (None, False):
                refuse(name)
        if asked("cache_implementation") not in _CACHES:
            refuse(f"cache_implementation {asked('cache_implementation')!r}")
        caches = {name: named.pop(name) for name in CACHE_NAMES if named.get(name) is not None}
        if len(caches) > 1:
            raise InputError(f"{' and '.join(caches)} are one argument by two names; give one")
        if caches and asked("use_cache") is False:
            refuse(f"{', '.join(caches)} beside use_cache=False")
        given = {name: value for name, value in named.items() if name not in _HOW}
        if inputs is not None:
            given["input_ids"] = inputs
        ids, mask, embeds = (given.get(name) for name in _TENSORS)
        _check_shapes(ids, mask, embeds, bool(caches))
        try:
            model._validate_model_kwargs(dict(given))
        except ValueError as error:  # of a name that the model does not take
            raise InputError(reason(error)) from error
        cache = next((HandedCache(cache, name) for name, cache in caches.items()), None)
        return cls(named, given, stopping_criteria, cache)


def _check_shapes(
    ids: Tensor | None, mask: Tensor | None, embeds: Tensor | None, cached: bool
) -> None:
    """Raise an `InputError` unless a prompt has rows of tokens, and its mask has them, too.

    transformers leaves out masks of ones, and reads no more of longer ones than the prompt has.
    Beside a cache a longer one would say that the prompt is new tokens alone.
    """
    prompt = ids if embeds is None else embeds
    if prompt is None:
        return
    if embeds is None and not prompt.numel():
        raise InputError("the prompt is empty: input_ids hold no token")
    if prompt.ndim < 2:
        raise InputError(
            f"the prompt has the shape {tuple(prompt.shape)}, and not rows of tokens: give "
            "[rows, tokens], such as ids[None]"
        )
    if mask is not None and (mask.ndim != 2 or mask.shape[1] < prompt.shape[1]):
        shapes = tuple(mask.shape), tuple(prompt.shape[:2])
        raise InputError("the attention mask is {}, the prompt {}".format(*shapes))
    if cached and mask is not None and mask.shape[1] > prompt.shape[1]:
        raise InputError(
            f"the attention mask has {mask.shape[1]} columns and the prompt {prompt.shape[1]}: "
            "beside a cache give the whole conversation, as ids, the new turn included"
        )
