"""Files of Hydra heads: `hydra_lm_head`, arch "mlp"."""

from __future__ import annotations

from ....errors import InputError
from ..published.head import PublishedHead
from ..published.hydra import HydraNetwork
from .eagle import read_eagle
from .files import HeadFiles


def is_hydra(files: HeadFiles) -> bool:
    """True for grounded heads under `hydra_mlp`."""
    return "hydra_num_heads" in files.config or any(
        name.startswith("hydra_") for name in files.tensors
    )


def read_hydra(files: HeadFiles) -> PublishedHead:
    """The heads."""
    arch = files.config.get("hydra_head_arch", "mlp")
    offset = files.config.get("hidden_state_offset")
    if offset:
        raise InputError(f"{files.folder}: Hydra's hidden_state_offset {offset} is not supported")
    if arch == "eagle-attn":
        return read_eagle(
            files.renamed(("hydra_head.", ""), ("attn.", "layers.0.")), "hydra eagle-attn"
        )
    if arch != "mlp" or not files.config.get("grounded_heads", True):
        raise InputError(
            f"{files.folder}: Hydra heads of arch {arch!r} are not supported yet, only "
            "'eagle-attn' and grounded ones of 'mlp'"
        )
    files = files.renamed(("hydra_head.", ""))
    parts = [name.split(".") for name in files.tensors if name.startswith("hydra_mlp.")]
    heads = len({part[1] for part in parts})
    blocks = len({part[2] for part in parts})
    vocab, width = files.shape("hydra_lm_head.0.weight")
    network = HydraNetwork(heads, blocks, width, vocab)
    files.load(network)
    return PublishedHead(network, "hydra", files.config, width, vocab_size=vocab, length=heads)
