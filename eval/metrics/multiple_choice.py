"""Accuracy on questions with options, and on MMMU's few open ones.

Yue et al. 2024, "MMMU", section 4.1, with the official parser as the model. Two things differ on
purpose. Where a response names no option, or several without saying which one it chooses, the
official script draws a letter at random or takes the last one; here such a response is wrong and
counted as unparsed, so that a figure holds no luck. And a capital A or I before another word is
read as English, not as an option, unless that word is "is", "or" and the like.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from string import ascii_uppercase

from ...errors import InputError
from .answer_metric import AnswerBenchmark, AnswerMetric
from .rejected import ENGLISH, as_words, without_rejected

_NUMBER = re.compile(
    r"(?<![\w.])-?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?"
)
_INTRODUCES = re.compile(
    r"\b(?:could be|so|is|thus|therefore|final|answer|result)\b:?|=", re.IGNORECASE
)


def parse_choice(response: str, options: Sequence[str]) -> str | None:
    """The letter that a response chooses, or None if that can't be told.

    The first of these that the response has decides, and more than one letter there is None:
    nothing but a letter (in either case); nothing but an option's text; "answer is X" or
    "answer: X"; a letter in brackets; "option X" or "choice X"; a letter that begins a line, with
    a full stop, colon or bracket; a capital letter as a word; an option's text as words.

    Args:
        response: free text.
        options: their texts, A first; at most 26.
    """
    letters = ascii_uppercase[: len(options)]
    if not letters:
        return None
    letter = f"([{letters}])(?![\\w'])"
    stages = (
        rf"(?i:\A\W*([{letters}])\W*\Z)",
        rf"(?i:\banswer(?:\s+is)?)[\s:*]*(?i:(?:option|choice)\s*)?[\s(\[*]*{letter}",
        rf"[(\[{{]\s*([{letters}])\s*[)\]}}]",
        rf"(?i:\b(?:option|choice))[\s:*]*{letter}",
        rf"(?m:^)[^\w\n]*([{letters}])[.:)]",
        rf"(?<![\w'])(?!{ENGLISH}){letter}",
    )
    by_letter, whole = dict(zip(letters, options, strict=True)), _plain(response)
    same = [x for x, option in by_letter.items() if _plain(option) == whole]
    for i, stage in enumerate(stages):
        if i == 1:
            if whole and same:
                return _only(same)
            response = without_rejected(response, by_letter)
        found = [x.upper() for x in re.findall(stage, response)]
        if found:
            return _only(found)
    return _only(_mentioned(response, by_letter))


def open_answer_correct(response: str, answers: Sequence[str]) -> bool:
    """True if a response to an open question gives one of the answers.

    Looked at is what follows the last "is", "so", "answer", "=" and the like of each sentence, or
    all of the response if there is none. A number must be in it, both rounded to two decimals as
    in the official script; any other answer must stand in it as words, case aside.
    """
    parts = _key_parts(response)
    numbers = {value for part in parts for value in map(_number, _NUMBER.findall(part))}
    for answer in answers:
        value = _number(answer)
        if value is not None:
            if value in numbers:
                return True
        elif answer.strip():
            words = re.compile(as_words([answer]), re.IGNORECASE)
            if any(map(words.search, parts)):
                return True
    return False


class MultipleChoiceAccuracy(AnswerMetric):
    """Accuracy over all questions and by subject, and the share of responses left unparsed.

    A question with options has one or more letters as its answers (or the text of an option);
    without options it is an open one.

    Attributes:
        unparsed: how many responses to questions with options chose none; they count as wrong.
    """

    def __init__(self) -> None:
        super().__init__("accuracy", self._right)

    def reset(self) -> None:
        super().reset()
        self.unparsed = 0

    def compute(self) -> dict[str, float]:
        """Scores of `AnswerMetric.compute`, and `unparsed`, a share of all questions."""
        return {**super().compute(), "unparsed": self.unparsed / len(self._scores)}

    def _right(self, prediction: str, answers: tuple[str, ...], options: Sequence[str]) -> float:
        if not options:
            return float(open_answer_correct(prediction, answers))
        right = {_letter(answer, options) for answer in answers}
        chosen = parse_choice(prediction, options)
        self.unparsed += chosen is None
        return float(chosen in right)


MMMU = AnswerBenchmark(
    name="mmmu",
    summary="accuracy of choices and short answers",
    metric=MultipleChoiceAccuracy,
    reader="mmspec.eval.data.answers:read_mmmu",
    ids="the data's id",
    parquet=True,
)


def _letter(answer: str, options: Sequence[str]) -> str:
    """The letter of the right option, which the data may give as a letter or as its text."""
    letters = ascii_uppercase[: len(options)]
    if len(letters) < len(options):
        raise InputError(f"a question may have at most 26 options, not {len(options)}")
    if len(answer) == 1 and answer in letters:
        return answer
    if list(options).count(answer) == 1:
        return letters[list(options).index(answer)]
    raise InputError(f"answer {answer!r} is none of the options A to {letters[-1]}")


def _only(letters: Iterable[str]) -> str | None:
    distinct = set(letters)
    return distinct.pop() if len(distinct) == 1 else None


def _plain(text: str) -> str:
    return " ".join(text.lower().split()).strip(" .,!?;:'\"")


def _mentioned(response: str, options: dict[str, str]) -> list[str]:
    """Letters of the options whose text stands in the response; "dark red" is not "red"."""
    texts = {letter: _plain(option) for letter, option in options.items()}
    longest_first = sorted(filter(None, texts.values()), key=len, reverse=True)
    if not longest_first:
        return []
    found = set(re.findall(as_words(longest_first), " ".join(response.lower().split())))
    return [letter for letter, text in texts.items() if text in found]


def _key_parts(response: str) -> list[str]:
    sentences = re.split(r"(?<=\.)\s+(?=[A-Z])|\n", response)
    tails = [_INTRODUCES.split(s)[-1].strip() for s in sentences if _INTRODUCES.search(s)]
    return [tail for tail in tails if re.search(r"\w", tail)] or [response]


def _number(text: str) -> float | None:
    plain = text.strip().replace(",", "")
    return round(float(plain), 2) if re.fullmatch(_NUMBER, plain) else None
