"""The grid of outputs: the same prompt and seed by every method, side by side."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from pathlib import Path

from ..schema import Report
from .format import decimals, fixed
from .parts import ends
from .samples import QualitySample, Samples, stored_picture
from .summary import first_metric

ROWS = 12
SIDE = 256  # most pixels of an embedded picture's side


@dataclass(frozen=True)
class Output:
    """A cell of the grid.

    Attributes:
        uri: the picture itself, as a data URI; "": missing, or the output is text.
        text: the output, where it is text.
        alt: what it should show, by which method.
        score: "right", "wrong" or a number; "": not judged.
        reason: why it is wrong.
    """

    method: str
    uri: str
    alt: str
    score: str
    reason: str
    text: str = ""


@dataclass(frozen=True)
class GalleryRow:
    """Prompt and seed, and the picture that was asked about as a data URI, if there is one."""

    prompt: str
    tag: str
    seed: int
    outputs: tuple[Output, ...]
    shown: str = ""


def gallery(report: Report, samples: Samples, folder: Path, rows: int = ROWS) -> list[GalleryRow]:
    """The first samples of every tag in turn, with distinct prompts: nobody chose them by eye.

    Of a method at many values of its knob, the safest and the fastest.
    """
    drawn = {
        name: samples.quality[name]
        for name in ends(report)
        if report.methods[name].role != "again"  # whose seeds no other row has
        and any(s.picture or s.text is not None for s in samples.quality.get(name, {}).values())
    }
    judged = [s for of in drawn.values() for s in of.values()]
    metric = first_metric(report) or ""
    values = [s.scores[metric] for s in judged if metric in s.scores]
    binary, digits = set(values) <= {0.0, 1.0}, decimals(values)

    def output(name: str, sample: QualitySample) -> Output:
        mine = drawn[name].get(sample.key)
        alt = f"{sample.prompt}, by {name}, seed {sample.seed}"
        if mine is None:
            return Output(name, "", alt, "", "")
        value = mine.scores.get(metric)
        score = ("right" if value else "wrong") if binary else fixed(value, digits)
        told = (score if value is not None else "", mine.reason or "", mine.text or "")
        return Output(name, _embed(folder, mine.picture), alt, *told)

    def row(s: QualitySample) -> GalleryRow:
        outputs = tuple(output(name, s) for name in drawn)
        return GalleryRow(s.prompt, s.tag or "", s.seed, outputs, _embed(folder, s.shown))

    return [row(sample) for sample in _spread(judged)[:rows]]


def _spread(samples: list[QualitySample]) -> list[QualitySample]:
    """Samples of distinct items, from the tags in turn, lowest index first."""
    by_tag: dict[str, list[QualitySample]] = {}
    items: set[str | int] = set()
    for sample in sorted(samples, key=lambda s: (s.index, s.seed)):
        item = sample.prompt if sample.item is None else sample.item
        if item not in items:
            items.add(item)
            by_tag.setdefault(sample.tag or "", []).append(sample)
    longest = max(map(len, by_tag.values()), default=0)
    return [group[i] for i in range(longest) for group in by_tag.values() if i < len(group)]


def _embed(folder: Path, place: str | None) -> str:
    """A picture as a data URI, made smaller if it is large; "" if there is none."""
    from PIL import Image

    picture = stored_picture(folder, place)
    if picture is None:
        return ""
    picture.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    picture.save(file, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
