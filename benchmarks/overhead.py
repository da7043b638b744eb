"""Cost of a call beside its forward pass, and the part of it that is cold caches."""

from __future__ import annotations

import statistics
import time
from typing import Any
from unittest.mock import patch

from torch import Tensor

from mmspec.devices import wait
from mmspec.eval.measure.timing import paired_runs
from mmspec.methods import SpecConfig
from mmspec.models.llamagen.decoder import LlamaGenDecoder

PROMPT = "a photo of a red circle left of a blue square"


def overhead(pipe: Any, samples: int) -> dict[str, Any]:
    """Milliseconds a call that are not the network's: beside it, and with its recorded logits.

    Recorded logits leave the processor's caches to the loop; a forward pass runs all of its weights
    through them, and what comes next starts cold. The difference is what that costs.
    """
    decoder = pipe.decoder(pipe.transformer)
    out = {}
    for method in ("plain", "sjd", "scd"):
        config = {method: SpecConfig(method=method)}
        paired_runs(pipe, config, [PROMPT], 0, {}, warmup=0)
        beside, alone = [], []
        for i in range(samples):
            passes = Passes(decoder)
            with patch.object(decoder, "forward", passes.record):
                run = paired_runs(pipe, config, [PROMPT], i, {}, warmup=0)[method][0]
            calls = len(run.stats.rounds)  # the first pass of all is the prefill
            beside.append((run.decode_seconds - sum(passes.seconds[-calls:])) / calls)
            with patch.object(decoder, "forward", passes.replay):
                run = paired_runs(pipe, config, [PROMPT], i, {}, warmup=0)[method][0]
            alone.append(run.decode_seconds / calls)
        out[method] = {
            "milliseconds_beside_the_network": 1e3 * statistics.median(beside),
            "milliseconds_alone": 1e3 * statistics.median(alone),
        }
    return out


class Passes:
    """The forward passes of a generation: their seconds, and their results to hand out again."""

    def __init__(self, decoder: LlamaGenDecoder) -> None:
        self.decoder = decoder
        self.seconds: list[float] = []
        self._results: list[Tensor] = []
        self._next = 0

    def record(self, *arguments: Any, **options: Any) -> Tensor:
        """`LlamaGenDecoder.forward`, remembered."""
        started = time.perf_counter()
        result = LlamaGenDecoder.forward(self.decoder, *arguments, **options)
        wait(result.device)
        self.seconds.append(time.perf_counter() - started)
        self._results.append(result.clone())
        return result

    def replay(self, *arguments: Any, **options: Any) -> Tensor:
        """Give the result that the same pass had when it was recorded."""
        self._next += 1
        return self._results[self._next - 1]
