"""Bare forward passes of language models, which the ideal speed-up of answers is made of."""

from __future__ import annotations

from contextlib import ExitStack
from functools import cached_property

from transformers import PreTrainedModel

from ....methods import SpecConfig
from ....models.token_grid import TokenGrid
from ....models.transformers.causal import CausalDecoder
from ....models.transformers.probe import probed
from ....pipelines.output import VlmStats
from ....pipelines.vlm.answering import AnsweringPipeline
from ...measure.ideal_speedup import BareCosts, ideal_seconds
from ...measure.timing import Sample
from ...run.samples import Line


class BareAnswers:
    """Measures, beside every sample, the passes that answers to it are made of.

    They are those of the language models alone: pictures and prompts are read before the loop.

    Args:
        pipe: has the target, and a drafter or none.
        limit: most new tokens of an answer.
    """

    def __init__(self, pipe: AnsweringPipeline, limit: int) -> None:
        self._pipe, self._limit = pipe, limit
        self._sample: tuple[str, int] | None = None
        self._costs: dict[str, BareCosts] = {}

    @cached_property
    def _target(self) -> CausalDecoder:
        return _decoder(self._pipe.model)

    @cached_property
    def _drafter(self) -> CausalDecoder:
        return _decoder(self._pipe.drafter)

    def line(self, config: SpecConfig | None, sample: Sample) -> Line:
        """Fields of a timed line; a row without a method, or with several samples, has none.

        What the passes cost is measured once a sample: a machine's speed drifts.
        """
        stats = sample.stats
        if config is None or not isinstance(stats, VlmStats) or not isinstance(sample.prompt, str):
            return {}
        needs = set(config.resolve("vlm").needs)
        if needs - {"drafter"}:
            return {}
        decoders = {"target": self._target} | ({"drafter": self._drafter} if needs else {})
        if (sample.prompt, sample.seed) != self._sample:  # a question is asked of many pictures
            self._sample, self._costs = (sample.prompt, sample.seed), {}
        for name, decoder in decoders.items():
            prefix = min(stats.prompt_tokens[0], len(decoder.rotary()) - self._limit)
            costs = BareCosts(decoder, 1, TokenGrid(1, self._limit), prefix, (0.5,))
            self._costs.setdefault(name, costs)
        with ExitStack() as during:
            for decoder in decoders.values():
                during.enter_context(decoder.repacked())
            target, drafter = self._costs["target"], self._costs.get("drafter")
            bare = ideal_seconds(config, stats, target, drafter, "vlm")
        spent = {name: dict(sorted(self._costs[name].now.items())) for name in decoders}
        return {"bare_seconds": bare, "costs": spent}


def _decoder(model: PreTrainedModel) -> CausalDecoder:
    """A decoder whose positions are columns: how long a pass takes does not depend on them."""
    decoder = CausalDecoder(model)
    decoder.masks = probed(model).masks
    return decoder
