"""Captions of picture sets: COCO's annotation files, JSON lines, or a folder of text files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ...errors import InputError
from ...files import read_lines
from .folders import SUFFIXES, ImageFolder, visible_files
from .records import read_document, read_records


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
    data = read_document(path)
    names: dict[str, str] = {}
    by_id: dict[str, list[str]] = {}
    for entry in data.children("images"):
        key, name = entry.identity("id"), _id(entry.text("file_name"))
        if key in names or name in by_id:
            raise entry.error(f"a second picture of id {key!r} or name {name!r}")
        names[key], by_id[name] = name, []
    for entry in data.children("annotations"):
        key = entry.identity("image_id")
        if key not in names:
            raise entry.error(f"no picture has the id {key!r}")
        by_id[names[key]].append(entry.filled("caption").strip())
    return {name: texts for name, texts in by_id.items() if texts}


def _json_lines(path: Path) -> dict[str, list[str]]:
    by_id: dict[str, list[str]] = {}
    for entry in read_records(path):
        name = _id(entry.text("file_name" if "file_name" in entry.fields else "image"))
        if name in by_id:
            raise entry.error(f"a second line for {name!r}")
        by_id[name] = [entry.filled("caption").strip()]
    return by_id


def _text_files(folder: Path) -> dict[str, list[str]]:
    by_id: dict[str, list[str]] = {}
    for name, path in visible_files(folder):
        if path.suffix != ".txt":
            raise InputError(f"{path} is no .txt file of captions: move it elsewhere")
        texts = [line.strip() for line in read_lines(path) if line.strip()]
        if not texts:
            raise InputError(f"{path} holds no caption")
        by_id[name] = texts
    return by_id


def _id(file_name: str) -> str:
    path = PurePosixPath(file_name)
    return (path.with_suffix("") if path.suffix.lower() in SUFFIXES else path).as_posix()
