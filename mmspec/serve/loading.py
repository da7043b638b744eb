"""Models that a server offers: found by name or folder, loaded, set to speculate."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import InputError
from ..methods import PIPELINES, Modality, config_of
from ..pipelines.model_folders import locate
from ..progress import hide_library_bars, say
from ..registry import check_name, resolve
from .backend import LocalBackend
from .batcher import Runner
from .metrics import Metrics, RunMetrics
from .requests import ServeLimits
from .runners import ChatRunner, PictureRunner

Kind = Literal["text", "vlm", "image", "continuous"]
KINDS: dict[Kind, str] = {  # what each is asked for, see `Backend`
    "text": "chat",
    "vlm": "chat",
    "image": "picture",
    "continuous": "picture",
}
_TEXT = "mmspec.pipelines.text.pipeline:TextPipeline"


@dataclass(frozen=True)
class Offered:
    """A model to offer.

    Attributes:
        kind: of its pipeline.
        source: a folder, a hub id, or a name such as "embedded-vlm".
        method: how it speculates, with settings; None: the default of its kind, left out for
            batches for which it does not pay, see `load_switch` of the pipelines.
        device: where it runs.
    """

    kind: Kind
    source: str
    method: str | None = None
    device: str = "cpu"

    @property
    def name(self) -> str:
        """The name that clients give."""
        return Path(os.path.abspath(self.source)).name  # "." has one, too

    @classmethod
    def read(cls, kind: str, source: str, method: str | None, device: str) -> Offered:
        """Check the words of an option.

        Raises:
            InputError: there is no such kind, or no such method for it.
        """
        check_name("kind of model", kind, tuple(KINDS))
        if method is not None:
            modality: Modality = "vlm" if kind == "text" else kind  # type: ignore[assignment]
            config_of(method).resolve(modality)
        return cls(kind, source, method, device)  # type: ignore[arg-type]  # just checked

    def load(self, metrics: Metrics, limits: ServeLimits) -> Runner:
        """Load the model, ready to run.

        Raises:
            InputError: it can't be found or can't speculate so.
        """
        say(f"loading {self.name}")
        hide_library_bars()
        if self.kind == "text":
            pipe = resolve(_TEXT).from_pretrained(self.source)
        else:
            kind = resolve(PIPELINES[self.kind].reference)
            pipe = kind.from_pretrained(locate(self.source, kind.embedded))
        pipe = pipe.to(self.device)
        pipe.set_progress_bar_config(disable=True)
        # what is named runs
        pipe.enable_speculation(None if self.method is None else config_of(self.method))
        made = ChatRunner if KINDS[self.kind] == "chat" else PictureRunner
        return made(pipe, metrics, limits)


def check_here(offered: Sequence[Offered]) -> None:
    """Raise an `InputError` if a model is not to be found on this machine."""
    for one in offered:
        locate(one.source, "")


def check_names(offered: Sequence[Offered]) -> None:
    """Raise an `InputError` if two models have one name."""
    names = [one.name for one in offered]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"two models are named {twice!r}; clients could not tell them apart")


def local_backend(offered: Sequence[Offered], limits: ServeLimits) -> LocalBackend:
    """Load models into this process.

    Raises:
        InputError: one can't be loaded, or two have one name.
    """
    check_names(offered)
    metrics = RunMetrics()
    runners = {one.name: one.load(metrics, limits) for one in offered}
    return LocalBackend(runners, {one.name: KINDS[one.kind] for one in offered}, limits, metrics)
