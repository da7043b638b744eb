"""The report as code: what `report.json` holds, its version, and its validation."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ..errors import InputError

VERSION = 1


@dataclass
class MethodResult:
    """One method's row.

    Attributes:
        contract: what the method promises about its output.
        n: samples measured.
        nfe_per_sample: verify calls of the target per sample; prefill is not counted.
        target_tokens_per_sample: tokens the target processed in them.
        mean_acceptance_length: tokens emitted per target call, recovered or bonus token included.
        acceptance_by_position: share of drafted tokens that stood, given those before them did.
        seconds_median: wall-clock of a whole pipeline call at batch 1; None in quality suites.
        decode_seconds_median: of the token loop alone, without captions, prefill and pixels.
        phase_seconds: mean seconds per phase.
        speedup_median, speedup_ci95: paired decode-time ratio to plain, prompt by prompt, and its
            bootstrap interval; None for the baseline itself.
        speedup_end_to_end_median: the same for whole calls.
        ideal_speedup: plain decode time over the bare forward passes that this method needed.
        engine_efficiency: measured over ideal.
        quality: scores per task and overall, and the paired difference to plain.
    """

    contract: str
    n: int
    nfe_per_sample: float
    target_tokens_per_sample: float
    mean_acceptance_length: float
    acceptance_by_position: list[float]
    seconds_median: float | None
    decode_seconds_median: float | None
    phase_seconds: dict[str, float]
    speedup_median: float | None = None
    speedup_ci95: tuple[float, float] | None = None
    speedup_end_to_end_median: float | None = None
    ideal_speedup: float | None = None
    engine_efficiency: float | None = None
    quality: dict[str, Any] = field(default_factory=dict)


@dataclass
class Report:
    """One evaluation run.

    Attributes:
        suite, pipeline, model: what ran.
        settings: call arguments, seed, number of prompts, batch.
        environment: versions, processor, threads.
        target_entropy: nats per token after guidance and warpers, mean over the target's own
            output: how hard its tokens are to guess.
        costs: seconds of bare forward passes by network and number of tokens a row.
        methods: the rows by method.
    """

    suite: str
    pipeline: str
    model: str
    settings: dict[str, Any]
    environment: dict[str, Any]
    target_entropy: float
    costs: dict[str, Any]
    methods: dict[str, MethodResult]
    version: int = VERSION

    def write(self, folder: Path) -> Path:
        """Write `report.json`; the file appears whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "report.json"
        part = path.with_suffix(".part")
        part.write_text(json.dumps(asdict(self), indent=2) + "\n")
        part.replace(path)
        return path

    @classmethod
    def read(cls, path: Path) -> Report:
        """Read and validate a report.

        Raises:
            InputError: not a report of this version, or a field missing or unknown.
        """
        try:
            data = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise InputError(f"can't read report {path}: {error}") from error
        if not isinstance(data, dict) or data.get("version") != VERSION:
            raise InputError(f"{path} is not a version {VERSION} report")
        _check(cls, data, str(path))
        for name, row in data["methods"].items():
            _check(MethodResult, row, f"{path}: method {name}")
            if row["speedup_ci95"] is not None:  # JSON has no tuples, and no integer keys
                row["speedup_ci95"] = tuple(row["speedup_ci95"])
            data["methods"][name] = MethodResult(**row)
        data["costs"] = {
            who: {int(n): seconds for n, seconds in by_width.items()}
            for who, by_width in data["costs"].items()
        }
        return cls(**data)


def _check(kind: type, data: dict[str, Any], where: str) -> None:
    known = {f.name for f in fields(kind)}
    wrong = sorted(known.symmetric_difference(data))
    if wrong:
        raise InputError(f"{where}: fields missing or unknown: {', '.join(wrong)}")
