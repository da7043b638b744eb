"""Quality of methods: every prompt drawn by each, in batches, judged, and compared in pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ...pipelines.image.token_pipeline import TokenImagePipeline
from ..metrics.registry import metric_of_run
from ..run.job import Job
from ..run.samples import Line
from ..schema import MethodResult
from ..schema_parts import Quality
from ..variants import AGAIN, unchanged
from . import bootstrap
from .counters import counted_row, merged_stats


def quality_rows(
    lines: Sequence[Line],
    counts: Sequence[Line],
    methods: Sequence[str],
    decides: tuple[str, float] | None,
) -> dict[str, MethodResult]:
    """Rows of the report by method, from the lines of the log.

    Args:
        methods: the first is the one that the others are compared with.
        decides: the metric that verdicts are about, and its margin.

    Only samples that every method has are compared, so that all rows stand on the same ones.
    """
    by_method = {m: {line["index"]: line for line in lines if line["method"] == m} for m in methods}
    common = sorted(set.intersection(*(set(found) for found in by_method.values())))
    samples = {m: [found[i] for i in common] for m, found in by_method.items()}
    rows: dict[str, MethodResult] = {}
    plain, margins = samples[methods[0]], dict([decides] if decides else [])
    for method, mine in samples.items():
        total = merged_stats([line for line in counts if line["method"] == method])
        row = rows[method] = counted_row(total, len(common), shared=True)
        if all("emitted" in line for line in mine):  # calls for continuous tokens are no picture's
            emitted, calls = ([line[name] for line in mine] for name in ("emitted", "nfe"))
            row.mean_acceptance_length_ci95 = bootstrap.quotient_interval(emitted, calls)
        scores = (score for line in mine for score in line["scores"].items())
        for metric in dict.fromkeys(name for name, value in scores if value is not None):
            margin = None if method == AGAIN else margins.get(metric)
            theirs = None if mine is plain else plain
            found = compare_scores(metric, mine, theirs, margin)
            if found is not None:
                row.quality[metric] = found
    return rows


def compare_scores(
    metric: str, samples: list[Line], plain: list[Line] | None, margin: float | None
) -> Quality | None:
    """A metric of one method with its interval, and its difference to plain in pairs.

    GenEval's score is the mean of its tasks' means, accuracy that of the kinds of questions.
    Prompts are resampled, within their tasks and with all of their samples: pictures of one prompt
    are alike. A sample without a figure, of either, counts in neither.

    Args:
        plain: the same samples, in the same order; None: there is nothing to compare with.

    Returns:
        None where no sample counts.
    """
    both = zip(samples, plain or samples, strict=True)
    having = [pair for pair in both if all(line["scores"].get(metric) is not None for line in pair)]
    if not having:
        return None
    samples = [line for line, _ in having]
    values, whole = np.array(
        [[line["scores"][metric] for line in pair] for pair in having], dtype=np.float64
    ).T
    told = metric_of_run(metric)
    tags = [line["tag"] if told.told_by_task else "" for line in samples]
    strata = tags if told.by_task else [""] * len(samples)
    # one question may be asked about many pictures
    items = [line.get("item", line["prompt"]) for line in samples]
    means = bootstrap.StratifiedMean(strata, items)
    enough = means.fewest >= bootstrap.FEWEST_CLUSTERS
    out = Quality(means(values), means.interval(values, told.span) if enough else None)
    if len(set(tags)) > 1:
        for tag in dict.fromkeys(tags):
            out.parts[tag] = float(values[[t == tag for t in tags]].mean())
    if plain is not None:
        change = values - whole
        if told.share and means(whole) > 0:
            out.share_of_plain = out.value / means(whole)
            out.share_ci95 = means.share_interval(values, whole) if enough else None
        out.difference_to_plain = means(change)
        out.difference_ci95 = means.interval(change, told.span) if enough else None
        if margin is not None:
            out.verdict = "undecided"
            if out.difference_ci95 is not None:
                out.verdict = bootstrap.verdict(loss_of(out.difference_ci95), margin)
    return out


def loss_of(difference: bootstrap.Interval) -> bootstrap.Interval:
    """Loss against plain, from the method's difference to it; larger scores are better."""
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
    if rounds and len(features) >= bootstrap.FEWEST_CLUSTERS:
        n, rng = len(features), np.random.default_rng(0)
        picked = [rng.integers(0, n, n) for _ in range(rounds)]
        out.difference_ci95 = bootstrap.middle_95(
            [distance(features[i]) - distance(plain[i]) for i in picked]
        )
    return out


@torch.inference_mode()
def target_entropy(pipe: TokenImagePipeline, job: Job, count: int) -> float:
    """Mean entropy of the target on its own output: nats per token, after guidance and warpers."""
    prompts = [job.prompt(i).prompt for i in range(count)]
    generators = [torch.Generator().manual_seed(job.seed + i) for i in range(count)]
    with unchanged(pipe):
        pipe.disable_speculation()
        tokens, _ = pipe(
            prompts, generator=generators, output_type="tokens", return_dict=False, **job.call
        )
    laws = pipe.token_laws(prompts, tokens, **job.call)
    return float(torch.special.entr(laws).sum(-1).mean())
