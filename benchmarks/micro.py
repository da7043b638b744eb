"""Single costs: is the plain loop honest, and does the package start quickly?"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from mmspec.engine.coins import ProductionCoins
from mmspec.engine.warp import Warp
from mmspec.eval.environment import environment
from mmspec.eval.measure.bootstrap import ratio_interval
from mmspec.eval.measure.ideal_speedup import call_seconds, measure_forward
from mmspec.eval.measure.timing import paired_runs
from mmspec.methods import SpecConfig
from mmspec.models.llamagen.decoder import LlamaGenDecoder
from mmspec.models.llamagen.transformer import LlamaGenTransformer
from mmspec.models.token_grid import TokenGrid
from mmspec.progress import say
from mmspec.registry import check_name

from .denoising import cspd_bias, denoising_calls
from .merging import merging
from .overhead import PROMPT, overhead
from .parting import parting
from .peer import against_assisted_generation
from .state_trees import state_trees
from .throughput import goodput_against_plain, throughput, useless_drafter

PLAIN = {"plain": SpecConfig(method="plain")}


def run_micro(pipe: Any, samples: int = 10, only: Sequence[str] | None = None) -> dict[str, Any]:
    """The benchmarks in `SECTIONS`, or some of them; each takes a pipeline and a sample count.

    Raises:
        InputError: there is no such benchmark.
    """
    for name in only or ():
        check_name("benchmark", name, SECTIONS)
    found: dict[str, Any] = {"environment": environment(pipe.device)}
    for name in only or SECTIONS:
        say(f"benchmark {name}")
        found[name] = SECTIONS[name](pipe, samples)
    return found


def start_up(pipe: Any = None, samples: int = 5) -> dict[str, float]:
    """Median seconds of `import mmspec` and of `mmspec --help`, in fresh processes."""
    commands = {
        "import_seconds": [sys.executable, "-c", "import mmspec"],
        "help_seconds": [sys.executable, "-m", "mmspec", "--help"],
    }
    run = partial(subprocess.run, check=True, capture_output=True)
    return {
        name: statistics.median(call_seconds(partial(run, command), samples))
        for name, command in commands.items()
    }


def plain_loop(pipe: Any, samples: int) -> dict[str, Any]:
    """Paired ratio: the plain loop over its bound, tokens × (bare cached forward + sampling)."""
    decoder, grid = pipe.decoder(pipe.transformer), pipe.transformer.grid
    loop, bare, sampling = [], [], []
    for i in range(-1, samples):
        run = paired_runs(pipe, PLAIN, [PROMPT], i + 1, {}, warmup=0)["plain"][0]
        forwards = bare_generation(decoder, 2, grid)
        if i >= 0:
            loop.append(run.decode_seconds)
            bare.append(forwards)
            sampling.append(sampling_seconds(pipe.transformer.config.vocab_size, pipe.device))
    bounds = [b + grid * grid * s for b, s in zip(bare, sampling, strict=True)]
    ratio, interval = ratio_interval([t / b for t, b in zip(loop, bounds, strict=True)])
    return {
        "loop_seconds": statistics.median(loop),
        "bare_forward_seconds": statistics.median(bare),
        "sampling_seconds_per_token": statistics.median(sampling),
        "loop_over_bound": ratio,
        "loop_over_bound_ci95": interval,
    }


@torch.inference_mode()
def bare_generation(decoder: LlamaGenDecoder, rows: int, grid: int) -> float:
    """Seconds of the cached one-token passes of one generation, and nothing else."""
    prefix = decoder.model.prefix_length
    cache, rotary = decoder.cache(rows, prefix + grid * grid), decoder.rotary(grid)
    x = decoder.embeddings[torch.zeros(rows, 1, dtype=torch.long, device=rotary.device)]
    started = time.perf_counter()
    for slot in range(prefix - 1, prefix + grid * grid - 1):
        out = decoder.forward(x, rotary[slot : slot + 1], cache, slot, slot + 1, None)
    out[0, 0, 0].item()  # wait for the device
    return time.perf_counter() - started


@torch.inference_mode()
def sampling_seconds(vocab_size: int, device: torch.device | str = "cpu") -> float:
    """Guidance, warpers and one draw for one row."""
    logits, warp = torch.randn(2, 1, vocab_size, device=device), Warp(1.0, 100, 1.0)
    coins = ProductionCoins([0], device)
    coins.uniform(0, 0, 0, 1)

    def sample() -> None:
        _, verification = coins.round(0)
        verification.draw(warp(torch.lerp(logits[1:], logits[:1], 2.0))[:, -1])

    return statistics.fmean(call_seconds(sample, 200, device))


def verification_cost(
    pipe: Any, samples: int, tokens: tuple[int, ...] = (1, 2, 4, 5, 8, 16, 17, 32)
) -> dict[str, Any]:
    """T(n) / T(1) of the target with guidance, and the drafter's cost c = T_drafter(1) / T(1)."""
    grid = TokenGrid(pipe.transformer.grid, pipe.transformer.grid)
    costs = {n: measure_forward(pipe.decoder(pipe.transformer), 2, grid, n) for n in tokens}
    relative = {n: t / costs[1] for n, t in costs.items()}
    out: dict[str, Any] = {"target_seconds": costs[1], "relative": relative}
    if pipe.drafter is not None:
        out["drafter"] = measure_forward(pipe.decoder(pipe.drafter), 2, grid, 1) / costs[1]
    return out


def larger_grid(pipe: Any, samples: int, grid: int = 32) -> dict[str, Any]:
    """Plain seconds and calls at a grid the target was never trained on: a cost, no picture."""
    config = {**pipe.transformer.config, "block_size": grid**2}
    network: Any = LlamaGenTransformer.from_config(config)
    network.load_state_dict(pipe.transformer.state_dict())
    large = type(pipe)(network.eval(), pipe.vq_model, pipe.text_encoder, pipe.tokenizer)
    large.to(pipe.device)
    large.set_progress_bar_config(disable=True)
    runs = paired_runs(large, PLAIN, [PROMPT] * min(samples, 3), 0, {})["plain"]
    return {
        "seconds_median": statistics.median(run.seconds for run in runs),
        "nfe_per_sample": runs[0].stats.nfe,
    }


def memory_bound(pipe: Any, samples: int) -> dict[str, float]:
    """The bare one-token pass over the time to read its weights and keys and values once."""
    decoder, grid, device = pipe.decoder(pipe.transformer), pipe.transformer.grid, pipe.device
    cache = decoder.cache(2, decoder.model.prefix_length + grid * grid)
    matrices = [m.weight for layer in decoder.layers for m in layer.maps] + [decoder.head.weight]
    read = sum(w.numel() * w.element_size() for w in matrices)
    read += cache.nbytes // 2  # half full on average
    block = torch.empty(2**28, dtype=torch.uint8, device=device)
    # a copy reads and writes every byte
    target = torch.empty_like(block)
    copied = statistics.median(call_seconds(lambda: target.copy_(block), samples, device))
    bandwidth = 2 * block.numel() / copied
    seconds = measure_forward(decoder, 2, TokenGrid(grid, grid), 1)
    return {
        "bytes_per_call": float(read),
        "bytes_per_second": bandwidth,
        "seconds_per_call": seconds,
        "over_bound": seconds / (read / bandwidth),
    }


SECTIONS: dict[str, Callable[[Any, int], dict[str, Any]]] = {
    "start_up": start_up,
    "plain_loop": plain_loop,
    "overhead": overhead,
    "memory_bound": memory_bound,
    "against_assisted_generation": against_assisted_generation,
    "verification_cost": verification_cost,
    "plain_32x32_untrained": larger_grid,
    "goodput_against_plain": goodput_against_plain,
    "useless_drafter": useless_drafter,
    "throughput": throughput,
    "denoising_calls": denoising_calls,
    "cspd_bias": cspd_bias,
    "state_trees": state_trees,
    "merged_attention": merging,
    "parted_attention": parting,
}
