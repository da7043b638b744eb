"""Checks of a head's files: what is wrong in them is told even where the head can't be loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from ..errors import InputError, reason
from ..models.heads.formats.files import HeadFiles
from ..models.heads.formats.registry import FORMATS
from ..models.heads.loading import load_head
from ..models.heads.published.head import PublishedHead
from ..models.heads.published.vocabulary import DraftVocabulary
from .report import Diagnosis, listed
from .target import Target


def check_files(
    told: Diagnosis, folder: Path, target: Target, kind: str | None
) -> PublishedHead | None:
    """Check a folder, and load its head; None: it can't be loaded.

    Args:
        told: is given the findings.
        kind: see `load_head`.
    """
    try:
        files = HeadFiles.read(folder)
    except InputError as error:
        told.add("files", "fault", str(error))
        return None
    told.add(
        "files", "fine", f"config.json, and {len(files.tensors)} tensors in {listed(files.files)}"
    )
    _format(told, files)
    _tensors(told, files, target.decoder.embeddings.dtype)
    _map(told, files, target)
    _tokenizer(told, folder, target)
    _verifier(told, files.config, target)
    try:
        head = load_head(folder, kind=kind)
    except InputError as error:
        if not told.faults:
            told.add("tensors", "fault", str(error))
        return None
    return head


def _format(told: Diagnosis, files: HeadFiles) -> None:
    try:
        known = [form.name for form in FORMATS if form.tells(files)]
    except (AttributeError, KeyError, TypeError) as error:
        known = []
        told.add("format", "note", f"config.json has a value of another form: {reason(error)}")
    if known:
        told.add("format", "fine", f"{known[0]}")
    else:
        first = listed(sorted(files.tensors))
        told.add("format", "fault", f"no format that is known; the tensors are {first}")


def _tensors(told: Diagnosis, files: HeadFiles, run: torch.dtype) -> None:
    """Numbers of tensors, and the type that they are kept and run in."""
    real = {name: t for name, t in files.tensors.items() if t.is_floating_point()}
    broken = [name for name, value in real.items() if not bool(torch.isfinite(value).all())]
    over = [name for name in broken if _overflown(real[name])]
    if over:
        told.add(
            "dtype",
            "fault",
            f"{listed(over)} holds infinity in float16: numbers beyond 65504 were lost when it was "
            "cast; export the head again in bfloat16 or float32",
        )
    empty = [name for name in broken if name not in over]
    if empty:
        told.add(
            "tensors",
            "fault",
            f"{listed(empty)} holds NaN or infinity: never filled, or lost in training; export the "
            "head again",
        )
    if not broken:
        told.add("tensors", "fine", f"{len(files.tensors)} tensors, all of them finite")
    limit = torch.finfo(run).max
    large = [name for name, t in real.items() if t.numel() and float(t.abs().max()) > limit]
    if large and not broken:
        told.add(
            "dtype",
            "fault",
            f"{listed(large)} does not fit into {_name(run)}, the target's type; run both in "
            "bfloat16 or float32",
        )
    elif not over:
        kept = sorted({_name(value.dtype) for value in real.values()})
        told.add("dtype", "fine", f"stored in {listed(kept)}, runs in {_name(run)} as the target")


def _overflown(value: Tensor) -> bool:
    """True for float16 with infinity and no NaN."""
    half = value.dtype == torch.float16
    return half and bool(torch.isinf(value).any()) and not bool(torch.isnan(value).any())


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _map(told: Diagnosis, files: HeadFiles, target: Target) -> None:
    """The vocabulary's map, as `d2t` stores it, or vLLM's `token_map`."""
    files = files.renamed(("model.", ""))
    d2t, ids = (files.tensors.get(name) for name in ("d2t", "token_map"))
    if d2t is None and ids is not None and ids.ndim == 1:
        d2t = ids - torch.arange(len(ids))
    size = _vocab_size(files.config) or target.vocab_size
    if d2t is None:
        rows = files.rows("lm_head.weight")
        if rows is None or rows == size:
            told.add("vocabulary map", "fine", "none: the head drafts the target's own tokens")
        else:
            told.add(
                "vocabulary map",
                "fault",
                f"lm_head has {rows} rows for a vocabulary of {size}, and there is no d2t; export "
                "the head with its map",
            )
        return
    if d2t.ndim != 1 or d2t.is_floating_point():
        text = f"d2t is {_name(d2t.dtype)} of shape {tuple(d2t.shape)}, not offsets in a row"
        told.add("vocabulary map", "fault", text)
        return
    try:
        DraftVocabulary(d2t, size, files.tensors.get("t2d"))
    except InputError as error:
        distinct = ids is None and len(d2t.unique()) == len(d2t)
        of_ids = distinct and bool(((d2t >= 0) & (d2t < size)).all())
        hint = "; its numbers are all different: they are token ids, and offsets belong there"
        told.add("vocabulary map", "fault", f"{error}{hint if of_ids else ''}")
    else:
        told.add("vocabulary map", "fine", f"filled: {len(d2t)} of {size} tokens")


def _vocab_size(config: Mapping[str, Any]) -> int | None:
    layers = config.get("transformer_layer_config")
    found = (layers if isinstance(layers, dict) else config).get("vocab_size")
    return found if isinstance(found, int) else None


def _tokenizer(told: Diagnosis, folder: Path, target: Target) -> None:
    """The tokenizer that the head was trained with, where its folder holds one."""
    path = folder / "tokenizer.json"
    if not path.exists() or target.tokenizer is None:
        whose = "the head's folder" if target.tokenizer is not None else "the target's folder"
        told.add("tokenizer", "note", f"{whose} holds none: nothing to compare")
        return
    try:
        own = PreTrainedTokenizerFast(tokenizer_file=str(path)).get_vocab()
    except Exception as error:  # the library raises what its parsers raise
        told.add("tokenizer", "fault", f"{path} can't be read: {reason(error)}")
        return
    theirs = target.tokenizer.get_vocab()
    other = [token for token, number in own.items() if theirs.get(token) != number]
    if other:
        told.add(
            "tokenizer",
            "fault",
            f"{len(other)} of {len(own)} tokens have another id in the target's ({listed(other)}): "
            "the head was trained with another tokenizer; take the head of this target",
        )
    else:
        told.add("tokenizer", "fine", f"the target's: {len(own)} tokens have the same ids")


def _verifier(told: Diagnosis, config: Mapping[str, Any], target: Target) -> None:
    """The target that a speculators configuration names."""
    inner = config.get("speculators_config")
    named = inner.get("verifier") if isinstance(inner, dict) else None
    classes = named.get("architectures") if isinstance(named, dict) else None
    own = type(target.model).__name__
    if classes and own not in classes:
        told.add("verifier", "note", f"config.json names {listed(classes)}; the target is {own}")
