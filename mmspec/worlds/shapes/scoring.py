"""GenEval's rules: whether the objects that were found are those that a prompt asks for.

Ghosh et al. 2023, "GenEval: An Object-Focused Framework for Evaluating Text-to-Image Alignment",
section 3, with the rules of the official `evaluate_images.py`. Detections may come from any
detector that names a class, a colour, a box and a confidence: the shapes world's or a network's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ...errors import InputError

Box = tuple[float, float, float, float]

_MAX_OBJECTS = 16  # per class, as in the official script


class Detected(Protocol):
    """An object that a detector found.

    `color` is read only where a prompt asks for it, so it may be costly; `box` is
    `(x0, y0, x1, y1)` in pixels, upper ends exclusive.
    """

    @property
    def label(self) -> str:
        """The class, in the words of the prompts' `class`."""

    @property
    def color(self) -> str: ...

    @property
    def box(self) -> Box: ...

    @property
    def confidence(self) -> float: ...


Objects = dict[str, list[Detected]]  # by class, the most confident first


def score_prompt(
    metadata: Mapping[str, Any],
    detections: Sequence[Detected],
    *,
    threshold: float = 0.3,
    counting_threshold: float = 0.9,
) -> tuple[bool, str]:
    """Test a picture for all of `include` and nothing of `exclude`; the reasons if it fails.

    Args:
        metadata: a line of `evaluation_metadata.jsonl`: `tag`, `include` (a list of `class`,
            `count`, maybe `color`, maybe `position` as `[relation, index into include]`) and
            `exclude` (a list of `class` and the `count` that is one too many).
        detections: what the detector saw, in any order.
        threshold: only objects of a higher confidence count. The defaults are the official
            detector's; choose them anew for another one.
        counting_threshold: the same for prompts of the counting task.

    Per class only the `count` most confident objects are asked for colour and position, so a
    surplus object fails a prompt only where `exclude` says so.
    """
    floor = counting_threshold if metadata["tag"] == "counting" else threshold
    objects = _by_class(detections, floor)
    matched: list[list[Detected]] = []  # per clause of include; empty where the clause failed
    reasons: list[str] = []
    for clause in metadata.get("include", []):
        found = objects.get(clause["class"], [])[: clause["count"]]
        problem = _problem(clause, found, matched)
        matched.append([] if problem else found)
        if problem:
            reasons.append(problem)
    for clause in metadata.get("exclude", []):
        seen = len(objects.get(clause["class"], []))
        if seen >= clause["count"]:
            reasons.append(f"expected fewer than {clause['count']} {clause['class']}, found {seen}")
    return not reasons, "; ".join(reasons)


def relations(a: Box, b: Box) -> set[str]:
    """Position of box `a` relative to box `b`: at most one word per axis, none if too close.

    Per axis, the offset of the centres less a tenth of both boxes' sizes, floored at 0, over the
    length of the whole offset, must exceed 0.5.
    """
    corners = np.array([a, b], np.float64).reshape(2, 2, 2)  # [box, lower or upper corner, axis]
    offset = corners[0].mean(0) - corners[1].mean(0)
    sizes = np.abs(corners[:, 1] - corners[:, 0]).sum(0)
    clear = np.sign(offset) * np.maximum(np.abs(offset) - 0.1 * sizes, 0)
    if np.abs(clear).max() < 1e-3:
        return set()
    across, down = clear / np.linalg.norm(offset)
    checks = {
        "left of": across < -0.5,
        "right of": across > 0.5,
        "above": down < -0.5,
        "below": down > 0.5,
    }
    return {word for word, true in checks.items() if true}


def _by_class(detections: Sequence[Detected], floor: float) -> Objects:
    objects: Objects = {}
    for hit in sorted(detections, key=lambda hit: -hit.confidence):
        if hit.confidence > floor:
            objects.setdefault(hit.label, []).append(hit)
    return {name: hits[:_MAX_OBJECTS] for name, hits in objects.items()}


def _problem(
    clause: Mapping[str, Any], found: list[Detected], matched: list[list[Detected]]
) -> str:
    """The fault of the objects found for a clause of `include`; empty: there is none."""
    name, count = clause["class"], clause["count"]
    if len(found) < count:
        return f"expected {count} {name}, found {len(found)}"
    if "color" in clause:
        colors = [hit.color for hit in found]
        if colors.count(clause["color"]) < count:
            return f"expected {count} {clause['color']} {name}, found {', '.join(colors)}"
    if "position" not in clause:
        return ""
    relation, anchor = clause["position"]
    if not 0 <= anchor < len(matched):
        raise InputError(f"position of {name} refers to clause {anchor}, not an earlier one")
    if not matched[anchor]:
        return f"no anchor for {name} to be {relation}"
    for hit in found:
        for other in matched[anchor]:
            true = relations(hit.box, other.box)
            if relation not in true:
                seen = " and ".join(sorted(true)) or "no relation"
                return f"expected {name} {relation} {other.label}, found {seen}"
    return ""
