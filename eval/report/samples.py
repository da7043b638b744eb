"""The samples of a finished run, read and checked line by line; nothing is written."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..run.samples import bad_line, output_tokens, read_log
from ..schema import Report

Key = tuple[int, int, str]  # index, seed, prompt: what two methods must share to make a pair


@dataclass(frozen=True)
class QualitySample:
    """A judged output.

    Attributes:
        tag: the part of the suite that it belongs to, such as GenEval's task.
        scores: by metric.
        reason: why it failed; "".
        picture: of the output, a path in the run's folder; None: there is none.
        text: of the output; None: it is no text.
        shown: the picture that was asked about, a path in the run's folder; None: there is none.
        item: the number of what was asked; None: its prompt says it all.
    """

    method: str
    index: int
    seed: int
    prompt: str
    tag: str
    scores: dict[str, float]
    reason: str
    picture: str | None
    text: str | None = None
    shown: str | None = None
    item: int | None = None

    @property
    def key(self) -> Key:
        """Equal for outputs of two methods that may be compared."""
        return self.index, self.seed, self.prompt


@dataclass(frozen=True)
class SpeedSample:
    """A timed call at batch 1: seconds of all of it and of its token loop, and output tokens."""

    method: str
    index: int
    seed: int
    prompt: str
    seconds: float
    decode_seconds: float
    tokens: int

    @property
    def per_token(self) -> float:
        """Seconds of the loop for a token; two answers may differ in length."""
        return self.decode_seconds / self.tokens

    @property
    def key(self) -> Key:
        """Equal for calls of two methods that may be compared."""
        return self.index, self.seed, self.prompt


@dataclass
class Samples:
    """By method, then by key."""

    quality: dict[str, dict[Key, QualitySample]] = field(default_factory=dict)
    speed: dict[str, dict[Key, SpeedSample]] = field(default_factory=dict)


def sample_files(report: Report, folder: Path) -> dict[str, str]:
    """What of a run's samples lies in its folder, by what it is: the log, and pictures."""
    found = {}
    if (folder / "samples.jsonl").is_file():
        found["every sample, with its counters and scores"] = "samples.jsonl"
    for name in report.methods:
        if any((folder / "pictures" / name).glob("*.png")):
            found[f"pictures of {name}"] = f"pictures/{quote(name)}/"
    if any((folder / "pictures").glob("*.png")):
        found["the pictures that were asked about"] = "pictures/"
    return found


def read_samples(folder: Path) -> Samples:
    """The lines of `samples.jsonl`; without that file, none.

    Lines of other kinds are passed over, as are calls of several rows, and a torn last line, which
    a killed program leaves. Where the file marks the end of units, those without a mark don't
    count: the program did them again, or never finished them.

    Raises:
        InputError: another line is not a sample, or a unit has lost one or has one twice.
    """
    path = folder / "samples.jsonl"
    samples = Samples()
    for number, line in read_log(path).lines:
        try:
            if line["kind"] == "quality":
                judged = _quality(line)
                samples.quality.setdefault(judged.method, {})[judged.key] = judged
            elif line["kind"] == "speed" and line.get("batch", 1) == 1:
                timed = _speed(line)
                samples.speed.setdefault(timed.method, {})[timed.key] = timed
        except KeyError as error:
            raise bad_line(path, number, f"no {error}") from error
        except (TypeError, ValueError) as error:
            raise bad_line(path, number, str(error)) from error
    return samples


def _quality(line: dict[str, Any]) -> QualitySample:
    scores = line["scores"]
    if not isinstance(scores, dict):
        raise TypeError("scores must be an object")
    return QualitySample(
        **_call(line),
        tag=_text(line.get("tag") or "", "tag"),
        scores={name: _number(value, name) for name, value in scores.items() if value is not None},
        reason=_text(line.get("reason") or "", "reason"),
        picture=_optional(line, "picture"),
        text=_optional(line, "text"),
        shown=_optional(line, "shown"),
        item=None if line.get("item") is None else int(_number(line["item"], "item")),
    )


def _optional(line: dict[str, Any], name: str) -> str | None:
    """Text that may be missing."""
    return None if line.get(name) is None else _text(line[name], name)


def _speed(line: dict[str, Any]) -> SpeedSample:
    names = ("seconds", "decode_seconds")
    counters = {"emitted": [], **(line.get("stats") or {})}
    counters["emitted"] = [_number(count, "emitted") for count in counters["emitted"]]
    tokens = output_tokens(counters)
    seconds = {name: _number(line[name], name) for name in names}
    return SpeedSample(**_call(line), **seconds, tokens=tokens)


def _call(line: dict[str, Any]) -> dict[str, Any]:
    """What names a call; a batch of one may be a list."""
    prompt = line["prompt"]
    prompt = prompt[0] if isinstance(prompt, list) and len(prompt) == 1 else prompt
    return {
        "method": _text(line["method"], "method"),
        "index": int(_number(line["index"], "index")),
        "seed": int(_number(line["seed"], "seed")),
        "prompt": _text(prompt, "prompt"),
    }


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be text, not {value!r}")
    return value


def _number(value: Any, name: str) -> Any:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError(f"{name} must be a number, not {value!r}")
    return value
