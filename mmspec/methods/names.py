"""Configurations as they are named: a method, with settings in brackets.

`gsd[group_size=3,window=32]` is the preset `gsd` with two options set. A list goes on until the
next setting: `tree[tree_widths=3,2,1,siblings=top]`; `none` stands for no value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..errors import InputError
from ..registry import check_name
from . import registry
from .config import PARTS, SpecConfig, all_options
from .options import text_of


def config_of(speculation: SpecConfig | str) -> SpecConfig:
    """A configuration, or that of a name such as "scd" or "gsd[window=48]".

    Raises:
        InputError: it is neither, or the name is wrong.
    """
    if isinstance(speculation, SpecConfig):
        return speculation
    if not isinstance(speculation, str):
        raise InputError(
            "how to speculate is a SpecConfig, or a method's name such as 'scd' or "
            f"'gsd[window=48]', not {speculation!r}"
        )
    return parse_method(speculation)[1]


def parse_method(text: str) -> tuple[str, SpecConfig]:
    """The name of a row, which is the text without spaces, and its configuration."""
    form = re.fullmatch(r"([^\[\]]*)(?:\[([^\[\]]*)\])?", text)
    if form is None:
        raise InputError(f"{text!r} is no method: write NAME or NAME[SETTING=VALUE,…]")
    method = form[1].strip()
    config = SpecConfig(registry.preset(method).name)
    if form[2] is None:
        return method, config
    given = _split_settings(method, form[2])
    name = name_of(method, given)
    return name, with_settings(name, config, given)


def _split_settings(method: str, text: str) -> dict[str, str]:
    """Texts by setting; a part without `=` goes on with the list before it."""
    given: dict[str, str] = {}
    setting = ""
    known = [*PARTS, *all_options()]
    for part in text.split(","):
        left, equals, right = part.partition("=")
        if equals:
            setting = left.strip()
            check_name(f"setting of {method}", setting, known)
            if setting in given:
                raise InputError(f"{method}[{text}] sets {setting} twice")
            given[setting] = right.strip()
        elif setting:
            given[setting] += f",{part.strip()}"
        else:
            raise InputError(f"{method}[{text}]: a setting is NAME=VALUE, not {part.strip()!r}")
    return given


def _parse(name: str, setting: str, text: str) -> Any:
    """The value that a text stands for."""
    if setting in PARTS:
        return None if text == "none" else text
    option = all_options()[setting]
    try:
        return option.parse(text)
    except ValueError:
        raise InputError(f"{name}: {setting} must be {option.wanted}, not {text!r}") from None


def with_settings(name: str, config: SpecConfig, given: Mapping[str, str]) -> SpecConfig:
    """The configuration with some settings, as they are written; `name` is the whole's.

    Raises:
        InputError: a value is not of its kind, out of range, or of an option that no part reads.
    """
    values = {setting: _parse(name, setting, text) for setting, text in given.items()}
    try:
        return config.replace(**values)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error


def settings_of(config: SpecConfig, but: str | None = None) -> dict[str, str]:
    """The settings that are given, as they are written; without one of them."""
    given = {name: value for name, value in config.to_dict().items() if name not in ("method", but)}
    return {name: text_of(value) for name, value in given.items()}


def name_of(method: str, settings: Mapping[str, str]) -> str:
    """A method with settings, as `parse_method` reads it."""
    inner = ",".join(f"{name}={text}" for name, text in settings.items())
    return f"{method}[{inner}]" if inner else method
