"""Files of EAGLE-1 and EAGLE-2 heads, of MSD's, which look the same, and of ViSpec's.

HEADS: `fc` has a bias unless the configuration says `bias: false`; a file may hold the target's
embeddings. MSD's heads differ in what their inputs are at pictures: `msd` in the folder's name or
`model_type` of a vision-language model tells nothing for sure, so a user may say `kind="msd"`.
"""

from __future__ import annotations

from ....errors import InputError
from ..published.eagle1 import EagleNetwork
from ..published.head import PublishedHead
from ..published.layer import HeadSizes
from ..published.rotary import HeadRotary
from ..published.vispec import ViSpecNetwork
from .files import HeadFiles


def is_eagle(files: HeadFiles) -> bool:
    """True for EAGLE-1's layout: two vectors into `fc`, a first layer without a first norm."""
    tensors = files.tensors
    return "fc.weight" in tensors and files.layers() > 0 and not _first_norm(files)


def is_vispec(files: HeadFiles) -> bool:
    """True for ViSpec's."""
    return "imadpt.q" in files.tensors and "img_fc.weight" in files.tensors


def read_eagle(files: HeadFiles, kind: str = "eagle") -> PublishedHead:
    """The head of EAGLE-1's layout, as `kind` "eagle" or "msd"."""
    sizes, common = _common(files)
    network = EagleNetwork(sizes, *common, first_norm=_first_norm(files))
    return _head(files, sizes, network, kind)


def read_vispec(files: HeadFiles) -> PublishedHead:
    """The head of ViSpec's layout."""
    sizes, common = _common(files)
    queries, heads, dim = files.shape("imadpt.q")
    if (heads, dim) != (sizes.num_attention_heads, sizes.head_dim):
        raise InputError(
            f"{files.folder}: imadpt.q has {heads} heads of {dim}, and config.json says "
            f"{sizes.num_attention_heads} of {sizes.head_dim}"
        )
    bias = "imadpt.k_proj.bias" in files.tensors
    network = ViSpecNetwork(sizes, *common, queries=queries, adapter_bias=bias)
    return _head(files, sizes, network, "vispec")


def _common(files: HeadFiles) -> tuple[HeadSizes, tuple[int | None, int, bool]]:
    """Sizes, and vocabulary, layers and bias of `fc`, as the tensors have them."""
    config, tensors = files.config, files.tensors
    sizes = files.sizes(config)
    vocab = files.rows("embed_tokens.weight")
    bias = bool(config.get("bias", True))
    if bias != ("fc.bias" in tensors):
        raise InputError(
            f"{files.folder}: config.json says bias {bias} (true where it is silent), and fc has "
            f"{'one' if 'fc.bias' in tensors else 'none'}; correct the config"
        )
    return sizes, (vocab, files.layers(), bias)


def _head(files: HeadFiles, sizes: HeadSizes, network: EagleNetwork, kind: str) -> PublishedHead:
    files.load(network)
    return PublishedHead(
        network,
        kind,
        files.config,
        sizes.hidden_size,
        rotary=HeadRotary(files.config, sizes.head_dim),
        vocab_size=files.config.get("vocab_size"),
    )


def _first_norm(files: HeadFiles) -> bool:
    return "layers.0.input_layernorm.weight" in files.tensors
