"""A suite's prompts on its pipeline, and what its drafters say of them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mmspec.errors import InputError
from mmspec.eval.modalities.base import modality
from mmspec.eval.run.job import Job
from mmspec.models.transformers.sparse_experts import SparseExperts
from mmspec.pipelines.notices import timed_apart

from .recorded import Trace, recording, restricted
from .rounds import Round, rounds_of
from .schedules import Text

LENGTH = 4  # of drafts that are simulated
LENGTHS = (1, 2, 4, 8)  # of those whose rounds are timed
BESIDE = (2, 6)  # the same where two processes work
CHECKED = (3, 6)  # of those whose clock is foretold
FUZZY = 4  # layers of a group
PRUNES = 0.01  # drafts to which the middle layer gives less are pruned
BITS = f"specqd[num_draft_tokens={LENGTH},target_weights=int8,draft_weights=int8-high4]"
FUZZY_COPY = f"easyspec[num_draft_tokens={LENGTH},fuzzy_layers={FUZZY}]"


def draft(length: int) -> str:
    """The method that drafts so many tokens, as `--methods` takes it."""
    return f"draft[num_draft_tokens={length}]"


def ahead(length: int) -> str:
    """The same of PEARL on two processes."""
    return f"pearl[num_draft_tokens={length},draft_beside=process]"


def early(layer: int) -> str:
    """The same of drafts by the target's first layers."""
    return f"early-exit[exit_layer={layer}]"


def pruned(layer: int) -> str:
    """The same of drafts that these layers prune."""
    return f"draft[num_draft_tokens={LENGTH},rule=restricted,{_pruned(layer)}]"


def _pruned(layer: int) -> str:
    return f"prune_layers={layer},prune_probability={PRUNES}"


def bits_of(pipe: Any) -> str:
    """The same of drafts by the target's high bits: of sparse experts by half of them, the hot."""
    network = getattr(pipe, "model", None)
    experts = [] if network is None else SparseExperts(network).counts
    return f"{BITS[:-1]},hot_experts={min(experts) // 2}]" if experts else BITS


def methods_of(layer: int, pipe: Any) -> tuple[str, ...]:
    """The methods that run."""
    drafts = [draft(n) for n in sorted({*LENGTHS, *CHECKED})]
    two = [ahead(n) for n in sorted({*BESIDE, LENGTH})]
    return ("plain", *drafts, *two, early(layer), pruned(layer), bits_of(pipe), FUZZY_COPY)


class Subject:
    """A suite's prompts on its pipeline, one method at a time."""

    def __init__(self, job: Job, pipe: Any) -> None:
        self.job, self.pipe = job, pipe
        self.bench = modality(job.suite.pipeline).bench(job, pipe)

    def run(self, method: str, first: int, count: int = 1) -> Any:
        """The statistics of a call for prompts from `first` on."""
        indices = range(first, first + count)
        seeds = [self.job.seed + n for n in indices]
        variant = self.bench.variant(method)
        run = variant.prepare(self.bench.inputs(indices), seeds, self.job.call)
        with timed_apart():
            return run().stats

    def trace(self, method: str, sample: int) -> Trace:
        """Record of what a method's drafter would have said along a plain output."""
        with recording() as trace:
            self.run(method, sample)
        return trace

    def rounds(self, method: str, first: int, count: int = 1) -> list[Round]:
        """The timed rounds of a call."""
        with rounds_of() as rounds:
            self.run(method, first, count)
        return rounds

    def copied(self) -> Subject:
        """The same with a copy of the target as its draft model."""
        target = "transformer" if hasattr(self.pipe, "transformer") else "model"
        parts = dict(self.pipe.components)
        parts["drafter"] = copy.deepcopy(parts[target])
        return Subject(self.job, type(self.pipe)(**parts))


def layers_of(pipe: Any) -> int:
    """Layers of a pipeline's target.

    Raises:
        InputError: it has none that can be left out.
    """
    network = getattr(pipe, "transformer", None)
    if network is not None:
        return len(network.layers)
    return int(pipe.model.config.get_text_config().num_hidden_layers)


@dataclass
class Likely:
    """Probability that a draft of each token of an output stands, and is pruned; see `Text`."""

    stands: list[float]
    early: Any
    limit: int
    sample: int
    pruned: Sequence[float] = ()

    def drawn(self, seed: int) -> Text:
        """The output with coins thrown."""
        coins = np.random.default_rng([self.sample, seed]).random(len(self.stands))
        stood = np.array(self.stands)
        gone = None
        if len(self.pruned):
            gone = (coins >= stood) & (coins < stood + np.array(self.pruned))
        return Text(coins < stood, self.limit, self.early, gone)


def likely(subject: Subject, sample: int, layer: int) -> tuple[Likely, Likely]:
    """Record of the draft model's drafts, and of the same where a middle layer prunes."""
    said, told = subject.trace(draft(LENGTH), sample), subject.trace(early(layer), sample)
    if said.tokens != told.tokens:
        raise InputError(f"prompt {sample}: the target's text differs from run to run")
    ranks = np.array(told.rank)
    stands, gone = restricted(said, told, PRUNES)
    return (
        Likely(said.stands, ranks, said.limit, sample),
        Likely(stands, ranks, said.limit, sample, gone),
    )


def played(rounds: Sequence[Round], limit: int) -> Text:
    """The output of a run, to be played by the schedule of its own method: it takes as many calls.

    Tokens that no draft was judged at are taken to fall.
    """
    stands: list[bool] = []
    for one in rounds:
        own = [one.guessed] * (one.emitted - one.accepted)
        stands += [True] * one.accepted + own
    return Text(np.array(stands, dtype=bool), limit)
