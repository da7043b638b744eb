"""Multi-token prediction layers in a target's own checkpoint, and speculators' heads of them.

Names are Qwen3-Next's (`mtp.…`), DeepSeek-V3's and GLM-4's (`model.layers.L.eh_proj` and so on) or
speculators' (`mtp_layers.0.…`). The first and the last are one layout under two names: norms are
zero-centred where the model's are. Of a checkpoint only the layer's tensors are read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ....errors import InputError
from ..published.experts import ExpertSizes
from ..published.head import PublishedHead
from ..published.mtp import MtpNetwork
from ..published.rotary import HeadRotary
from ..published.sizes import HeadSizes, LatentSizes
from .files import HeadFiles, layer_prefixes

# what a name becomes, by its beginning, behind the layer's own prefix
SPECULATORS = (
    ("input_proj.", "fc."),
    ("hidden_layernorm.", "pre_fc_norm_hidden."),
    ("token_layernorm.", "pre_fc_norm_embedding."),
    ("final_layernorm.", "norm."),
    ("", "layers.0."),
)
NEXTN = (
    ("eh_proj.", "fc."),
    ("hnorm.", "pre_fc_norm_hidden."),
    ("enorm.", "pre_fc_norm_embedding."),
    ("shared_head.norm.", "norm."),
    ("shared_head.head.", "lm_head."),
    ("embed_tokens.", "embed_tokens."),
    ("", "layers.0."),
)
_QWEN = ("qwen3_next", "qwen3_5")  # their norms are zero-centred
# beginnings of `model_type` whose layers are understood, by the names of their tensors
_FAMILIES = {"mtp": _QWEN, "nextn": ("glm4_moe", "deepseek_v3"), "speculators mtp": ("",)}
_EXPERT = re.compile(r"layers\.0\.mlp\.experts\.(\d+)\.(gate|up|down)_proj\.weight")


def is_mtp(files: HeadFiles) -> bool:
    """True where there is a layer that joins an embedding and a hidden state, both normed."""
    return bool(layer_prefixes(files.tensors))


def read_mtp(files: HeadFiles, length: int | None = None) -> PublishedHead:
    """The layer, as a head.

    Args:
        length: tokens of a draft; None: the files do not say.

    Raises:
        InputError: there are several layers, or what the layer computes is not known here.
    """
    config = files.config
    if isinstance(config.get("text_config"), dict):
        config = config["text_config"]
    prefixes = layer_prefixes(files.tensors)
    if len(prefixes) != 1:
        raise InputError(
            f"{files.folder} has {len(prefixes)} layers of multi-token prediction; only one is "
            "supported"
        )
    prefix = prefixes[0]
    if any(name.endswith("_scale_inv") for name in files.tensors):
        raise InputError(
            f"{files.folder}: the prediction layer is stored in FP8; convert it to bfloat16 first"
        )
    kind = str(config.get("model_type") or "")
    qwen = kind.startswith(_QWEN)
    native = prefix == "mtp."
    format = "mtp" if native else "speculators mtp" if prefix.startswith("mtp_") else "nextn"
    table = () if native else SPECULATORS if format == "speculators mtp" else NEXTN
    tensors = {
        renamed(name[len(prefix) :], table): value
        for name, value in files.tensors.items()
        if name.startswith(prefix)
    }
    if "speculators_model_type" in config and len(tensors) != len(files.tensors):
        strange = next(name for name in files.tensors if not name.startswith(prefix))
        raise InputError(f"{files.folder} does not fit MtpNetwork: unexpected tensor {strange}")
    own = HeadFiles(files.folder, config, fused(tensors, files.folder), files.files)
    if not kind.startswith(_FAMILIES[format]):
        raise InputError(
            f"{files.folder}: the norms of a prediction layer of model_type {kind!r} are not "
            f"known, only of {', '.join(_FAMILIES[format])}"
        )
    if own.layers() != 1:
        raise InputError(
            f"{files.folder} has {own.layers()} layers of multi-token prediction; only one is "
            "supported"
        )
    experts = _experts(own, config)
    sizes = _sizes(own, config, qwen, experts)
    network = MtpNetwork(
        sizes, experts, own.rows("embed_tokens.weight"), own.rows("lm_head.weight")
    )
    own.load(network)
    return PublishedHead(
        network,
        format,
        config,
        sizes.hidden_size,
        rotary=HeadRotary(config, _turned(config, sizes)),
        vocab_size=config.get("vocab_size"),
        length=length,
    )


def renamed(name: str, table: Iterable[tuple[str, str]]) -> str:
    """A name by the first row of `table` that it begins as."""
    for before, after in table:
        if name.startswith(before):
            return after + name[len(before) :]
    return name


def _turned(config: Mapping[str, Any], sizes: HeadSizes) -> int:
    """Numbers of a head that are turned by its position.

    Where the configuration is silent: a quarter in Qwen's, half in GLM-4's, as in transformers.
    """
    if sizes.latent is not None:
        return sizes.latent.turned
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = str(config.get("model_type") or "")
    usual = 0.25 if kind.startswith(_QWEN) else 0.5 if kind.startswith("glm4") else 1.0
    factor = rope.get("partial_rotary_factor") or config.get("partial_rotary_factor") or usual
    return int(sizes.head_dim * factor)


def fused(tensors: Mapping[str, Tensor], folder: Path) -> dict[str, Tensor]:
    """Tensors in which experts that have a number are joined: gates above ups.

    Raises:
        InputError: an expert of `folder` lacks a part, or has other sizes than the rest.
    """
    single: dict[tuple[int, str], Tensor] = {}
    out: dict[str, Tensor] = {}
    for name, value in tensors.items():
        match = _EXPERT.fullmatch(name)
        if match is None:
            out[name] = value
        else:
            single[int(match[1]), match[2]] = value
    if not single:
        return out
    experts = range(1 + max(number for number, _ in single))
    try:
        both = [torch.cat([single[n, "gate"], single[n, "up"]]) for n in experts]
        out["layers.0.mlp.experts.gate_up_proj"] = torch.stack(both)
        downs = [single[n, "down"] for n in experts]
        out["layers.0.mlp.experts.down_proj"] = torch.stack(downs)
    except (KeyError, RuntimeError) as error:
        raise InputError(
            f"{folder}: an expert of the prediction layer lacks a part, or has other sizes: {error}"
        ) from error
    return out


def _sizes(
    files: HeadFiles, config: Mapping[str, Any], qwen: bool, experts: ExpertSizes | None
) -> HeadSizes:
    inner = None if experts is None else experts.inner
    attention = "layers.0.self_attn."
    latent, own = None, {}
    if f"{attention}kv_a_proj_with_mqa.weight" in files.tensors:
        latent = _latent(files, config)
        heads = config.get("num_attention_heads")  # each has keys of its own
        own = {"head_dim": latent.plain + latent.turned, "num_key_value_heads": heads}
    return HeadSizes.of(
        config if inner is None else {**config, "intermediate_size": inner},
        **own,
        latent=latent,
        qkv_bias=f"{attention}{'q_proj' if latent is None else 'kv_a_proj_with_mqa'}.bias"
        in files.tensors,
        qk_norm=f"{attention}q_norm.weight" in files.tensors,
        zero_centred=qwen,
        gated=qwen,
    )


def _latent(files: HeadFiles, config: Mapping[str, Any]) -> LatentSizes:
    """Sizes of latent attention.

    Raises:
        InputError: one is missing, or values are longer than keys.
    """

    def size(name: str) -> int:
        value = config.get(name)
        if not isinstance(value, int) or value < 1:
            raise InputError(f"{files.folder}: config.json names no {name}")
        return value

    plain, turned, values = map(size, ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    if values > plain + turned:
        raise InputError(f"{files.folder}: values of {values} numbers are longer than keys")
    rope = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    more, factor = rope.get("mscale_all_dim"), rope.get("factor") or 1
    scale = (0.1 * more * math.log(factor) + 1) ** 2 if more and factor > 1 else 1.0
    return LatentSizes(
        size("kv_lora_rank"),
        plain,
        turned,
        values,
        files.rows("layers.0.self_attn.q_a_proj.weight") or 0,
        bool(config.get("rope_interleave", True)),
        scale,
    )


def _experts(files: HeadFiles, config: Mapping[str, Any]) -> ExpertSizes | None:
    """The mixture by its tensors and the configuration; None: there is none."""
    mlp = "layers.0.mlp."
    if f"{mlp}gate.weight" not in files.tensors:
        return None
    sigmoid = f"{mlp}gate.e_score_correction_bias" in files.tensors
    chosen = config.get("num_experts_per_tok")
    if not isinstance(chosen, int):
        raise InputError(f"{files.folder}: config.json names no num_experts_per_tok")
    if sigmoid and config.get("scoring_func", "sigmoid") != "sigmoid":
        raise InputError(f"{files.folder}: scoring_func {config['scoring_func']!r} is unknown")
    count, _, inner = files.shape(f"{mlp}experts.down_proj")
    shared = "shared_experts" if sigmoid else "shared_expert"
    return ExpertSizes(
        count,
        chosen,
        inner,
        files.rows(f"{mlp}{shared}.up_proj.weight") or 0,
        sigmoid,
        bool(config.get("norm_topk_prob", True)),
        float(config.get("routed_scaling_factor", 1.0)),
        int(config.get("n_group") or 1),
        int(config.get("topk_group") or 1),
    )
