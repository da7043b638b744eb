"""DPG-Bench's files: the official questions, and a folder of pictures in its own layout."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from ...errors import InputError, reason
from ...picture import BACKGROUND, check_picture, open_picture
from ..judges.vqa import BlipAnswerer
from ..metrics.dpg import DpgPrompt, DpgQuestion, dpg_scores, holding

SAMPLES = 4  # pictures a prompt, in one 2 × 2 grid

_COLUMNS = (
    "item_id",
    "text",
    "proposition_id",
    "dependency",
    "tuple",
    "question_natural_language",
)


@dataclass(frozen=True)
class DpgPicture:
    """Prompt and the file of its grid of pictures."""

    prompt: DpgPrompt
    path: Path


def read_dpg(path: str | Path) -> list[DpgPrompt]:
    """The prompts of the official `dpg_bench.csv`, in its order, all rows.

    The official script skips the first row, and with it the first prompt; this reader does not.

    Raises:
        InputError: the file can't be read, lacks a column, or a row makes no sense.
    """
    path = Path(path)
    texts: dict[str, str] = {}
    questions: dict[str, dict[int, DpgQuestion]] = {}
    places: dict[tuple[str, int], str] = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file, strict=True)
            missing = [name for name in _COLUMNS if name not in (rows.fieldnames or ())]
            if missing:
                raise InputError(f"{path}:1: no column {missing[0]}: expected dpg_bench.csv")
            for row in rows:
                place = f"{path}:{rows.line_num}"
                question = _question(row, place)
                item = row["item_id"]
                if question.id in questions.setdefault(item, {}):
                    raise InputError(f"{place}: question {question.id} of {item} is there twice")
                questions[item][question.id] = question
                texts.setdefault(item, row["text"])
                places[item, question.id] = place
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"can't read {path}: {reason(error)}") from error
    if not texts:
        raise InputError(f"{path} holds no questions")
    for item, own in questions.items():
        for question in own.values():
            _check_parents(question, own, places[item, question.id])
    return [DpgPrompt(item, texts[item], tuple(own.values())) for item, own in questions.items()]


def read_folder(folder: str | Path, prompts: Sequence[DpgPrompt]) -> list[DpgPicture]:
    """Each prompt's file, `<item_id>.png` (or .jpg, .jpeg, .webp), checked.

    Raises:
        InputError: a picture that is missing, there twice, broken, or of no prompt.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"no folder {folder}")
    files: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in (".png", ".jpg", ".jpeg", ".webp"):
            if path.stem in files:
                raise InputError(f"{path} and {files[path.stem]} are of the same prompt: keep one")
            files[path.stem] = path
    for prompt in prompts:
        if prompt.item_id not in files:
            raise InputError(f"no picture {folder / prompt.item_id}.png")
    strange = files.keys() - {prompt.item_id for prompt in prompts}
    if strange:
        raise InputError(f"{files[min(strange)]} is of no prompt: remove it, or name it as item_id")
    for path in files.values():
        check_picture(path)
    return [DpgPicture(prompt, files[prompt.item_id]) for prompt in prompts]


def judge_folder(
    judge: BlipAnswerer,
    pictures: Sequence[DpgPicture],
    samples: int = SAMPLES,
    on_line: Callable[[dict[str, Any]], None] = lambda line: None,
    background: str = BACKGROUND,
) -> dict[str, Any]:
    """`{"dpg_<judge>": scores}`, see `dpg_scores`.

    Args:
        judge: answers the questions.
        pictures: the files.
        samples: how many pictures a file holds: one, or up to four in a 2 × 2 grid.
        on_line: gets every answer: `filename`, `sample`, `question`, `answer`, and whether the
            question `holds`.
        background: of pictures that are transparent.
    """

    def answered() -> Iterator[tuple[DpgPrompt, list[Mapping[int, bool]]]]:
        for picture in pictures:
            questions = picture.prompt.questions
            image = open_picture(picture.path, background)
            try:
                parts = split_grid(image, samples) if samples > 1 else [image]
            except ValueError as error:
                raise InputError(f"{picture.path}: {error}") from error
            answers: list[Mapping[int, bool]] = []
            for sample, part in enumerate(parts):
                said = judge.answer([part] * len(questions), [q.text for q in questions])
                answers.append({q.id: yes for q, yes in zip(questions, said, strict=True)})
                stands = holding(questions, answers[-1])
                for q, yes in zip(questions, said, strict=True):
                    line = {"filename": str(picture.path), "sample": sample, "question": q.text}
                    on_line({**line, "answer": yes, "holds": stands[q.id]})
            yield picture.prompt, answers

    return {f"dpg_{judge.name}": dpg_scores(answered())}


def split_grid(image: Image.Image, count: int = 4) -> list[Image.Image]:
    """The first `count` of the four pictures of a 2 × 2 grid, row by row.

    Raises:
        ValueError: a side of odd length, or a count that is not 1 to 4.
    """
    width, height = image.size
    if width % 2 or height % 2 or not 1 <= count <= 4:
        raise ValueError(f"{count} pictures can't lie in a 2 × 2 grid of {width} × {height}")
    w, h = width // 2, height // 2
    corners = [(0, 0), (w, 0), (0, h), (w, h)][:count]
    return [image.crop((x, y, x + w, y + h)) for x, y in corners]


def _question(row: dict[str, Any], place: str) -> DpgQuestion:
    if None in row or any(row[name] is None for name in _COLUMNS):
        raise InputError(f"{place}: the row has too few or too many columns")
    try:
        number = int(row["proposition_id"])
        parents = tuple(int(parent) for parent in row["dependency"].split(","))
    except ValueError as error:
        raise InputError(
            f"{place}: proposition_id {row['proposition_id']!r} and dependency"
            f" {row['dependency']!r} should be numbers, separated by commas"
        ) from error
    text, category = row["question_natural_language"], row["tuple"].split("(")[0].strip()
    if not row["item_id"] or not text or not category:
        raise InputError(f"{place}: item_id, tuple and question may not be empty")
    return DpgQuestion(number, text, tuple(parent for parent in parents if parent), category)


def _check_parents(question: DpgQuestion, own: Mapping[int, DpgQuestion], place: str) -> None:
    """Parents exist, and following them never leads back."""
    above, pending = set(), list(question.parents)
    while pending:
        parent = pending.pop()
        if parent not in own:
            raise InputError(f"{place}: dependency on question {parent}, which the prompt lacks")
        if parent == question.id:
            raise InputError(f"{place}: question {question.id} depends on itself")
        if parent not in above:
            above.add(parent)
            pending += own[parent].parents
