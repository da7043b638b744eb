"""Files of Hydra heads, `hydra_lm_head`: archs "mlp", "prefix-mlp" and "eagle-attn".

The authors' files say nothing of the sizes of the last two's decoder layer: it is built from the
target's configuration, and so are these heads when they meet their target.

Heads that were trained here may draft some of the target's tokens alone. The authors have no such
heads; their tokens are in `d2t` and `t2d`, as of EAGLE-3.
"""

from __future__ import annotations

import re

from ....errors import InputError
from ..published.eagle1 import EagleNetwork
from ..published.head import PublishedHead
from ..published.hydra import HydraNetwork, PrefixHydraNetwork
from ..published.rotary import HeadRotary
from ..published.sizes import HeadSizes
from ..published.vocabulary import DraftVocabulary
from .eagle3 import MAP, vocabulary
from .files import HeadFiles

PREFIX = "prefix_embeding_layer."
# beside the head its files may hold copies of the target's weights, and rotary frequencies
_COPIES = re.compile(
    rf"({re.escape(PREFIX)}embed_tokens|input_embed_fn|lm_head)\.weight|.+\.inv_freq"
)
_BLOCK = re.compile(r"(hydra_mlp\.\d+\.)(\d+)(\..+)")
_OUTPUT = re.compile(r"(hydra_lm_head\.\d+)(\.1)?(\..+)")


def is_hydra(files: HeadFiles) -> bool:
    """True for heads that are counted by `hydra_num_heads`, or named `hydra_`."""
    return "hydra_num_heads" in files.config or any(
        name.startswith("hydra_") for name in files.tensors
    )


def read_hydra(files: HeadFiles) -> PublishedHead:
    """The heads of any arch that is supported.

    Raises:
        InputError: the arch or another setting is not.
    """
    config = files.config
    arch, offset = config.get("hydra_head_arch", "mlp"), config.get("hidden_state_offset")
    if offset:
        raise InputError(f"{files.folder}: Hydra's hidden_state_offset {offset} is not supported")
    known = {"mlp": _mlp, "prefix-mlp": _prefix_mlp, "eagle-attn": _eagle_attn}
    if arch not in known or not config.get("grounded_heads", True):
        raise InputError(
            f"{files.folder}: Hydra heads of arch {arch!r} are not supported yet, only grounded "
            f"ones of {', '.join(known)}"
        )
    files = files.renamed(("hydra_head.", ""))
    own = {name: value for name, value in files.tensors.items() if not _COPIES.fullmatch(name)}
    return known[arch](HeadFiles(files.folder, config, own, files.files))


def _mlp(files: HeadFiles) -> PublishedHead:
    heads, blocks, width, vocab = _counts(files)
    network = HydraNetwork(heads, blocks, width, vocab)
    files.load(network, MAP)
    own, vocab = _drafted(files, vocab)
    return PublishedHead(
        network, "hydra", files.config, width, vocabulary=own, vocab_size=vocab, length=heads
    )


def _prefix_mlp(files: HeadFiles) -> PublishedHead:
    if "hydra_lm_head.0.1.weight" in files.tensors:
        tensors = {undropped(name): value for name, value in files.tensors.items()}
        files = HeadFiles(files.folder, files.config, tensors, files.files)
    heads, blocks, width, vocab = _counts(files)
    sizes, rotary = _layer(files, f"{PREFIX}layers.0.")
    network = PrefixHydraNetwork(heads, blocks, vocab, sizes)
    files.load(network, MAP)
    own, vocab = _drafted(files, vocab)
    return PublishedHead(
        network,
        "hydra prefix-mlp",
        files.config,
        width,
        rotary=rotary,
        vocabulary=own,
        vocab_size=vocab,
        length=heads,
        sized=rotary is not None,
    )


def _eagle_attn(files: HeadFiles) -> PublishedHead:
    files = files.renamed(("attn.", "layers.0."))
    sizes, rotary = _layer(files, "layers.0.")
    network = EagleNetwork(sizes, None, bias=bool(files.config.get("bias", True)), first_norm=True)
    files.load(network)
    return PublishedHead(
        network,
        "hydra eagle-attn",
        files.config,
        sizes.hidden_size,
        rotary=rotary,
        vocab_size=files.config.get("vocab_size"),
        sized=rotary is not None,
    )


def undropped(name: str) -> str:
    """Tensor's name without the places that dropout takes among a head's parts in "prefix-mlp"."""
    if match := _OUTPUT.fullmatch(name):
        return f"{match[1]}{match[3]}"
    if (match := _BLOCK.fullmatch(name)) and int(match[2]) % 2:
        return f"{match[1]}{int(match[2]) // 2}{match[3]}"
    return name


def dropped(name: str) -> str:
    """Tensor's name with those places."""
    if match := _OUTPUT.fullmatch(name):
        return f"{match[1]}.1{match[3]}"
    if match := _BLOCK.fullmatch(name):
        return f"{match[1]}{2 * int(match[2]) + 1}{match[3]}"
    return name


def _counts(files: HeadFiles) -> tuple[int, int, int, int]:
    """Heads, blocks of each, width of the hidden states, and vocabulary."""
    parts = [name.split(".") for name in files.tensors if name.startswith("hydra_mlp.")]
    vocab, width = files.shape("hydra_lm_head.0.weight")
    return len({part[1] for part in parts}), len({part[2] for part in parts}), width, vocab


def _drafted(files: HeadFiles, rows: int) -> tuple[DraftVocabulary | None, int]:
    """The tokens that heads with so many rows of output draft, and the target's vocabulary V."""
    if MAP[0] not in files.tensors:
        return None, rows
    size = files.config.get("vocab_size")
    own = vocabulary(files, rows, size)
    return own, rows if own is None else own.size


def _layer(files: HeadFiles, prefix: str) -> tuple[HeadSizes, HeadRotary | None]:
    """Sizes and positions of the decoder layer; no positions where the configuration is silent."""
    if "num_attention_heads" not in files.config:
        return files.shapes(prefix), None
    sizes = HeadSizes.of(files.config, qkv_bias=f"{prefix}self_attn.q_proj.bias" in files.tensors)
    return sizes, HeadRotary(files.config, sizes.head_dim)
