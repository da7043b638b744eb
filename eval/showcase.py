"""`mmspec generate` and `mmspec ask`: the same prompt by several methods, and as a table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from ..engine.stats import SpecStats
from ..files import locked, write_atomic, write_json
from ..methods import SpecConfig
from ..progress import bar
from .environment import environment
from .files import png_bytes
from .measure.bootstrap import ratio_interval
from .measure.timing import Sample, paired_runs
from .report.table import Table
from .run.samples import output_tokens

NETWORKS = {  # calls that are counted apart, by a row's field
    "head_calls_per_sample": "head calls",
    "backbone_calls_per_sample": "backbone calls",
    "drafter_head_calls_per_sample": "drafter's head calls",
}


@dataclass(frozen=True)
class Showcase:
    """Prompt, or question, run by several methods.

    Attributes:
        count: outputs of each method, whose seeds begin at `seed`.
        call: keyword arguments of every pipeline call.
    """

    pipe: Any
    methods: dict[str, SpecConfig]
    prompt: str
    count: int
    seed: int
    call: dict[str, Any]

    def run(self, unit: str, warmup: int = 1) -> dict[str, list[Sample]]:
        """Run `paired_runs` with a bar on a terminal; `unit` is what a call makes."""
        total = len(self.methods) * (self.count + warmup)
        what = f"{unit}s by {' and '.join(self.methods)}" + (", and a warm-up" if warmup else "")
        prompts, told = [self.prompt] * self.count, (self.seed, self.call, warmup)
        with bar(what, unit, total) as shown:
            return paired_runs(self.pipe, self.methods, prompts, *told, shown.update)

    def record(self, samples: dict[str, list[Sample]]) -> dict[str, Any]:
        """Record of samples by method for `stats.json`; speed-ups are over "plain"."""
        return {
            "prompt": self.prompt,
            "seed": self.seed,
            "call": self.call,
            "environment": environment(self.pipe.device),
            "methods": {name: _row(rows, samples.get("plain")) for name, rows in samples.items()},
        }


def compare(show: Showcase, out: Path) -> dict[str, Any]:
    """Draw pictures by every method, in turn; returns what `stats.json` holds.

    Writes `<method>-<seed>.png`, `stats.json` and, for several methods, `side-by-side.png`: a row
    of pictures per method, the same seeds above each other.

    Raises:
        InputError: another run writes to `out`, or it can't be written.
    """
    with locked(out):
        samples = show.run("picture")
        for name, rows in samples.items():
            for sample in rows:
                picture = png_bytes(sample.output.images[0])
                write_atomic(out / f"{name}-{sample.seed}.png", picture)
        if len(samples) > 1:
            write_atomic(out / "side-by-side.png", png_bytes(side_by_side(samples)))
        record = show.record(samples)
        write_json(out / "stats.json", record)
    return record


def ask(show: Showcase) -> dict[str, Any]:
    """Answer a question by every method, in turn; the call holds its pictures.

    Returns what a record of `compare` holds, and under `answers` the texts by method.
    """
    samples = show.run("answer")
    answers = {name: [s.output.text[0] for s in rows] for name, rows in samples.items()}
    return {**show.record(samples), "answers": answers}


def _row(samples: list[Sample], plain: list[Sample] | None) -> dict[str, Any]:
    total = samples[0].stats.merged([s.stats for s in samples[1:]])
    row: dict[str, Any] = {**total.as_dict(), **total.per_sample(), "n": len(samples)}
    row["seconds_median"] = statistics.median(s.seconds for s in samples)
    row["decode_seconds_median"] = statistics.median(s.decode_seconds for s in samples)
    if plain is not None and plain is not samples:
        pairs = zip(plain, samples, strict=True)
        ratios = [_per_token(p) / _per_token(s) for p, s in pairs]
        row["speedup_median"], interval = ratio_interval(ratios)
        row["speedup_ci95"] = interval if len(ratios) > 1 else None  # one pair says nothing of it
    return row


def _per_token(sample: Sample) -> float:
    """Seconds of a call over its output tokens: answers are not of one length."""
    return sample.decode_seconds / output_tokens(asdict(sample.stats))


def side_by_side(samples: dict[str, list[Sample]], most: int = 8, scale: int = 2) -> Image.Image:
    """A labelled grid: one row per method, one column per seed, the first `most` of them."""
    rows = {name: [s.output.images[0] for s in many[:most]] for name, many in samples.items()}
    side = max(image.width for many in rows.values() for image in many) * scale
    label, gap, columns = 20, 6, max(map(len, rows.values()))
    width = columns * (side + gap) + gap
    sheet = Image.new("RGB", (width, len(rows) * (side + label + gap) + gap), "white")
    draw = ImageDraw.Draw(sheet)
    for r, (name, images) in enumerate(rows.items()):
        top = gap + r * (side + label + gap)
        shown = samples[name][:most]
        seconds = sum(s.decode_seconds for s in shown) / len(shown)
        text = f"{name}: {called([s.stats for s in shown])}, {seconds:.2f} s"
        draw.text((gap, top + 3), text, fill="black")
        for c, image in enumerate(images):
            picture = image.resize((side, side), Image.Resampling.LANCZOS)
            sheet.paste(picture, (gap + c * (side + gap), top + label))
    return sheet


def called(stats: Sequence[SpecStats]) -> str:
    """Mean calls of the target and of its drafter for an output."""
    first, *others = stats
    total = first.merged(others)
    means = total.per_sample()
    counts = [(means[name], words) for name, words in NETWORKS.items() if means.get(name)]
    if counts:
        return ", ".join(f"{count:.0f} {words}" for count, words in counts)
    calls = f"{total.nfe:.0f} target calls"
    if sibling := means.get("sibling_calls_per_sample"):
        calls += f", {sibling:.0f} of its sibling"
    return calls


def print_table(methods: dict[str, dict[str, Any]]) -> None:
    """The rows of a report or of `stats.json` as a table on standard output, and what it says.

    Seconds are those that the speed-up is of.
    """
    apart = any(row.get("head_calls_per_sample") is not None for row in methods.values())
    counted = {"nfe_per_sample": "target calls", "sibling_calls_per_sample": "sibling's calls"}
    if apart:
        counted = NETWORKS
    always, *others = counted
    calls = [always, *(n for n in others if any(row.get(n) for row in methods.values()))]
    head = ["method", "contract", "n", *(counted[name] for name in calls)]
    head += ["steps/call" if apart else "tokens/call", "seconds", "speed-up", "95 % interval"]
    rows = {}
    for name, row in methods.items():
        together = row.get("speedup_of_all") is not None  # of video, see `MethodResult.speedup`
        kind = ("of_all", "of_all_ci95") if together else ("median", "ci95")
        speedup, interval = (row.get(f"speedup_{name}") for name in kind)
        spent = row["decode_seconds_median"]
        rows[name] = (
            row["contract"],
            str(row["n"]),
            *(f"{row.get(call) or 0:.1f}" for call in calls),
            f"{row['mean_acceptance_length']:.2f}" if row["nfe_per_sample"] else "",
            "" if spent is None else f"{spent:.3f}",
            "" if speedup is None else f"{speedup:.2f}×",
            "" if interval is None else f"{interval[0]:.2f}–{interval[1]:.2f}",
        )
    print(Table.of("", head, rows).aligned())  # noqa: T201 - the command's output
    if any(row.get("speedup_median") is not None for row in methods.values()):
        print(_told(methods))  # noqa: T201


def _told(methods: dict[str, dict[str, Any]]) -> str:
    """Note on a table's seconds and speed-ups: their quotients need not agree."""
    if any(row.get("speedup_of_all") is not None for row in methods.values()):
        return "seconds: median of a clip; speed-up: plain's for all clips over the row's"
    return (
        "seconds: median of the calls; speed-up: plain's seconds over the row's, call by call and "
        "for outputs of one length, the median"
    )
