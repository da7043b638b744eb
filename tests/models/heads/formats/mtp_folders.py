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
