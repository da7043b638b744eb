"""Files of LongSpec heads: the authors' decoder layer by itself.

Its `config.json` is the target's own, with the target's sizes and positions. Keys and values of the
cross-attention are in the authors' files, too; nothing reads them. A head that was trained here
says its `window` and `block` in `longspec`, and may have a closing `norm`.
"""

from __future__ import annotations

from ..published.head import PublishedHead
from ..published.longspec import LongSpecNetwork
from ..published.sizes import HeadSizes
from .files import HeadFiles

_UNREAD = tuple(f"cross_attn.{part}_proj.{kind}" for part in "kv" for kind in ("weight", "bias"))


def is_longspec(files: HeadFiles) -> bool:
    """True for a layer with a cross-attention."""
    return "cross_attn.q_proj.weight" in files.tensors


def read_longspec(files: HeadFiles) -> PublishedHead:
    """The head of a folder."""
    bias = "self_attn.q_proj.bias" in files.tensors
    sizes = HeadSizes.of(files.config, qkv_bias=bias)
    own = files.config.get("longspec") or {}
    network = LongSpecNetwork(sizes, **own, normed="norm.weight" in files.tensors)
    files.load(network, [name for name in _UNREAD if name in files.tensors])
    return PublishedHead(
        network,
        "longspec",
        files.config,
        sizes.hidden_size,
        length=own.get("block"),
        vocab_size=files.config.get("vocab_size"),
    )
