"""Files of Medusa heads: the authors' `medusa_lm_head`, in a full checkpoint, or vLLM's.

`medusa_num_heads` in published files is often wrong; the tensors say how many heads there are.
"""

from __future__ import annotations

import re
from typing import Any

from ....errors import InputError
from ..published.head import PublishedHead
from ..published.medusa import MedusaNetwork
from ..published.vocabulary import DraftVocabulary
from .files import HeadFiles, Layout

_HEAD = re.compile(r"(\d+)\.(\d+)\.")
_VLLM = re.compile(r"blocks\.(\d+)\.layers\.(\d+)\.(weight|bias)|lm_heads\.(\d+)\.weight")


def is_medusa(files: HeadFiles) -> bool:
    """True for heads by number, by themselves or under `medusa_head.`, or vLLM's names."""
    names = files.tensors.keys() - {"token_map"}
    if "medusa_num_heads" in files.config or any(n.startswith("medusa_head.") for n in names):
        return True
    return bool(names) and all(_HEAD.match(n) or _VLLM.fullmatch(n) for n in names)


def read_medusa(files: HeadFiles) -> PublishedHead:
    """The heads of any of the layouts."""
    own = {n for n in files.tensors if n.startswith("medusa_head.")}
    if own:  # a full checkpoint holds the target, too
        kept = {n: files.tensors[n] for n in own}
        files = HeadFiles(files.folder, files.config, kept, files.files)
        files = files.renamed(("medusa_head.", ""))
    chosen = files.tensors.pop("token_map", None)
    files = _numbered(files)
    places = [match for name in files.tensors if (match := _HEAD.match(name))]
    if not places or len(places) != len(files.tensors):
        strange = next((n for n in files.tensors if not _HEAD.match(n)), "no tensor")
        raise InputError(f"{files.folder}: {strange} is none of a Medusa head's tensors")
    heads = 1 + max(int(match[1]) for match in places)
    blocks = max(int(match[2]) for match in places)
    vocab, width = files.shape(f"0.{blocks}.weight")
    bias = "0.0.linear.bias" in files.tensors
    network = MedusaNetwork(heads, blocks, width, vocab, bias)
    files.load(network)
    vocabulary = None
    if chosen is not None:
        vocab = _target_vocabulary(files, len(chosen), vocab)
        vocabulary = DraftVocabulary.of(chosen, vocab)
    return PublishedHead(
        network,
        "medusa",
        files.config,
        width,
        vocabulary=vocabulary,
        vocab_size=vocab,
        length=heads,
    )


def _target_vocabulary(files: HeadFiles, mapped: int, drafted: int) -> int:
    """V of the target, where vLLM's `token_map` has the target's ids of the tokens drafted."""
    vocab = files.config.get("vocab_size")
    if mapped != drafted or not isinstance(vocab, int):
        raise InputError(
            f"{files.folder}: token_map names {mapped} tokens, the heads draft {drafted}, and "
            f"config.json says vocab_size {vocab}; the first two are to be equal"
        )
    return vocab


def _numbered(files: HeadFiles) -> HeadFiles:
    """The authors' names of vLLM's."""
    if not any(name.startswith("blocks.") for name in files.tensors):
        return files
    blocks = 1 + max(int(m[2]) for n in files.tensors if (m := _VLLM.fullmatch(n)) and m[2])
    tensors = {}
    for name, value in files.tensors.items():
        match = _VLLM.fullmatch(name)
        if match is None:
            raise InputError(f"{files.folder}: {name} is none of a Medusa head's tensors")
        head, block, what, output = match.groups()
        new = f"{output}.{blocks}.weight" if output else f"{head}.{block}.linear.{what}"
        tensors[new] = value
    return HeadFiles(files.folder, files.config, tensors, files.files)


def medusa_layout(head: PublishedHead, verifier: dict[str, Any]) -> Layout:
    """The authors' files, or vLLM's of heads that draft some tokens alone."""
    network, own = head.network, head.vocabulary
    assert isinstance(network, MedusaNetwork)
    blocks, tensors = len([*network.head(0).children()]) - 1, dict(network.state_dict())
    if own is None:
        config = {
            "medusa_num_heads": network.count,
            "medusa_num_layers": blocks,
            "base_model_name_or_path": verifier.get("name_or_path"),
        }
        return config, tensors, "medusa_lm_head.safetensors"
    named = {"token_map": own.ids}
    for name, value in tensors.items():
        number, place, rest = name.split(".", 2)
        if int(place) == blocks:
            named[f"lm_heads.{number}.{rest}"] = value
        else:
            named[f"blocks.{number}.layers.{place}.{rest.removeprefix('linear.')}"] = value
    config = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": head.target_size,
        "num_heads": network.count,
        "num_hidden_layers": blocks,
        "medusa_fc_bias": "0.0.linear.bias" in tensors,
        "vocab_size": own.size,
        "truncated_vocab_size": len(own.ids),
    }
    return config, named, "model.safetensors"
