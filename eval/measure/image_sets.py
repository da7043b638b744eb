"""Any of the metrics over a folder of pictures: everything is checked before anything is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ...errors import InputError
from ...registry import check_name, resolve
from ..data.captions import Captions, check_captioned
from ..data.folders import ImageFolder, check_paired
from ..metrics.frechet import FrechetDistance
from ..metrics.kid import KernelDistance
from ..metrics.lpips import LPIPS, MIN_SIDE
from ..metrics.table import METRICS


def score_folders(
    images: ImageFolder,
    *,
    reference: ImageFolder | None = None,
    captions: Captions | None = None,
    metrics: Sequence[str],
    weights: Mapping[str, Path] | None = None,
    batch_size: int = 32,
    device: str = "cpu",
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    on_line: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Score a folder of pictures by any of `METRICS`.

    Args:
        reference: the real pictures, for distances; for LPIPS, of the same names and sizes.
        captions: for rewards. A picture of several captions scores their mean.
        weights: paths by network (`Metric.network`); embedded ones need none.
        seed: of KID's subsets.
        progress: told how many pictures are done, and of how many; a picture counts once for each
            network that looks at it.
        on_line: told each picture's own value of rewards and LPIPS: `metric`, `id`, `value`.

    Returns:
        `n`, `n_reference` and, under `metrics` by name: `value`, the network's name as
        `extractor`, `backbone` or `reward`, and `notes`, what a reader must know. KID has `std`
        too and a mean over pictures `ci95`, unless it is of one subset or picture only.

    Raises:
        InputError: an unknown metric, or one that lacks a reference, captions or weights; sets
            that don't fit each other; a picture that can't be decoded.
    """
    weights = dict(weights or {})
    if batch_size < 1:
        raise InputError(f"batch size {batch_size} is less than 1")
    _check_needs(metrics, reference, captions, weights)
    _check_sets(metrics, images, reference, captions)
    networks = dict.fromkeys(METRICS[name].network for name in metrics)
    groups = {n: [name for name in metrics if METRICS[name].network == n] for n in networks}
    both = len(images) + (len(reference) if reference else 0)
    total = sum(len(images) if _kind(names) == "reward" else both for names in groups.values())
    done = 0

    def step(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    results: dict[str, dict[str, Any]] = {}
    for network, names in groups.items():  # so that one network at a time is in memory
        path = weights.get(network)
        job = _Job(names, path, images, reference, captions, batch_size, device, seed, step)
        found, values = _SCORERS[_kind(names)](job)
        results |= found
        for name, value in values.items():
            if on_line is not None:
                on_line({"metric": names[0], "id": name, "value": value})
    return {
        "n": len(images),
        "n_reference": None if reference is None else len(reference),
        "metrics": {name: results[name] for name in metrics},
    }


@dataclass(frozen=True)
class _Job:
    """What one network is asked for: the metrics `names`."""

    names: list[str]
    path: Path | None
    images: ImageFolder
    reference: ImageFolder | None
    captions: Captions | None
    batch_size: int
    device: str
    seed: int
    step: Callable[[int], None]

    def load(self, loader: str) -> Any:
        """The network, by a loader of the rewards' registry."""
        network = METRICS[self.names[0]].network
        return resolve(f"mmspec.rewards.registry:{loader}")(network, self.path, self.device)


Scored: TypeAlias = tuple[dict[str, dict[str, Any]], dict[str, float]]
"""Results by metric, and the one metric's values by picture where each has its own."""


def _distances(job: _Job) -> Scored:
    """Distances between the features of two sets; the features are made once for all of them."""
    assert job.reference is not None
    extractor = job.load("load_features")
    distances = {
        name: FrechetDistance(extractor)
        if METRICS[name].kind == "frechet"
        else KernelDistance(extractor, seed=job.seed)
        for name in job.names
    }
    for name, distance in distances.items():
        if distance.name != name:  # the name FID is for Inception's features alone
            raise InputError(f"{extractor.name} gives {distance.name}, which is not {name}")
    for folder, real in ((job.images, False), (job.reference, True)):
        for ids, batch in folder.batches(job.batch_size):
            features = extractor.features(batch)
            for distance in distances.values():
                distance.add(features, real)
            job.step(len(ids))
    results: dict[str, dict[str, Any]] = {}
    for name, distance in distances.items():
        figures = distance.compute()
        results[name] = {"value": figures.pop(name)}
        results[name] |= {key.removeprefix(f"{name}_"): value for key, value in figures.items()}
        results[name] |= {"extractor": extractor.name, "notes": distance.notes()}
    return results, {}


def _pairs(job: _Job) -> Scored:
    """LPIPS of like-named pictures."""
    assert job.reference is not None
    assert job.path is not None
    lpips = LPIPS.from_pretrained(job.path, job.device, job.batch_size)
    values: dict[str, float] = {}
    both = (job.images.batches(job.batch_size), job.reference.batches(job.batch_size))
    for (ids, pictures), (_, others) in zip(*both, strict=True):
        values |= zip(ids, lpips.distances(pictures, others).tolist(), strict=True)
        job.step(2 * len(ids))
    (name,) = job.names
    return {name: {**_mean(values), "backbone": lpips.backbone, "notes": []}}, values


def _rewards(job: _Job) -> Scored:
    """A reward of each picture and its captions."""
    assert job.captions is not None
    reward = job.load("load_reward")
    values: dict[str, float] = {}
    for ids, pictures in job.images.batches(job.batch_size):
        texts = [job.captions.by_id[name] for name in ids]
        repeated = [p for p, own in zip(pictures, texts, strict=True) for _ in own]
        scores = reward.score([text for own in texts for text in own], repeated).split(
            [len(own) for own in texts]
        )
        values |= {name: float(own.mean()) for name, own in zip(ids, scores, strict=True)}
        job.step(len(ids))
    several = sum(len(own) > 1 for own in job.captions.by_id.values())
    notes = [f"{several} pictures have several captions and score their mean"] if several else []
    (name,) = job.names
    return {name: {**_mean(values), "reward": reward.name, "notes": notes}}, values


_SCORERS: dict[str, Callable[[_Job], Scored]] = {
    "frechet": _distances,
    "kid": _distances,
    "pairs": _pairs,
    "reward": _rewards,
}


def _mean(values: Mapping[str, float]) -> dict[str, Any]:
    """The mean and, of two values or more, its 95 % interval."""
    array = np.array(list(values.values()))
    mean = float(array.mean())
    if len(array) < 2:
        return {"value": mean}
    spread = 1.96 * float(array.std(ddof=1)) / len(array) ** 0.5
    return {"value": mean, "ci95": [mean - spread, mean + spread]}


def _kind(names: Sequence[str]) -> str:
    """Of metrics of one network."""
    return METRICS[names[0]].kind


def _check_needs(
    metrics: Sequence[str],
    reference: ImageFolder | None,
    captions: Captions | None,
    weights: Mapping[str, Path],
) -> None:
    """Is each metric known, and has it all that it needs?"""
    if not metrics:
        raise InputError(f"no metrics; choose from {', '.join(METRICS)}")
    for name in metrics:
        check_name("metric", name, METRICS)
        metric = METRICS[name]
        if list(metrics).count(name) > 1:
            raise InputError(f"metric {name} is asked for twice")
        if metric.kind == "reward" and captions is None:
            raise InputError(f"{name} needs captions: pass the pictures' prompts")
        if metric.kind != "reward" and reference is None:
            raise InputError(f"{name} needs a reference: pass a folder of pictures to compare with")
        if not metric.embedded and metric.network not in weights:
            raise InputError(f"{name} needs weights: pass {metric.network}=PATH")
    for network, path in weights.items():
        check_name("network", network, [METRICS[name].network for name in metrics])
        if not Path(path).exists():
            raise InputError(f"no weights of {network} at {path}")


def _check_sets(
    metrics: Sequence[str],
    images: ImageFolder,
    reference: ImageFolder | None,
    captions: Captions | None,
) -> None:
    """Do pictures, reference and captions fit each other, as far as these metrics use them?"""
    kinds = {METRICS[name].kind: name for name in metrics}
    if reference is not None and images.folder.resolve() == reference.folder.resolve():
        raise InputError(f"{images.folder} would be compared with itself")
    if "pairs" in kinds and reference is not None:
        check_paired(images, reference)
        for file in images.files.values():
            if min(file.size) < MIN_SIDE:
                raise InputError(f"{file.path}: lpips needs {MIN_SIDE} pixels a side or more")
    if "reward" in kinds and captions is not None:
        check_captioned(images, captions)
    for kind in kinds.keys() & {"frechet", "kid"}:
        for folder in (images, reference):
            if folder is not None and len(folder) < 2:
                raise InputError(f"{kinds[kind]} needs 2 pictures or more: {folder.folder} has 1")
