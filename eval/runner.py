"""Suites: what to run on which prompts, and the report that comes of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import assets
from ..config import METHODS, SpecConfig
from ..errors import InputError
from ..pipelines.image import ImagePipeline
from ..registry import check_name
from ..worlds.shapes import Prompt
from .quality import measure_quality, target_entropy
from .schema import Report
from .speed import measure_speed
from .timing import environment

SUITES = Path(__file__).resolve().parent / "suites"
PROMPTS = Path(assets.__file__).resolve().parent / "prompts"
PIPELINES = ("image",)
QUALITY_BATCH = 24


@dataclass(frozen=True)
class Suite:
    """A suite file.

    Attributes:
        name, summary: for `mmspec eval ls`.
        pipeline: the modality.
        prompts: file in `assets/prompts`, in the format of GenEval's `evaluation_metadata.jsonl`.
        quality: judge the pictures, drawn in batches; otherwise measure speed at batch 1.
        call: keyword arguments of every pipeline call.
    """

    name: str
    summary: str
    pipeline: str
    prompts: str
    quality: bool
    call: dict[str, Any]


def load_suite(name: str) -> Suite:
    """A suite by name."""
    import yaml  # from the eval extra

    names = [path.stem for path in sorted(SUITES.glob("*.yaml"))]
    check_name("suite", name, names)
    data = yaml.safe_load((SUITES / f"{name}.yaml").read_text())
    return Suite(name=name, **data)


def load_prompts(path: Path) -> list[Prompt]:
    """The prompts of a metadata file, a JSON object per line."""
    try:
        lines = path.read_text().splitlines()
        return [Prompt(**json.loads(line)) for line in lines if line.strip()]
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"can't read prompts {path}: {error}") from error


def run_suite(
    suite: Suite,
    pipe: ImagePipeline,
    configs: dict[str, SpecConfig],
    limit: int | None,
    out: Path,
    seed: int = 0,
    call: dict[str, Any] | None = None,
    model: str = "embedded",
    progress: Callable[[int], None] | None = None,
) -> Report:
    """Run methods over a suite and write `report.json` and `samples.jsonl` to `out`.

    Args:
        configs: methods by name; plain decoding is added when it is missing.
        limit: most prompts; None: all of the suite.
        call: overrides of the suite's call arguments.
        progress: told the number of finished samples.
    """
    configs = {"plain": SpecConfig(method="plain"), **configs}
    for config in configs.values():
        pipe.check_speculation(config)
    prompts = load_prompts(PROMPTS / suite.prompts)[:limit]
    settings = {**suite.call, **(call or {})}
    lines: list[str] = []

    def on_line(line: dict[str, Any]) -> None:
        lines.append(json.dumps(line))
        if progress is not None:
            progress(len(lines))

    costs: dict[str, Any] = {}
    if suite.quality:
        batch = QUALITY_BATCH
        methods = measure_quality(pipe, configs, prompts, seed, settings, batch, on_line)
    else:
        batch = 1
        methods, bare = measure_speed(pipe, configs, prompts, seed, settings, on_line)
        costs = {who: dict(sorted(c.seconds.items())) for who, c in bare.items()}
    report = Report(
        suite.name,
        suite.pipeline,
        model,
        {**settings, "seed": seed, "prompts": len(prompts), "batch": batch},
        environment(),
        target_entropy(pipe, prompts[:QUALITY_BATCH], seed, settings),
        costs,
        methods,
    )
    out.mkdir(parents=True, exist_ok=True)
    (out / "samples.jsonl").write_text("\n".join(lines) + "\n")
    report.write(out)
    return report


def parse_methods(text: str) -> dict[str, SpecConfig]:
    """`"plain,draft,sjd"` to configurations."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise InputError(f"--methods is empty; choose from {', '.join(METHODS)}")
    return {name: SpecConfig(method=name) for name in names}
