"""GenEval's files: the official prompts, and a folder of pictures in its own layout."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...files import parse_json, read_json, read_text
from ...picture import BACKGROUND, check_picture, open_picture
from ...worlds.shapes.vocabulary import COLORS, RELATIONS, TASKS
from ..judges.base import Judge
from ..judges.coco import CLASSES
from ..metrics.geneval import geneval_scores

SAMPLES = 4  # pictures a prompt


@dataclass(frozen=True)
class PromptFolder:
    """Metadata of a prompt and the files of its pictures, by number."""

    metadata: dict[str, Any]
    pictures: tuple[Path, ...]


def read_metadata(path: str | Path, classes: Collection[str] = CLASSES) -> list[dict[str, Any]]:
    """The lines of an `evaluation_metadata.jsonl`: `tag`, `prompt`, `include`, maybe `exclude`.

    Args:
        path: the file.
        classes: the names that a `class` may have; GenEval's 80 unless said.

    Raises:
        InputError: the file can't be read, is empty, or a line is not GenEval's.
    """
    path = Path(path)
    text = read_text(path).rstrip()
    if not text:
        raise InputError(f"{path} is empty: it should hold a line of metadata per prompt")
    lines = enumerate(text.split("\n"), 1)
    return [_metadata(line, f"{path}:{number}", classes) for number, line in lines]


def read_folder(
    folder: str | Path, prompts: Sequence[dict[str, Any]], samples: int = SAMPLES
) -> list[PromptFolder]:
    """The pictures of all prompts: `00000/samples/0000.png` and so on, every file checked.

    Folder number i belongs to `prompts[i]`, and the `metadata.jsonl` in it must say so too.

    Raises:
        InputError: a folder or picture that is missing, too many, broken, or of another prompt.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"no folder {folder}")
    surplus = [f for f in folder.iterdir() if f.name.isdigit() and int(f.name) >= len(prompts)]
    if surplus:
        raise InputError(f"{min(surplus)} is one too many: there are {len(prompts)} prompts")
    return [
        _prompt_folder(folder / f"{i:05d}", metadata, samples) for i, metadata in enumerate(prompts)
    ]


def judge_folder(
    judge: Judge,
    folders: Sequence[PromptFolder],
    on_line: Callable[[dict[str, Any]], None] = lambda line: None,
    background: str = BACKGROUND,
) -> dict[str, float]:
    """GenEval of all pictures: each task's mean, and `overall`, the mean of the six.

    `on_line` gets the fields of the official `results.jsonl` picture by picture: `filename`, `tag`,
    `prompt`, `correct`, `reason`. Where pictures are transparent the background shows.
    """

    def judged() -> Iterator[tuple[str, bool]]:
        for one in folders:
            tag, prompt = one.metadata["tag"], one.metadata["prompt"]
            for path in one.pictures:
                picture = open_picture(path, background)
                [(correct, reason)] = judge.judge([one.metadata], [picture])
                line = {"filename": str(path), "tag": tag, "prompt": prompt}
                on_line({**line, "correct": correct, "reason": reason})
                yield tag, correct

    return geneval_scores(judged())


def _prompt_folder(folder: Path, metadata: dict[str, Any], samples: int) -> PromptFolder:
    own = folder / "metadata.jsonl"
    said = read_json(own)
    if said != metadata:
        prompt = said.get("prompt") if isinstance(said, dict) else said
        raise InputError(
            f"{own} is of {prompt!r}, but prompt {int(folder.name)} is {metadata['prompt']!r}:"
            " generate the pictures for this list of prompts"
        )
    files = (folder / "samples").glob("*.png") if (folder / "samples").is_dir() else ()
    numbered = [f for f in files if re.fullmatch(r"\d+", f.stem)]
    pictures = tuple(sorted(numbered, key=lambda f: int(f.stem)))
    if len(pictures) != samples:
        raise InputError(f"{folder / 'samples'} holds {len(pictures)} pictures, expected {samples}")
    for picture in pictures:
        check_picture(picture)
    return PromptFolder(metadata, pictures)


def _metadata(line: str, place: str, classes: Collection[str]) -> dict[str, Any]:
    value = parse_json(line, place)
    if not isinstance(value, dict):
        raise InputError(f"{place}: expected an object with tag, include and prompt")
    if value.get("tag") not in TASKS:
        raise InputError(f"{place}: tag {value.get('tag')!r} is none of {', '.join(TASKS)}")
    if not isinstance(value.get("prompt"), str):
        raise InputError(f"{place}: prompt should be a text")
    include, exclude = value.get("include"), value.get("exclude", [])
    if not isinstance(include, list) or not include or not isinstance(exclude, list):
        raise InputError(f"{place}: include should be a list of objects, and exclude too if given")
    for name, clauses in (("include", include), ("exclude", exclude)):
        for index, clause in enumerate(clauses):
            # places are told by clauses before
            if problem := _problem(clause, classes, index if name == "include" else 0):
                raise InputError(f"{place}: {name}[{index}] {problem}")
    return value


def _problem(clause: Any, classes: Collection[str], earlier: int) -> str:
    """Error in a clause that has `earlier` others before it; empty if there is none."""
    if not isinstance(clause, dict) or clause.get("class") not in classes:
        name = clause.get("class") if isinstance(clause, dict) else clause
        return f"has class {name!r}, which is none of the {len(classes)} classes"
    count = clause.get("count")
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        return f"has count {count!r}, expected a number from 1"
    if "color" in clause and clause["color"] not in COLORS:
        return f"has color {clause['color']!r}, which is none of {', '.join(COLORS)}"
    if "position" not in clause:
        return ""
    match clause["position"]:
        case [str(relation), int(anchor)] if relation in RELATIONS and 0 <= anchor < earlier:
            return ""
    return f"has position {clause['position']!r}, expected a relation and an earlier clause's index"
