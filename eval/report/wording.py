"""Words of a modality's reports, and the terms that they alone explain."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ...files import read_text
from ..schema import Report


@dataclass(frozen=True)
class Wording:
    """The words of a modality.

    Attributes:
        outputs: what its calls make.
        units: what speed is counted in: what an output is made of.
        emitted: what a call of the target emits.
        whole_calls: whole calls are timed, not a loop in them.
        sheets: outputs are shown as sheets of frames, framed by who made them.
        meanings: of terms, in place of the usual meaning.
        definitions: of terms that all its reports have.
    """

    outputs: str = "outputs"
    units: str = "tokens"
    emitted: str = "tokens"
    whole_calls: bool = False
    sheets: bool = False
    meanings: dict[str, str] = field(default_factory=dict)
    definitions: dict[str, str] = field(default_factory=dict)


@cache
def words() -> dict[str, Any]:
    """Content of `page.yaml`: meanings of terms, and the words of modalities."""
    return yaml.safe_load(read_text(Path(__file__).parent / "page.yaml"))


def wording(report: Report) -> Wording:
    """The words of a report's modality; of an unknown one the usual words."""
    return Wording(**words()["modalities"].get(report.pipeline, {}))
