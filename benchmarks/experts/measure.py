"""Experts and seconds of calls by their number of tokens, predicted against measured."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor
from transformers import MixtralConfig, MixtralForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from mmspec.eval.measure.ideal_speedup import call_seconds
from mmspec.models.guided import GuidedDecoder
from mmspec.models.setting import Setting
from mmspec.models.transformers.probe import probed

from .routing import expected, expert_layers, touched_by, watched

TOKENS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
FITTED = TOKENS[::3]  # calls that the cost's coefficients come from; the others are predicted
PROMPT, TEXT = 8, 128
COUNT = "num_experts"  # transformers' name for a layer's number of experts
SIZES = {
    "vocab_size": 512,
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "eos_token_id": None,
    "pad_token_id": 0,
}


def mixtral() -> MixtralForCausalLM:
    """A small Mixtral with random weights: 2 of 8 experts."""
    return MixtralForCausalLM(
        MixtralConfig(intermediate_size=1024, num_local_experts=8, num_experts_per_tok=2, **SIZES)
    )


def qwen3_moe() -> Qwen3MoeForCausalLM:
    """A small Qwen3-MoE with random weights: 4 of 32 experts."""
    config = Qwen3MoeConfig(
        moe_intermediate_size=256, num_experts=32, num_experts_per_tok=4, head_dim=64, **SIZES
    )
    return Qwen3MoeForCausalLM(config)


SMALL: dict[str, Callable[[], Any]] = {"mixtral": mixtral, "qwen3-moe": qwen3_moe}


@dataclass
class CallCost:
    """A call of some tokens.

    Attributes:
        experts: mean number of distinct experts a layer, on the model's own text.
        by_layer: the same by layer.
        expected: the number by chance.
        relative: its time over a call of one token's, T(n) / T(1); the inverse is the target
            efficiency, and so many tokens a call must be emitted to break even.
        predicted: the same as the cost model has it.
        fitted: the cost model's coefficients come from this call too.
    """

    experts: float
    by_layer: list[float]
    expected: float
    relative: float
    predicted: float
    fitted: bool


@dataclass
class ExpertsRecord:
    """A model: how many experts it has, how many a token takes, and what calls cost.

    Attributes:
        weights: "random" ones route without having learned to.
        coefficients: milliseconds of a call, of an expert touched in every layer, of a token.
    """

    model: str
    weights: str
    experts: int
    chosen: int
    layers: int
    samples: int
    milliseconds: float
    coefficients: list[float] = field(default_factory=list)
    calls: dict[int, CallCost] = field(default_factory=dict)


@dataclass
class ExpertsFound:
    """Contents of `experts.json`."""

    environment: dict[str, Any]
    models: list[ExpertsRecord]


@torch.inference_mode()
def text_of(model: Any, prompt: Tensor, length: int) -> Tensor:
    """Token ids `[1, T + length]` of a prompt `[1, T]` and what the model samples behind it."""
    text: Tensor = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=True,
        top_k=0,
        max_new_tokens=length,
        min_new_tokens=length,
    )
    return text


@torch.inference_mode()
def routes_of(model: Any, text: Tensor, length: int) -> list[Tensor]:
    """Experts `[length, K]` of the last tokens of a text, by layer.

    A token's route depends on what is before it alone, so one call tells all of them.
    """
    with watched(model) as routes:
        model(text)
    return [calls[0][-length:] for calls in routes]


@torch.inference_mode()
def seconds_of(model: Any, prompt: Tensor, text: Tensor, samples: int) -> dict[int, float]:
    """Median seconds of the plain loop's calls by their tokens, measured in turn.

    Args:
        prompt: token ids `[1, T]`.
        text: what the calls read behind it `[1, S]`, each time from another place.
    """
    decoder, length = probed(model), text.shape[1]
    placed = decoder.prompt(prompt, prompt >= 0, length)
    decoder.place(placed)
    law, most = partial(torch.softmax, dim=-1), max(TOKENS)
    guided = GuidedDecoder(
        decoder, Setting(placed.embedded, placed.mask, None, law, length, 0, most)
    )
    times: dict[int, list[float]] = {n: [] for n in TOKENS}
    with decoder.repacked():
        guided.start(1)
        for sample, n in product(range(samples), TOKENS):
            at = sample * n % (length - n + 1)
            call = partial(guided.extend, text[:, at : at + n], [0])
            times[n] += call_seconds(call, 1, text.device)
    return {n: statistics.median(found) for n, found in times.items()}


def fit(seconds: dict[int, float], experts: dict[int, float]) -> list[float]:
    """Coefficients a, b, c ≥ 0 of T(t) = a + b N(t) + c t, by least squares over relative errors.

    MoESD has two more roofline terms for the work of dense layers and of touched experts; where
    computing binds both are linear in t, and where memory binds both are constant, so one term each
    stands for them here.

    Args:
        seconds: by tokens of a call. experts: N(t) of the same calls.
    """
    rows = [[1 / s, experts[t] / s, t / s] for t, s in seconds.items()]
    found: list[float] = nnls(np.array(rows), np.ones(len(rows)))[0].tolist()
    return found


def measure_experts(
    name: str, weights: str, model: Any, prompt: Tensor, samples: int
) -> ExpertsRecord:
    """Count a model's experts and time its calls.

    Args:
        model: with sparse experts, in evaluation mode.
        prompt: token ids `[1, T]` that its text begins with.
        samples: times that every size of call is measured.

    Raises:
        InputError: it has no experts.
    """
    layers = expert_layers(model)
    text = text_of(model, prompt, TEXT)
    routes = routes_of(model, text, TEXT)
    count, chosen = int(getattr(layers[0], COUNT)), routes[0].shape[1]
    by_layer = {n: [touched_by(route, n) for route in routes] for n in TOKENS}
    by_chance = {n: expected(count, chosen, n) for n in TOKENS}
    seconds = seconds_of(model, prompt, text[:, prompt.shape[1] :], samples)
    a, b, c = fit({n: seconds[n] for n in FITTED}, by_chance)
    one = 1e3 * seconds[1]
    record = ExpertsRecord(name, weights, count, chosen, len(layers), samples, one)
    record.coefficients = [1e3 * x for x in (a, b, c)]
    for n in TOKENS:
        record.calls[n] = CallCost(
            statistics.fmean(by_layer[n]),
            by_layer[n],
            by_chance[n],
            seconds[n] / seconds[1],
            (a + b * by_chance[n] + c * n) / (a + b * by_chance[1] + c),
            n in FITTED,
        )
    return record
