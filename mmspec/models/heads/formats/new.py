"""New heads for a target, of random weights, as their files will describe them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..published.dflash import DFlashNetwork
from ..published.eagle1 import EagleNetwork, MsdNetwork
from ..published.eagle3 import Eagle3Network
from ..published.falcon import FalconNetwork
from ..published.flash import FlashNetwork
from ..published.head import PublishedHead
from ..published.hydra import HydraNetwork
from ..published.longspec import WINDOW, LongSpecNetwork
from ..published.medusa import MedusaNetwork
from ..published.specvlm import SpecVlmNetwork
from ..published.vispec import ViSpecNetwork
from .new_head import STD, NewHead

OPEN = 3.0  # bias of a gate that lets 0.95 pass


def eagle(new: NewHead, num_layers: int = 1) -> PublishedHead:
    """EAGLE-1."""
    return new.eagle(EagleNetwork(new.sizes, None, num_layers), "eagle")


def msd(new: NewHead, num_layers: int = 1) -> PublishedHead:
    """MSD."""
    return new.eagle(MsdNetwork(new.sizes, None, num_layers), "msd")


def vispec(new: NewHead, queries: int = 2) -> PublishedHead:
    """ViSpec; hidden states pass by g for a start."""
    if queries < 2:
        raise ValueError(f"queries must be 2 or more, not {queries}: the last is no column")
    network = ViSpecNetwork(new.sizes, None, queries=queries)
    made, width = new.eagle(network, "vispec"), new.config["hidden_size"]
    nn.init.normal_(network.imadpt.q, std=new.config["head_dim"] ** -0.5)
    with torch.no_grad():
        network.img_fc.weight.copy_(torch.eye(width, 2 * width))
    return made


def specvlm(
    new: NewHead, factor: int = 4, queries: int = 2, gate_dim: int = 64, choose: str = "gate"
) -> PublishedHead:
    """SpecVLM; the convolution begins as the pooling."""
    network = SpecVlmNetwork(new.sizes, None, 1, True, factor, queries, gate_dim, choose)
    made = new.eagle(network, "specvlm")
    nn.init.normal_(
        network.get_parameter("compressor.resampler.q"), std=new.config["head_dim"] ** -0.5
    )
    nn.init.eye_(network.compressor.mix.weight)
    return made


def flash(new: NewHead, latents: int = 64, block: int = 5) -> PublishedHead:
    """FLASH; every slot begins as the first."""
    network = FlashNetwork(new.sizes, None, latents=latents, block=block)
    made = new.eagle(network, "flash", length=block)
    nn.init.normal_(network.latent_queries, std=STD)
    nn.init.zeros_(network.further.weight)
    return made


def falcon(new: NewHead, block: int = 2) -> PublishedHead:
    """Falcon; the hidden state that comes in goes out again for a start, where it is small."""
    network = FalconNetwork(new.sizes, None, block)
    made, width = new.head(network, "falcon"), new.config["hidden_size"]
    with torch.no_grad():
        for name, weight in network.lstm.named_parameters():
            inputs, _, cell, outputs = weight.chunk(4)
            if name.startswith("weight"):
                nn.init.normal_(weight, std=STD)
                cell[:, -width:] += torch.eye(width)
            elif name.startswith("bias_ih"):  # both gates are open
                inputs.fill_(OPEN)
                outputs.fill_(OPEN)
    return made


def eagle3(
    new: NewHead,
    num_layers: int = 1,
    vocabulary: int = 0,
    output: str = "own",
    intermediate_size: int = 0,
) -> PublishedHead:
    """EAGLE-3; its output layer begins as the target's.

    Args:
        vocabulary: tokens that it drafts, see `NewHead.most`; 0: all of the target's.
        output: its output layer: its own, or the target's, which its files leave out.
        intermediate_size: width of its MLPs; 0: the target's.
    """
    reads = tuple(sorted({*spread(3, new.layers)}))
    if intermediate_size:
        new.config["intermediate_size"] = intermediate_size
    width, own = new.config["hidden_size"], new.most(vocabulary)
    count = len(new.output_of(own))
    rows = count if is_own(output) else None
    network = Eagle3Network(new.sizes, len(reads), width, None, rows, num_layers)
    return new.decoding(network, "eagle3", reads, own, draft_vocab_size=count)


def dflash(
    new: NewHead,
    block: int = 8,
    num_layers: int = 2,
    joined: int = 3,
    vocabulary: int = 0,
    output: str = "own",
) -> PublishedHead:
    """DFlash; `block` places, the last committed token's among them.

    Args:
        vocabulary: see `eagle3`; of all tokens it has no output layer.
        output: see `eagle3`.
    """
    reads = tuple(sorted({*spread(joined, new.layers)}))
    text: Any = new.target.config.get_text_config()
    ends = text.pad_token_id, text.eos_token_id, 0
    mask = next(token for token in ends if isinstance(token, int))
    width = new.config["hidden_size"]
    if block < 2:
        raise ValueError(f"block must be 2 or more, not {block}: its first place is no draft")
    own = new.most(vocabulary)
    rows = len(own.ids) if is_own(output) and own is not None else None
    network = DFlashNetwork(new.sizes, len(reads), width, block, mask, num_layers, None, rows)
    return new.decoding(network, "dflash", reads, own, block - 1)


def is_own(output: str) -> bool:
    """True for an output layer of its own, False for the target's.

    Raises:
        ValueError: it is neither "own" nor "target".
    """
    if output not in ("own", "target"):
        raise ValueError(f"output must be own or target, not {output!r}")
    return output == "own"


def medusa(new: NewHead, heads: int = 4, blocks: int = 1, vocabulary: int = 0) -> PublishedHead:
    """Medusa; the output layers begin as the target's, and the blocks pass everything on.

    Args:
        vocabulary: see `eagle3`.
    """
    width, own = new.config["hidden_size"], new.most(vocabulary)
    output = new.output_of(own)
    network = MedusaNetwork(heads, blocks, width, len(output))
    made = new.head(network, "medusa", length=heads, vocabulary=own)
    with torch.no_grad():
        for number in range(heads):
            *rest, last = network.head(number).children()
            last.get_parameter("weight").copy_(output)
            for weight in (weight for block in rest for weight in block.parameters()):
                weight.zero_()
    return made


def hydra(new: NewHead, heads: int = 4, blocks: int = 1, vocabulary: int = 0) -> PublishedHead:
    """Hydra; it begins as the target's output layer on its hidden state.

    Args:
        vocabulary: see `eagle3`.
    """
    width, own = new.config["hidden_size"], new.most(vocabulary)
    output = new.output_of(own)
    network = HydraNetwork(heads, blocks, width, len(output))
    made = new.head(network, "hydra", length=heads, vocabulary=own)
    with torch.no_grad():
        for layer in network.hydra_lm_head:
            layer.get_parameter("weight").copy_(output)
        for name, weight in network.named_parameters():
            if name.endswith("0.res_connection.weight"):
                weight[:, :width] += torch.eye(width)
    return made


def longspec(new: NewHead, window: int = WINDOW, block: int = 4) -> PublishedHead:
    """LongSpec; attention and MLP add nothing for a start, and its norm is the target's last."""
    network = LongSpecNetwork(new.sizes, window, block, normed=True)
    made = new.head(network, "longspec", length=block)
    for part in (network.self_attn.o_proj, network.cross_attn.o_proj, network.mlp.down_proj):
        nn.init.zeros_(part.weight)
    made.rotary = None  # its positions are the target's
    new.last_norm(network.norm)
    return made


def spread(count: int, layers: int) -> list[int]:
    """Hidden states of `count` layers from the second to the last but two, evenly spread.

    Numbers are those of `PublishedHead.reads`. (DFlash's choice; of three, EAGLE-3's nearly.)
    """
    last = max(layers - 2, 1)
    first = min(2, last)
    steps = max(count - 1, 1)
    return [round(first + n * (last - first) / steps) for n in range(count)]


MAKERS: dict[str, Callable[..., PublishedHead]] = {
    made.__name__: made
    for made in (
        eagle,
        msd,
        vispec,
        specvlm,
        flash,
        falcon,
        eagle3,
        dflash,
        medusa,
        hydra,
        longspec,
    )
}
