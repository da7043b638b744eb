"""Any of the metrics over a folder of pictures: everything is checked before anything is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ...errors import InputError
from ...registry import check_name
from ..data.captions import Captions, read_captions
from ..data.folders import ImageFolder, read_images
from ..metrics.base import FolderMetric
from ..metrics.registry import metrics_of

if TYPE_CHECKING:
    from ..suite import Suite
    from .score_files import Given, OnLine

Scored: TypeAlias = tuple[dict[str, dict[str, Any]], dict[str, float]]
"""Results by metric, and the one metric's values by picture where each has its own."""


@dataclass(frozen=True)
class FolderJob:
    """Pictures, and what they are scored with; see `score_folders`.

    A metric that needs no reference, or no captions, must not look at them: they may be None.
    """

    images: ImageFolder
    reference: ImageFolder
    captions: Captions
    weights: Mapping[str, Path]
    batch_size: int
    device: str
    seed: int
    step: Callable[[int], None]


def score_images(
    suite: Suite, given: Given, on_line: OnLine, progress: Callable[[int, int], None] | None
) -> dict[str, Any]:
    """Rewards of the user's pictures and distances of sets; see `score_given`."""
    return score_folders(
        read_images(given.path("images"), given.background),
        reference=read_images(given.reference, given.background) if given.reference else None,
        captions=read_captions(given.captions) if given.captions else None,
        metrics=suite.metrics,
        weights=given.weights,
        device=given.device,
        progress=progress,
        on_line=on_line,
    )


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
    """Score a folder of pictures by any `FolderMetric`.

    Args:
        reference: the real pictures, for distances; for LPIPS, of the same names and sizes.
        captions: for rewards. A picture of several captions scores their mean.
        weights: paths by network (`FolderMetric.network`); embedded ones need none.
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
    given = {"images": images, "reference": reference, "captions": captions}
    chosen = _checked(metrics, given, weights or {})
    if batch_size < 1:
        raise InputError(f"batch size {batch_size} is less than 1")
    networks = dict.fromkeys(metric.network for metric in chosen)
    groups = [[metric for metric in chosen if metric.network == network] for network in networks]
    both = len(images) + (len(reference) if reference else 0)
    total = sum(both if "reference" in group[0].needs else len(images) for group in groups)
    done = 0

    def step(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    held: dict[str, Any] = {"reference": reference, "captions": captions}
    job = FolderJob(images, **held, weights=dict(weights or {}), batch_size=batch_size,
                    device=device, seed=seed, step=step)  # fmt: skip
    if reference is not None and images.folder.resolve() == reference.folder.resolve():
        raise InputError(f"{images.folder} would be compared with itself")
    for metric in chosen:
        metric.check(job)
    results: dict[str, dict[str, Any]] = {}
    for group in groups:  # so that one network at a time is in memory
        found, values = group[0].score(group, job)
        results |= found
        for name, value in values.items():
            if on_line is not None:
                on_line({"metric": group[0].name, "id": name, "value": value})
    return {
        "n": len(images),
        "n_reference": None if reference is None else len(reference),
        "metrics": {name: results[name] for name in metrics},
    }


_TELL = {
    "reference": "a reference: pass a folder of pictures to compare with",
    "captions": "captions: pass the pictures' prompts",
}


def _checked(
    names: Sequence[str], given: Mapping[str, Any], weights: Mapping[str, Path]
) -> list[FolderMetric]:
    """The metrics, each known and with all that it needs."""
    known = metrics_of(FolderMetric)  # type: ignore[type-abstract]
    if not names:
        raise InputError(f"no metrics; choose from {', '.join(known)}")
    for name in names:
        check_name("metric", name, known)
        if list(names).count(name) > 1:
            raise InputError(f"metric {name} is asked for twice")
        for need in known[name].needs:
            if given[need] is None:
                raise InputError(f"{name} needs {_TELL[need]}")
        for network, what in known[name].weights_of().items():
            if network not in weights:
                raise InputError(f"{name} needs weights: pass {network}=PATH: {what}")
    for network, path in weights.items():
        check_name("network", network, [known[name].network for name in names])
        if not Path(path).exists():
            raise InputError(f"no weights of {network} at {path}")
    return [known[name] for name in names]
