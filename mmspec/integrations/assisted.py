"""Arguments of transformers' assisted generation, and the methods that they ask for."""

from __future__ import annotations

import copy
from typing import Any

from transformers import PreTrainedModel

from ..errors import InputError
from ..methods import SpecConfig
from ..registry import check_name

_COPIES, _NGRAM, _EXIT = (
    "prompt_lookup_num_tokens",
    "max_matching_ngram_size",
    "assistant_early_exit",
)
_COUNT, _SCHEDULE = "num_assistant_tokens", "num_assistant_tokens_schedule"
_SURE = "assistant_confidence_threshold"
_SCHEDULES = ("constant", "heuristic", "heuristic_transient")
_MOST = 16  # tokens of a draft whose length grows, unless more are asked for
_REFUSED = {
    "assistant_ensemble_weight": "its output is of two models; leave it out",
    "speculation_type": "give draft_head=, whose files say of what kind it is",
    "use_mtp": "give draft_head= and speculation='mtp'",
}
# these say how text is read again in other words, which no draft here needs
_IDLE = ("assistant_lookbehind", "target_lookbehind")


def assisted_method(
    speculation: SpecConfig | str | None, assistant: PreTrainedModel | None, given: dict[str, Any]
) -> SpecConfig | str | None:
    """Find the method that a call asks for; assisted generation's arguments leave `given`.

    What a call does not say of a draft's length the assistant's own generation config may, as in
    transformers: tokens, their schedule, and the confidence below which drafting stops.

    Args:
        speculation: the method by name; None: by the other arguments.
        assistant: the draft model; None: there is none.
        given: arguments of the call by name.

    Returns:
        a method; None: whatever suits what is given.

    Raises:
        InputError: an argument has no meaning here, or two name a method each.
    """
    for name, instead in _REFUSED.items():
        if _taken(given, name) not in (None, False):
            raise InputError(f"speculation takes no {name}: {instead}")
    for name in _IDLE:
        _taken(given, name)
    told = {
        name: _taken(given, name) for name in (_COPIES, _NGRAM, _EXIT, _COUNT, _SCHEDULE, _SURE)
    }
    told = {name: value for name, value in told.items() if value is not None}
    if speculation is not None:
        if told:
            raise InputError(
                f"{next(iter(told))} and speculation both say how to draft; give it as a setting "
                "of the method, such as 'draft[num_draft_tokens=5]'"
            )
        return speculation
    if (assistant is not None) + (_EXIT in told) + (_COPIES in told) > 1:
        raise InputError(f"assistant_model, {_EXIT} and {_COPIES} each say how to draft; give one")
    if _EXIT in told:
        return SpecConfig("early-exit", exit_layer=told[_EXIT], **_length(told, None))
    if assistant is None:
        return _copying(told)
    length = _length(told, assistant)
    return SpecConfig("draft", **length) if length else None


def _copying(told: dict[str, Any]) -> SpecConfig | None:
    """Method that copies from the text in front, if something is said of it."""
    names = {_COPIES: "num_draft_tokens", _NGRAM: "max_ngram"}
    settings = {setting: told[name] for name, setting in names.items() if name in told}
    return SpecConfig("prompt-lookup", **settings) if settings else None


def _length(told: dict[str, Any], assistant: PreTrainedModel | None) -> dict[str, Any]:
    """Settings of the length of a draft."""
    own = None if assistant is None else assistant.generation_config
    count, schedule, sure = (
        told.get(name, getattr(own, name, None)) for name in (_COUNT, _SCHEDULE, _SURE)
    )
    if schedule is not None:
        check_name(_SCHEDULE, schedule, _SCHEDULES)
    grows = schedule not in (None, "constant")
    if sure and grows:
        raise InputError(f"{_SURE} and {_SCHEDULE} {schedule!r} both end drafts; give one")
    if sure:
        most = {} if count is None else {"max_draft_tokens": count}
        return {"length": "confidence", "confidence": sure, **most}
    settings = {} if count is None else {"num_draft_tokens": count}
    if grows:
        wide = isinstance(count, int) and count > _MOST
        settings |= {"length": "heuristic", "max_draft_tokens": count if wide else _MOST}
    return settings


def _taken(given: dict[str, Any], name: str) -> Any:
    """Take an argument out of a call, or out of a copy of its generation config."""
    value, config = given.pop(name, None), given.get("generation_config")
    if getattr(config, name, None) is not None:
        given["generation_config"] = config = copy.copy(config)
        own = getattr(config, name)
        setattr(config, name, None)
        value = own if value is None else value
    return value
