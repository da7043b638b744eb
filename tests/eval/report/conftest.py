"""A finished run, made up but of a real one's form: pictures, samples, and figures from them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mmspec.eval.measure.bootstrap import StratifiedMean, ratio_interval, verdict
from mmspec.eval.schema import MethodResult, Report
from mmspec.eval.schema_parts import Quality, Throughput
from mmspec.worlds.shapes import render, sample_scene
from mmspec.worlds.shapes.prompts import prompt_list
from mmspec.worlds.shapes.vocabulary import TASKS

MARGIN = 0.02
SAMPLES, TIMED, PICTURES = 60, 40, 18

# contract, role, target calls, share right, decode seconds, first acceptance and its decay
METHODS = {
    "plain": ("exact", "baseline", 256.0, 0.57, 0.79, None),
    "draft": ("exact", "method", 124.0, 0.58, 0.90, (0.52, 0.97, 4)),
    "sjd": ("exact", "method", 88.0, 0.57, 0.48, (0.72, 0.93, 16)),
    "scd": ("exact", "method", 77.0, 0.58, 0.42, (0.78, 0.95, 16)),
    "lenient": ("lossy", "method", 51.0, 0.52, 0.31, (0.88, 0.97, 16)),
    "drafter-only": ("lossy", "sceptic", 0.0, 0.31, 0.16, None),
}
PHASES = {"draft": 0.06, "target": 0.8, "verify": 0.1, "update": 0.04}


def make_run(folder: Path) -> Report:
    """Write `samples.jsonl`, `report.json` and the pictures of the first samples to a folder."""
    rng = np.random.default_rng(7)
    prompts = prompt_list(SAMPLES // len(TASKS))
    tags = [prompt.tag for prompt in prompts]
    lines, right, clip, seconds = [], {}, {}, {}
    for name, (_, _, calls, rate, decode, _) in METHODS.items():
        right[name] = (rng.random(SAMPLES) < rate).astype(float)
        clip[name] = np.round(20 + 8 * right[name] + rng.normal(0, 2, SAMPLES), 3)
        seconds[name] = np.round(decode * rng.lognormal(0, 0.06, TIMED), 5)
        for i, prompt in enumerate(prompts):
            picture = f"pictures/{name}/{i:05d}.png"
            if i < PICTURES:
                shown = prompt if right[name][i] else prompts[(i + 7) % SAMPLES]
                scene = sample_scene(np.random.default_rng([i, len(lines)]), shown, "held_out")
                (folder / picture).parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(render(scene, 64)).save(folder / picture)
            line = {"unit": f"quality/{name}/{i}+1", "kind": "quality", "method": name}
            line |= {"index": i, "prompt": prompt.prompt, "tag": prompt.tag, "seed": i}
            line["scores"] = {"geneval": right[name][i], "clip_score": clip[name][i]}
            line |= {"reason": "" if right[name][i] else f"expected {prompt.prompt[10:]}"}
            lines.append(line | {"picture": picture, "nfe": calls})
        for i, took in enumerate(seconds[name]):
            line = {"unit": f"speed//{i}+1", "kind": "speed", "method": name, "index": i}
            line |= {"batch": 1, "prompt": prompts[i].prompt, "seed": i, "seconds": took + 0.05}
            line |= {"decode_seconds": took, "bare_seconds": None, "nfe": calls}
            lines.append(line | {"mean_acceptance_length": 1.0, "phase_seconds": {}})
    lines.append({"unit": "target//0+1", "kind": "target", "entropy": 1.24})
    lines += [{"unit": unit, "kind": "end"} for unit in dict.fromkeys(x["unit"] for x in lines)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = {n: _row(n, tags, right, clip, seconds) for n in METHODS}
    report = Report(
        suite="shapes-full",
        pipeline="image",
        model="embedded",
        command="mmspec eval run --suite shapes-full --methods draft,sjd,scd,lenient -o report/",
        settings={
            "guidance_scale": 2.0,
            "temperature": 1.0,
            "top_k": 100,
            "top_p": 1.0,
            "seed": 0,
            "prompts": SAMPLES,
            "speed_prompts": TIMED,
            "warmup": 1,
            "margin": MARGIN,
        },
        environment={
            "mmspec": "0.1.0",
            "commit": "439a6113f2c0",
            "torch": "2.11.0",
            "python": "3.11.7",
            "processor": "AMD EPYC 7B13",
            "threads": 2,
            "device": "cpu",
        },
        target_entropy=1.24,
        costs={
            "target": {1: 0.0027, 5: 0.0034, 9: 0.0039, 17: 0.0046},
            "drafter": {1: 0.0004, 5: 0.0007},
        },
        methods=rows,
        notes=["60 samples a method: too few to tell 0.02 apart; about 2,400 would do."],
    )
    report.write(folder)
    return report


def _row(name, tags, right, clip, seconds) -> MethodResult:
    contract, role, calls, _, decode, curve = METHODS[name]
    plain = role == "baseline"
    ratios = seconds["plain"] / seconds[name]
    speedup, spread = (None, None) if plain else ratio_interval(ratios)
    ideal = None if plain else speedup * 1.2
    shares = [] if curve is None else [curve[0] * curve[1] ** i for i in range(curve[2])]
    batches = {1: 1.0, 4: 2.3, 16: 4.2} if calls else {}
    gain = {b: (256 / decode) * f * (1 if plain else 1 / b**0.2) for b, f in batches.items()}
    return MethodResult(
        contract=contract,
        n=SAMPLES,
        n_speed=TIMED,
        role=role,
        nfe_per_sample=calls,
        target_tokens_per_sample=256.0 if plain else calls * 9,
        mean_acceptance_length=256 / calls if calls else 0.0,
        acceptance_by_position=shares,
        phase_seconds={"encode": 0.01, "prefill": 0.02, "decode": 0.03}
        | {p: decode * share for p, share in PHASES.items()},
        seconds_median=float(np.median(seconds[name])) + 0.05,
        decode_seconds_median=float(np.median(seconds[name])),
        speedup_median=speedup,
        speedup_ci95=spread,
        speedup_end_to_end_median=None if plain else speedup * 0.97,
        ideal_speedup=ideal,
        engine_efficiency=None if plain else speedup / ideal,
        peak_memory_bytes=812_000_000 + (0 if plain else 45_000_000),
        throughput={
            b: Throughput(8, rate)
            if plain
            else Throughput(8, rate, speedup / b**0.2, (speedup * 0.95 / b**0.2, speedup / b**0.2))
            for b, rate in gain.items()
        },
        tv_per_step={"exact": (0.0, 3e-8), "lossy": (0.034, 0.41)}[contract] if curve else None,
        target_entropy=1.24,
        quality={
            "geneval": _quality(right[name], right["plain"], tags, plain, MARGIN),
            "clip_score": _quality(clip[name], clip["plain"], None, plain, None),
        },
    )


def _quality(mine, theirs, tags, plain, margin) -> Quality:
    strata = tags or [0] * len(mine)
    means = StratifiedMean(strata)
    low, high = means.interval(theirs - mine)
    parts = {t: float(mine[[tag == t for tag in tags]].mean()) for t in TASKS} if tags else {}
    return Quality(
        value=means(mine),
        ci95=means.interval(mine),
        difference_to_plain=None if plain else means(mine - theirs),
        difference_ci95=None if plain else (-high, -low),
        verdict="" if plain or margin is None else verdict((low, high), margin),
        parts=parts,
    )


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Path:
    """The folder of a finished run; not to be changed."""
    folder = tmp_path_factory.mktemp("run") / "report"
    make_run(folder)
    return folder


@pytest.fixture
def run(tmp_path) -> Path:
    """A folder of the same run that a test may change."""
    make_run(tmp_path / "run")
    return tmp_path / "run"
