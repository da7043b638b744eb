"""Published layouts written: a head that was read or trained goes into the files that others read.

vLLM and SGLang read them. What their readers take for granted where a key is missing differs, so
every key that decides something is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from ....errors import InputError
from ....files import atomic_folder, write_json
from ..published.attention import HeadAttention
from ..published.dflash import DFlashNetwork
from ..published.eagle1 import EagleNetwork, MsdNetwork
from ..published.eagle3 import Eagle3Network
from ..published.falcon import FalconNetwork
from ..published.head import BORROWS, FIT, PublishedHead
from ..published.hydra import HydraNetwork, PrefixHydraNetwork
from ..published.longspec import LongSpecNetwork
from ..published.medusa import MedusaNetwork
from ..published.mtp import MtpNetwork
from ..published.sizes import HeadSizes
from ..published.specvlm import SpecVlmNetwork
from .eagle3 import LAYERS
from .files import Layout
from .hydra import dropped
from .medusa import medusa_layout
from .speculators import LAYER, envelope
from .write_mtp import mtp_formats


def write_head(
    head: PublishedHead,
    folder: str | Path,
    format: str | None = None,
    verifier: Mapping[str, Any] | None = None,
) -> None:
    """Write a head as published.

    Args:
        head: what is written.
        folder: is made where it is missing.
        format: one of `formats_of(head)`; None: the first of them.
        verifier: the target's `name_or_path` and `architectures`, for speculators.

    Raises:
        InputError: the head can't be written in the format, or the system refuses.
    """
    known = formats_of(head)
    if format is not None and format not in known:
        raise InputError(
            f"a head of kind {head.format!r} can't be written as {format!r}; "
            f"it can be as {', '.join(known)}"
        )
    config, tensors, file = known[format or next(iter(known))](head, dict(verifier or {}))
    config |= {key: head.config[key] for key in (FIT, BORROWS) if key in head.config}
    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    with atomic_folder(Path(folder)) as part:
        save_file(plain, part / file)
        write_json(part / "config.json", config)


def formats_of(head: PublishedHead) -> dict[str, Callable[[PublishedHead, dict[str, Any]], Layout]]:
    """The formats that a head can be written in, its own kind's first."""
    network = head.network
    if isinstance(network, Eagle3Network):
        return {"eagle3": _eagle3, "speculators": _speculators}
    if isinstance(network, DFlashNetwork):
        if head.vocabulary is not None and network.correction is None:  # z-lab's has no map then
            return {"speculators": _speculators, "dflash": _dflash}
        return {"dflash": _dflash, "speculators": _speculators}
    if isinstance(network, MtpNetwork):
        return mtp_formats(head)
    if head.format == "hydra eagle-attn":
        return {"hydra": _eagle_attn}
    if isinstance(network, FalconNetwork):
        return {"falcon": _falcon}
    if isinstance(network, EagleNetwork):
        return {"eagle" if type(network) in (EagleNetwork, MsdNetwork) else head.format: _eagle}
    if isinstance(network, MedusaNetwork):
        return {"medusa": medusa_layout}
    if isinstance(network, LongSpecNetwork):
        return {"longspec": _longspec}
    assert isinstance(network, HydraNetwork)
    return {"hydra": _hydra}


def layer_config(head: PublishedHead) -> dict[str, Any]:
    """The keys of the head's layers; none where its files leave them to the target."""
    if not head.sized:
        return {}
    config = {key: head.config[key] for key in LAYER if head.config.get(key) is not None}
    layers = head.network.get_submodule("layers")
    assert isinstance(layers, nn.ModuleList)
    sizes = sizes_of(head.network)
    config |= {"head_dim": sizes.head_dim, "num_key_value_heads": sizes.num_key_value_heads}
    return {
        "model_type": "qwen3" if sizes.qk_norm else "llama",
        "num_hidden_layers": len(layers),
        **config,
    }


def sizes_of(network: nn.Module) -> HeadSizes:
    """Sizes of its decoder layers."""
    attention = network.get_submodule("layers.0.self_attn")
    assert isinstance(attention, HeadAttention)
    return attention.sizes


def tensors_of(head: PublishedHead) -> dict[str, Tensor]:
    """The network's own tensors, and the vocabulary's map where it has one."""
    tensors = dict(head.network.state_dict())
    if head.borrows:
        tensors.pop("lm_head.weight", None)
    if head.vocabulary is not None:
        ids, size = head.vocabulary.ids.cpu(), head.vocabulary.size
        tensors["d2t"] = ids - torch.arange(len(ids))
        tensors["t2d"] = torch.zeros(size, dtype=torch.bool).index_fill_(0, ids, True)
    return tensors


def _eagle(head: PublishedHead, verifier: dict[str, Any]) -> Layout:
    network = head.network
    assert isinstance(network, EagleNetwork)
    config: dict[str, Any] = {
        **layer_config(head),
        "architectures": ["LlamaForCausalLM"],
        "bias": network.fc.bias is not None,
        "qkv_bias": sizes_of(network).qkv_bias,
    }
    if isinstance(network, MsdNetwork):
        config["draft_method"] = "msd"
    if isinstance(network, SpecVlmNetwork):
        config["compressor_choice"] = network.saved
    return config, tensors_of(head), "model.safetensors"


def _falcon(head: PublishedHead, verifier: dict[str, Any]) -> Layout:
    network = head.network
    assert isinstance(network, FalconNetwork)
    config = {
        **layer_config(head),
        "architectures": ["LlamaForCausalLM"],
        "k_mask": network.block,
        "bias": network.lstm.bias,
        "qkv_bias": sizes_of(network).qkv_bias,
    }
    return config, tensors_of(head), "model.safetensors"


def _eagle3(head: PublishedHead, verifier: dict[str, Any]) -> Layout:
    """SpecForge's, or the authors' where the next step takes the normed output."""
    network = head.network
    assert isinstance(network, Eagle3Network)
    parallel = network.mask_token_id is not None
    official = network.feed_normed
    config = {
        **layer_config(head),
        **_eagle3_switches(head),
        "architectures": [
            "PEagleDraftModel"
            if parallel
            else "LlamaForCausalLM"
            if official
            else "LlamaForCausalLMEagle3"
        ],
    }
    if head.reads is not None:  # by what goes into layers for vLLM, by what comes out for SGLang
        config[LAYERS] = list(head.reads)
        outputs = [number - 1 for number in head.reads]
        config["eagle_config"] = {"use_aux_hidden_state": True, LAYERS: outputs}
    if not network.norm_logits:
        raise InputError("no layout of EAGLE-3 says that the output layer reads it raw")
    if not parallel:
        if official:  # readers differ in what false says, and agree where nothing is said
            config["norm_output"] = True
    elif official:
        raise InputError("a P-EAGLE head can't be written with another norm_output than the usual")
    else:
        config |= {"pard_token": network.mask_token_id, "num_depths": network.block}
    tensors = tensors_of(head)
    if not parallel and len(network.layers) == 1:
        tensors = {
            name.replace("layers.0.", "midlayer.", 1): value for name, value in tensors.items()
        }
    return config, tensors, "model.safetensors"


def _eagle3_switches(head: PublishedHead) -> dict[str, Any]:
    network = head.network
    assert isinstance(network, Eagle3Network)
    own = head.vocabulary
    return {
        "draft_vocab_size": head.vocab_size if own is None else len(own.ids),
        "target_hidden_size": head.target_size,
        "norm_before_residual": network.layers[0].norm_before_residual,
        "norm_before_fc": hasattr(network, "input_norm"),
        "fc_norm": hasattr(network, "fc_norm"),
    }


def _dflash(head: PublishedHead, verifier: dict[str, Any]) -> Layout:
    """z-lab's and SpecForge's; layers are numbered by their outputs."""
    network = head.network
    assert isinstance(network, DFlashNetwork)
    kind = head.format.removeprefix("speculators ")
    if kind != "domino" and network.anchored != (kind == "dspark"):
        raise InputError(
            f"z-lab's layout has no key for what this head's places say ({kind} with "
            f"sample_from_anchor {str(network.anchored).lower()}); write it as 'speculators'"
        )
    if head.vocabulary is not None and kind == "dflash":
        raise InputError(
            "z-lab's layout has no map of tokens, and this head drafts some alone; write it as "
            "'speculators'"
        )
    inner: dict[str, Any] = {
        "mask_token_id": network.mask_token_id,
        "target_layer_ids": [number - 1 for number in head.reads or ()],
    }
    if kind != "dflash":
        inner |= {"projector_type": kind, **_correction_keys(head)}
    names = {
        "dflash": "DFlashDraftModel",
        "domino": "DominoDraftModel",
        "dspark": "DSparkDraftModel",
    }
    config = {
        **layer_config(head),
        "architectures": [names[kind]],
        "block_size": network.block_size,
        "dflash_config": inner,
    }
    return config, tensors_of(head), "model.safetensors"


def _correction_keys(head: PublishedHead) -> dict[str, Any]:
    given = {**head.config, **(head.config.get("dflash_config") or {})}
    keys = (
        *("markov_rank", "markov_head_type", "enable_confidence_head"),
        *("confidence_head_with_markov", "pure_draft_prefix_len", "shift_label"),
    )
    return {key: given[key] for key in keys if key in given}


def _speculators(head: PublishedHead, verifier: dict[str, Any]) -> Layout:
    """vLLM's: what its loader demands, and what it would otherwise take for granted."""
    network = head.network
    length = head.length or 3
    own = head.vocabulary
    config: dict[str, Any] = {}
    if isinstance(network, Eagle3Network):
        parallel = network.mask_token_id is not None
        kind, title = ("peagle", "PEagle") if parallel else ("eagle3", "Eagle3")
        if not network.norm_logits:
            raise InputError("speculators has no head whose output layer reads un-normed states")
        config = _eagle3_switches(head)
        config[LAYERS] = head.reads and list(head.reads)
        if parallel:
            config["mask_token_id"] = network.mask_token_id
        else:
            config["norm_output"] = network.feed_normed
    else:
        assert isinstance(network, DFlashNetwork)
        kind = head.format.removeprefix("speculators ")
        if kind == "domino":
            raise InputError("speculators has no Domino heads; write it as 'dflash'")
        title = {"dflash": "DFlash", "dspark": "DSpark"}[kind]
        config = {
            "draft_vocab_size": head.vocab_size if own is None else len(own.ids),
            "block_size": network.block_size,
            "aux_hidden_state_layer_ids": list(head.reads or ()),
            "mask_token_id": network.mask_token_id,
            "sample_from_anchor": network.anchored,
            **(_correction_keys(head) if kind == "dspark" else {}),
        }
    config |= envelope(kind, f"{title}Speculator", length, verifier, layer_config(head))
    return config, tensors_of(head), "model.safetensors"


def _longspec(head: PublishedHead, verifier: dict[str, Any]) -> Layout:
    network = head.network
    assert isinstance(network, LongSpecNetwork)
    config = {key: head.config[key] for key in LAYER if head.config.get(key) is not None}
    sizes = network.sizes
    config |= {"head_dim": sizes.head_dim, "num_key_value_heads": sizes.num_key_value_heads}
    config["longspec"] = {"window": network.window, "block": network.block}
    return config, tensors_of(head), "model.safetensors"


def _eagle_attn(head: PublishedHead, verifier: dict[str, Any]) -> Layout:
    config, tensors, _ = _eagle(head, verifier)
    config |= {
        "hydra_num_heads": 1,
        "hydra_head_arch": "eagle-attn",
        "grounded_heads": True,
        "base_model_name_or_path": verifier.get("name_or_path"),
    }
    named = {name.replace("layers.0.", "attn.", 1): value for name, value in tensors.items()}
    return config, named, "hydra_lm_head.safetensors"


def _hydra(head: PublishedHead, verifier: dict[str, Any]) -> Layout:
    network, tensors = head.network, tensors_of(head)
    assert isinstance(network, HydraNetwork)
    config: dict[str, Any] = {
        "hydra_num_heads": network.count,
        "hydra_num_layers": len(network.hydra_mlp[0]),  # type: ignore[arg-type]
        "hydra_head_arch": "mlp",
        "grounded_heads": True,
        "base_model_name_or_path": verifier.get("name_or_path"),
    }
    if isinstance(network, PrefixHydraNetwork):
        config = {**layer_config(head), **config, "hydra_head_arch": "prefix-mlp"}
        tensors = {dropped(name): value for name, value in tensors.items()}
    if head.vocabulary is not None:
        config |= {"vocab_size": head.vocabulary.size, "draft_vocab_size": len(head.vocabulary.ids)}
    return config, tensors, "hydra_lm_head.safetensors"
