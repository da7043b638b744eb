"""Layers of multi-token prediction written: under their target's names, or as speculators' heads.

A folder of such a layer goes beside the target's checkpoint: its tensors are to be put back there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..published.experts import MixtureOfExperts
from ..published.head import PublishedHead
from ..published.mtp import MtpNetwork
from .files import Layout
from .mtp import NEXTN, SPECULATORS, renamed
from .speculators import LAYER, envelope

KEYS = (
    *LAYER,
    *(
        "model_type",
        "layer_types",
        "num_hidden_layers",
        "partial_rotary_factor",
        "num_experts_per_tok",
    ),
    *("norm_topk_prob", "routed_scaling_factor", "n_group", "topk_group", "scoring_func"),
    *("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
    "rope_interleave",
)


def mtp_formats(
    head: PublishedHead,
) -> dict[str, Callable[[PublishedHead, dict[str, Any]], Layout]]:
    """The formats that the layer can be written in, its own first.

    speculators has neither embeddings and output layers of a layer's own nor GLM-4's routing.
    Qwen's names stand for zero-centred norms.
    """
    if head.format == "nextn":
        return {"nextn": _nextn}
    network = head.network
    assert isinstance(network, MtpNetwork)
    if not network.zero_centred:
        return {"speculators": _speculators}
    return {"mtp": _mtp, "speculators": _speculators}


def _mtp(head: PublishedHead, verifier: dict[str, Any]) -> Layout:
    config = _config(head)
    tensors = head.network.state_dict()
    if not str(config.get("model_type")).startswith("qwen3_5"):
        tensors = split(tensors)
    named = {f"mtp.{name}": value for name, value in tensors.items()}
    return config, named, "model.safetensors"


def _nextn(head: PublishedHead, verifier: dict[str, Any]) -> Layout:
    config = _config(head)
    back = [(after, before) for before, after in NEXTN]
    prefix = f"model.layers.{config['num_hidden_layers']}."
    tensors = split(head.network.state_dict())
    named = {prefix + renamed(name, back): value for name, value in tensors.items()}
    config["num_nextn_predict_layers"] = 1
    return config, named, "model.safetensors"


def _speculators(head: PublishedHead, verifier: dict[str, Any]) -> Layout:
    layers = _config(head)
    # or else the package looks for Qwen3-Next's linear attention, and for its many experts
    count = int(layers.get("num_hidden_layers", 1))
    layers = {"layer_types": ["full_attention"] * count, **_experts(head), **layers}
    back = [(after, before) for before, after in SPECULATORS]
    named = {
        f"mtp_layers.0.{renamed(name, back)}": value
        for name, value in head.network.state_dict().items()
    }
    own = envelope("mtp", "MTPDraftModel", head.length or 3, verifier, layers)
    return {**own, "num_nextn_predict_layers": 1}, named, "model.safetensors"


def _experts(head: PublishedHead) -> dict[str, int]:
    """Sizes of the mixture, by keys of Qwen3-Next's configuration."""
    mlp = head.network.get_submodule("layers.0.mlp")
    if not isinstance(mlp, MixtureOfExperts):
        return {"num_experts": 0}
    sizes = mlp.sizes
    return {
        "num_experts": sizes.count,
        "moe_intermediate_size": sizes.inner,
        "shared_expert_intermediate_size": sizes.shared,
    }


def _config(head: PublishedHead) -> dict[str, Any]:
    return {key: head.config[key] for key in KEYS if head.config.get(key) is not None}


def split(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors in which every expert has its own, see `fused`."""
    out: dict[str, Tensor] = {}
    for name, value in tensors.items():
        if ".experts." not in name:
            out[name] = value
            continue
        stem = name[: name.index(".experts.") + len(".experts")]
        for number, own in enumerate(value):
            if name.endswith("gate_up_proj"):
                gate, up = torch.chunk(own, 2)
                out |= {f"{stem}.{number}.gate_proj.weight": gate}
                out |= {f"{stem}.{number}.up_proj.weight": up}
            else:
                out[f"{stem}.{number}.down_proj.weight"] = own
    return out
