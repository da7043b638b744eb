"""Questions with their reference answers, and predictions, from local files.

Each reader takes a benchmark's published files as they are. Pictures are left out: scoring needs
none.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

from ...errors import InputError
from .questions import BenchmarkQuestion, Prediction
from .records import Record, read_document, read_records


def read_vqav2(
    questions: str | Path, annotations: str | Path | None = None
) -> list[BenchmarkQuestion]:
    """VQAv2: the questions file and the annotations file.

    The answer type (`yes/no`, `number`, `other`) becomes the subject. Without annotations (the
    test sets have none) there are no answers.

    Raises:
        InputError: a file or entry is missing or malformed, an id appears twice, or the
            two files hold different questions.
    """
    answers = {} if annotations is None else _annotations(Path(annotations))
    result = []
    for entry in read_document(Path(questions)).children("questions"):
        key, found = entry.identity("question_id"), None
        if annotations is not None:
            found = answers.pop(key, None)
            if found is None:
                raise entry.error(f"question {key} has no annotation in {annotations}")
            if found.number("image_id") != entry.number("image_id"):
                raise found.error(f"question {key} has another image_id in {entry.where}")
        result.append(
            BenchmarkQuestion(
                id=key,
                question=entry.text("question"),
                answers=tuple(
                    child.answer("answer") for child in (found.children("answers") if found else ())
                ),
                subject=found.text("answer_type", "") if found else "",
                where=entry.where,
            )
        )
    for key, extra in answers.items():
        raise extra.error(f"question {key} is not in {questions}")
    return _checked(result)


def read_textvqa(path: str | Path) -> list[BenchmarkQuestion]:
    """TextVQA: a JSON file with `data`. Test sets have no answers.

    Raises:
        InputError: a file or entry is missing or malformed, or an id appears twice.
    """
    return _of_data(path, "question_id")


def read_docvqa(path: str | Path) -> list[BenchmarkQuestion]:
    """DocVQA: a JSON file with `data`.

    Raises:
        InputError: a file or entry is missing or malformed, or an id appears twice.
    """
    return _of_data(path, "questionId")


def read_chartqa(path: str | Path) -> list[BenchmarkQuestion]:
    """ChartQA: a JSON list of `imgname`, `query`, `label`.

    The data has no ids, so they are made: the file's name and the index in it, as `test_human-0`.
    The part of the name after its last `_` (`human`, `augmented`) becomes the subject.

    Raises:
        InputError: a file or entry is missing or malformed.
    """
    path = Path(path)
    return _checked(
        BenchmarkQuestion(
            id=f"{path.stem}-{i}",
            question=entry.text("query"),
            answers=_some(entry, "label"),
            subject=path.stem.rpartition("_")[2] if "_" in path.stem else "",
            where=entry.where,
        )
        for i, entry in enumerate(read_records(path))
    )


def read_mmmu(path: str | Path) -> list[BenchmarkQuestion]:
    """MMMU: a Parquet file, or a folder with some, at any depth.

    The subject is that of the id (`validation_Art_Theory_3`). The answer is a letter, or for an
    open question a text or a printed list of texts; `?`, as in the test set, is none.

    Raises:
        InputError: a file or row is missing or malformed, or an id appears twice.
    """
    path = Path(path)
    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    if not files:
        raise InputError(f"{path}: no Parquet files in this folder")
    return _checked(_mmmu(entry) for file in files for entry in read_records(file))


def read_questions(path: str | Path) -> list[BenchmarkQuestion]:
    """Questions of your own: a `.json` list of objects, a `.jsonl` or a `.parquet` file.

    Each has a `question_id`, a `question`, the reference `answers` (a list) or `answer`, texts or
    numbers, and may have `options` (a list) and a `subject`.

    Raises:
        InputError: the file or an entry is missing or malformed, or an id appears twice.
    """
    return _checked(
        BenchmarkQuestion(
            id=entry.identity("question_id"),
            question=entry.text("question"),
            answers=_some(entry, "answers" if "answers" in entry.fields else "answer"),
            options=entry.texts("options"),
            subject=entry.text("subject", ""),
            where=entry.where,
        )
        for entry in read_records(Path(path))
    )


def read_predictions(path: str | Path) -> list[Prediction]:
    """Predictions: `question_id` and `answer` in a `.json` list, a `.jsonl` or a `.parquet` file.

    An answer is text or a number.

    Raises:
        InputError: the file or an entry is missing or malformed, or an id appears twice.
    """
    predictions: dict[str, Prediction] = {}
    for entry in read_records(Path(path)):
        found = Prediction(entry.identity("question_id"), entry.answer("answer"), entry.where)
        earlier = predictions.setdefault(found.question_id, found)
        if earlier is not found:
            raise entry.error(f"question {found.question_id} was answered in {earlier.where}")
    return list(predictions.values())


def _of_data(path: str | Path, key: str) -> list[BenchmarkQuestion]:
    """The questions of a JSON file with `data`."""
    return _checked(
        BenchmarkQuestion(
            id=entry.identity(key),
            question=entry.text("question"),
            answers=entry.texts("answers"),
            where=entry.where,
        )
        for entry in read_document(Path(path)).children("data")
    )


def _mmmu(entry: Record) -> BenchmarkQuestion:
    key, answer = entry.identity("id"), entry.answer("answer")
    kind = entry.text("question_type")
    if kind not in ("multiple-choice", "open"):
        raise entry.error(f"question_type must be multiple-choice or open, not {kind!r}")
    options = _printed_list(entry, "options") if kind == "multiple-choice" else ()
    if kind == "multiple-choice" and len(options) < 2:
        raise entry.error(f"a multiple-choice question needs at least 2 options, not {options!r}")
    subject = re.fullmatch(r"[^_]+_(.+)_\d+", key)
    return BenchmarkQuestion(
        id=key,
        question=entry.text("question"),
        answers=() if answer == "?" else _open_answers(entry) if kind == "open" else (answer,),
        options=options,
        subject=subject.group(1) if subject else "",
        where=entry.where,
    )


def _open_answers(entry: Record) -> tuple[str, ...]:
    """Reference answers of an open question: a text, or several as a printed list."""
    try:
        return _printed_list(entry, "answer")
    except InputError:
        return (entry.answer("answer"),)


def _printed_list(entry: Record, name: str) -> tuple[str, ...]:
    """A list of texts, or one printed as Python prints it, as MMMU's columns hold them."""
    value = entry.value(name)
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
            raise entry.error(f"{name!r} is not a printed list of texts") from error
    if not isinstance(value, list):
        raise entry.error(f"{name!r} must be a list of texts")
    return Record({name: value}, entry.where).texts(name)


def _annotations(path: Path) -> dict[str, Record]:
    """VQAv2's annotations by question."""
    found: dict[str, Record] = {}
    for entry in read_document(path).children("annotations"):
        key = entry.identity("question_id")
        if found.setdefault(key, entry) is not entry:
            raise entry.error(f"question {key} is annotated in {found[key].where} already")
    return found


def _some(entry: Record, name: str) -> tuple[str, ...]:
    answers = entry.texts(name)
    if not answers:
        raise entry.error(f"no {name!r}: a question needs at least one reference answer")
    return answers


def _checked(questions: Iterable[BenchmarkQuestion]) -> list[BenchmarkQuestion]:
    """The questions, if each has its own id."""
    found: dict[str, BenchmarkQuestion] = {}
    for question in questions:
        earlier = found.setdefault(question.id, question)
        if earlier is not question:
            raise InputError(
                f"{question.where}: question id {question.id} is used in {earlier.where} already"
            )
    return list(found.values())
