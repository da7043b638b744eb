"""Tiny random models of the causal classes of transformers, to try them out."""

from __future__ import annotations

import copy
import re
from typing import Any

import torch
import transformers
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

VOCAB, PLACES, WINDOW = 40, 64, 6
# what a number in a config becomes, by its name: the first that fits
SIZES: tuple[tuple[str, int], ...] = (
    (r"type_vocab_size|image_size|patch_size", 0),  # 0: as it is
    (r"vocab_size(_per_layer_input)?", VOCAB),
    (r"(original_)?max_position_embeddings|n_positions|n_ctx|max_seq_len", PLACES),
    (r"max_(source|target)_positions|context_length", PLACES),
    (r"(sliding|keep|attention)_window(_size)?|window_size|local_attention\w*", WINDOW),
    (r"attention_chunk_size|index_topk|index_block_size|rel_extent", WINDOW),
    (r"index_topk_blocks", 1),
    (r"num_key_value_heads|num_kv_heads|swa_num_key_value_heads", 2),
    (r"\w*(hidden_layers|decoder_layers|encoder_layers)|n_layers?|num_layers|num_blocks|depth", 4),
    (r"max_window_layers|num_kv_shared_layers|n_(input|output|recurrent)_layers", 2),
    (r"num_layers_per_stack|n_layers_per_attn_res_block|layer_group_size", 2),
    (r"loop_layer_index_start|num_dense_layers|first_k_dense_replace", 1),
    (r"loop_layer_index_end", 3),
    (r"moe_layer_end_index|no_rope_layer_interval|global_attn_every_n_layers", 3),
    (r"attn_layer_(offset|period)|expert_layer_(offset|period)", 0),
    (r"n_group|topk_group|num_expert_group|n_groups|o_groups|mamba_n_?groups", 1),
    (r"num_experts_per_tok(en)?|top_?k|moe_(k|topk)|centroid_intermediate_top_k", 2),
    (r"\w*(num_experts|routed_experts|local_experts)|zero_expert_num|num_centroids", 4),
    (r"n_head|n_heads|\w*attention_heads|num_heads|index_n_heads|linear_num\w*heads", 4),
    (r"heads_per_ngram|n_mamba_heads|mamba_n(um)?_heads|num_query_groups", 4),
    (r"qk_(rope|nope)_head_dim|rotary_dim|dim_head|d_head", 8),
    (r"v_head_dim", 6),
    (r"qk_head_dim", 16),
    (r"\w*head_dim|kv_channels|\w*_d_head|mamba_headdim|attention_head_size", 8),
    (r"d_model|n_embd|\w*hidden_size|emb_dim|\w*embed_dim|embedding_(dim|size)", 32),
    (r"word_embed_proj_dim|(input|output)_embedding_size|lru_width|out_hidden_size", 32),
    (r"\w*(intermediate_size(_mlp)?|ffn_dim|d_inner|dff|dim_ff|d_ff|feed_forward_size)", 24),
    (r"kv_lora_rank", 12),
    (r"\w*(lora_rank|_rank|lowrank)", 8),
    (r"\w*(state_size|d_state|d_ssm)|time_step_rank|mamba_dt_rank|d_rel|ngram_vocab_size_base", 8),
    (r"\w*chunk_size|\w*group_vocab|split_ngram_parts|num_mel_bins", 8),
)
# what a config leaves open and its model needs
UNSTATED = {
    "head_dim": 8,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "n_routed_experts": 4,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
# by model type: what has to fit each other
OVERRIDES: dict[str, dict[str, Any]] = {
    "bamba": {"mamba_n_heads": 8, "mamba_d_head": 8, "attn_layer_indices": [1, 3]},
    "cohere_compass_text": {"rope_parameters": {"full_attention": ROPE, "sliding_attention": ROPE}},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0}},
    "dory": {"n_input_layers": 1, "n_recurrent_layers": 2, "n_output_layers": 1},
    "dots3_note_text": {"per_layer_config": {}},
    "falcon_h1": {"mamba_n_heads": 4, "mamba_d_head": 2},
    "gemma4": {"image_token_id": 36, "video_token_id": 37, "audio_token_id": 38},
    "gemma4_unified": {"image_token_id": 36, "video_token_id": 37, "audio_token_id": 38},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "granitemoehybrid": {
        "mamba_n_heads": 8,
        "mamba_d_head": 8,
        "layer_types": ["linear_attention", "full_attention"] * 2,
    },
    "inkling2_loop_text": {
        "n_layers_per_attn_res_block": 1,
        "loop_layer_index_start": 1,
        "loop_layer_index_end": 3,
    },
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "kimi_linear": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "mamba2": {"num_heads": 8, "head_dim": 8},
    "zamba": {
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
        "num_hidden_layers": 9,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
    },
    "zamba2": {
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
        "mamba_headdim": 16,
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
    },
}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def model_classes() -> dict[str, str]:
    """Causal classes of transformers by model type."""
    names = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()
    return {kind: name if isinstance(name, str) else name[0] for kind, name in names}


def shrunk(config: PreTrainedConfig) -> dict[str, Any]:
    """Arguments of a tiny config of the same kind."""
    out: dict[str, Any] = {}
    told = config.to_dict()
    for name, value in told.items():
        if name in config.sub_configs and isinstance(value, dict):
            out[name] = shrunk(getattr(config, name))
        elif name in TOKENS:
            out[name] = TOKENS[name]
        elif name == "is_decoder" and not config.is_encoder_decoder:
            out[name] = True
        elif name in UNSTATED and value is None:
            out[name] = UNSTATED[name]
        elif isinstance(value, int) and not isinstance(value, bool) and value > 0:
            size = next((size for rule, size in SIZES if re.fullmatch(rule, name)), 0)
            if size:
                out[name] = min(value, size)
    if "kv_lora_rank" in out:  # every head has keys of its own
        out["num_key_value_heads"] = out["num_attention_heads"]
    # transformers adds to the dictionaries that it is given
    return {**out, **copy.deepcopy(OVERRIDES.get(config.model_type, {}))}


def tiny(kind: str, dtype: torch.dtype = torch.float32, **more: Any) -> PreTrainedModel:
    """A tiny random model of a causal class, in evaluation mode."""
    made = CONFIG_MAPPING[kind]
    config = made(**{**shrunk(made()), **more})
    network = getattr(transformers, model_classes()[kind])
    if network.config_class is not made:
        config = config.get_text_config(decoder=True)
    return randomized(network._from_config(config, experts_implementation="eager"), dtype)


@torch.no_grad()
def randomized(model: PreTrainedModel, dtype: torch.dtype, seed: int = 0) -> PreTrainedModel:
    """The model with weights large enough for every part to matter."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        norm = weight.ndim == 1 and name.endswith("weight")
        nn.init.normal_(weight, float(norm), 0.3, generator)
    return model.to(dtype).eval()
