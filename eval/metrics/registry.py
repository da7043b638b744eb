"""Registry of metrics: those that metrics, judges, rewards and other packages declare.

Another package names its declarations, rewards among them, as entry points of `mmspec.metrics`.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import TypeVar

from ...declarations import Declarations
from ...registry import check_name
from ...rewards.registry import FEATURES, GROUP, reward_names
from ..judges.base import JUDGES
from .base import Metric
from .reward import RewardMetric

_PACKAGES = ("mmspec.eval.metrics", "mmspec.eval.judges")
# metrics of other sources may share a name
METRICS = Declarations(Metric, "metric", _PACKAGES, GROUP, attrgetter("name", "sources"))
M = TypeVar("M", bound=Metric)


def all_metrics() -> tuple[Metric, ...]:
    """The metrics; two of different classes may have one name."""
    return (*METRICS.all(), *map(RewardMetric.of, reward_names()))


def metrics_of(*kinds: type[M]) -> dict[str, M]:
    """The metrics of some classes, which may be abstract, by name."""
    return {metric.name: metric for metric in all_metrics() if isinstance(metric, kinds)}


def metrics_for(source: str) -> dict[str, Metric]:
    """The metrics that score the user's own files: "images", "answers" or "videos"."""
    return {metric.name: metric for metric in all_metrics() if source in metric.sources}


def metric_of_run(name: str) -> Metric:
    """The declaration of a metric in the report of a run; an unknown one has only its name."""
    known = (metric for metric in all_metrics() if metric.name == name)
    of_runs = (metric for metric in known if not {"answers", "videos"} & {*metric.sources})
    return next(of_runs, Metric(name=name, summary=""))


def check_weights(names: Iterable[str]) -> None:
    """Raise an `InputError` if a name stands for no network that any metric knows."""
    known = [*reward_names(), *FEATURES.names()]
    known += [name for metric in METRICS.all() for name in metric.weights]
    known += [name for judge in JUDGES.all() for name in judge.weights]
    for name in names:
        check_name("network of --weights", name, list(dict.fromkeys(known)))
