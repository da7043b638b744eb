"""Suites: what to run on which prompts, and the report that comes of it."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..config import METHODS, SpecConfig
from ..errors import InputError
from ..pipelines.image import ImagePipeline
from ..registry import check_name
from ..worlds.shapes import Prompt, held_out_prompts
from .ideal import BareCosts, ideal_seconds
from .metrics.geneval import geneval_scores, score_prompt
from .schema import MethodResult, Report
from .timing import Sample, environment, paired_runs, ratio_interval

SUITES = Path(__file__).resolve().parent / "suites"
PIPELINES = ("image",)


@dataclass(frozen=True)
class Suite:
    """A suite file.

    Attributes:
        name, summary: for `mmspec eval ls`.
        pipeline: the modality.
        prompts_per_task: held-out shapes-world prompts of each GenEval task form.
        quality: score the pictures with the shapes world's detector.
        call: keyword arguments of every pipeline call.
    """

    name: str
    summary: str
    pipeline: str
    prompts_per_task: int
    quality: bool
    call: dict[str, Any]


def load_suite(name: str) -> Suite:
    """A suite by name."""
    import yaml  # from the eval extra

    names = [path.stem for path in sorted(SUITES.glob("*.yaml"))]
    check_name("suite", name, names)
    data = yaml.safe_load((SUITES / f"{name}.yaml").read_text())
    return Suite(name=name, **data)


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
    prompts = held_out_prompts(suite.prompts_per_task, seed)[:limit]
    if not prompts:
        raise InputError("--limit leaves no prompts; give at least 1")
    settings = {**suite.call, **(call or {})}
    out.mkdir(parents=True, exist_ok=True)
    done, lines = 0, []
    quality: dict[str, list[tuple[str, bool]]] = {name: [] for name in configs}

    def on_sample(name: str, sample: Sample) -> None:
        nonlocal done
        index = len(quality[name])
        line = _line(name, sample, prompts[index])
        if suite.quality:
            line["correct"], line["reason"] = judge(prompts[index], sample.output.images[0])
        quality[name].append((prompts[index].tag, bool(line.get("correct"))))
        sample.output = None  # pictures would pile up
        lines.append(json.dumps(line))
        done += 1
        if progress is not None:
            progress(done)

    samples = paired_runs(
        pipe, configs, [p.prompt for p in prompts], seed, settings, on_sample=on_sample
    )
    (out / "samples.jsonl").write_text("\n".join(lines) + "\n")
    costs = bare_costs(pipe, settings)
    methods = {
        name: summarize(name, configs[name], rows, samples["plain"], costs)
        for name, rows in samples.items()
    }
    if suite.quality:
        for name, row in methods.items():
            row.quality = quality_summary(quality[name], quality["plain"])
    report = Report(
        suite.name,
        suite.pipeline,
        model,
        {**settings, "seed": seed, "prompts": len(prompts), "batch": 1},
        environment(),
        {who: dict(sorted(c.seconds.items())) for who, c in costs.items()},
        methods,
    )
    report.write(out)
    return report


def judge(prompt: Prompt, image: Any) -> tuple[bool, str]:
    """Is the prompt true of the picture, by the shapes world's detector?"""
    from ..worlds.shapes.detector import detect

    return score_prompt(prompt.metadata(), detect(np.asarray(image)))


def bare_costs(pipe: ImagePipeline, call: dict[str, Any]) -> dict[str, BareCosts]:
    """Bare forward costs of the target and of the drafter, if there is one."""
    network, grid = pipe._choose(call.get("height"), call.get("width"))
    rows = 1 if call.get("guidance_scale", 2.0) == 1 else 2
    costs = {"target": BareCosts(pipe._decoder(network), rows, grid)}
    if pipe.drafter is not None:
        costs["drafter"] = BareCosts(pipe._decoder(pipe.drafter), rows, grid)
    return costs


def summarize(
    name: str,
    config: SpecConfig,
    samples: list[Sample],
    plain: list[Sample],
    costs: dict[str, BareCosts],
) -> MethodResult:
    """One method's row of the report."""
    n = len(samples)
    stats = [s.stats for s in samples]
    widest = max(len(s.judged_at) for s in stats)
    judged, kept = np.zeros(widest), np.zeros(widest)
    for s in stats:
        judged[: len(s.judged_at)] += s.judged_at
        kept[: len(s.accepted_at)] += s.accepted_at
    ideal = [
        p.decode_seconds
        / ideal_seconds(config, s.stats.rounds, costs["target"], costs.get("drafter"))
        for p, s in zip(plain, samples, strict=True)
    ]
    phases = {phase for s in stats for phase in s.seconds}
    row = MethodResult(
        contract=stats[0].contract,
        n=n,
        nfe_per_sample=statistics.fmean(s.nfe for s in stats),
        target_tokens_per_sample=statistics.fmean(sum(s.target_tokens) for s in stats),
        mean_acceptance_length=sum(sum(s.emitted) for s in stats)
        / sum(sum(s.calls) for s in stats),
        acceptance_by_position=[
            float(k / j) if j else 0.0 for k, j in zip(kept, judged, strict=True)
        ],
        seconds_median=statistics.median(s.seconds for s in samples),
        decode_seconds_median=statistics.median(s.decode_seconds for s in samples),
        phase_seconds={
            p: statistics.fmean(s.seconds.get(p, 0.0) for s in stats) for p in sorted(phases)
        },
        ideal_speedup=statistics.median(ideal),
    )
    pairs = list(zip(plain, samples, strict=True))
    measured, interval = ratio_interval([p.decode_seconds / s.decode_seconds for p, s in pairs])
    row.engine_efficiency = measured / row.ideal_speedup if row.ideal_speedup else None
    if name != "plain":
        row.speedup_median, row.speedup_ci95 = measured, interval
        row.speedup_end_to_end_median = statistics.median(p.seconds / s.seconds for p, s in pairs)
    return row


def quality_summary(rows: list[tuple[str, bool]], plain: list[tuple[str, bool]]) -> dict[str, Any]:
    """GenEval scores on the shapes world, and the paired difference to plain with its interval."""
    scores: dict[str, Any] = dict(geneval_scores(rows))
    difference = np.array([float(a[1]) - float(b[1]) for a, b in zip(rows, plain, strict=True)])
    spread = 1.96 * difference.std(ddof=1) / len(difference) ** 0.5 if len(difference) > 1 else 0.0
    mean = float(difference.mean())
    scores["difference_to_plain"] = mean
    scores["difference_ci95"] = [mean - float(spread), mean + float(spread)]
    return scores


def parse_methods(text: str) -> dict[str, SpecConfig]:
    """`"plain,draft,sjd"` to configurations."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise InputError(f"--methods is empty; choose from {', '.join(METHODS)}")
    return {name: SpecConfig(method=name) for name in names}


def _line(name: str, sample: Sample, prompt: Prompt) -> dict[str, Any]:
    return {
        "method": name,
        "tag": prompt.tag,
        "prompt": sample.prompt,
        "seed": sample.seed,
        "seconds": sample.seconds,
        "decode_seconds": sample.decode_seconds,
        "nfe": sample.stats.nfe,
        "mean_acceptance_length": sample.stats.mean_acceptance_length,
        "phases": sample.stats.seconds,
    }
