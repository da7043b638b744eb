"""VQA soft accuracy: an answer is right as far as three other people gave it.

Antol et al. 2015, "VQA: Visual Question Answering", section 3, and Goyal et al. 2017 (VQAv2): the
mean over annotators i of `min(1, #{j ≠ i: a_j = prediction} / 3)`, with the answer processing of
the official evaluation. TextVQA takes the same formula with the processing of M4C (Hu et al.
2020), which adds a few rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import InputError
from ...files import read_json
from .answer_metric import AnswerBenchmark, mean_of

if TYPE_CHECKING:
    from ..data.questions import BenchmarkQuestion
    from ..measure.score_files import Given

_MARKS = ';/[]"{}()=+\\_-><@`,?!'
_DIGITS = {"none": "0", "zero": "0", "one": "1", "two": "2", "three": "3", "four": "4"}
_DIGITS |= {"five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9", "ten": "10"}
_ARTICLES = {"a", "an", "the"}
_CONTRACTED = """
    ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't hadn't've hasn't
    haven't he'd he'd've he's how'd how'll how's isn't it'd it'd've it'll ma'am mightn't mightn't've
    might've mustn't must've needn't not've o'clock oughtn't 'ow's'at shan't she'd've should've
    shouldn't shouldn't've somebody'd've somebody'll somebody's someone'd someone'd've someone'll
    someone's something'd something'd've something'll that's there'd there'd've there're there's
    they'd they'd've they'll they're they've 'twas wasn't we'd've we've weren't what'll what're
    what's what've when's where'd where's where've who'd who'd've who'll who's who've why'll why're
    why's won't would've wouldn't wouldn't've y'all y'all'll y'all'd've you'd you'd've you'll you're
    you've
"""
# One apostrophe is put back. Words that are words without it too (its, well, shed) stay as they
# are, and the official table has one entry the wrong way round.
_CONTRACTIONS = {
    word[:i] + word[i + 1 :]: word
    for word in _CONTRACTED.split()
    for i, letter in enumerate(word)
    if letter == "'"
} | {"somebody'd": "somebodyd"}


def normalize_vqav2(answer: str) -> str:
    """The answer as the official VQAv2 evaluation compares it.

    Marks go (to a blank, or to nothing where the text has the mark beside a blank or has a comma
    between digits), full stops go unless a digit follows, the text is lowered, number words up to
    ten become digits, articles go, contractions get their apostrophe back.
    """
    text = _tidy(answer)
    number = re.search(r"\d,\d", text)  # then no mark leaves a blank, wherever it stands
    gone = {m for m in _MARKS if number or f"{m} " in text or f" {m}" in text}
    text = text.translate({ord(m): "" if m in gone else " " for m in _MARKS})
    text = re.sub(r"\.(?!\d)", "", text)
    words = [_DIGITS.get(word, word) for word in text.lower().split()]
    return " ".join(_CONTRACTIONS.get(word, word) for word in words if word not in _ARTICLES)


def normalize_textvqa(answer: str) -> str:
    """The answer as M4C's TextVQA evaluation compares it.

    Before the rules of `normalize_vqav2`, commas and question marks go without a blank, and a
    possessive `'s` becomes a word of its own.
    """
    text = answer.lower().replace(",", "").replace("?", "").replace("'s", " 's")
    return normalize_vqav2(text)


def vqa_accuracy(
    prediction: str,
    answers: Sequence[str],
    normalize: Callable[[str], str] = normalize_vqav2,
    normalize_unanimous: bool = False,
) -> float:
    """Soft accuracy of one answer, from 0 to 1.

    Args:
        prediction: what the model says.
        answers: one from each annotator: ten in VQAv2 and TextVQA, at least four.
        normalize: applied to the prediction and to every answer.
        normalize_unanimous: whether that is so where all annotators wrote the same, too. The
            official VQAv2 script compares such questions as they are written, save for outer
            blanks (its authors: so as not to change text that is read from the picture), and
            published figures contain that, so it is the default: `Yes.` is then no match for ten
            times `yes`. M4C's TextVQA script always normalizes.

    Raises:
        InputError: fewer than four answers, where the formula can't reach 1.
    """
    if len(answers) < 4:
        raise InputError(
            f"VQA accuracy needs at least 4 reference answers, got {len(answers)}; with fewer "
            "even a perfect answer scores below 1, so use another metric"
        )
    prediction, answers = _tidy(prediction), [_tidy(answer) for answer in answers]
    if normalize_unanimous or len(set(answers)) > 1:
        prediction, answers = normalize(prediction), [normalize(answer) for answer in answers]
    total, matches = len(answers), list(answers).count(prediction)
    # leaving out one of the matching annotators leaves one match fewer
    left_out = matches * min(1.0, max(0, matches - 1) / 3)
    return (left_out + (total - matches) * min(1.0, matches / 3)) / total


@dataclass(frozen=True, kw_only=True)
class Vqav2Benchmark(AnswerBenchmark):
    """A benchmark whose answers lie in a file of their own; see `AnswerBenchmark`."""

    takes: tuple[str, ...] = ("annotations", "partial")

    def read(self, given: Given) -> list[BenchmarkQuestion]:
        from ..data.answers import read_vqav2

        questions = given.path("questions")
        if given.annotations or _is_vqav2(questions):
            return read_vqav2(questions, given.path("annotations"))
        return super().read(given)


def _is_vqav2(path: Path) -> bool:
    """True if a file has the form of the benchmark's own questions."""
    try:
        data = read_json(path) if path.suffix == ".json" else None
    except InputError:  # the reader will say so
        return False
    return isinstance(data, dict) and "data_subtype" in data


_OWN_IDS = "the data's question_id"
VQAV2 = Vqav2Benchmark(
    name="vqav2",
    summary="soft accuracy of answers: right as far as three annotators say the same",
    metric=mean_of("vqa_accuracy", vqa_accuracy),
    reader="mmspec.eval.data.answers:read_questions",
    ids=_OWN_IDS,
)
TEXTVQA = AnswerBenchmark(
    name="textvqa",
    summary="the same with M4C's processing of answers",
    metric=mean_of(
        "vqa_accuracy",
        partial(vqa_accuracy, normalize=normalize_textvqa, normalize_unanimous=True),
    ),
    reader="mmspec.eval.data.answers:read_textvqa",
    ids=_OWN_IDS,
)


def _tidy(answer: str) -> str:
    return answer.replace("\n", " ").replace("\t", " ").strip()
