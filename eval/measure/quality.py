"""Quality of methods: every prompt drawn by each, in batches, judged, and compared in pairs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any

import numpy as np
import torch
from PIL import Image

from ...engine.stats import SpecStats
from ...pipelines.continuous.stats import ContinuousStats
from ...pipelines.image.token_pipeline import TokenImagePipeline
from ..files import png_bytes
from ..metrics.base import PictureScorer
from ..metrics.registry import metric_of_run
from ..run.job import Job, Outcome, Unit
from ..run.samples import Line
from ..schema import MethodResult
from ..schema_parts import Quality
from ..variants import AGAIN, arm, shift
from . import bootstrap
from .counters import accepted_lengths, count_sibling, merged_stats, phase_seconds
from .scorers import make_scorers

Judged = tuple[dict[str, float], str]  # scores by metric, and why they are low

FEWEST = 5  # prompts of a task: resamples of fewer look surer than they are


class QualityWorker:
    """Draws and judges quality units.

    A row of a batch is the picture it would be alone, so the batch matters to time only; times are
    not paired here and no speed-up is given.
    """

    def __init__(self, job: Job, pipe: Any) -> None:
        self.job, self.pipe = job, pipe

    def run(self, unit: Unit) -> Outcome:
        """One batch by one row's arm."""
        job, indices = self.job, range(unit.first, unit.first + unit.count)
        prompts, drawn_by = [job.prompt(i) for i in indices], arm(job, unit.method)
        first, outcome = job.seed + drawn_by.shift, Outcome(unit, [])
        generators = [torch.Generator().manual_seed(first + i) for i in indices]
        before = self.pipe.speculation
        self.pipe.enable_speculation(drawn_by.config)
        try:
            outputs, stats = self.pipe(
                [p.prompt for p in prompts],
                generator=generators,
                return_dict=False,
                **drawn_by.call,
            )
        finally:
            self.pipe.enable_speculation(before)
        self.add(outcome, unit.method, indices, outputs, stats)
        return outcome

    def add(
        self, outcome: Outcome, method: str, indices: Sequence[int], outputs: Any, stats: SpecStats
    ) -> None:
        """Judge a row's outputs for some samples, and add their lines and pictures."""
        prompts, first = [self.job.prompt(i) for i in indices], self.job.seed + shift(method)
        started = time.perf_counter()
        found = self.judged(prompts, outputs)
        stats.seconds["reward"] = time.perf_counter() - started
        for row, index in enumerate(indices):
            (scores, reason), place = found[row], picture_path(method, index)
            outcome.files[place] = png_bytes(self.picture(outputs[row], stats, row))
            outcome.lines.append(
                {
                    "kind": "quality",
                    "method": method,
                    "index": index,
                    "prompt": prompts[row].prompt,
                    "tag": prompts[row].tag,
                    "seed": first + index,
                    "scores": scores,
                    "reason": reason,
                    "picture": place,
                    **self.counted(stats, row),
                }
            )
        outcome.lines.append({"kind": "counts", "method": method, "stats": asdict(stats)})

    def judged(self, prompts: Sequence[Any], outputs: Any) -> list[Judged]:
        """Scores by metric of every output, and what is wrong with it."""
        scored = {name: scorer(prompts, outputs) for name, scorer in self.scorers.items()}
        return [
            (
                {name: many[row][0] for name, many in scored.items()},
                "; ".join(many[row][1] for many in scored.values() if many[row][1]),
            )
            for row in range(len(prompts))
        ]

    def picture(self, output: Any, stats: SpecStats, row: int) -> Image.Image:
        """What a reader is shown of an output, the one of a row of `stats`."""
        shown: Image.Image = output
        return shown

    def counted(self, stats: SpecStats, row: int) -> dict[str, Any]:
        """What the line of a row's output says of its counters."""
        if isinstance(stats, ContinuousStats):  # whose rows are not pictures
            return {}
        return {"nfe": stats.calls[row]}

    @cached_property
    def scorers(self) -> dict[str, PictureScorer]:
        """The suite's metrics of single pictures, by name."""
        return make_scorers(self.job)


def picture_path(method: str, index: int) -> str:
    """Where a picture lies in the run's folder."""
    return f"pictures/{method}/{index:05d}.png"


def quality_rows(
    lines: Sequence[Line],
    counts: Sequence[Line],
    methods: Sequence[str],
    decides: tuple[str, float] | None,
    plain: str = "plain",
) -> dict[str, MethodResult]:
    """Rows of the report by method, from the lines of the log.

    Args:
        decides: the metric that verdicts are about, and its margin.
        plain: the method that the others are compared with.

    Only samples that every method has are compared, so that all rows stand on the same ones.
    """
    by_method = {m: {line["index"]: line for line in lines if line["method"] == m} for m in methods}
    common = sorted(set.intersection(*(set(found) for found in by_method.values())))
    samples = {m: [found[i] for i in common] for m, found in by_method.items()}
    rows: dict[str, MethodResult] = {}
    for method in methods:
        total = merged_stats([line for line in counts if line["method"] == method])
        rows[method] = MethodResult(
            contract=total.contract,
            n=len(common),
            nfe_per_sample=total.nfe,
            target_tokens_per_sample=statistics.fmean(total.target_tokens),
            mean_acceptance_length=total.mean_acceptance_length,
            acceptance_by_position=total.acceptance_by_position,
            phase_seconds=phase_seconds(total),
        )
        rows[method].accepted_lengths = accepted_lengths(total)
        count_sibling(rows[method], total)
        rows[method].quality = compare(
            samples[method],
            None if method == plain else samples[plain],
            None if method == AGAIN else decides,
        )
    return rows


def compare(
    samples: list[Line], plain: list[Line] | None, decides: tuple[str, float] | None
) -> dict[str, Quality]:
    """Every metric that the samples of a method have, by name; see `compare_scores`.

    A metric may be of some samples alone, such as those of long answers.
    """
    found = {}
    for metric in dict.fromkeys(name for line in samples for name in line["scores"]):
        margin = decides[1] if decides is not None and decides[0] == metric else None
        mine, theirs = _having(metric, samples), plain and _having(metric, plain)
        if not mine:
            continue
        found[metric] = compare_scores(metric, mine, theirs, margin)
    return found


def compare_scores(
    metric: str, samples: list[Line], plain: list[Line] | None, margin: float | None
) -> Quality:
    """A metric of one method with its interval, and its difference to plain in pairs.

    GenEval's score is the mean of its tasks' means, accuracy that of the kinds of questions.
    Prompts are resampled, within their tasks and with all of their samples: pictures of one prompt
    are alike.
    """
    values = _scores(metric, samples)
    told = metric_of_run(metric)
    tags = [line["tag"] if told.told_by_task else "" for line in samples]
    strata = tags if told.by_task else [""] * len(samples)
    # one question may be asked about many pictures
    items = [line.get("item", line["prompt"]) for line in samples]
    means = bootstrap.StratifiedMean(strata, items)
    enough = means.fewest >= FEWEST
    out = Quality(means(values), means.interval(values) if enough else None)
    if len(set(tags)) > 1:
        for tag in dict.fromkeys(tags):
            out.parts[tag] = float(values[[t == tag for t in tags]].mean())
    if plain is not None:
        whole = _scores(metric, plain)
        change = values - whole
        if told.share and means(whole) > 0:
            out.share_of_plain = out.value / means(whole)
            out.share_ci95 = means.share_interval(values, whole) if enough else None
        out.difference_to_plain = means(change)
        out.difference_ci95 = means.interval(change) if enough else None
        if margin is not None:
            out.verdict = "undecided"
            if out.difference_ci95 is not None:
                out.verdict = bootstrap.verdict(loss_of(out.difference_ci95), margin)
    return out


def _having(metric: str, samples: list[Line]) -> list[Line]:
    """The samples that have a figure of a metric."""
    return [line for line in samples if line["scores"].get(metric) is not None]


def _scores(metric: str, samples: list[Line]) -> Any:
    return np.array([line["scores"][metric] for line in samples], dtype=np.float64)


def loss_of(difference: bootstrap.Interval) -> bootstrap.Interval:
    """What is lost against plain, from the method's difference to it; larger scores are better."""
    low, high = difference
    return -high, -low


def set_quality(
    distance: Callable[[Any], float], features: Any, plain: Any | None, rounds: int = 200
) -> Quality:
    """A distance of a method's pictures, as a set, to the reference; smaller is better.

    A resample repeats pictures and so lies farther from any reference than the set itself. That
    cancels in the difference of two sets, which has an interval; the distance alone has none.

    Args:
        distance: of features `[N, D]` to the reference's.
        features: of the method's pictures, in the order of the samples.
        plain: of plain's, resampled in the same pairs; None for plain itself.
        rounds: resamples; 0: no interval.
    """
    out = Quality(distance(features), larger_is_better=False)
    if plain is None:
        return out
    out.difference_to_plain = out.value - distance(plain)
    if rounds and len(features) >= FEWEST:
        n, rng = len(features), np.random.default_rng(0)
        picked = [rng.integers(0, n, n) for _ in range(rounds)]
        differences = [distance(features[i]) - distance(plain[i]) for i in picked]
        low, high = np.percentile(differences, [2.5, 97.5])
        out.difference_ci95 = float(low), float(high)
    return out


@torch.inference_mode()
def target_entropy(pipe: TokenImagePipeline, job: Job, count: int) -> float:
    """Mean entropy of the target on its own output: nats per token, after guidance and warpers."""
    prompts = [job.prompt(i).prompt for i in range(count)]
    generators = [torch.Generator().manual_seed(job.seed + i) for i in range(count)]
    before = pipe.speculation
    pipe.disable_speculation()
    try:
        tokens, _ = pipe(
            prompts, generator=generators, output_type="tokens", return_dict=False, **job.call
        )
    finally:
        pipe.enable_speculation(before)
    laws = pipe.token_laws(prompts, tokens, **job.call)
    return float(torch.special.entr(laws).sum(-1).mean())
