"""Sizes and first weights that new heads take from their target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ....errors import InputError
from ..fit import TargetFit
from ..published.eagle1 import EagleNetwork
from ..published.head import BORROWS, FIT, PublishedHead
from ..published.rotary import HeadRotary
from ..published.sizes import HeadSizes
from ..published.vocabulary import DraftVocabulary

STD = 0.02  # of first weights
_INNER = "intermediate_size", "ffn_dim", "n_inner"  # names of an MLP's width; usual: four times


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
        heads, width = getattr(text, "num_attention_heads", None), text.hidden_size
        if not heads:
            raise InputError(
                f"{type(target).__name__} has no attention heads that a draft head's could be as "
                "wide as; train a text-drafter"
            )
        inner = [getattr(text, name, None) for name in _INNER]
        rope: dict[str, Any] = getattr(text, "rope_parameters", None) or {}
        self.target, self.layers = target, int(text.num_hidden_layers)
        self.counts = counts
        self.output = target.get_output_embeddings().weight.detach()
        dim = getattr(text, "head_dim", None) or width // heads
        if dim % 2:
            raise InputError(f"a head_dim of {dim} is odd: rotary positions turn pairs")
        self.config: dict[str, Any] = {
            "hidden_size": width,
            "intermediate_size": next((n for n in inner if isinstance(n, int)), 4 * width),
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
        return DraftVocabulary.of(ids, size)

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

    @torch.no_grad()
    def last_norm(self, norm: nn.Module) -> None:
        """Let a norm begin as the target's last one, whose outputs its output layer reads.

        The scale is what that makes of ones: some add 1 to their weights.
        """
        last = getattr(self.target.get_decoder(), "norm", None)
        if isinstance(last, nn.Module) and type(last).__name__.endswith("RMSNorm"):
            ones = torch.ones_like(next(last.parameters()))
            norm.load_state_dict({"weight": last(ones)})

    def decoding(
        self,
        network: nn.Module,
        format: str,
        reads: tuple[int, ...],
        own: DraftVocabulary | None,
        length: int | None = None,
        **config: Any,
    ) -> PublishedHead:
        """A head whose output layer and last norm begin as the target's.

        If the network has no such layer it takes the target's for good.
        """
        stores = hasattr(network, "lm_head")
        if own is not None and not stores:
            config[BORROWS] = True
        made = self.head(network, format, reads, length, own, **config)
        self.last_norm(network.get_submodule("norm"))
        if made.borrows:
            made.borrow(self.target)
        elif stores:
            with torch.no_grad():
                network.get_parameter("lm_head.weight").copy_(self.output_of(own))
        return made

    def eagle(self, network: EagleNetwork, format: str, **own: Any) -> PublishedHead:
        """A head of EAGLE-1's kind: the hidden state that comes in goes out again for a start."""
        made, width = self.head(network, format, **own), self.config["hidden_size"]
        with torch.no_grad():
            network.fc.weight.copy_(torch.eye(width, 2 * width).roll(width, 1))
        return made
