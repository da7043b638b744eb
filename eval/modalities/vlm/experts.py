"""Speculative Verdict against each of its experts alone; the verdict model alone is plain."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from PIL import Image

from ....engine.stats import SpecStats
from ....errors import InputError
from ....files import read_object
from ....models.transformers.vlm_folder import check_family
from ....pipelines.model_folders import locate
from ....pipelines.verdict.expert import TransformersExpert
from ....pipelines.verdict.folder import experts_in, load_expert, verdict_words
from ....pipelines.verdict.verdict import Cost, SpeculativeVerdict, VerdictError, metered
from ....pipelines.vlm.pipeline import VlmPipeline
from ...run.job import Job
from .answers import Answers, OneByOne

VERDICT = "verdict"
EXPERT = "expert:"


def experts_of(job: Job) -> dict[str, str]:
    """Folders of a job's experts by name: the user's, or those in the pipeline's folder."""
    own = {n.removeprefix(EXPERT): p for n, p in job.files.items() if n.startswith(EXPERT)}
    if own:
        return own
    found = experts_in(locate(job.model, VlmPipeline.embedded))
    return {name: str(folder) for name, folder in found.items()}


def check_experts(job: Job) -> None:
    """Raise an `InputError` if a verdict lacks its experts, or one of them is no model."""
    found = experts_of(job)
    if _by_name(job) and not found:
        raise InputError(
            "method 'verdict' needs experts, and the model's folder has none: give "
            "--expert NAME=FOLDER"
        )
    for folder in found.values() if expert_names(job) else ():
        config = read_object(locate(folder, VlmPipeline.embedded) / "config.json")
        check_family(str(config.get("model_type")))


def expert_names(job: Job) -> list[str]:
    """The variants of a run's verdict, in the report's order; none where nobody asks for it."""
    if not (_by_name(job) or job.suite.verdict):
        return []
    names = [EXPERT + name for name in experts_of(job)]
    return [VERDICT, *names] if names else []


def _by_name(job: Job) -> bool:
    """True if the user names the verdict among the methods."""
    return any(config.method == VERDICT for config in job.configs.values())


class Experts:
    """The experts of a job, loaded when first asked.

    Args:
        pipe: the job's pipeline, whose model gives the verdict.
    """

    def __init__(self, job: Job, pipe: VlmPipeline) -> None:
        self.job, self.pipe, self.folders = job, pipe, experts_of(job)
        self.home = locate(job.model, VlmPipeline.embedded)
        self.words = verdict_words(self.home)
        self._loaded: dict[str, TransformersExpert] = {}

    def variant(self, name: str, limit: int) -> OneByOne:
        """The variant of a name of `expert_names`; `limit`: new tokens of an answer or a path."""
        if name != VERDICT:
            return OneByOne(partial(_answer, self._expert(name.removeprefix(EXPERT), limit)))
        judge = TransformersExpert(
            self.pipe.model, self.pipe.processor, VERDICT, answer_tokens=limit
        )
        experts = [self._expert(name, limit) for name in self.folders]
        verdict = SpeculativeVerdict(experts, judge, prompt=self.words.prompt)
        return OneByOne(partial(_judge, verdict))

    def _expert(self, name: str, limit: int) -> TransformersExpert:
        if name not in self._loaded:
            self._loaded[name] = load_expert(
                self.pipe,
                self.home,
                locate(self.folders[name], VlmPipeline.embedded),
                name=name,
                answer_tokens=limit,
                reason_tokens=limit,
                reason_prompt=self.words.reason,
            )
        return self._loaded[name]


def _answer(expert: TransformersExpert, picture: Image.Image, question: str, *_: Any) -> Answers:
    """Greedy answer of one expert alone: the cheap alternative to a verdict."""
    cost = Cost()
    text = metered(cost, expert, lambda: expert.answer(picture, question))
    stats = _stats({expert.name: cost})
    stats.emitted = [cost.tokens]  # by no call of the target
    return Answers([text], [[]], stats, [{expert.name: cost}])


def _judge(verdict: SpeculativeVerdict, picture: Image.Image, question: str, *_: Any) -> Answers:
    """Speculative Verdict, greedy. Where no expert is left there is no answer, after some time."""
    started = time.perf_counter()
    try:
        out = verdict(picture, question)
    except VerdictError:
        lost = {"experts": Cost(seconds=time.perf_counter() - started)}
        return Answers([""], [[]], _stats(lost), [{}])
    costs = {opinion.name: opinion.cost for opinion in out.opinions} | {VERDICT: out.cost}
    return Answers([out.text], [[]], _stats(costs), [costs])


def _stats(costs: Mapping[str, Cost]) -> SpecStats:
    """The counters of one answer: the verdict model is the target, and its tokens are its calls."""
    own = costs.get(VERDICT, Cost())
    others = sum(cost.seconds for name, cost in costs.items() if name != VERDICT)
    return SpecStats(
        VERDICT,
        "lossy",
        calls=[own.tokens],
        drafted=[0],
        accepted=[0],
        emitted=[own.tokens],
        target_tokens=[own.tokens],
        seconds={"draft": others, "target": own.seconds},
    )
