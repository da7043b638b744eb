"""Methods that a masked model can answer by."""

from __future__ import annotations

from ...errors import InputError
from ...methods import ResolvedConfig
from ...models.masked_folders import MASK
from ...models.transformers.masked_target import target_form
from ...models.transformers.prompted import PromptedDecoder


def check_masked_target(target: PromptedDecoder, config: ResolvedConfig) -> None:
    """Raise an `InputError` if a masked model can't answer so, or the method needs one."""
    name, kind = config.method, type(target.model).__name__
    form = target_form(target)
    if form is None and "masked-target" in config.needs:
        raise InputError(
            f"method {name!r} has a masked model judge itself, and {kind} is none: its "
            f"configuration names no {MASK}; use method {target.method!r}"
        )
    if form is None or form.shifted:
        return
    reads = "the target's hidden states" if config.head or "judge" in config.needs else ""
    reads = "the target on rounded weights" if config.rounds else reads
    reads = "the target's first layers" if config.rule.early else reads
    if reads:
        raise InputError(
            f"method {name!r} reads {reads} at tokens, and the laws of {kind}, a masked model, "
            "stand at masked places; use method 's2d2'"
        )
