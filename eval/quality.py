"""Quality of methods: every prompt drawn by each, in batches, judged, and compared in pairs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from ..pipelines.continuous_stats import ContinuousStats
from ..pipelines.token_image import TokenImagePipeline
from . import bootstrap
from .arms import AGAIN, arm
from .counters import merged_stats, samples_of
from .files import png_bytes
from .run.job import Job, Outcome, Unit
from .run.samples import Line
from .schema import MethodResult, Quality
from .scorers import make_scorers

BY_TASK = ("geneval", "accuracy")  # metrics that are means over tasks
FEWEST = 5  # prompts of a task: resamples of fewer look surer than they are


class QualityWorker:
    """Draws and judges quality units.

    A row of a batch is the picture it would be alone, so the batch matters to time only; times are
    not paired here and no speed-up is given.
    """

    def __init__(self, job: Job, pipe: Any) -> None:
        self.job, self.pipe = job, pipe
        self.scorers = make_scorers(job)

    def run(self, unit: Unit) -> Outcome:
        """One batch by one row's arm."""
        job, indices = self.job, range(unit.first, unit.first + unit.count)
        prompts, drawn_by = [job.prompt(i) for i in indices], arm(job, unit.method)
        seeds = [job.seed + drawn_by.shift + i for i in indices]
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        before = self.pipe.speculation
        self.pipe.enable_speculation(drawn_by.config)
        try:
            images, stats = self.pipe(
                [p.prompt for p in prompts],
                generator=generators,
                return_dict=False,
                **drawn_by.call,
            )
        finally:
            self.pipe.enable_speculation(before)
        started = time.perf_counter()
        scores = {name: scorer(prompts, images) for name, scorer in self.scorers.items()}
        stats.seconds["reward"] = time.perf_counter() - started
        outcome = Outcome(unit, [])
        for row, index in enumerate(indices):
            place = picture_path(unit.method, index)
            outcome.files[place] = png_bytes(images[row])
            outcome.lines.append(
                {
                    "kind": "quality",
                    "method": unit.method,
                    "index": index,
                    "prompt": prompts[row].prompt,
                    "tag": prompts[row].tag,
                    "seed": seeds[row],
                    "scores": {name: many[row][0] for name, many in scores.items()},
                    "reason": "; ".join(many[row][1] for many in scores.values() if many[row][1]),
                    "picture": place,
                }
            )
            if not isinstance(stats, ContinuousStats):  # whose rows are not pictures
                outcome.lines[-1]["nfe"] = stats.calls[row]
        outcome.lines.append({"kind": "counts", "method": unit.method, "stats": asdict(stats)})
        return outcome


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
            phase_seconds={p: t / samples_of(total) for p, t in sorted(total.seconds.items())},
        )
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
        mine = [line for line in samples if metric in line["scores"]]
        theirs = plain and [line for line in plain if metric in line["scores"]]
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
    tags = [line["tag"] if metric in BY_TASK else "" for line in samples]
    # one question may be asked about many pictures
    items = [line.get("item", line["prompt"]) for line in samples]
    means = bootstrap.StratifiedMean(tags, items)
    enough = means.fewest >= FEWEST
    out = Quality(means(values), means.interval(values) if enough else None)
    if len(set(tags)) > 1:
        for tag in dict.fromkeys(tags):
            out.parts[tag] = float(values[[t == tag for t in tags]].mean())
    if plain is not None:
        change = values - _scores(metric, plain)
        out.difference_to_plain = means(change)
        out.difference_ci95 = means.interval(change) if enough else None
        if margin is not None:
            out.verdict = "undecided"
            if out.difference_ci95 is not None:
                out.verdict = bootstrap.verdict(loss_of(out.difference_ci95), margin)
    return out


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
