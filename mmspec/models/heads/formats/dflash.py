"""Files of DFlash heads: z-lab's and SpecForge's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....errors import InputError
from ..published.dflash import DFlashNetwork
from ..published.head import PublishedHead
from ..published.layer import HeadSizes
from ..published.rotary import HeadRotary
from .eagle3 import vocabulary
from .files import HeadFiles

ARCHITECTURES = {"DFlashDraftModel", "DominoDraftModel", "DSparkDraftModel"}


def is_dflash(files: HeadFiles) -> bool:
    """True for z-lab's and SpecForge's configurations."""
    known = ARCHITECTURES & set(files.config.get("architectures") or ())
    return bool(known) or "dflash_config" in files.config


def read_dflash(files: HeadFiles) -> PublishedHead:
    """The head of z-lab's layout; its layers are numbered by their outputs."""
    inner = files.config.get("dflash_config") or {}
    settings = {**files.config, **inner}
    kind = inner.get("projector_type") or "dflash"
    if kind != "dflash":
        raise InputError(f"{files.folder}: heads of projector_type {kind!r} are not supported yet")
    outputs = settings.get("target_layer_ids")
    if not outputs:
        raise InputError(f"{files.folder}: config.json names no target_layer_ids")
    return made(files, settings, tuple(int(n) + 1 for n in outputs), "dflash")


def made(
    files: HeadFiles, settings: Mapping[str, Any], reads: tuple[int, ...], format: str
) -> PublishedHead:
    """The head whose layers read the hidden states `reads`; see `PublishedHead`."""
    tensors = files.tensors
    for name in ("block_size", "mask_token_id"):
        if not isinstance(settings.get(name), int):
            raise InputError(f"{files.folder}: config.json names no {name}")
    sizes = HeadSizes.of(
        settings,
        qkv_bias="layers.0.self_attn.q_proj.bias" in tensors,
        qk_norm="layers.0.self_attn.q_norm.weight" in tensors,
    )
    width = files.shape("fc.weight")[1]
    if width % len(reads):
        raise InputError(
            f"{files.folder}: fc reads {width} numbers, no multiple of the {len(reads)} "
            "target_layer_ids"
        )
    layers = len({name.split(".")[1] for name in tensors if name.startswith("layers.")})
    drafted = files.shape("lm_head.weight")[0] if "lm_head.weight" in tensors else None
    embeds = files.shape("embed_tokens.weight")[0] if "embed_tokens.weight" in tensors else None
    vocab = settings.get("vocab_size")
    target_size = width // len(reads)
    size, mask = settings["block_size"], settings["mask_token_id"]
    network = DFlashNetwork(
        sizes, len(reads), target_size, size, mask, layers, embeds, drafted
    )
    files.load(network, ("d2t", "t2d"))
    return PublishedHead(
        network,
        format,
        files.config,
        target_size,
        reads,
        HeadRotary(settings, sizes.head_dim),
        vocabulary(files, drafted, vocab),
        vocab,
        settings["block_size"] - 1,
    )
