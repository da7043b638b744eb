"""Memory budget of drafts: the largest drafts whose keys, values and laws fit (SpecMemo)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

from ..errors import InputError
from .options import Limit, Option, options_of

if TYPE_CHECKING:
    from .draft_size import DraftSize
    from .resolved import ResolvedConfig

_WIDTHS = 8  # that are tried at most, of a tree
_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) *([kmgt]?)(i?)b?", re.IGNORECASE)


@dataclass(frozen=True)
class BytesOption(Option):
    """An option of so many bytes: an integer, or a text such as "64MB" or "1.5GiB"."""

    @property
    def letter(self) -> str:
        return "BYTES"

    @property
    def wanted(self) -> str:
        return "a number of bytes such as 64MB or 1.5GiB, or none"

    def check(self, value: Any) -> Any:
        if isinstance(value, str):
            try:
                value = self._read(value)
            except ValueError:
                raise InputError(f"{self.name} must be {self.wanted}, not {value!r}") from None
        return super().check(value)

    def _read(self, text: str) -> int:
        found = _SIZE.fullmatch(text.strip())
        if found is None:
            raise ValueError(text)
        number, unit, binary = found.groups()
        return int(Decimal(number) * (1024 if binary else 1000) ** _UNITS[unit.lower()])


BUDGET = BytesOption(
    "memory_budget",
    None,
    "memory that drafting may add: keys, values and laws; drafts get smaller until they fit; "
    "none: any",
    int,
    optional=True,
    low=1,
)


def fitted(
    config: ResolvedConfig, takes: Callable[[DraftSize], int], stride: int = 1
) -> ResolvedConfig:
    """The configuration with the largest drafts that its `memory_budget` has room for.

    Most nodes come first, and of trees with as many the deepest. Without a budget, or where all
    fits, it is the configuration itself.

    Args:
        config: what somebody asked for.
        takes: bytes that drafts of a size add. A deeper or a wider draft takes no less.
        stride: positions in a row of the picture.

    Raises:
        InputError: not even the smallest draft fits; it says what would.
    """
    budget = config.options.get(BUDGET.name)

    def fits(one: ResolvedConfig) -> bool:
        return budget is None or takes(one.draft_size(stride)) <= budget

    if fits(config):
        return config
    smaller = _fitting(config, fits)
    if not smaller:
        least = takes(_cut(config, 1, 1, 1).draft_size(stride))
        other = "" if not config.needs else ", or take a method without a draft model"
        raise InputError(
            f"memory_budget of {budget:,} bytes holds no draft of method {config.method!r}, whose "
            f"smallest takes {least:,} here; give {BUDGET.name}={least} or more, have fewer rows "
            f"at a time{other}"
        )
    return max(smaller, key=lambda one: one.draft_size(stride).most_drafted)


def _fitting(
    config: ResolvedConfig, fits: Callable[[ResolvedConfig], bool]
) -> list[ResolvedConfig]:
    """Configurations of drafts that fit, the deepest first: of some widths the most nodes."""
    depth, width, nodes = (_most(config, limit) for limit in get_args(Limit))
    widths = sorted({max(1, width * n // _WIDTHS) for n in range(1, _WIDTHS + 1)}, reverse=True)
    made = []

    def fitting(depth: int, width: int, nodes: int) -> bool:
        return fits(_cut(config, depth, width, nodes))

    for d in range(_largest(depth, lambda d: fitting(d, 1, 1)), 0, -1):
        for w in widths:
            n = _largest(nodes, partial(fitting, d, w))
            made += [_cut(config, d, w, n)] if n else []
        if width == nodes == 1:
            break  # a chain
    return made


def _largest(upper: int, fits: Callable[[int], bool]) -> int:
    """The largest of 1 … `upper` that fits, as all smaller ones do; 0: none."""
    low = 0
    while low < upper:
        tried = (low + upper + 1) // 2
        low, upper = (tried, upper) if fits(tried) else (low, tried - 1)
    return low


def _limiting(config: ResolvedConfig) -> dict[str, Option]:
    """The options in use that limit drafts, by name."""
    kinds: list[Any] = [type(options) for _, options in config.chosen]
    declared = {name: one for kind in kinds for name, one in options_of(kind).items()}
    return {n: o for n, o in declared.items() if o.limits and n in config.options}


def _most(config: ResolvedConfig, limit: Limit) -> int:
    """The largest value of an option that limits this, 1 if there is none."""
    values = [config.options[n] for n, o in _limiting(config).items() if limit in o.limits]
    size = len if limit == "depth" else max
    return max((size(v) if isinstance(v, tuple) else v for v in values), default=1)


def _cut(config: ResolvedConfig, depth: int, width: int, nodes: int) -> ResolvedConfig:
    """The configuration with drafts of at most this depth, width and so many nodes."""
    most: dict[Limit, int] = {"depth": depth, "width": width, "nodes": nodes}
    changed = {n: o.cut(config.options[n], most) for n, o in _limiting(config).items()}
    return config.config.replace(**changed).resolve(config.modality)
