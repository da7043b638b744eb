"""New heads for a target, of random weights, as their files will describe them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ....errors import InputError
from ..fit import TargetFit
from ..published.dflash import DFlashNetwork
from ..published.eagle1 import EagleNetwork, MsdNetwork
from ..published.eagle3 import Eagle3Network
from ..published.falcon import FalconNetwork
from ..published.flash import FlashNetwork
from ..published.head import FIT, PublishedHead
from ..published.hydra import HydraNetwork
from ..published.longspec import WINDOW, LongSpecNetwork
from ..published.medusa import MedusaNetwork
from ..published.rotary import HeadRotary
from ..published.sizes import HeadSizes
from ..published.specvlm import SpecVlmNetwork
from ..published.vispec import ViSpecNetwork
from ..published.vocabulary import DraftVocabulary

STD = 0.02  # of first weights
OPEN = 3.0  # bias of a gate that lets 0.95 pass


class NewHead:
    """Sizes and first weights that a new head takes from its target.

    Args:
        target: a language model, some see pictures.
        counts: gives how often the target says each token `[V]`; None: nobody knows.

    Attributes:
        config: keys of `config.json`: sizes of the target's own layers, plain rotary positions.
        output: the target's output layer `[V, Ht]`.
    """

    def __init__(self, target: PreTrainedModel, counts: Callable[[], Tensor] | None = None) -> None:
        text: Any = target.config.get_text_config()
        heads, width = text.num_attention_heads, text.hidden_size
        rope: dict[str, Any] = getattr(text, "rope_parameters", None) or {}
        self.target, self.layers = target, int(text.num_hidden_layers)
        self.counts = counts
        self.output = target.get_output_embeddings().weight.detach()
        dim = getattr(text, "head_dim", None) or width // heads
        if dim % 2:
            raise InputError(f"a head_dim of {dim} is odd: rotary positions turn pairs")
        self.config: dict[str, Any] = {
            "hidden_size": width,
            "intermediate_size": text.intermediate_size,
            "num_attention_heads": heads,
            "num_key_value_heads": getattr(text, "num_key_value_heads", None) or heads,
            "head_dim": dim,
            "rms_norm_eps": float(getattr(text, "rms_norm_eps", 1e-6)),
            "rope_theta": float(rope.get("rope_theta") or 10000.0),
            "max_position_embeddings": getattr(text, "max_position_embeddings", 2048),
            "vocab_size": len(self.output),
            FIT: asdict(TargetFit.of(target)),
        }

    @property
    def sizes(self) -> HeadSizes:
        """Sizes of the head's layers."""
        return HeadSizes.of(self.config)

    def most(self, count: int) -> DraftVocabulary | None:
        """The tokens that the target says most, and those that end its text; None: all of them.

        Of tokens that it says as often the lower ids come first: those of byte pairs are the more
        frequent ones (VocabTrim, Goel et al. 2025).

        Raises:
            InputError: nobody knows how often it says them, or it has fewer.
        """
        if not count:
            return None
        size = len(self.output)
        if self.counts is None:
            raise InputError("a smaller vocabulary takes counts of tokens, see mmspec train")
        if not 0 < count < size:
            raise InputError(f"vocabulary must be below the target's {size}, not {count}")
        counts = self.counts().double()
        end = self.target.generation_config.eos_token_id
        counts[torch.tensor(end if end is not None else [], dtype=torch.long)] = torch.inf
        ids = counts.argsort(descending=True, stable=True)[:count].sort().values
        return DraftVocabulary(ids - torch.arange(count), size)

    def output_of(self, own: DraftVocabulary | None) -> Tensor:
        """Rows `[Vd, Ht]` of the target's output layer for the tokens that a head drafts."""
        return self.output if own is None else self.output[own.ids.to(self.output.device)]

    def head(
        self,
        network: nn.Module,
        format: str,
        reads: tuple[int, ...] = (),
        length: int | None = None,
        vocabulary: DraftVocabulary | None = None,
        **config: Any,
    ) -> PublishedHead:
        """The head of a network with first weights; arguments as of `PublishedHead`."""
        for module in network.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=STD)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        width, vocab = self.config["hidden_size"], self.config["vocab_size"]
        rotary = HeadRotary(self.config, self.config["head_dim"])
        own = {**self.config, **config}
        return PublishedHead(network, format, own, width, reads, rotary, vocabulary, vocab, length)

    def eagle(self, network: EagleNetwork, format: str, **own: Any) -> PublishedHead:
        """A head of EAGLE-1's kind: the hidden state that comes in goes out again for a start."""
        made, width = self.head(network, format, **own), self.config["hidden_size"]
        with torch.no_grad():
            network.fc.weight.copy_(torch.eye(width, 2 * width).roll(width, 1))
        return made


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


def eagle3(new: NewHead, num_layers: int = 1, vocabulary: int = 0) -> PublishedHead:
    """EAGLE-3; its output layer begins as the target's.

    Args:
        vocabulary: tokens that it drafts, see `NewHead.most`; 0: all of the target's.
    """
    reads = tuple(sorted({*spread(3, new.layers)}))
    width, own = new.config["hidden_size"], new.most(vocabulary)
    output = new.output_of(own)
    network = Eagle3Network(new.sizes, len(reads), width, None, len(output), num_layers)
    made = new.head(network, "eagle3", reads, None, own, draft_vocab_size=len(output))
    with torch.no_grad():
        network.lm_head.weight.copy_(output)
    return made


def dflash(
    new: NewHead, block: int = 8, num_layers: int = 2, joined: int = 3, vocabulary: int = 0
) -> PublishedHead:
    """DFlash; `block` places, the last committed token's among them.

    Args:
        vocabulary: see `eagle3`; of fewer tokens than the target's it has an output layer.
    """
    reads = tuple(sorted({*spread(joined, new.layers)}))
    text: Any = new.target.config.get_text_config()
    ends = text.pad_token_id, text.eos_token_id, 0
    mask = next(token for token in ends if isinstance(token, int))
    width = new.config["hidden_size"]
    if block < 2:
        raise ValueError(f"block must be 2 or more, not {block}: its first place is no draft")
    own = new.most(vocabulary)
    drafted = None if own is None else len(own.ids)
    how = block, mask, num_layers, None, drafted
    network = DFlashNetwork(new.sizes, len(reads), width, *how)
    made = new.head(network, "dflash", reads, block - 1, own)
    if own is not None:
        with torch.no_grad():
            network.lm_head.weight.copy_(new.output_of(own))
    return made


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
    last = getattr(getattr(new.target.get_decoder(), "norm", None), "weight", None)
    if isinstance(last, Tensor) and len(last) == new.config["hidden_size"]:
        network.norm.load_state_dict({"weight": last.detach()})
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
