"""Files of DFlash heads and of its kin, Domino and DSpark: z-lab's, SpecForge's, DeepSpec's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast, get_args

from ....errors import InputError
from ..published.correction import (
    ConfidenceHead,
    Correction,
    DominoHead,
    MarkovHead,
    MarkovKind,
)
from ..published.dflash import DFlashNetwork
from ..published.head import PublishedHead
from ..published.rotary import HeadRotary
from .eagle3 import tokens_drafted, vocabulary
from .files import HeadFiles

ARCHITECTURES = {"DFlashDraftModel", "DominoDraftModel", "DSparkDraftModel"}


def is_dflash(files: HeadFiles) -> bool:
    """True for z-lab's and SpecForge's configurations."""
    known = ARCHITECTURES & set(files.config.get("architectures") or ())
    return bool(known) or "dflash_config" in files.config


def is_deepspec(files: HeadFiles) -> bool:
    """True for DeepSpec's DSpark, whose settings stand at the top."""
    return "target_layer_ids" in files.config and "markov_rank" in files.config


def read_dflash(files: HeadFiles) -> PublishedHead:
    """The head of z-lab's, SpecForge's or DeepSpec's layout; layers are numbered by their outputs.

    Raises:
        InputError: the kind is unknown, or a setting that decides what is computed is missing.
    """
    settings = {**files.config, **(files.config.get("dflash_config") or {})}
    kind = settings.get("projector_type") or ("dspark" if is_deepspec(files) else "dflash")
    if kind not in ("dflash", "domino", "dspark"):
        raise InputError(f"{files.folder}: heads of projector_type {kind!r} are not supported yet")
    for name in ("attention_mode", "attention_variant"):
        if settings.get(name) not in (None, "gqa"):
            raise InputError(f"{files.folder}: {name} {settings[name]!r} is not supported")
    outputs = settings.get("target_layer_ids")
    if not outputs:
        raise InputError(f"{files.folder}: config.json names no target_layer_ids")
    anchored = settings.get("shift_label", True) if kind == "domino" else kind == "dspark"
    reads = tuple(int(n) + 1 for n in outputs)
    return made(files, settings, reads, kind, anchored=bool(anchored))


def made(
    files: HeadFiles,
    settings: Mapping[str, Any],
    reads: tuple[int, ...],
    format: str,
    *,
    anchored: bool = False,
    length: int | None = None,
) -> PublishedHead:
    """The head whose layers read the hidden states `reads`; see `PublishedHead`.

    Args:
        settings: its configuration, flat.
        anchored: see `DFlashNetwork`.
        length: tokens of a draft; None: all of a block.
    """
    files = files.renamed(("model.", ""), ("logit_head.", ""))
    for name in ("block_size", "mask_token_id"):
        if not isinstance(settings.get(name), int):
            raise InputError(f"{files.folder}: config.json names no {name}")
    sizes = files.sizes(settings)
    width = files.shape("fc.weight")[1]
    if width % len(reads):
        raise InputError(
            f"{files.folder}: fc reads {width} numbers, no multiple of the {len(reads)} "
            "target_layer_ids"
        )
    drafted = tokens_drafted(files, settings)
    vocab = settings.get("vocab_size")
    target_size = width // len(reads)
    correction = _correction(files, settings, sizes.hidden_size)
    confidence = _confidence(files)
    kind = format.removeprefix("speculators ")
    if correction is None and (
        kind == "domino" or (kind == "dspark" and settings.get("markov_rank") != 0)
    ):
        wanted = "prefix_gru" if kind == "domino" else "markov_head"
        raise InputError(f"{files.folder}: a head of {kind} without the tensors of its {wanted}")
    files.check_says(
        settings,
        num_hidden_layers=files.layers(),
        draft_vocab_size=vocab if drafted is None else drafted,
        enable_confidence_head=confidence is not None,
    )
    network = DFlashNetwork(
        sizes,
        len(reads),
        target_size,
        settings["block_size"],
        settings["mask_token_id"],
        files.layers(),
        files.rows("embed_tokens.weight"),
        files.rows("lm_head.weight"),
        anchored,
        correction,
        confidence,
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
        length or network.most,
    )


def _correction(files: HeadFiles, settings: Mapping[str, Any], width: int) -> Correction | None:
    """Correction of the logits, by the tensors that there are."""
    if "prefix_gru.weight_hh_l0" in files.tensors:
        state = files.shape("prefix_gru.weight_hh_l0")[1]
        inner = files.shape("embed_proj.0.weight")[0]
        vocab = files.shape("embed_proj.2.weight")[0]
        pure = int(settings.get("pure_draft_prefix_len", 1))
        return DominoHead(width, state, inner, vocab, pure)
    if "markov_head.markov_w1.weight" in files.tensors:
        vocab, rank = files.shape("markov_head.markov_w1.weight")
        drafted = files.shape("markov_head.markov_w2.weight")[0]
        kind = settings.get("markov_head_type") or "vanilla"
        if kind not in get_args(MarkovKind):
            raise InputError(f"{files.folder}: markov_head_type {kind!r} is unknown")
        name = "confidence_head.proj.weight"
        both = name in files.tensors and files.shape(name)[1] == width + rank
        return MarkovHead(vocab, drafted, rank, width, cast(MarkovKind, kind), both)
    return None


def _confidence(files: HeadFiles) -> ConfidenceHead | None:
    if "confidence_head.proj.weight" not in files.tensors:
        return None
    inputs = files.shape("confidence_head.proj.weight")[1]
    return ConfidenceHead(inputs, "confidence_head.proj.bias" in files.tensors)
