"""Files of EAGLE-1 and EAGLE-2 heads, of MSD's, which look the same, and of ViSpec's.

HEADS: `fc` has a bias unless the configuration says `bias: false`; a file may hold the target's
embeddings. MSD's heads differ in what their inputs are at pictures: `msd` in the folder's name or
`model_type` of a vision-language model tells nothing for sure, so a user may say `kind="msd"`. A
head that was trained here says it by `draft_method`.
"""

from __future__ import annotations

from ....errors import InputError
from ..published.eagle1 import EagleNetwork, MsdNetwork
from ..published.head import PublishedHead
from ..published.rotary import HeadRotary
from ..published.sizes import HeadSizes
from ..published.vispec import ViSpecNetwork
from .files import HeadFiles


def is_eagle(files: HeadFiles) -> bool:
    """True for EAGLE-1's layout: two vectors into `fc`, a first layer without a first norm."""
    tensors = files.tensors
    return "fc.weight" in tensors and files.layers() > 0 and not _first_norm(files)


def is_vispec(files: HeadFiles) -> bool:
    """True for ViSpec's."""
    return "imadpt.q" in files.tensors and "img_fc.weight" in files.tensors


def is_msd(files: HeadFiles) -> bool:
    """True for MSD's that say so."""
    return files.config.get("draft_method") == "msd"


def read_eagle(files: HeadFiles, kind: str = "eagle") -> PublishedHead:
    """The head of EAGLE-1's layout; `kind` is told in messages."""
    sizes, common = common_sizes(files)
    network = EagleNetwork(sizes, *common, first_norm=_first_norm(files))
    return eagle_kind(files, sizes, network, kind)


def read_msd(files: HeadFiles) -> PublishedHead:
    """The head of MSD's layout, which is EAGLE-1's."""
    sizes, common = common_sizes(files)
    return eagle_kind(files, sizes, MsdNetwork(sizes, *common), "msd")


def read_vispec(files: HeadFiles) -> PublishedHead:
    """The head of ViSpec's layout."""
    sizes, common = common_sizes(files)
    queries, heads, dim = files.shape("imadpt.q")
    if (heads, dim) != (sizes.num_attention_heads, sizes.head_dim):
        raise InputError(
            f"{files.folder}: imadpt.q has {heads} heads of {dim}, and config.json says "
            f"{sizes.num_attention_heads} of {sizes.head_dim}"
        )
    bias = "imadpt.k_proj.bias" in files.tensors
    joined = "img_fc.bias" in files.tensors
    network = ViSpecNetwork(sizes, *common, queries=queries, adapter_bias=bias, join_bias=joined)
    return eagle_kind(files, sizes, network, "vispec")


def common_sizes(files: HeadFiles) -> tuple[HeadSizes, tuple[int | None, int, bool]]:
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


def eagle_kind(
    files: HeadFiles, sizes: HeadSizes, network: EagleNetwork, kind: str
) -> PublishedHead:
    """The head of a network of EAGLE-1's kind, which takes the tensors."""
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
