"""Positions of heads are turned as transformers turns those of its own models."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLTextConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLRotaryEmbedding
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5TextRotaryEmbedding
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLTextConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRotaryEmbedding

from mmspec.errors import InputError
from mmspec.models.heads.published.rotary import HeadRotary

SIZES = dict(hidden_size=64, num_attention_heads=4, max_position_embeddings=256)
LLAMA3 = dict(
    rope_type="llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)
PLACES = torch.tensor([[0, 1, 7, 200], [3, 4, 5, 6]])
AXES = torch.tensor([[[0, 1, 1, 1, 4]], [[0, 1, 2, 2, 4]], [[0, 1, 1, 2, 4]]])


@pytest.mark.parametrize(
    "scaling", [None, {"type": "linear", "factor": 2.0}, LLAMA3, YARN], ids=str
)
def test_one_position(scaling):
    rope = {"rope_type": "default", **(scaling or {})}
    rope["rope_type"] = rope.pop("type", rope["rope_type"])
    theirs = LlamaRotaryEmbedding(LlamaConfig(**SIZES, rope_parameters={**rope, "rope_theta": 5e5}))
    ours = HeadRotary({**SIZES, "rope_theta": 5e5, "rope_scaling": scaling}, 16)
    wanted = theirs(torch.zeros(1), PLACES)
    for mine, other in zip(ours(PLACES, torch.float32), wanted, strict=True):
        torch.testing.assert_close(mine, other)


def test_three_positions_by_section():
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
    config = Qwen2_5_VLTextConfig(**SIZES, rope_parameters=rope)
    theirs = Qwen2_5_VLRotaryEmbedding(config)(torch.zeros(1), AXES)
    scaling = {"type": "mrope", "mrope_section": [2, 3, 3]}
    ours = HeadRotary({**SIZES, "rope_scaling": scaling}, 16)(AXES, torch.float32)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)


def test_three_positions_in_turns():
    rope = {
        "rope_type": "default",
        "rope_theta": 1e4,
        "mrope_section": [4, 2, 2],
        "mrope_interleaved": True,
    }
    config = Qwen3VLTextConfig(**SIZES, head_dim=16, rope_parameters=rope)
    theirs = Qwen3VLTextRotaryEmbedding(config)(torch.zeros(1), AXES)
    ours = HeadRotary({**SIZES, "rope_parameters": rope}, 16)(AXES, torch.float32)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)


def test_a_part_of_each_head_in_turns():
    """Qwen3.5's: a quarter of a head is turned."""
    rope = {
        "rope_type": "default",
        "rope_theta": 1e4,
        "mrope_section": [4, 2, 2],
        "mrope_interleaved": True,
        "partial_rotary_factor": 0.25,
    }
    config = Qwen3_5TextConfig(**SIZES, head_dim=64, rope_parameters=rope)
    theirs = Qwen3_5TextRotaryEmbedding(config)(torch.zeros(1), AXES)
    ours = HeadRotary({**SIZES, "rope_parameters": rope}, 16)(AXES, torch.float32)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)


def test_other_scalings_are_refused():
    with pytest.raises(InputError, match="'longrope' is not supported"):
        HeadRotary({**SIZES, "rope_scaling": {"type": "longrope"}}, 16)
    with pytest.raises(InputError, match="half of its head_dim"):
        HeadRotary({**SIZES, "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 1]}}, 16)
