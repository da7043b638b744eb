"""Files read as dataclasses, strictly: what does not fit is an error of one line."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import InputError, absent

if TYPE_CHECKING:
    from pydantic import ConfigDict, TypeAdapter

T = TypeVar("T")
# fields of other names or types are errors, and numbers are finite
STRICT: ConfigDict = {"extra": "forbid", "strict": True, "allow_inf_nan": False}


def read_as(kind: type[T], text: str, where: str, advice: str = "") -> T:
    """The object that JSON is of, which has lists for tuples and texts for keys.

    Args:
        kind: a dataclass; its `__pydantic_config__` may be `STRICT`.
        where, advice: what an error's line begins and ends with.

    Raises:
        InputError: it is of another form, or the dataclass refuses it.
    """
    dataclass: Any = kind
    reader = _adapter(dataclass)
    from pydantic import ValidationError

    try:
        return reader.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if isinstance(refused := first.get("ctx", {}).get("error"), InputError):
            raise refused from None
        raise InputError(f"{where}: {_told(first)}{advice}") from error


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    try:
        from pydantic import TypeAdapter
    except ImportError as error:
        raise absent("reading suites and reports needs pydantic", "eval") from error

    return TypeAdapter(kind)


def _told(error: Mapping[str, Any]) -> str:
    """`methods.sjd.n: input should be a valid integer, not "3"`."""
    where, value = ".".join(map(str, error["loc"])), repr(error["input"])
    what = error["msg"][0].lower() + error["msg"][1:]
    if error["type"] in ("missing", "unexpected_keyword_argument"):
        return f"{where}: {what}"
    return f"{where}: {what}, not {value if len(value) <= 40 else value[:37] + '...'}"
