"""Check that the parts of a pipeline fit each other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..errors import InputError


def check_same(name: str, network: Any, target: Any, fields: Iterable[str]) -> None:
    """Raise an `InputError` unless a network, if there is one, agrees with the target's config."""
    for field in () if network is None else fields:
        own, wanted = network.config[field], target.config[field]
        if own != wanted:
            raise InputError(f"the {name}'s {field} ({own}) is not the target's ({wanted})")


def check_channels(whose: str, found: int, wanted: int) -> None:
    """Raise an `InputError` unless another part makes as many channels as the target reads."""
    if found != wanted:
        raise InputError(f"{whose} have {found} channels, the target reads {wanted}")


def check_codes(network: Any, image_tokenizer: Any) -> None:
    """Raise an `InputError` unless an image tokenizer has a code for every token of a network."""
    tokens, codes = network.config.vocab_size, image_tokenizer.config.codebook_size
    if tokens > codes:
        raise InputError(
            f"the target draws {tokens} different tokens, the image tokenizer has {codes} codes; "
            "load the tokenizer that the target was trained with"
        )


def check_captioned(text_encoder: Any, tokenizer: Any) -> None:
    """Raise an `InputError` unless there is all that a target needs which is told captions."""
    if text_encoder is None or tokenizer is None:
        raise InputError("this target is told captions: it needs a text encoder and a tokenizer")
