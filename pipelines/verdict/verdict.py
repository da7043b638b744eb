"""Speculative Verdict: small experts draft answers and reasons, a strong model gives the verdict.

Liu et al. 2025 (Small Drafts, Big Verdict), section 3. Not token-level: its answer is another than
the strong model's own, so it is lossy and judged by accuracy.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any, Protocol

from ...engine.laws import Contract
from ...errors import InputError
from ..arguments import check_value, checked


class VerdictJudge(Protocol):
    """Answers questions about images.

    Attributes:
        name: what reports call it.
        tokens: generated and scored so far, for what a verdict cost.
    """

    name: str
    tokens: int

    def answer(self, images: Any, question: str) -> str:
        """A short answer."""


class Expert(VerdictJudge, Protocol):
    """A judge that also scores others' answers and gives its own reasoning."""

    def nll(self, images: Any, question: str, answers: Sequence[str]) -> list[float]:
        """Mean negative log-likelihood per token of each answer, in nats."""

    def reason(self, images: Any, question: str) -> str:
        """A reasoning path that ends in an answer."""


@dataclass
class Cost:
    """Cost of a model: calls, tokens generated or scored, seconds of wall-clock."""

    calls: int = 0
    tokens: int = 0
    seconds: float = 0.0


@dataclass
class Opinion:
    """Answer of one expert.

    Attributes:
        name: of the expert.
        answer: None if it failed to give one.
        score: how much the others disagree, in nats; None if it had no answer or nobody to
            agree with.
        path: its reasoning, if it was chosen.
        error: why it was left out; None: it was not.
        cost: what it took.
    """

    name: str
    answer: str | None = None
    score: float | None = None
    path: str | None = None
    error: str | None = None
    cost: Cost = field(default_factory=Cost)


@dataclass
class VerdictOutput:
    """A verdict and how it came about.

    Attributes:
        text: the verdict.
        opinions: of all experts, in the order in which they were given.
        chosen: names of those whose reasoning the verdict was based on, by rising score.
        cost: what the verdict alone took.
        contract: of the method.
    """

    text: str
    opinions: list[Opinion]
    chosen: list[str]
    cost: Cost
    contract: Contract = "lossy"

    @property
    def total(self) -> Cost:
        """Cost of experts and verdict together."""
        costs = [self.cost, *(opinion.cost for opinion in self.opinions)]
        return Cost(*map(sum, zip(*map(astuple, costs), strict=True)))


class VerdictError(RuntimeError):
    """Error when no expert is left; the message says why for each."""


def consensus_scores(nll: Sequence[Sequence[float]]) -> list[float]:
    """`score(A) = Σ_{B≠A} |NLL_B(a_A) − NLL_B(a_B)|` (section 3); the lower, the more agree.

    `nll[A][B]` is that of expert A's answer by expert B.
    """
    experts = range(len(nll))
    # fsum: experts with the same answer shall have the same score to the last bit
    return [math.fsum(abs(nll[a][b] - nll[b][b]) for b in experts if b != a) for a in experts]


def verdict_prompt(question: str, opinions: Sequence[Opinion]) -> str:
    """The question, each chosen expert's reasoning and answer, and the task."""
    paths = [
        f"Expert {number}\nReasoning: {opinion.path}\nAnswer: {opinion.answer}\n"
        for number, opinion in enumerate(opinions, 1)
    ]
    task = (
        "Look at the image, weigh the reasoning of the experts, who may be wrong, and answer the "
        "question with a single word or phrase."
    )
    return "\n".join([f"Question: {question}\n", *paths, task])


class SpeculativeVerdict:
    """Puts a question to experts, lets consensus choose among them, and gives the verdict.

    An expert that raises, or gives an empty answer or no finite likelihood, is left out, which the
    output says; the next one by score takes its place.

    Args:
        experts: any number of them.
        judge: the strong model; sees the images and `prompt`.
        keep: experts that are heard, three as published.
        prompt: makes the judge's question of the user's and of the chosen opinions.

    Raises:
        InputError: there are no experts, two have one name, or `keep` is no count.
    """

    def __init__(
        self,
        experts: Sequence[Expert],
        judge: VerdictJudge,
        keep: int = 3,
        prompt: Callable[[str, Sequence[Opinion]], str] = verdict_prompt,
    ) -> None:
        names = [expert.name for expert in experts]
        if not names:
            raise InputError("a verdict needs experts; pass at least one")
        if len(set(names)) < len(names):
            raise InputError(f"experts share a name ({', '.join(names)}); give each its own")
        check_value("keep", keep, int)
        if keep < 1:
            raise InputError(f"can't hear {keep} experts; keep at least 1")
        self.experts, self.judge, self.keep, self.prompt = list(experts), judge, keep, prompt

    @checked
    def __call__(self, images: Any, question: str) -> VerdictOutput:
        """The verdict on one question about one image, or several together.

        Raises:
            InputError: the question is empty or no text.
            VerdictError: no expert was left. What the judge raises is not caught.
        """
        if not question.strip():
            raise InputError("the question is empty; say what to answer")
        witnesses = [_Witness(expert, images, question) for expert in self.experts]
        for witness in witnesses:
            witness.answer()
        ranked = self._ranked([w for w in witnesses if w.heard])
        chosen: list[_Witness] = []
        for witness in ranked:
            if len(chosen) < self.keep and witness.reason():
                chosen.append(witness)
        opinions = [witness.opinion for witness in witnesses]
        if not chosen:
            errors = "; ".join(f"{opinion.name}: {opinion.error}" for opinion in opinions)
            raise VerdictError(f"no expert is left to base a verdict on ({errors})")
        cost = Cost()
        asked = self.prompt(question, [witness.opinion for witness in chosen])
        text = metered(cost, self.judge, lambda: self.judge.answer(images, asked))
        return VerdictOutput(text, opinions, [witness.opinion.name for witness in chosen], cost)

    def _ranked(self, witnesses: list[_Witness]) -> list[_Witness]:
        """Sort by rising score, ties in the given order; those that can't judge are left out."""
        if len(witnesses) < 2:
            return witnesses
        answers = list(dict.fromkeys(str(w.opinion.answer) for w in witnesses))
        for witness in witnesses:
            witness.judge(answers)
        witnesses = [w for w in witnesses if w.heard]
        nll = [[b.nll[str(a.opinion.answer)] for b in witnesses] for a in witnesses]
        for witness, score in zip(witnesses, consensus_scores(nll), strict=True):
            witness.opinion.score = score
        return sorted(witnesses, key=lambda w: w.opinion.score or 0.0)


class _Witness:
    """An expert at work on a question."""

    def __init__(self, expert: Expert, images: Any, question: str) -> None:
        self.expert, self.asked = expert, (images, question)
        self.opinion = Opinion(expert.name)
        self.nll: dict[str, float] = {}  # mean token NLL of everybody's answers

    @property
    def heard(self) -> bool:
        return self.opinion.error is None

    def answer(self) -> None:
        def wrong(text: str | None) -> str:
            return "" if (text or "").strip() else "gave no answer"

        self.opinion.answer = self._ask(lambda: self.expert.answer(*self.asked), wrong)

    def judge(self, answers: Sequence[str]) -> None:
        def wrong(found: list[float]) -> str:
            sound = len(found) == len(answers) and all(map(math.isfinite, found))
            return "" if sound else "gave likelihoods that are no numbers"

        found = self._ask(lambda: self.expert.nll(*self.asked, answers), wrong)
        self.nll = dict(zip(answers, found, strict=True)) if self.heard else {}

    def reason(self) -> bool:
        self.opinion.path = self._ask(lambda: self.expert.reason(*self.asked))
        return self.heard

    def _ask(self, ask: Callable[[], Any], wrong: Callable[[Any], str] = lambda _: "") -> Any:
        """Ask the expert; None: it is left out, and the opinion says why."""
        try:
            said = metered(self.opinion.cost, self.expert, ask)
            self.opinion.error = wrong(said) or None
        except Exception as error:  # whatever is wrong with one expert, the others can go on
            self.opinion.error = f"{type(error).__name__}: {error}"
        return said if self.heard else None


def metered(cost: Cost, who: VerdictJudge, ask: Callable[[], Any]) -> Any:
    """Ask, and add what it takes to `cost`, also if it fails."""
    tokens, clock = who.tokens, time.perf_counter()
    try:
        return ask()
    finally:
        cost.calls += 1
        cost.tokens += who.tokens - tokens
        cost.seconds += time.perf_counter() - clock
