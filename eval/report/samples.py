"""The samples of a finished run, read and checked line by line; nothing is written."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from ...errors import InputError
from ...files import to_json
from ...picture import open_picture
from ..run.samples import bad_line, output_tokens, read_log
from ..schema import Report
from ..strict import STRICT, read_as

if TYPE_CHECKING:
    from PIL import Image
    from pydantic import ConfigDict

Key = tuple[int, int, str]  # index, seed, prompt: what two methods must share to make a pair


_LINE: ConfigDict = {**STRICT, "extra": "ignore"}


@dataclass
class SampleCall:
    """The line of a call: what it was asked for, and by whom."""

    __pydantic_config__ = _LINE

    method: str
    index: int
    seed: int
    prompt: str

    @property
    def key(self) -> Key:
        """Equal for calls of two methods that may be compared."""
        return self.index, self.seed, self.prompt


@dataclass
class QualitySample(SampleCall):
    """A judged output.

    Attributes:
        scores: by metric.
        tag: the part of the suite that it belongs to, such as GenEval's task.
        reason: why it failed; "".
        picture: of the output, a path in the run's folder; None: there is none.
        text: of the output; None: it is no text.
        shown: the picture that was asked about, a path in the run's folder; None: there is none.
        item: the number of what was asked; None: its prompt says it all.
    """

    __pydantic_config__ = _LINE

    scores: dict[str, float | None]
    tag: str | None = ""
    reason: str | None = ""
    picture: str | None = None
    text: str | None = None
    shown: str | None = None
    item: int | None = None

    def __post_init__(self) -> None:
        self.scores = {name: value for name, value in self.scores.items() if value is not None}
        self.tag, self.reason = self.tag or "", self.reason or ""

    @property
    def what(self) -> object:
        """Equal for all samples of what was asked: one question may be about many pictures."""
        return self.prompt if self.item is None else self.item


@dataclass
class SpeedSample(SampleCall):
    """A timed call at batch 1: seconds of all of it and of its token loop, and output tokens."""

    __pydantic_config__ = _LINE

    seconds: float
    decode_seconds: float
    tokens: float

    @property
    def per_token(self) -> float:
        """Seconds of the loop for a token; two answers may differ in length."""
        return self.decode_seconds / self.tokens


@dataclass
class Samples:
    """By method, then by key."""

    quality: dict[str, dict[Key, QualitySample]] = field(default_factory=dict)
    speed: dict[str, dict[Key, SpeedSample]] = field(default_factory=dict)


def sample_files(report: Report, folder: Path) -> dict[str, str]:
    """Files of a run's samples in its folder, by what they are: the log, and pictures."""
    found = {}
    if (folder / "samples.jsonl").is_file():
        found["every sample, with its counters and scores"] = "samples.jsonl"
    for name in report.methods:
        if any((folder / "pictures" / name).glob("*.png")):
            found[f"pictures of {name}"] = f"pictures/{quote(name)}/"
    if any((folder / "pictures").glob("*.png")):
        found["the pictures that were asked about"] = "pictures/"
    return found


def stored_picture(folder: Path, place: str | None) -> Image.Image | None:
    """A picture of a run in RGB; None: there is none that can be read.

    A place outside the run's folder counts as none: a page must not carry other files away.
    """
    path = (folder / (place or "")).resolve()
    if not path.is_file() or not path.is_relative_to(folder.resolve()):
        return None
    try:
        return open_picture(path)
    except InputError:
        return None


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
        where = f"{path}:{number}: not a sample", "; run the suite again"
        if line["kind"] == "quality":
            judged = read_as(QualitySample, to_json(line), *where)
            samples.quality.setdefault(judged.method, {})[judged.key] = judged
        elif line["kind"] == "speed" and line.get("batch", 1) == 1:
            if isinstance(prompt := line.get("prompt"), list) and len(prompt) == 1:
                line["prompt"] = prompt[0]
            counters = {"emitted": [], **(line.get("stats") or {})}
            try:
                line["tokens"] = output_tokens(counters)
            except TypeError as error:
                raise bad_line(path, number, f"emitted: {error}") from error
            timed = read_as(SpeedSample, to_json(line), *where)
            samples.speed.setdefault(timed.method, {})[timed.key] = timed
    return samples
