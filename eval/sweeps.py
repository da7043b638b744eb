"""Lists of methods, and sweeps: a method at every value of its knob."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ..errors import InputError
from ..methods import SpecConfig, parse_method, preset, presets
from ..methods.names import name_of, settings_of, with_settings
from ..methods.options import text_of
from ..methods.part import Role
from ..methods.parts.blocks import JudgedOptions
from ..methods.parts.routing import ROUTER

ALL = "all"
THRESHOLDS = ("tau", "gain_tau")  # on the scale of a reward


class Place(NamedTuple):
    """Place of a configuration among others.

    Attributes:
        family: the method with every setting but its knob's; equal for those that differ in the
            knob alone.
        knob: the field that trades speed against something else; None: the method has none.
        value: of the knob.
    """

    family: str
    knob: str | None
    value: float | None


def place(config: SpecConfig) -> Place:
    """The family of a configuration, and where on its knob it stands."""
    knob = _knob(config)
    value = None if knob is None else config.resolve().options[knob]
    return Place(name_of(config.method, settings_of(config, knob)), knob, value)


def role(name: str, config: SpecConfig) -> Role:
    """Name of a row in a report; the baseline is plain decoding without any settings."""
    found = preset(config.method).role
    return "method" if found == "baseline" and name != "plain" else found


def split_methods(text: str) -> tuple[str, ...]:
    """Names apart: commas outside of brackets divide."""
    parts = re.findall(r"(?:[^,\[]|\[[^\]]*\]?)+", text)
    return tuple(name for name in (part.strip() for part in parts) if name)


def parse_methods(names: Sequence[str], sweep: Sequence[str] = ()) -> dict[str, SpecConfig]:
    """Configurations by name, settings of a method beside each other, safe before fast.

    Args:
        names: methods with or without settings; plain is added when it is missing.
        sweep: those to be added at every value of their knob; "all": all of `names` that have some.

    Raises:
        InputError: a method or setting is unknown, a value is not of its kind or out of range, or
            a method to sweep has no knob.
    """
    names = [name for name in names if name]
    if not names:
        raise InputError(f"--methods is empty; choose from {', '.join(presets())}")
    configs = dict(parse_method(name) for name in ["plain", *names])
    for name in sweep:
        for config in list(configs.values()) if name == ALL else [parse_method(name)[1]]:
            if name != ALL:
                _check_sweep(name, config)
            knob = _knob(config)
            for text in map(text_of, _values(config)):
                row = name_of(config.method, {**settings_of(config, knob), str(knob): text})
                found = with_settings(row, config, {str(knob): text})
                # a value that is there under another name is not measured twice
                if found.resolve() not in [known.resolve() for known in configs.values()]:
                    configs[row] = found
    return _grouped(configs)


def _check_sweep(name: str, config: SpecConfig) -> None:
    """Raise an `InputError` unless a method has a knob that is not set already."""
    knob = _knob(config)
    if knob is None:
        able = ", ".join(f"{n} ({m.knob})" for n, m in presets().items() if m.knob is not None)
        raise InputError(f"{name} has no knob to sweep; these have: {able}")
    if knob in settings_of(config):
        raise InputError(f"{name}: a sweep sets {knob} itself; leave it out")
    if not _values(config):
        raise InputError(
            f"{name}: a sweep has thresholds of reward {_usual(config)!r} alone; name rows with "
            f"values of {knob}"
        )


def _knob(config: SpecConfig) -> str | None:
    """The method's knob, unless it was one of a part that another has taken the place of."""
    knob = preset(config.method).knob
    return knob if knob in config.resolve().options else None


def _values(config: SpecConfig) -> tuple[float, ...]:
    """The knob's values of a sweep; thresholds of one reward are none of another's."""
    method, reward = preset(config.method), config.resolve().of(JudgedOptions).reward
    if _knob(config) is None:
        return ()
    return () if method.knob in THRESHOLDS and reward != _usual(config) else method.sweep


def _usual(config: SpecConfig) -> str:
    """The reward that a method goes by unless somebody names another."""
    return str(preset(config.method).settings.get("reward", ROUTER))


def _grouped(configs: dict[str, SpecConfig]) -> dict[str, SpecConfig]:
    """Methods, and families of a method, in the order of their first row; the knob within."""
    methods = list(dict.fromkeys(config.method for config in configs.values()))
    places = {name: place(config) for name, config in configs.items()}
    families = list(dict.fromkeys(found.family for found in places.values()))

    def rank(name: str) -> tuple[int, int, float]:
        config, found = configs[name], places[name]
        sweep = preset(config.method).sweep
        along = -1 if sweep and sweep[0] > sweep[-1] else 1
        at = along * (found.value or 0.0)
        return methods.index(config.method), families.index(found.family), at

    return {name: configs[name] for name in sorted(configs, key=rank)}
