"""Files of vLLM's speculators: one configuration for several kinds of heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....errors import InputError
from ..published.head import PublishedHead
from .dflash import made
from .eagle3 import read_eagle3
from .files import HeadFiles
from .mtp import read_mtp

# keys of a decoder layer in configurations of transformers
LAYER = (
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"),
    *("head_dim", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters"),
    *("max_position_embeddings", "vocab_size", "hidden_act", "attention_bias"),
)


def is_speculators(files: HeadFiles) -> bool:
    """True for a configuration that names its kind."""
    return "speculators_model_type" in files.config


def read_speculators(files: HeadFiles) -> PublishedHead:
    """The head of any kind that is supported.

    Raises:
        InputError: the kind is unknown or not supported.
    """
    config = files.config
    kind = config["speculators_model_type"]
    layers = config.get("transformer_layer_config")
    if not isinstance(layers, dict):
        raise InputError(f"{files.folder}: config.json has no transformer_layer_config")
    flat = {**layers, **{k: v for k, v in config.items() if k != "transformer_layer_config"}}
    files = HeadFiles(files.folder, flat, files.tensors, files.files)
    if kind in ("eagle3", "peagle"):
        if kind == "peagle" and "mask_hidden" not in files.tensors:
            raise InputError(f"{files.folder}: a P-EAGLE head without mask_hidden can't draft")
        own: dict[str, Any] = {
            "format": f"speculators {kind}",
            "feed_normed": bool(config.get("norm_output", False)),
            "length": proposal_length(config),
        }
        return read_eagle3(files, own)
    if kind in ("dflash", "dspark"):
        ids = config.get("aux_hidden_state_layer_ids")
        if not ids:
            raise InputError(f"{files.folder}: config.json names no aux_hidden_state_layer_ids")
        if kind == "dspark" and "sample_from_anchor" not in config:
            raise InputError(
                f"{files.folder}: config.json does not say sample_from_anchor, and writers of "
                "speculators' DSpark heads differ in what they mean; add it: true for newer heads"
            )
        return made(
            files,
            flat,
            tuple(int(n) for n in ids),
            f"speculators {kind}",
            anchored=bool(config.get("sample_from_anchor", False)),
            length=proposal_length(config),
        )
    if kind == "mtp":
        if config.get("num_nextn_predict_layers", 1) != 1:
            raise InputError(f"{files.folder}: speculators has MTP heads of one layer alone")
        return read_mtp(files, proposal_length(config))
    raise InputError(f"{files.folder}: speculators of type {kind!r} are not supported yet")


def proposal_length(config: Any) -> int | None:
    """Tokens of a draft that the first method of proposing has; None: not said."""
    methods = (config.get("speculators_config") or {}).get("proposal_methods") or [{}]
    found = methods[0].get("speculative_tokens")
    return int(found) if found else None


def envelope(
    kind: str,
    architecture: str,
    length: int,
    verifier: Mapping[str, Any],
    layers: Mapping[str, Any],
) -> dict[str, Any]:
    """Keys that every kind's configuration has.

    Args:
        kind: speculators' own name of it.
        length: tokens of a draft.
        verifier: the target's `name_or_path` and `architectures`.
        layers: configuration of the decoder layers.
    """
    return {
        "architectures": [architecture],
        "speculators_model_type": kind,
        "speculators_version": "0.3.0",
        "speculators_config": {
            "algorithm": kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": length}],
            "verifier": {"name_or_path": None, "architectures": [], **verifier},
        },
        "transformer_layer_config": dict(layers),
    }
