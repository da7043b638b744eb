"""Distances between whole sets of pictures: a run's and the reference's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ...errors import InputError
from ..metrics.table import METRICS
from ..quality import set_quality
from ..reference import reference_pictures, set_distance
from ..run.job import Job
from ..run.run_folder import RunFolder
from ..schema import MethodResult

OF_SETS = ("frechet", "kid")  # kinds of metrics


def compare_sets(job: Job, folder: RunFolder, rows: dict[str, MethodResult]) -> list[str]:
    """Distances of whole sets of pictures join the rows; returns what a reader must know."""
    from ...rewards.registry import load_features

    names = [m for m in job.suite.metrics if m in METRICS and METRICS[m].kind in OF_SETS]
    count = min(row.n for row in rows.values())
    if names and count < 2:
        return [f"{', '.join(names)}: a set of one picture has no distance to another"]
    notes: list[str] = []
    for network in dict.fromkeys(METRICS[name].network for name in names):
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
        for name in (n for n in names if METRICS[n].network == network):
            if METRICS[name].kind == "frechet" and count <= reference.shape[1]:
                notes.append(
                    f"{name}: {count} pictures for {reference.shape[1]} features: the distance is "
                    "far too large; compare it at equal counts only"
                )
            distance = set_distance(METRICS[name].kind, reference)
            for method, row in rows.items():
                plain = None if method == "plain" else of_method["plain"][:count]
                row.quality[name] = set_quality(distance, of_method[method][:count], plain, rounds)
    return notes


def _features(extractor: Any, folder: Path, lines: list[dict[str, Any]], batch: int = 64) -> Any:
    """Features `[N, D]` of a method's pictures, in the order of the samples."""
    paths = [folder / line["picture"] for line in sorted(lines, key=lambda x: int(x["index"]))]
    parts = []
    for first in range(0, len(paths), batch):
        try:
            pictures = [Image.open(path).convert("RGB") for path in paths[first : first + batch]]
        except OSError as error:
            raise InputError(f"a picture of this run can't be read: {error}") from error
        parts.append(extractor.features(pictures).numpy())
    return np.concatenate(parts)
