"""Quality of methods: every prompt drawn by each, in batches, and judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ..config import SpecConfig
from ..engine.stats import SpecStats
from ..pipelines.image import ImagePipeline
from ..worlds.shapes import Prompt
from .metrics.geneval import geneval_scores, score_prompt
from .schema import MethodResult


def measure_quality(
    pipe: ImagePipeline,
    configs: dict[str, SpecConfig],
    prompts: Sequence[Prompt],
    seed: int,
    call: dict[str, Any],
    batch: int,
    on_line: Callable[[dict[str, Any]], None],
) -> dict[str, MethodResult]:
    """Rows of the report by method: GenEval on the shapes world, and the difference to plain.

    A row of a batch is the picture it would be alone, so the batch matters to time only; times are
    not paired here and no speed-up is given.
    """
    correct: dict[str, list[bool]] = {}
    totals: dict[str, SpecStats] = {}
    before = pipe.speculation
    try:
        for name, config in configs.items():
            pipe.enable_speculation(config)
            correct[name], parts = [], []
            for first in range(0, len(prompts), batch):
                some = prompts[first : first + batch]
                seeds = range(seed + first, seed + first + len(some))
                generators = [torch.Generator().manual_seed(s) for s in seeds]
                texts = [p.prompt for p in some]
                images, stats = pipe(texts, generator=generators, return_dict=False, **call)
                parts.append(stats)
                for prompt, s, image in zip(some, seeds, images, strict=True):
                    right, reason = judge(prompt, image)
                    correct[name].append(right)
                    line = {"method": name, "tag": prompt.tag, "prompt": prompt.prompt, "seed": s}
                    on_line({**line, "correct": right, "reason": reason})
            totals[name] = parts[0].merged(parts[1:])
    finally:
        pipe.enable_speculation(before)
    tags: list[str] = [p.tag for p in prompts]
    return {
        name: MethodResult(
            contract=total.contract,
            n=len(prompts),
            nfe_per_sample=total.nfe,
            target_tokens_per_sample=float(np.mean(total.target_tokens)),
            mean_acceptance_length=total.mean_acceptance_length,
            acceptance_by_position=total.acceptance_by_position,
            seconds_median=None,
            decode_seconds_median=None,
            phase_seconds={p: t / len(prompts) for p, t in sorted(total.seconds.items())},
            quality=summarize_quality(tags, correct[name], correct["plain"]),
        )
        for name, total in totals.items()
    }


def judge(prompt: Prompt, image: Any) -> tuple[bool, str]:
    """Is the prompt true of the picture, by the shapes world's detector?"""
    from ..worlds.shapes.detector import detect

    return score_prompt(prompt.metadata(), detect(np.asarray(image)))


def summarize_quality(tags: list[str], correct: list[bool], plain: list[bool]) -> dict[str, Any]:
    """Scores per task and overall, and the paired difference to plain with its 95 % interval."""
    scores: dict[str, Any] = dict(geneval_scores(zip(tags, correct, strict=True)))
    difference = np.asarray(correct, dtype=float) - np.asarray(plain, dtype=float)
    spread = 1.96 * difference.std(ddof=1) / len(difference) ** 0.5 if len(difference) > 1 else 0.0
    mean = float(difference.mean())
    scores["difference_to_plain"] = mean
    scores["difference_ci95"] = [mean - float(spread), mean + float(spread)]
    return scores


@torch.inference_mode()
def target_entropy(
    pipe: ImagePipeline, prompts: Sequence[Prompt], seed: int, call: dict[str, Any]
) -> float:
    """Mean entropy of the target on its own output: nats per token, after guidance and warpers."""
    texts = [p.prompt for p in prompts]
    generators = [torch.Generator().manual_seed(seed + i) for i in range(len(texts))]
    before = pipe.speculation
    pipe.disable_speculation()
    try:
        tokens, _ = pipe(
            texts, generator=generators, output_type="tokens", return_dict=False, **call
        )
    finally:
        pipe.enable_speculation(before)
    laws = pipe.token_laws(texts, tokens, **call)
    return float(torch.special.entr(laws).sum(-1).mean())
