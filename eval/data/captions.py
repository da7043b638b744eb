"""Captions of picture sets: COCO's annotation files, JSON lines, or a folder of text files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import UnionType
from typing import Any

from ...errors import InputError
from ...text_file import read_text
from .folders import SUFFIXES, ImageFolder, visible_files


@dataclass(frozen=True)
class Captions:
    """Captions by the id of their picture, one or more each, and where they come from."""

    source: Path
    by_id: dict[str, tuple[str, ...]]


def read_captions(path: str | Path) -> Captions:
    """Captions from one of three forms.

    - `.json`: COCO's, `{"images": [{"id", "file_name"}], "annotations": [{"image_id",
      "caption"}]}`, with any number of captions for a picture.
    - `.jsonl`: an object a line with `file_name` or `image`, and `caption`.
    - a folder of `.txt` files named like the pictures; each line that is not blank is a caption.

    Raises:
        InputError: no such file, another form, a faulty entry (with its line or index), one
            picture twice, or no captions at all.
    """
    path = Path(path)
    readers = {".json": _coco, ".jsonl": _json_lines}
    if path.is_dir():
        by_id = _text_files(path)
    elif path.suffix in readers:
        by_id = readers[path.suffix](path)
    else:
        raise InputError(f"captions {path}: expected a .json or .jsonl file or a folder of .txt")
    if not by_id:
        raise InputError(f"no captions in {path}")
    return Captions(path, {name: tuple(texts) for name, texts in sorted(by_id.items())})


def check_captioned(images: ImageFolder, captions: Captions) -> None:
    """Raise an `InputError` unless each picture has captions and each caption its picture."""
    sides = (
        ("pictures have no caption", images.files.keys() - captions.by_id.keys()),
        ("captions have no picture", captions.by_id.keys() - images.files.keys()),
    )
    for problem, alone in sides:
        if alone:
            raise InputError(
                f"{images.folder} and {captions.source}: {len(alone)} {problem}, "
                f"the first {min(alone)!r}"
            )


def _coco(path: Path) -> dict[str, list[str]]:
    text = read_text(path, "captions")
    try:
        data = json.loads(text)
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}") from error
    images, annotations = (_list(data, path, key) for key in ("images", "annotations"))
    names: dict[Any, str] = {}
    by_id: dict[str, list[str]] = {}
    for index, entry in enumerate(images):
        where = f"{path}: images[{index}]"
        key = _field(entry, where, int | str, "id")
        name = _id(_field(entry, where, str, "file_name"))
        if key in names or name in by_id:
            raise InputError(f"{where}: a second picture of id {key!r} or name {name!r}")
        names[key], by_id[name] = name, []
    for index, entry in enumerate(annotations):
        where = f"{path}: annotations[{index}]"
        key = _field(entry, where, int | str, "image_id")
        if key not in names:
            raise InputError(f"{where}: no picture has the id {key!r}")
        by_id[names[key]].append(_caption(entry, where))
    return {name: texts for name, texts in by_id.items() if texts}


def _json_lines(path: Path) -> dict[str, list[str]]:
    by_id: dict[str, list[str]] = {}
    for number, line in enumerate(read_text(path, "captions").split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            entry = json.loads(line)
        except ValueError as error:
            raise InputError(f"{where} is not JSON: {error}") from error
        name = _id(_field(entry, where, str, "file_name", "image"))
        if name in by_id:
            raise InputError(f"{where}: a second line for {name!r}")
        by_id[name] = [_caption(entry, where)]
    return by_id


def _text_files(folder: Path) -> dict[str, list[str]]:
    by_id: dict[str, list[str]] = {}
    for name, path in visible_files(folder):
        if path.suffix != ".txt":
            raise InputError(f"{path} is no .txt file of captions: move it elsewhere")
        texts = [line.strip() for line in read_text(path, "captions").splitlines() if line.strip()]
        if not texts:
            raise InputError(f"{path} holds no caption")
        by_id[name] = texts
    return by_id


def _list(data: Any, path: Path, key: str) -> list[Any]:
    table = data.get(key) if isinstance(data, dict) else None
    if not isinstance(table, list):
        raise InputError(f"{path}: expected COCO's lists 'images' and 'annotations'")
    return table


def _field(entry: Any, where: str, kind: type | UnionType, *names: str) -> Any:
    """The value of the first of `names` that an entry has, if it is of that kind."""
    found = [name for name in names if isinstance(entry, dict) and name in entry]
    if not found:
        raise InputError(f"{where}: no {' or '.join(map(repr, names))}")
    value = entry[found[0]]
    if not isinstance(value, kind):
        raise InputError(f"{where}: {found[0]!r} can't be a {type(value).__name__}")
    return value


def _caption(entry: Any, where: str) -> str:
    text: str = _field(entry, where, str, "caption").strip()
    if not text:
        raise InputError(f"{where}: the caption is empty")
    return text


def _id(file_name: str) -> str:
    path = PurePosixPath(file_name)
    return (path.with_suffix("") if path.suffix.lower() in SUFFIXES else path).as_posix()
