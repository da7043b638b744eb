"""Speculative Verdict: small experts draft answers and reasons, a strong model gives the verdict.

Liu et al. 2025 (Small Drafts, Big Verdict), section 3. Not token-level: its answer is another than
the strong model's own, so it is lossy and judged by accuracy.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any, ClassVar, NoReturn, Protocol

from ...engine.laws import Contract
from ...errors import InputError
from ..arguments import check_value, checked
from ..habits import METHODS, MOVES, refuses


class VerdictJudge(Protocol):
    """A model that answers questions about images.

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


_EACH = "its experts and its judge are models of their own; do it with each of them"
_CALL = "call it: verdict(images, question)"
_HABITS = dict.fromkeys((*METHODS, *MOVES, "enable_speculation", "disable_speculation"), _EACH) | {
    **dict.fromkeys(("generate", "chat", "predict", "forward"), _CALL),
    "from_pretrained": "load the experts and the judge, and give them to the class",
    "save_pretrained": "save its experts' and its judge's models",
}


@refuses(_HABITS)
class SpeculativeVerdict:
    """Speculative Verdict: experts answer, consensus chooses among them, and a judge decides.

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

    instead: ClassVar[dict[str, str]] = {
        "image": "give it as images",
        "prompt": "give it as question, and give images",
        "text": "give it as question",
        **dict.fromkeys(
            ("max_new_tokens", "temperature", "num_inference_steps", "generator"),
            "each expert has limits of its own; give it where you make them",
        ),
    }

    @property
    def device(self) -> NoReturn:
        """Raises an `InputError`: its models may be on several."""
        raise InputError(f"SpeculativeVerdict takes no device: {_EACH}")

    @property
    def dtype(self) -> NoReturn:
        """Raises an `InputError`: its models may be of several."""
        raise InputError(f"SpeculativeVerdict takes no dtype: {_EACH}")

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
        asked = images, question
        opinions = [Opinion(expert.name) for expert in self.experts]
        for expert, opinion in zip(self.experts, opinions, strict=True):
            opinion.answer = _ask(opinion, expert, expert.answer, *asked, wrong=_silent)
        chosen: list[Opinion] = []
        for expert, opinion in self._ranked(opinions, *asked):
            if len(chosen) < self.keep:
                opinion.path = _ask(opinion, expert, expert.reason, *asked)
                chosen += [opinion] if opinion.error is None else []
        if not chosen:
            errors = "; ".join(f"{opinion.name}: {opinion.error}" for opinion in opinions)
            raise VerdictError(f"no expert is left to base a verdict on ({errors})")
        cost = Cost()
        final = self.prompt(question, chosen)
        text = metered(cost, self.judge, self.judge.answer, images, final)
        return VerdictOutput(text, opinions, [opinion.name for opinion in chosen], cost)

    def _ranked(
        self, opinions: list[Opinion], images: Any, question: str
    ) -> list[tuple[Expert, Opinion]]:
        """Sort by rising score, ties in the given order; those that can't judge are left out."""
        heard = [(e, o) for e, o in zip(self.experts, opinions, strict=True) if o.error is None]
        if len(heard) < 2:
            return heard
        answers = list(dict.fromkeys(str(opinion.answer) for _, opinion in heard))

        def wrong(found: list[float]) -> str:
            sound = len(found) == len(answers) and all(map(math.isfinite, found))
            return "" if sound else "gave likelihoods that are no numbers"

        about = images, question, answers
        nll = {e.name: _ask(o, e, e.nll, *about, wrong=wrong) for e, o in heard}
        heard = [(e, o) for e, o in heard if o.error is None]
        places = [answers.index(str(opinion.answer)) for _, opinion in heard]
        table = [[nll[expert.name][place] for expert, _ in heard] for place in places]
        for (_, opinion), score in zip(heard, consensus_scores(table), strict=True):
            opinion.score = score
        return sorted(heard, key=lambda pair: pair[1].score or 0.0)


def _ask(
    opinion: Opinion,
    expert: Expert,
    ask: Callable[..., Any],
    *about: Any,
    wrong: Callable[[Any], str] = lambda _: "",
) -> Any:
    """Ask an expert; None: it failed, or said what is `wrong`, and the opinion says why."""
    try:
        said = metered(opinion.cost, expert, ask, *about)
        opinion.error = wrong(said) or None
    except Exception as error:  # whatever is wrong with one expert, the others can go on
        opinion.error = f"{type(error).__name__}: {error}"
    return said if opinion.error is None else None


def _silent(text: str | None) -> str:
    return "" if (text or "").strip() else "gave no answer"


def metered(cost: Cost, who: VerdictJudge, ask: Callable[..., Any], *about: Any) -> Any:
    """Ask, and add what it takes to `cost`, also if it fails."""
    tokens, clock = who.tokens, time.perf_counter()
    try:
        return ask(*about)
    finally:
        cost.calls += 1
        cost.tokens += who.tokens - tokens
        cost.seconds += time.perf_counter() - clock
