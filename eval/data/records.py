"""Entries of local data files, read strictly: what is wrong is named with its file and line."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import InputError, absent
from ...files import parse_json, read_json, read_text


@dataclass(frozen=True)
class Record:
    """Entry of a data file.

    Attributes:
        fields: its values by name, without the bytes in a Parquet file, such as pictures.
        where: file and line, row or index, as error messages name it.
    """

    fields: Mapping[str, Any]
    where: str

    def error(self, problem: str) -> InputError:
        """The error that says what is wrong with this entry."""
        return InputError(f"{self.where}: {problem}")

    def value(self, name: str) -> Any:
        """A field that must be there and not null."""
        if self.fields.get(name) is None:
            raise self.error(f"no {name!r}; it has {', '.join(self.fields) or 'no fields'}")
        return self.fields[name]

    def text(self, name: str, default: str | None = None) -> str:
        """A field that is text; `default`, if there is one, where it is missing or null."""
        if default is not None and self.fields.get(name) is None:
            return default
        value = self.value(name)
        if not isinstance(value, str):
            raise self.error(f"{name!r} must be text, not {_shown(value)}")
        return value

    def filled(self, name: str) -> str:
        """A field that is text and not blank."""
        text = self.text(name)
        if not text.strip():
            raise self.error(f"the {name} is empty")
        return text

    def answer(self, name: str) -> str:
        """A field that is text or a number, as text."""
        return self._answer(name, self.value(name))

    def identity(self, name: str) -> str:
        """A field that names something: text or a whole number, as text."""
        value = self.value(name)
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            raise self.error(f"{name!r} must be text or a whole number, not {_shown(value)}")
        return str(value)

    def number(self, name: str) -> int:
        """A field that is a whole number."""
        value = self.value(name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(f"{name!r} must be a whole number, not {_shown(value)}")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A field that is a list of texts or numbers, as texts, empty where it is missing or null;
        one alone is a list of one."""
        value = self.fields.get(name)
        if value is None:
            return ()
        items = value if isinstance(value, list) else [value]
        return tuple(self._answer(name, item, "a list of them") for item in items)

    def _answer(self, name: str, value: Any, other: str = "") -> str:
        if isinstance(value, str):
            return value
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value):
            kinds = f"text, a number or {other}" if other else "text or a number"
            raise self.error(f"{name!r} must be {kinds}, not {_shown(value)}")
        return str(value)

    def children(self, name: str) -> list[Record]:
        """A field that is a list of objects, as records of their own."""
        return _objects(self.value(name), f"{self.where}: {name}")


def read_records(path: Path) -> list[Record]:
    """The entries of a `.json` file (a list of objects), a `.jsonl` file or a `.parquet` file.

    Raises:
        InputError: a file of another kind, unreadable, or an entry that is no object.
    """
    if path.suffix == ".parquet":
        return _parquet(path)
    if path.suffix == ".jsonl":
        lines = enumerate(read_text(path).split("\n"), 1)
        places = ((f"{path}, line {number}", line) for number, line in lines if line.strip())
        return [_record(parse_json(line, where), where) for where, line in places]
    return _objects(_parsed(path), f"{path}: ")


def read_document(path: Path) -> Record:
    """A `.json` file that holds one object.

    Raises:
        InputError: unreadable, or something else than an object.
    """
    return _record(_parsed(path), str(path))


def _objects(values: Any, where: str) -> list[Record]:
    if not isinstance(values, list):
        raise InputError(f"{where.rstrip(': ')}: expected a list, found {_shown(values)}")
    return [_record(value, f"{where}[{i}]") for i, value in enumerate(values)]


def _record(value: Any, where: str) -> Record:
    if not isinstance(value, dict):
        raise InputError(f"{where}: expected an object, found {_shown(value)}")
    return Record(value, where)


def _parsed(path: Path) -> Any:
    if path.suffix != ".json":
        raise InputError(f"{path}: expected a .json, .jsonl or .parquet file")
    return read_json(path)


def _parquet(path: Path) -> list[Record]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError as error:
        raise absent(f"{path}: reading Parquet needs pyarrow", "eval") from error
    try:
        with pq.ParquetFile(path) as file:
            names = [field.name for field in file.schema_arrow if not _holds_bytes(field.type)]
            batches = list(file.iter_batches(columns=names))
    except (OSError, pa.ArrowException) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(f"can't read {path}: {reason}") from error
    rows = (row for batch in batches for row in batch.to_pylist())
    return [Record(fields, f"{path}, row {number}") for number, fields in enumerate(rows)]


def _holds_bytes(kind: Any) -> bool:
    """A column of bytes, or of pictures as the datasets library writes them: {bytes, path}."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return any(kind.field(i).name == "bytes" for i in range(kind.num_fields))
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _shown(value: Any) -> str:
    """A value in an error message: short, and on one line."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
