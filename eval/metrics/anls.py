"""ANLS: how much of the answer is right letter by letter, nothing if that is less than half.

Biten et al. 2019, "Scene Text Visual Question Answering", equation 1; Mathew et al. 2021,
"DocVQA", section 5.1.
"""

from __future__ import annotations

from collections.abc import Sequence

from .answer_metric import AnswerBenchmark, AnswerMetric


def edit_distance(a: str, b: str) -> int:
    """Levenshtein distance: the fewest insertions, deletions and substitutions of characters."""
    row = list(range(len(b) + 1))  # distances of the part of `a` so far to each prefix of `b`
    for i, letter in enumerate(a, 1):
        above, row = row, [i]
        for j, other in enumerate(b, 1):
            row.append(min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (letter != other)))
    return row[-1]


def anls(prediction: str, answers: str | Sequence[str], threshold: float = 0.5) -> float:
    """The best `1 − distance / longer length` over the answers; 0 if it is below `threshold`.

    Case does not count, nor do outer blanks and how many blanks part two words. A similarity of
    exactly `threshold` stays, as in the official script; the paper's formula would drop it.
    """
    answers = (answers,) if isinstance(answers, str) else answers
    return max(_similarity(_plain(prediction), _plain(answer), threshold) for answer in answers)


class Anls(AnswerMetric):
    """Mean `anls`: average normalized Levenshtein similarity."""

    name = "anls"

    def __init__(self, threshold: float = 0.5) -> None:
        super().__init__()
        self.threshold = threshold

    def _score(self, prediction: str, answers: tuple[str, ...], options: Sequence[str]) -> float:
        return anls(prediction, answers, self.threshold)


DOCVQA = AnswerBenchmark(
    name="docvqa",
    summary="ANLS of answers: how much of each is right, letter by letter",
    metric=Anls,
    reader="mmspec.eval.data.answers:read_docvqa",
    ids="the data's questionId",
)


def _plain(text: str) -> str:
    return " ".join(text.lower().split())


def _similarity(a: str, b: str, threshold: float) -> float:
    short, long = sorted((len(a), len(b)))
    if long == 0:
        return 1.0
    # The distance is at least the difference of lengths: a long ramble is 0 without computing it.
    if short / long < threshold:
        return 0.0
    similarity = 1 - edit_distance(a, b) / long
    return similarity if similarity >= threshold else 0.0
