"""Prediction layers as read from files are transformers' own decoder layers of these models."""

import mtp_folders
import pytest
import torch
from folders import H, rand
from transformers.models.deepseek_v3.configuration_deepseek_v3 import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import (
    DeepseekV3DecoderLayer,
    DeepseekV3RotaryEmbedding,
)
from transformers.models.glm4_moe.configuration_glm4_moe import Glm4MoeConfig
from transformers.models.glm4_moe.modeling_glm4_moe import (
    Glm4MoeDecoderLayer,
    Glm4MoeRotaryEmbedding,
)
from transformers.models.qwen3_next.configuration_qwen3_next import Qwen3NextConfig
from transformers.models.qwen3_next.modeling_qwen3_next import (
    Qwen3NextDecoderLayer,
    Qwen3NextRotaryEmbedding,
)

from mmspec.models.heads.formats.files import HeadFiles
from mmspec.models.heads.formats.registry import read_head
from mmspec.models.heads.published.attention import masked_attention

N, EXPERTS, INNER = 5, 6, 6  # as `mtp_folders.mixed` has it


def qwen(config, experts):
    mixture = dict(num_experts=EXPERTS, shared_expert_intermediate_size=INNER) if experts else {}
    own = Qwen3NextConfig(
        **{**config, "num_experts": 0, **mixture},
        moe_intermediate_size=INNER,
        layer_types=["full_attention"],
    )
    return own, Qwen3NextDecoderLayer(own, 0), Qwen3NextRotaryEmbedding(own)


def glm(config, experts):
    own = Glm4MoeConfig(
        **config,
        attention_bias=True,
        moe_intermediate_size=INNER,
        n_routed_experts=EXPERTS,
        first_k_dense_replace=0 if experts else 1,
    )
    return own, Glm4MoeDecoderLayer(own, 0), Glm4MoeRotaryEmbedding(own)


def deepseek(config, experts):
    own = DeepseekV3Config(
        **config,
        num_key_value_heads=config["num_attention_heads"],
        moe_intermediate_size=INNER,
        n_routed_experts=EXPERTS,
        n_shared_experts=1,
        first_k_dense_replace=0 if experts else 1,
    )
    return own, DeepseekV3DecoderLayer(own, 0), DeepseekV3RotaryEmbedding(own)


YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 8,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 0.8,
}


@pytest.mark.parametrize("experts", [0, EXPERTS], ids=["plain", "experts"])
@pytest.mark.parametrize(
    ("family", "more"),
    [(qwen, {}), (glm, {}), (deepseek, {}), (deepseek, {"rope_parameters": YARN})],
    ids=["qwen", "glm", "deepseek", "deepseek-yarn"],
)
def test_the_layer_is_transformers_own(tmp_path, family, more, experts):
    torch.manual_seed(0)
    made = getattr(mtp_folders, family.__name__)
    folder, config, _ = made(tmp_path / "head", experts=experts, **more)
    head = read_head(HeadFiles.read(folder)).float()
    own, theirs, rotary = family(config, experts)
    own._attn_implementation = "eager"
    mine = head.network.layers[0]
    theirs.load_state_dict(mine.state_dict())  # the same names
    x, places = rand(1, N, H).float(), torch.arange(N)[None]
    mask = torch.full((N, N), -torch.inf).triu(1)[None, None]
    with torch.no_grad():
        turns = head.rotary(places, torch.float32)
        out = mine(x, turns, masked_attention(mask), 0)
        wanted = theirs.eval()(x, attention_mask=mask, position_embeddings=rotary(x, places))
    torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-5)
