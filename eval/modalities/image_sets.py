"""Distances between whole sets of pictures: a run's, the reference's, and plain's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ...errors import InputError
from ...picture import open_picture
from ...worlds.shapes import render, sample_scene
from ..data.folders import read_images
from ..measure.quality import set_quality
from ..metrics.features import SetDistance
from ..run.job import Job
from ..run.run_folder import RunFolder
from ..schema import MethodResult
from ..variants import AGAIN

BATCH = 64
TO_PLAIN = "_to_plain"  # ends the name of a distance to what plain draws with other seeds


def compare_sets(job: Job, folder: RunFolder, rows: dict[str, MethodResult]) -> list[str]:
    """Distances of whole sets of pictures join the rows; returns what a reader must know.

    Where plain is drawn again with other seeds, its distance to that set is what chance alone
    makes of a distance, and the other rows have theirs to the same set.
    """
    from ...rewards.registry import load_features

    metrics = [metric for metric in job.suite.declared if isinstance(metric, SetDistance)]
    count = min(row.n for row in rows.values())
    if metrics and count < 2:
        names = ", ".join(metric.name for metric in metrics)
        return [f"{names}: a set of one picture has no distance to another"]
    notes: list[str] = []
    for network in dict.fromkeys(metric.network for metric in metrics):
        path = job.files.get(network)
        extractor = load_features(network, Path(path) if path else None, job.device)
        lines = folder.log.of("quality")
        of_method = {
            name: _features(extractor, folder.path, [x for x in lines if x["method"] == name])
            for name in rows
        }
        truth = reference_pictures(job, count)
        reference = np.concatenate([extractor.features(batch).numpy() for batch in truth])
        rounds = 200 if reference.shape[1] <= 512 else 0  # a distance of 2048 takes seconds
        for of_set in (metric for metric in metrics if metric.network == network):
            name = of_set.name
            if of_set.too_few(count, reference.shape[1]):
                notes.append(
                    f"{name}: {count} pictures for {reference.shape[1]} features: the distance is "
                    "far too large; compare it at equal counts only"
                )
            truths = {name: reference}
            if AGAIN in rows:
                truths[name + TO_PLAIN] = of_method[AGAIN][:count]
            for metric, truth_set in truths.items():
                distance = of_set.to_reference(np.asarray(truth_set, np.float64))
                for method, row in rows.items():
                    if method == AGAIN and metric != name:
                        continue  # to itself
                    plain = None if method == "plain" else of_method["plain"][:count]
                    mine = of_method[method][:count]
                    row.quality[metric] = set_quality(distance, mine, plain, rounds)
            if AGAIN in rows:
                notes += _over_the_floor(name, rows)
    return notes


def _over_the_floor(metric: str, rows: dict[str, MethodResult]) -> list[str]:
    """Note on each method's difference to plain, over that of plain with other seeds."""
    changes = {
        name: row.quality[metric].difference_to_plain or 0.0
        for name, row in rows.items()
        if name != "plain"
    }
    if not (floor := abs(changes.pop(AGAIN))):
        return []
    told = ", ".join(f"{name} {change / floor:+.1f}" for name, change in changes.items())
    return [f"{metric}: differences to plain's over that of other seeds ({floor:.3g}): {told}"]


def _features(extractor: Any, folder: Path, lines: list[dict[str, Any]]) -> Any:
    """Features `[N, D]` of a method's pictures, in the order of the samples."""
    paths = [folder / line["picture"] for line in sorted(lines, key=lambda x: int(x["index"]))]
    parts = []
    for first in range(0, len(paths), BATCH):
        pictures = [open_picture(path) for path in paths[first : first + BATCH]]
        parts.append(extractor.features(pictures).numpy())
    return np.concatenate(parts)


def reference_pictures(job: Job, count: int) -> Iterator[list[Image.Image]]:
    """Batches of real pictures: the user's folder, or scenes of the samples' own prompts.

    Raises:
        InputError: the suite has no reference and the user gave none.
    """
    if "reference" in job.files:
        for _, pictures in read_images(Path(job.files["reference"])).batches(BATCH):
            yield pictures
    elif job.suite.reference == "shapes":
        for first in range(0, count, BATCH):
            yield [_scene(job, i) for i in range(first, min(count, first + BATCH))]
    else:
        raise InputError("distances of sets need real pictures: --reference FOLDER")


def _scene(job: Job, index: int) -> Image.Image:
    """A scene of which a sample's prompt is true; its chance is its own."""
    rng = np.random.default_rng([job.seed, index, 40_000])
    return Image.fromarray(render(sample_scene(rng, job.prompt(index), "held_out")))
