"""ANLS: how much of the answer is right letter by letter, nothing if that is less than half.

Biten et al. 2019, "Scene Text Visual Question Answering", equation 1; Mathew et al. 2021,
"DocVQA", section 5.1.
"""

from __future__ import annotations

from collections.abc import Sequence

from .answer_metric import AnswerBenchmark, mean_of


def anls(prediction: str, answers: str | Sequence[str], threshold: float = 0.5) -> float:
    """The best `1 − distance / longer length` over the answers; 0 if it is below `threshold`.

    Case does not count, nor do outer blanks and how many blanks part two words. A similarity of
    exactly `threshold` stays, as in the official script; the paper's formula would drop it.
    """
    from rapidfuzz.distance import Levenshtein

    answers = (answers,) if isinstance(answers, str) else answers
    given = _plain(prediction)
    best = max(Levenshtein.normalized_similarity(given, _plain(answer)) for answer in answers)
    return best if best >= threshold else 0.0  # its own cutoff rounds 4 of 5 letters to below 0.8


DOCVQA = AnswerBenchmark(
    name="docvqa",
    summary="ANLS of answers: how much of each is right, letter by letter",
    metric=mean_of("anls", anls),
    reader="mmspec.eval.data.answers:read_docvqa",
    ids="the data's questionId",
)


def _plain(text: str) -> str:
    return " ".join(text.lower().split())
