"""Numbers as a reader wants them: few digits, a true minus sign, a dash for what is missing."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypeGuard

MISSING = "–"


def known(value: float | None) -> TypeGuard[float]:
    """True if there is a finite number to show."""
    return value is not None and math.isfinite(value)


def fixed(value: float | None, digits: int, *, sign: bool = False, unit: str = "") -> str:
    """`digits` decimals, thousands apart; with `sign`, a plus as well as a minus."""
    if not known(value):
        return MISSING
    text = f"{value:,.{digits}f}"
    zero = not text.strip("-0.,")
    text = text.lstrip("-") if zero else text.replace("-", "−")
    return ("+" if sign and value > 0 and not zero else "") + text + unit


def significant(value: float | None, digits: int = 3, *, unit: str = "") -> str:
    """`digits` significant figures, without an exponent."""
    if not known(value):
        return MISSING
    size = math.floor(math.log10(abs(value))) if value else 0
    return fixed(value, max(0, digits - 1 - size), unit=unit)


def decimals(values: Iterable[float | None]) -> int:
    """Decimals that suit a column of scores, chosen by its largest one."""
    most = max((abs(v) for v in values if known(v)), default=0.0)
    return 3 if most <= 1 else 2 if most < 100 else 1


def interval(pair: tuple[float, float] | None, digits: int, *, unit: str = "") -> str:
    """`low–high`, or `low to high` where a minus would make the dash unreadable."""
    if pair is None or not all(map(known, pair)):
        return ""
    low, high = (fixed(end, digits, unit=unit) for end in pair)
    return f"{low} to {high}" if "−" in low + high else f"{low}–{high}"


def share(value: float | None) -> str:
    """A share as a percentage."""
    return fixed(value * 100, 0, unit=" %") if known(value) else MISSING


def duration(seconds: float) -> str:
    """Duration of a run: `48 s`, `12 min`, `3 h 20 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def memory(count: int | None) -> str:
    """Bytes in decimal units."""
    if count is None:
        return MISSING
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return significant(count / size, unit=f" {unit}")
    return f"{count} B"


def tiny(value: float) -> str:
    """Two figures; of what is below a millionth, and so may be rounding, only that."""
    if not value:
        return "0"
    return "< 1e-6" if value < 1e-6 else significant(value, 2)


def chance(p: float) -> str:
    """A p-value."""
    return "< 0.0001" if p < 1e-4 else fixed(p, 4)


def fact(value: object) -> str:
    """A setting of any kind."""
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(fact, value)) or MISSING
    return str(value)
