"""Measures of video rows: drafted and reused shares, seconds by part, quality at equal shares."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import permutations

import numpy as np

from ...pipelines.video.stats import VideoStats
from ..run.samples import Line, SampleLog
from ..schema import MethodResult
from ..schema_parts import Quality
from .bootstrap import FEWEST_PAIRS, known_interval, quotient_interval
from .counters import merged_stats, phase_seconds
from .equal_share import Routed, at_equal_share


def routed_rows(rows: Mapping[str, MethodResult], log: SampleLog, plain: str = "plain") -> None:
    """Fill in of rows that are labelled: drafted and reused shares, seconds by part, the speed-up
    of all clips together, quality as a share of plain's, and differences at equal shares.

    Only samples that every row has are compared.
    """
    clocked = {n: [line for line in log.of("speed") if line["method"] == n] for n in rows}
    for name, row in rows.items():
        timed = clocked[name]
        total = _total(log, name)
        row.drafted_share, row.reused_share = total.drafted_share, total.reused_share or None
        row.phase_seconds = phase_seconds(merged_stats(timed) if timed else total)
        if timed:
            whole = statistics.fmean(line["seconds"] for line in timed)
            row.phase_seconds["rest"] = whole - sum(row.phase_seconds.values())
            if name != plain:
                _speedup_of_all(row, clocked[plain], timed)
    clips = _clips(log.of("quality"), list(rows))
    metrics = list(next(iter(rows.values())).quality)
    for metric in metrics:
        baseline = _scores(metric, clips[plain])
        for name, row in rows.items():
            if name != plain:
                _share_of_plain(row.quality[metric], _scores(metric, clips[name]), baseline)
    for share in (_drafted, _reused) if metrics else ():
        routed = {name: _routed(name, metrics[0], of, share) for name, of in clips.items()}
        _compare(rows, routed, plain)


def routing_notes(log: SampleLog, rows: Mapping[str, MethodResult]) -> list[str]:
    """Notes on rows whose reward or drafter failed."""
    notes = []
    for name in rows:
        total = _total(log, name)
        if total.unjudged:
            notes.append(
                f"{name}: {total.unjudged} blocks were rejected because the reward failed: "
                f"{total.reason}"
            )
        if total.fault:
            notes.append(f"{name}: the drafter was given up: {total.fault}")
    return notes


def _total(log: SampleLog, name: str) -> VideoStats:
    """The counters of a row's judged clips; where nobody judged, of those that were timed."""
    for kind in ("counts", "speed"):
        lines = [line for line in log.of(kind) if line["method"] == name]
        if lines:
            break
    total = merged_stats(lines)
    assert isinstance(total, VideoStats)
    return total


def _clips(lines: Sequence[Line], names: Sequence[str]) -> dict[str, list[list[Line]]]:
    """Lines of each row by prompt: prompts are resampled, not samples."""
    found = {n: {line["index"]: line for line in lines if line["method"] == n} for n in names}
    common = sorted(set.intersection(*(set(of) for of in found.values())))
    prompts: dict[str, list[int]] = {}
    for index in common:
        prompts.setdefault(found[names[0]][index]["prompt"], []).append(index)
    return {n: [[of[i] for i in group] for group in prompts.values()] for n, of in found.items()}


def _scores(metric: str, clips: Sequence[Sequence[Line]]) -> list[float]:
    """Sums `[n]` over the samples of each prompt that has the metric."""
    having = [[x["scores"][metric] for x in of if metric in x["scores"]] for of in clips]
    return [sum(values) for values in having if values]


def _speedup_of_all(row: MethodResult, plain: Sequence[Line], timed: Sequence[Line]) -> None:
    # drafts stand in some clips and fall in others: the median of clips is no mean of them
    above, below = ([float(line["seconds"]) for line in lines] for lines in (plain, timed))
    row.speedup_of_all = sum(above) / sum(below)
    if len(below) >= FEWEST_PAIRS:
        row.speedup_of_all_ci95 = quotient_interval(above, below)


def _share_of_plain(quality: Quality, mine: Sequence[float], plain: Sequence[float]) -> None:
    """The ratio of the means, with the interval of paired resamples."""
    if not sum(plain) > 0:
        return
    above, below = np.array(mine), np.array(plain)
    quality.share_of_plain = float(above.sum() / below.sum())
    quality.share_ci95 = known_interval(
        lambda picked: np.asarray(above[picked].sum(1) / below[picked].sum(1)), len(above)
    )


def _drafted(line: Line) -> float:
    makers: list[str] = line["made_by"]
    return makers.count("drafter") / len(makers)


def _reused(line: Line) -> float:
    return float(line.get("reused_share", 0.0))  # which older runs do not tell


def _routed(
    name: str, metric: str, clips: Sequence[Sequence[Line]], share: Callable[[Line], float]
) -> Routed:
    """Means over the samples of each prompt."""
    return Routed(
        name,
        np.array([statistics.fmean(map(share, of)) for of in clips]),
        np.array([statistics.fmean(line["scores"][metric] for line in of) for of in clips]),
    )


def _compare(rows: Mapping[str, MethodResult], routed: Mapping[str, Routed], plain: str) -> None:
    """Compare each row with a knob with the other families of rows, the sceptic's as well.

    A mixture of rows that lie far apart is worse than the rows between them would be, so of two
    ways to route each is held against the other.
    """
    families: dict[str, list[str]] = {}
    for name, row in rows.items():
        if row.knob is not None:
            families.setdefault(row.family, []).append(name)
    for (_, own), (other, theirs) in permutations(families.items(), 2):
        rungs = [routed[name] for name in (plain, *theirs)]
        for name in own:
            if (found := at_equal_share(routed[name], rungs)) is not None:
                rows[name].at_equal_share.setdefault(other, found)
