"""The report as code: what `report.json` holds, its version, and its validation."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ..errors import InputError
from .files import write_atomic

VERSION = 2
# a version's first reports are without these
LATER = {
    *("family", "knob", "knob_value", "call", "mean_acceptance_length_ci95", "acceptance_ratios"),
    *("speedup_end_to_end_ci95", "same_output", "choices", "members", "head_calls"),
    *("head_rows_per_sample", "drafter_head_calls_per_sample", "drafter_backbone_calls_per_sample"),
}


@dataclass
class Quality:
    """One metric of one method.

    Attributes:
        value: over all samples.
        ci95: its 95 % bootstrap interval; None where none is made.
        difference_to_plain, difference_ci95: method less plain, over the same prompts and seeds.
        larger_is_better: which way is up.
        verdict: what the interval allows to say of the loss against plain: "no loss", "within M",
            "worse", "undecided"; "" without a margin and for plain itself.
        parts: the value by part, such as GenEval's tasks.
    """

    value: float
    ci95: tuple[float, float] | None = None
    difference_to_plain: float | None = None
    difference_ci95: tuple[float, float] | None = None
    larger_is_better: bool = True
    verdict: str = ""
    parts: dict[str, float] = field(default_factory=dict)


@dataclass
class Throughput:
    """Speed of whole batches of one size.

    Attributes:
        n: batches measured.
        tokens_per_second: output tokens of all rows over the seconds of the token loop, median.
        speedup_median, speedup_ci95: paired loop-time ratio to plain at the same batch size.
        head_calls: of continuous tokens, calls of the target's head for a whole batch, one after
            the other; mean.
    """

    n: int
    tokens_per_second: float
    speedup_median: float | None = None
    speedup_ci95: tuple[float, float] | None = None
    head_calls: float | None = None


@dataclass
class Ratio:
    """A figure of a row over another row's, on the same samples, with its interval."""

    value: float
    ci95: tuple[float, float] | None = None


@dataclass
class Choice:
    """A branch of a compressor that chooses by the question.

    Attributes:
        n: questions that it was chosen for.
        visual, kept: tokens of the pictures, mean, and how many of them the drafter read.
        seconds: spent on choosing and compressing, mean.
    """

    n: int
    visual: float
    kept: float
    seconds: float


@dataclass
class Member:
    """What one model among several took for a question, mean: calls, tokens, seconds."""

    calls: float
    tokens: float
    seconds: float


@dataclass
class MethodResult:
    """One method's row.

    Attributes:
        contract: what the method promises about its output.
        role: "baseline" (plain), "method", "sceptic": the cheap alternative that a method has to
            beat, "peer": another library's, "ablation": a method that is denied something, or
            "again": plain with other seeds.
        n: samples behind the quality figures, or behind the speed where none was judged.
        n_speed: prompts behind the speed figures; 0: not measured.
        nfe_per_sample: verify calls of the target per sample (of the drafter where that draws
            alone); prefill is not counted. Of continuous tokens: calls of the head that a token
            took part in.
        target_tokens_per_sample: tokens the target processed in them.
        mean_acceptance_length, mean_acceptance_length_ci95: tokens emitted per target call,
            recovered or bonus token included.
        acceptance_by_position: share of drafted tokens that stood, given those before them did.
        phase_seconds: mean seconds per sample and phase, of the speed runs where there are any.
        seconds_median: wall-clock of a whole pipeline call at batch 1; None if not measured.
        decode_seconds_median: of the token loop alone, without captions, prefill and pixels.
        speedup_median, speedup_ci95: paired decode-time ratio to plain, prompt by prompt, and its
            bootstrap interval; None for the baseline itself.
        speedup_end_to_end_median, speedup_end_to_end_ci95: the same for whole calls.
        ideal_speedup: plain decode time over the bare forward passes that this method needed.
        engine_efficiency: measured over ideal.
        peak_memory_bytes: most memory in use during its calls, by the device if it has its own,
            else by the process; None where the platform doesn't tell.
        energy_joules_per_sample: as far as the platform's meters tell, else None.
        throughput: by batch size, where asked for.
        tv_per_step: total variation between the law of the next token as the rule emits it and
            the target's, measured by enumeration on laws of real rounds (of a drafter that draws
            alone: between its laws and the target's): mean and largest; None where nothing is
            drafted.
        target_entropy: nats per token of the target's laws on its own output, after guidance and
            warpers.
        head_calls_per_sample, head_rows_per_sample, backbone_calls_per_sample: of continuous
            tokens, calls of the target's head and backbone for a picture that is drawn alone, one
            after the other, and the rows in those of the head; of the speed runs, else None.
        drafter_head_calls_per_sample, drafter_backbone_calls_per_sample: the drafter's.
        quality: by metric.
        family: the method with all settings but its knob's: equal in rows that differ in the knob
            alone; "": the row is the only one of its kind.
        knob: name of the setting that trades speed against something else; None: there is none.
        knob_value: this row's.
        call: the way to call, of a suite that has several; rows are compared within it.
        acceptance_ratios: the mean acceptance length over that of other rows: "blank", its own
            while the drafter is shown a grey picture, and "prompt-lookup".
        same_output: share of samples whose output is the baseline's; None where chance decides.
        choices: of a compressor that chooses, by branch.
        members: of a method of several models, by name.
    """

    contract: str
    n: int
    nfe_per_sample: float
    target_tokens_per_sample: float
    mean_acceptance_length: float
    acceptance_by_position: list[float]
    phase_seconds: dict[str, float]
    role: str = "method"
    n_speed: int = 0
    seconds_median: float | None = None
    decode_seconds_median: float | None = None
    speedup_median: float | None = None
    speedup_ci95: tuple[float, float] | None = None
    speedup_end_to_end_median: float | None = None
    ideal_speedup: float | None = None
    engine_efficiency: float | None = None
    peak_memory_bytes: int | None = None
    energy_joules_per_sample: float | None = None
    throughput: dict[int, Throughput] = field(default_factory=dict)
    tv_per_step: tuple[float, float] | None = None
    target_entropy: float | None = None
    head_calls_per_sample: float | None = None
    head_rows_per_sample: float | None = None
    backbone_calls_per_sample: float | None = None
    drafter_head_calls_per_sample: float | None = None
    drafter_backbone_calls_per_sample: float | None = None
    quality: dict[str, Quality] = field(default_factory=dict)
    family: str = ""
    knob: str | None = None
    knob_value: float | None = None
    call: str = ""
    mean_acceptance_length_ci95: tuple[float, float] | None = None
    speedup_end_to_end_ci95: tuple[float, float] | None = None
    acceptance_ratios: dict[str, Ratio] = field(default_factory=dict)
    same_output: float | None = None
    choices: dict[str, Choice] = field(default_factory=dict)
    members: dict[str, Member] = field(default_factory=dict)


# fields of a row that hold objects by name
PARTS: dict[str, type] = {
    "quality": Quality,
    "throughput": Throughput,
    "acceptance_ratios": Ratio,
    "choices": Choice,
    "members": Member,
}


@dataclass
class Report:
    """One evaluation run.

    Attributes:
        suite, pipeline, model: what ran.
        command: the command line that repeats it.
        settings: call arguments, seed, numbers of prompts, batch, warm-up, margin.
        environment: versions, commit, processor, threads, device.
        target_entropy: nats per token after guidance and warpers, mean over the target's own
            output: how hard its tokens are to guess; None where nothing was generated.
        costs: mean seconds of bare forward passes by network and number of tokens a row.
        methods: the rows by method.
        notes: what a reader must know before quoting a figure: a limited run, a noisy machine, too
            few samples.
        for_reporting: False if the run was cut short by `--limit`.
    """

    suite: str
    pipeline: str
    model: str
    command: str
    settings: dict[str, Any]
    environment: dict[str, Any]
    target_entropy: float | None
    costs: dict[str, dict[int, float]]
    methods: dict[str, MethodResult]
    notes: list[str] = field(default_factory=list)
    for_reporting: bool = True
    version: int = VERSION

    def write(self, folder: Path) -> Path:
        """Write `report.json`; the file appears whole or not at all."""
        return write_atomic(folder / "report.json", json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def read(cls, path: Path) -> Report:
        """Read and validate a report; a folder stands for its `report.json`.

        Raises:
            InputError: not a report of this version, or a field missing or unknown.
        """
        path = path / "report.json" if path.is_dir() else path
        try:
            data = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise InputError(f"can't read report {path}: {error}") from error
        if not isinstance(data, dict) or data.get("version") != VERSION:
            raise InputError(f"{path} is not a version {VERSION} report; run the suite again")
        try:
            return _report(data, str(path))
        except (TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{path} is not a report: {error}") from error


def _report(data: dict[str, Any], where: str) -> Report:
    """JSON has no tuples and no integer keys."""
    _check(Report, data, where)
    for name, row in data["methods"].items():
        place = f"{where}: method {name}"
        _check(MethodResult, row, place)
        for part, kind in PARTS.items():
            row[part] = {
                key: _part(kind, value, f"{place}: {part} {key}")
                for key, value in row.get(part, {}).items()
            }
        row["throughput"] = {int(batch): many for batch, many in row["throughput"].items()}
        data["methods"][name] = MethodResult(**_tuples(row))
    data["costs"] = {
        who: {int(n): seconds for n, seconds in by_width.items()}
        for who, by_width in data["costs"].items()
    }
    return Report(**data)


def _part(kind: type, data: Any, where: str) -> Any:
    """One of a row's parts by name."""
    _check(kind, data, where)
    return kind(**_tuples(data))


def _tuples(row: dict[str, Any]) -> dict[str, Any]:
    def read(name: str, value: Any) -> Any:
        pair = name.endswith("ci95") or name == "tv_per_step"
        return tuple(value) if pair and value is not None else value

    return {name: read(name, value) for name, value in row.items()}


def _check(kind: type, data: Any, where: str) -> None:
    if not isinstance(data, dict):
        raise InputError(f"{where}: not an object")
    known = {f.name for f in fields(kind)}
    wrong = sorted(known.symmetric_difference(data) - (LATER - data.keys()))
    if wrong:
        raise InputError(f"{where}: fields missing or unknown: {', '.join(wrong)}")
