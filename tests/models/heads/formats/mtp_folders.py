"""Tiny random layers of multi-token prediction, in their targets' checkpoints or alone."""

import folders
from folders import rand


def qwen(folder, *, experts=0, **config):
    """Qwen3-Next's names, beside other tensors of the target; `experts` of a mixture."""
    width, rows = folders.H, 2 * folders.HEADS * folders.DIM
    tensors = folders.layer("mtp.layers.0.", qk_norm=True)
    tensors["mtp.layers.0.self_attn.q_proj.weight"] = rand(rows, width)
    for name in ("pre_fc_norm_hidden", "pre_fc_norm_embedding", "norm"):
        tensors[f"mtp.{name}.weight"] = rand(width)
    for name in tensors:
        if name.endswith("norm.weight"):
            tensors[name] = rand(*tensors[name].shape)
    tensors["mtp.fc.weight"] = rand(width, 2 * width)
    if experts:
        tensors = mixed(tensors, "mtp.layers.0.mlp.", experts, "shared_expert")
        tensors["mtp.layers.0.mlp.shared_expert_gate.weight"] = rand(1, width)
        config |= {"num_experts_per_tok": 2, "norm_topk_prob": True}
    config = {
        **folders.SIZES,
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "partial_rotary_factor": 0.5,
        **config,
    }
    full = {**tensors, "model.norm.weight": rand(width)}
    return folders.write(folder, config, full), config, tensors


def glm(folder, *, experts=0, layer=4, own=True, **config):
    """GLM-4-MoE's names; `own` embeddings and output layer, as in published files."""
    width, vocab, p = folders.H, folders.V, f"model.layers.{layer}."
    tensors = folders.layer(p, qkv_bias=True)
    for name in ("enorm", "hnorm", "shared_head.norm"):
        tensors[f"{p}{name}.weight"] = 1 + rand(width)
    tensors[f"{p}eh_proj.weight"] = rand(width, 2 * width)
    if own:
        tensors[f"{p}embed_tokens.weight"] = rand(vocab, width)
        tensors[f"{p}shared_head.head.weight"] = rand(vocab, width)
    if experts:
        tensors = mixed(tensors, f"{p}mlp.", experts, "shared_experts")
        tensors[f"{p}mlp.gate.e_score_correction_bias"] = rand(experts)
        config |= {"num_experts_per_tok": 2, "routed_scaling_factor": 1.5}
        config |= {"n_group": 2, "topk_group": 1}
    config = {
        **folders.SIZES,
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "partial_rotary_factor": 0.5,
        "num_hidden_layers": layer,
        "num_nextn_predict_layers": 1,
        **config,
    }
    full = {**tensors, "model.norm.weight": rand(width)}
    return folders.write(folder, config, full), config, tensors


LATENT = dict(q_lora_rank=9, kv_lora_rank=7, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=5)


def deepseek(folder, *, experts=0, layer=4, own=True, **config):
    """DeepSeek-V3's: GLM-4-MoE's names, with latent attention in the layer."""
    _, flat, tensors = glm(folder, experts=experts, layer=layer, own=own)
    width, p = folders.H, f"model.layers.{layer}.self_attn."
    sizes = {**LATENT, **{name: config[name] for name in LATENT if name in config}}
    plain, turned = sizes["qk_nope_head_dim"], sizes["qk_rope_head_dim"]
    rank, queries, heads = sizes["kv_lora_rank"], sizes["q_lora_rank"], folders.HEADS
    tensors = {name: value for name, value in tensors.items() if not name.startswith(p)}
    tensors |= {
        f"{p}kv_a_proj_with_mqa.weight": rand(rank + turned, width),
        f"{p}kv_a_layernorm.weight": 1 + rand(rank),
        f"{p}kv_b_proj.weight": rand(heads * (plain + sizes["v_head_dim"]), rank),
        f"{p}o_proj.weight": rand(width, heads * sizes["v_head_dim"]),
    }
    if queries:
        tensors |= {
            f"{p}q_a_proj.weight": rand(queries, width),
            f"{p}q_a_layernorm.weight": 1 + rand(queries),
            f"{p}q_b_proj.weight": rand(heads * (plain + turned), queries),
        }
    else:
        tensors[f"{p}q_proj.weight"] = rand(heads * (plain + turned), width)
    gone = ("partial_rotary_factor", "head_dim", "num_key_value_heads")
    flat = {name: value for name, value in flat.items() if name not in gone}
    names = {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"}
    config = {**flat, **names, **sizes, **config}
    full = {**tensors, "model.norm.weight": rand(width)}
    return folders.write(folder, config, full), config, tensors


def mixed(tensors, mlp, experts, shared):
    """The tensors with a mixture in place of the plain feed-forward part, under `mlp`."""
    width, inner = folders.H, 6
    tensors = {name: value for name, value in tensors.items() if not name.startswith(mlp)}
    tensors[f"{mlp}gate.weight"] = rand(experts, width)
    for part in (*(f"experts.{e}" for e in range(experts)), shared):
        tensors |= {
            f"{mlp}{part}.gate_proj.weight": rand(inner, width),
            f"{mlp}{part}.up_proj.weight": rand(inner, width),
            f"{mlp}{part}.down_proj.weight": rand(width, inner),
        }
    return tensors


def speculators(folder, *, qwen3=False, **config):
    """speculators' names of the same layer; with `qwen3` its norms are plain, it has no gate."""
    _, flat, tensors = qwen(folder)
    names = {
        "mtp.fc.": "mtp_layers.0.input_proj.",
        "mtp.pre_fc_norm_hidden.": "mtp_layers.0.hidden_layernorm.",
        "mtp.pre_fc_norm_embedding.": "mtp_layers.0.token_layernorm.",
        "mtp.norm.": "mtp_layers.0.final_layernorm.",
        "mtp.layers.0.": "mtp_layers.0.",
    }
    for before, after in names.items():
        tensors = {
            after + name[len(before) :] if name.startswith(before) else name: value
            for name, value in tensors.items()
        }
    layers = {name: flat[name] for name in (*folders.SIZES, "model_type", "partial_rotary_factor")}
    if qwen3:
        q = "mtp_layers.0.self_attn.q_proj.weight"
        tensors[q] = rand(folders.HEADS * folders.DIM, folders.H)
        layers |= {"model_type": "qwen3", "partial_rotary_factor": 1.0}
    config = {
        "architectures": ["MTPDraftModel"],
        "speculators_model_type": "mtp",
        "speculators_config": {
            "algorithm": "mtp",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 2}],
            "verifier": {"name_or_path": None, "architectures": []},
        },
        "transformer_layer_config": layers,
        "num_nextn_predict_layers": 1,
        **config,
    }
    return folders.write(folder, config, tensors), {**layers, **config}, tensors
