"""Files of EAGLE-3 heads: the authors', SpecForge's, NeMo's, AngelSlim's, and speculators'.

They differ in names (`midlayer.` or `layers.0.`, a prefix `model.`), in where sizes stand, and in
what `norm_output` means: that the next step takes the normed output, and in SpecForge's earlier
files that the output layer reads it normed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....errors import InputError
from ..published.eagle3 import Eagle3Network
from ..published.head import BORROWS, FIT, PublishedHead
from ..published.rotary import HeadRotary
from ..published.vocabulary import DraftVocabulary
from .files import HeadFiles

_NAMES = (
    ("model.midlayer.", "layers.0."),
    ("midlayer.", "layers.0."),
    ("model.lm_head.", "lm_head."),
    ("model.", ""),
)
MASKS = ("mask_token_id", "pard_token", "ptd_token_id")  # of P-EAGLE's writers
MAP = ("d2t", "t2d")
LAYERS = "eagle_aux_hidden_state_layer_ids"
OFFICIAL = {"LlamaForCausalLM", "LlamaEagle3DraftModel"}  # the authors' and NeMo's
SPECFORGE = {
    "LlamaForCausalLMEagle3",
    "Eagle3Qwen2_5vlForCausalLM",
    "Eagle3Qwen3vlForCausalLM",
    "Eagle3LlamaForCausalLM",
}


def is_eagle3(files: HeadFiles) -> bool:
    """True for a layer that reads embedding and hidden state side by side."""
    tensors = files.renamed(*_NAMES).tensors
    mapped = "fc.weight" in tensors and tensors.keys() >= set(MAP)
    named = bool(SPECFORGE & set(files.config.get("architectures") or ()))
    return "layers.0.hidden_norm.weight" in tensors or mapped or named


def read_eagle3(files: HeadFiles, own: Mapping[str, Any] | None = None) -> PublishedHead:
    """The head of any EAGLE-3 layout.

    Args:
        own: settings that go before those of the configuration, and the name of the format.
    """
    files = files.renamed(*_NAMES)
    config, tensors = files.config, files.tensors
    parallel = "mask_hidden" in tensors
    mask = next((config[key] for key in MASKS if isinstance(config.get(key), int)), None)
    if parallel and (mask is None or "embed_tokens.weight" not in tensors):
        lacks = "no mask_token_id" if mask is None else "no embed_tokens.weight"
        raise InputError(f"{files.folder}: a P-EAGLE head with {lacks} can't draft")
    own = {"format": "eagle3", **(own or _conventions(files))}
    layers = files.layers()
    sizes = files.sizes(config)
    target_size = int(config.get("target_hidden_size") or sizes.hidden_size)
    width = files.shape("fc.weight")[1]
    if width % target_size:
        raise InputError(
            f"{files.folder}: fc reads {width} numbers, no multiple of the target's hidden size "
            f"{target_size}; is target_hidden_size right?"
        )
    fused = width // target_size
    vocab = config.get("vocab_size")
    if config.get("tie_word_embeddings") and "embed_tokens.weight" in tensors:
        tensors.setdefault("lm_head.weight", tensors["embed_tokens.weight"].clone())
    drafted = tokens_drafted(files, config)
    if layers > 1:  # where there is one, some writers name the target's
        files.check_says(config, num_hidden_layers=layers)
    files.check_says(
        config,
        draft_vocab_size=vocab if drafted is None else drafted,
        fc_norm="fc_norm.0.weight" in tensors,
        norm_before_fc="input_norm.weight" in tensors,
    )
    network = Eagle3Network(
        sizes,
        fused,
        target_size,
        files.rows("embed_tokens.weight"),
        files.rows("lm_head.weight"),
        layers,
        "fc.bias" in tensors,
        bool(config.get("norm_before_residual", False)),
        "fc_norm.0.weight" in tensors,
        "input_norm.weight" in tensors,
        bool(own.get("feed_normed", False)),
        mask if parallel else None,
        _block(config, own) if parallel else 1,
    )
    files.load(network, MAP)
    return PublishedHead(
        network,
        str(own["format"]),
        config,
        target_size,
        layer_ids(files, fused),
        HeadRotary(config, sizes.head_dim),
        vocabulary(files, drafted, vocab),
        vocab,
        own.get("length") or (network.block if parallel else None),
    )


def _conventions(files: HeadFiles) -> dict[str, Any]:
    """Meaning of `norm_output` by the class that wrote the configuration.

    Raises:
        InputError: that class is unknown, and so is the meaning.
    """
    config = files.config
    if "norm_output" not in config:
        return {}
    given, wrote = bool(config["norm_output"]), set(config.get("architectures") or ())
    if SPECFORGE & wrote:  # it wrote true for EAGLE-3, too, which norms no states in front of fc
        return {"feed_normed": given and bool(config.get("fc_norm"))}
    if OFFICIAL & wrote:
        return {"feed_normed": given}
    raise InputError(
        f"{files.folder}: norm_output has two meanings, and architectures {sorted(wrote)} do not "
        "say which; remove it, or name LlamaForCausalLM if the next step takes the normed output"
    )


def _block(config: Mapping[str, Any], own: Mapping[str, Any]) -> int:
    """Tokens that a P-EAGLE head says a call: as many as it was trained for."""
    return int(own.get("length") or config.get("num_depths") or config.get("para_depths") or 8)


def layer_ids(files: HeadFiles, count: int) -> tuple[int, ...] | None:
    """The hidden states that are fused, where the configuration says; None: it is silent.

    Layers are named by what goes into them; in `eagle_config`, SpecForge and NVIDIA's ModelOpt name
    them by what comes out, and SGLang reads them so.
    """
    inner = files.config.get("eagle_config") or {}
    ids: list[int] | None = files.config.get(LAYERS) or inner.get(LAYERS) or None
    # heads that were trained here were written otherwise once
    if ids is not None and not files.config.get(LAYERS) and FIT not in files.config:
        ids = [number + 1 for number in ids]
    if ids is None and count == 3:
        return None
    if ids is None:
        raise InputError(
            f"{files.folder}: fc joins {count} hidden states, and config.json does not say which; "
            f"name them in {LAYERS}"
        )
    if len(ids) != count:
        raise InputError(
            f"{files.folder}: fc joins {count} hidden states, and the configuration names {ids}"
        )
    return tuple(int(n) for n in ids)


def tokens_drafted(files: HeadFiles, config: Mapping[str, Any]) -> int | None:
    """Rows of the output layer, or of the map where the head takes the target's; None: no layer.

    Raises:
        InputError: it takes the target's rows, and has no map or an output layer of its own.
    """
    own = files.rows("lm_head.weight")
    if not config.get(BORROWS):
        return own
    if own is not None or "d2t" not in files.tensors:
        raise InputError(
            f"{files.folder}: with {BORROWS} a head stores a map d2t and no lm_head.weight; export "
            "it again"
        )
    return files.rows("d2t")


def vocabulary(files: HeadFiles, drafted: int | None, vocab: int | None) -> DraftVocabulary | None:
    """The map from the head's tokens to the target's; None: they are the same.

    Raises:
        InputError: the map is missing, unfilled or of another size.
    """
    tensors = files.tensors
    if drafted is None or drafted == vocab:
        return None
    if "d2t" not in tensors:
        raise InputError(
            f"{files.folder}: the head drafts {drafted} of {vocab} tokens and stores no map d2t"
        )
    if files.shape("d2t") != (drafted,):
        raise InputError(f"{files.folder}: d2t has shape {files.shape('d2t')}, expected {drafted}")
    if vocab is None:
        vocab = len(tensors["t2d"])
    try:
        return DraftVocabulary(tensors["d2t"], vocab, tensors.get("t2d"))
    except InputError as error:
        raise InputError(f"{files.folder}: {error}") from error
