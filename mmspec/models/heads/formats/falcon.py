"""Files of Falcon heads: EAGLE-1's layer behind an LSTM; `k_mask` is the tokens that a call says.

Released code has the tensors' names and no `config.json`: without `k_mask` a head is refused.
"""

from __future__ import annotations

from ....errors import InputError
from ..published.falcon import FalconNetwork
from ..published.head import PublishedHead
from ..published.rotary import HeadRotary
from .files import HeadFiles

MOST = 1024  # tokens of a call


def is_falcon(files: HeadFiles) -> bool:
    """True for decoder layers behind an LSTM."""
    return "lstm.weight_ih_l0" in files.tensors and files.layers() > 0


def read_falcon(files: HeadFiles) -> PublishedHead:
    """The head of a folder."""
    config, block = files.config, files.config.get("k_mask")
    if type(block) is not int or not 1 <= block <= MOST:
        raise InputError(
            f"{files.folder}: config.json of a Falcon head says k_mask, the tokens of a call, from "
            f"1 to {MOST}, and not {block!r}"
        )
    if files.layers() != 1:
        raise InputError(
            f"{files.folder}: a Falcon head has one decoder layer, not {files.layers()}: of more, "
            "what is stored would depend on where blocks begin"
        )
    sizes, vocab = files.sizes(config), files.rows("embed_tokens.weight")
    network = FalconNetwork(sizes, vocab, block, "lstm.bias_ih_l0" in files.tensors)
    files.load(network)
    return PublishedHead(
        network,
        "falcon",
        config,
        sizes.hidden_size,
        rotary=HeadRotary(config, sizes.head_dim),
        vocab_size=config.get("vocab_size"),
    )
