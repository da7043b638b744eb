"""Forms that weights are rounded to."""

from __future__ import annotations

from ..part import Weights

PARTS = (
    Weights(
        "float16",
        ".rounded:HalfLinear",
        "weights in half the bytes, arithmetic in float32",
        paper="Micikevicius et al. 2018",
        bits=16,
    ),
    Weights(
        "int8",
        ".rounded:Int8Linear",
        "weights and inputs in eight bits, a scale an output and a scale a row",
        paper="Dettmers et al. 2022",
        bits=8,
    ),
    Weights(
        "int8-high4",
        ".rounded:HighBitsLinear",
        "the four high bits of int8's weights: a drafter inside an int8 target",
        bits=4,
        inside="int8",
    ),
)
