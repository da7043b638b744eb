"""Who answers in a run: methods, the same while their drafter sees nothing, peers, and experts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from ....config import SpecConfig
from ....models.heads.specvlm import SpecVlmHead
from ....pipelines.output import VlmOutput
from ....pipelines.vlm.pipeline import VlmPipeline
from ...run.job import Job
from ...variants import Variant
from .answers import Answers, OneByOne, Questions
from .blank import Blank, looks
from .elastic import CompressorClock, chosen
from .experts import EXPERT, VERDICT, expert_names
from .peers import PEER, peers

BLANK = ":blank"


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
        self.pipe = VlmPipeline(**pipe.components)
        self.pipe.enable_speculation(config)
        self.blank = Blank(self.pipe, config) if blank else None
        head = dict(self.pipe.heads or {}).get(str(config.resolved(modality="vlm").head))
        self.clock = CompressorClock(head) if isinstance(head, SpecVlmHead) else None

    def prepare(
        self, asked: Questions, seeds: Sequence[int], call: Mapping[str, Any]
    ) -> Callable[[], Answers]:
        """See `Variant.prepare`."""
        return partial(self.answer, asked, seeds, call)

    def answer(self, asked: Questions, seeds: Sequence[int], call: Mapping[str, Any]) -> Answers:
        """The answers; arguments as of `Variant.prepare`."""
        generator = [torch.Generator().manual_seed(seed) for seed in seeds]
        if self.blank is not None:
            self.blank.show(asked.pictures, asked.texts)
        if self.clock is not None:
            self.clock.read()
        out = self.pipe(asked.texts, asked.pictures, generator=generator, **call)
        assert isinstance(out, VlmOutput)
        choices = [] if self.clock is None else chosen(out.stats, self.clock.read())
        return Answers(out.text, out.tokens, out.stats, choices=choices)


def methods_of(job: Job) -> dict[str, SpecConfig]:
    """The methods that decode with the pipeline's model; a verdict is apart."""
    return {n: config for n, config in job.configs.items() if config.method != VERDICT}


def vlm_variant_names(job: Job) -> list[str]:
    """The names of a job's variants, in the order of the report."""
    found, suite = methods_of(job), job.suite
    blank = [n + BLANK for n, config in found.items() if suite.blank and looks(config)]
    return [*found, *blank, *(peers(found) if suite.peers else ()), *expert_names(job)]


def make_vlm_variant(name: str, configs: Mapping[str, SpecConfig], pipe: VlmPipeline) -> Variant:
    """The variant of a name of `vlm_variant_names`, experts excepted, over a pipeline's parts."""
    own = name.removesuffix(BLANK)
    if own in configs:
        return VlmMethod(configs[own], pipe, own != name)
    return OneByOne(partial(peers(configs)[name].answer_or_refuse, pipe))


def role_of(name: str) -> str | None:
    """The role of a row that is no method's; None: it is one's."""
    variant = name.partition("@")[0]
    if variant.endswith(BLANK):
        return "ablation"
    if variant.startswith(PEER):
        return "peer"
    return "sceptic" if variant.startswith(EXPERT) else None
