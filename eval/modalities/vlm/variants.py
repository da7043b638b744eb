"""Variants that answer: methods, the same while their drafter sees nothing, peers, experts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ....methods import ResolvedConfig, SpecConfig
from ....models.heads.published.specvlm import SpecVlmNetwork
from ....models.step_reward import Step, StepReward
from ....pipelines.output import VlmOutput, VlmStats
from ....pipelines.vlm.pipeline import VlmPipeline
from ...run.job import Job
from .answers import Answers, Chosen, Questions
from .blank import Blank
from .experts import EXPERT, VERDICT
from .peers import PEERS

BLANK = ":blank"
SUM = "sum"  # several branches of a compressor, each by its weight


class VlmMethod:
    """A method with a pipeline of its own over the components of another.

    What a method learns of its calls stays with that pipeline, and no method waits for the setting
    up of the one before it.

    Args:
        config: the method.
        pipe: has the components.
        blank: the drafter is shown a grey picture in place of each, and the target sees the true
            one.
    """

    def __init__(self, config: SpecConfig, pipe: VlmPipeline, blank: bool = False) -> None:
        self._truth: StepReward | None = None
        self.pipe = VlmPipeline(**pipe.components)
        self.pipe.reward = self._score if foresees(config) else None
        self.pipe.enable_speculation(config)
        self.blank = Blank(self.pipe, config) if blank else None
        head = dict(self.pipe.heads or {}).get(config.resolve("vlm").parts["head"])
        network = None if head is None else head.network
        self.clock: CompressorClock | None = None
        if isinstance(network, SpecVlmNetwork):
            self.clock = CompressorClock(network)

    def prepare(
        self, inputs: Questions, seeds: Sequence[int], call: Mapping[str, Any]
    ) -> Callable[[], Answers]:

        def answer() -> Answers:
            generator = [torch.Generator().manual_seed(seed) for seed in seeds]
            self._truth = inputs.truth
            if self.blank is not None:
                self.blank.show(inputs.pictures, inputs.texts)
            if self.clock is not None:
                self.clock.read()
            out = self.pipe(inputs.texts, inputs.pictures, generator=generator, **call)
            assert isinstance(out, VlmOutput)
            choices = [] if self.clock is None else chosen(out.stats, self.clock.read())
            return Answers(out.text, out.tokens, out.stats, choices=choices)

        return answer

    def _score(self, steps: Sequence[Step]) -> Sequence[float]:
        assert self._truth is not None, "an oracle is asked about samples whose truth is known"
        return self._truth(steps)


def foresees(config: SpecConfig) -> bool:
    """True if a method compares what both models write: an oracle, which the data has to judge."""
    return config.resolve("vlm").rule.foresees


def check_method(pipe: VlmPipeline, config: SpecConfig) -> ResolvedConfig:
    """Resolve a method for a pipeline, which has no reward of its own for an oracle.

    Raises:
        InputError: the method can't run.
    """
    if foresees(config):
        pipe = VlmPipeline(**pipe.components)
        pipe.reward = _unasked
    return pipe.check_speculation(config)


def _unasked(steps: Sequence[Step]) -> list[float]:
    raise AssertionError("a check of a method asks no reward")


def methods_of(job: Job) -> dict[str, SpecConfig]:
    """The methods that decode with the pipeline's model; a verdict is apart."""
    return {n: config for n, config in job.configs.items() if config.method != VERDICT}


def role_of(name: str) -> str | None:
    """The role of a row that is no method's; None: it is one's."""
    variant = name.partition("@")[0]
    if variant.endswith(BLANK):
        return "ablation"
    if variant.startswith(PEERS):
        return "peer"
    return "sceptic" if variant.startswith(EXPERT) else None


class CompressorClock:
    """Seconds in the gate and the compressor of a head, of all its calls since it was last read."""

    def __init__(self, head: SpecVlmNetwork) -> None:
        self._spent = self._since = 0.0
        for part in (head.gate, head.compressor):
            part.register_forward_pre_hook(self._begin)
            part.register_forward_hook(self._end)

    def read(self) -> float:
        """The seconds, which start from 0 again."""
        spent, self._spent = self._spent, 0.0
        return spent

    def _begin(self, *_: Any) -> None:
        self._since = time.perf_counter()

    def _end(self, *_: Any) -> None:
        self._spent += time.perf_counter() - self._since


def chosen(stats: VlmStats, seconds: float) -> list[Chosen]:
    """Choices for each question of a call; empty if nobody chooses."""
    found = []
    rows = zip(stats.branches, stats.visual_tokens, stats.draft_visual_tokens, strict=True)
    for weights, visual, kept in rows if stats.branches else ():
        branch = next(iter(weights)) if len(weights) == 1 else SUM
        found.append(Chosen(branch, visual, kept, seconds / len(stats.branches)))
    return found
