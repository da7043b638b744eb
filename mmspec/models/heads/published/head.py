"""A published head with all that running it takes: network, positions, vocabulary, layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ....errors import InputError
from ...decoders import UNNORMED
from ..columns import Columns
from ..fit import TargetFit
from .correction import DominoHead, MarkovHead
from .dflash import DFlashNetwork
from .eagle1 import EagleNetwork, MsdNetwork
from .eagle3 import Eagle3Network
from .falcon import FalconNetwork
from .flash import FlashNetwork
from .hydra import HydraNetwork, PrefixHydraNetwork
from .longspec import LongSpecNetwork
from .medusa import MedusaNetwork
from .mtp import MtpNetwork
from .rotary import HeadRotary
from .sizing import take_sizes
from .specvlm import SpecVlmNetwork
from .vispec import ViSpecNetwork
from .vocabulary import DraftVocabulary

FIT = "mmspec_target"  # key of a configuration that holds the fields of a `TargetFit`
BORROWS = "mmspec_borrows_output"  # key that is true where the output layer is the target's rows
METHODS: dict[type[nn.Module], str] = {
    EagleNetwork: "eagle",
    MsdNetwork: "msd",
    ViSpecNetwork: "vispec",
    SpecVlmNetwork: "specvlm",
    FlashNetwork: "flash",
    FalconNetwork: "falcon",
    MedusaNetwork: "medusa",
    HydraNetwork: "hydra",
    PrefixHydraNetwork: "hydra",
    MtpNetwork: "mtp",
    LongSpecNetwork: "longspec",
}


class PublishedHead(nn.Module):
    """A draft head that was read from files.

    Args:
        network: one of the networks of this folder.
        format: name of the files' format, such as "eagle3".
        config: of its `config.json`.
        target_size: width of the target's hidden states.
        reads: the target's hidden states that it joins, numbered as transformers'
            `hidden_states`: 0 is the embeddings, k the output of layer k - 1. Empty: the last one,
            behind the final norm. None: the files do not say; see `reads_of` and `taken_of`.
        rotary: its positions; None: it has no attention.
        vocabulary: the target's ids of its own; None: they are the same.
        vocab_size: of the target, where the files say; None: they do not.
        length: tokens that a draft has where the files say; None: they do not.
        sized: whether the files say the sizes of its layers; if not, see `meet`.

    Attributes:
        borrows: it drafts the tokens of its vocabulary by the target's rows of them (VocabTrim,
            Goel et al. 2025), which its files leave out; see `meet`.
        shown: replaces what it is shown of pictures, for ablations; None: nothing does.
    """

    shown: Callable[[Columns], Columns] | None = None

    def __init__(
        self,
        network: nn.Module,
        format: str,
        config: Mapping[str, Any],
        target_size: int,
        reads: tuple[int, ...] | None = (),
        rotary: HeadRotary | None = None,
        vocabulary: DraftVocabulary | None = None,
        vocab_size: int | None = None,
        length: int | None = None,
        sized: bool = True,
    ) -> None:
        super().__init__()
        self.network, self.format, self.config = network, format, dict(config)
        self.target_size, self.reads, self.rotary = target_size, reads, rotary
        self.vocabulary, self.vocab_size, self.length = vocabulary, vocab_size, length
        self.sized = sized
        self.borrows = bool(config.get(BORROWS))

    @property
    def method(self) -> str:
        """The method that drafts with such a head."""
        network = self.network
        if isinstance(network, Eagle3Network):
            return "eagle3" if network.mask_token_id is None else "peagle"
        if isinstance(network, DFlashNetwork):
            kinds = {DominoHead: "domino", MarkovHead: "dspark"}
            return kinds.get(type(network.correction), "dflash")
        return METHODS[type(network)]

    @property
    def block_size(self) -> int:
        """Tokens that a call reads beyond the draft's root at most."""
        network = self.network
        if isinstance(network, Eagle3Network | FlashNetwork | FalconNetwork):
            return network.block
        return network.block_size if isinstance(network, DFlashNetwork) else 0

    def save_pretrained(
        self, folder: str | Path, format: str | None = None, **verifier: Any
    ) -> None:
        """Write the head in a published layout.

        Args:
            folder: is made where it is missing.
            format: see `formats_of`; None: the layout of its own kind.
            verifier: the target's `name_or_path` and `architectures`, which vLLM reads in
                speculators' layout.

        Raises:
            InputError: the head can't be written in the format.
        """
        from ..formats.write import write_head

        write_head(self, folder, format, verifier)

    @property
    def dtype(self) -> torch.dtype:
        """The weights' type."""
        return next(self.parameters()).dtype

    @property
    def embeddings(self) -> Tensor | None:
        """Its own embeddings `[V, H]`; None: it takes the target's."""
        table = getattr(self.network, "embed_tokens", None)
        return None if table is None else table.weight

    def reads_of(self, layers: int) -> tuple[int, ...]:
        """The hidden states that it joins of a target with so many layers.

        Where the files are silent, what EAGLE-3's authors join: what layers 2, L // 2 and L - 3
        read.
        """
        return (2, layers // 2, layers - 3) if self.reads is None else self.reads

    def taken_of(self, layers: int) -> tuple[int, ...]:
        """The same as a decoder numbers them: EAGLE-3 takes the last one in front of the norm."""
        reads = self.reads_of(layers)
        if not isinstance(self.network, Eagle3Network):
            return reads
        return tuple(UNNORMED if number == layers else number for number in reads)

    def meet(self, target: PreTrainedModel) -> None:
        """Check that the head fits `target`, and take from it what its files leave out.

        That is sizes of layers, or rows of an output layer.

        Raises:
            InputError: it does not fit.
        """
        self.check(target)
        if not self.sized:
            self.config |= take_sizes(self, target)
            self.rotary = HeadRotary(self.config, self.config["head_dim"])
            self.sized = True
        if self.borrows:
            self.borrow(target)

    def borrow(self, target: PreTrainedModel) -> None:
        """Take the target's rows of the tokens that it drafts as its output layer."""
        assert self.vocabulary is not None
        weight = target.get_output_embeddings().weight.detach()
        rows = weight[self.vocabulary.ids.to(weight.device)].to(self.dtype)
        layer = nn.Linear(rows.shape[1], len(rows), bias=False, device="meta")
        layer.weight = nn.Parameter(rows, requires_grad=False)
        self.network.lm_head = layer

    def check(self, target: PreTrainedModel) -> None:
        """Raise an `InputError` unless the head fits `target` in its sizes.

        A head that was trained here also says what weights it is for.
        """
        if FIT in self.config:
            TargetFit.read(self.config[FIT]).check(target)
        text: Any = target.config.get_text_config()
        vocab = target.get_output_embeddings().weight.shape[0]
        name = type(target).__name__
        if text.hidden_size != self.target_size:
            raise InputError(
                f"the draft head ({self.format}) is for a target with hidden_size "
                f"{self.target_size}, and this {name} has {text.hidden_size}; load the head that "
                "was trained for this target"
            )
        if self.vocab_size not in (None, vocab):
            raise InputError(
                f"the draft head ({self.format}) is for a vocabulary of {self.vocab_size}, and "
                f"this {name} has {vocab}; load the head that was trained for this target"
            )
        taken = [part for part in ("embed_tokens", "lm_head") if not hasattr(self.network, part)]
        if self.borrows and "lm_head" not in taken:
            taken.append("lm_head")
        if isinstance(self.network, DFlashNetwork) and not taken:
            taken = ["the embedding that a block begins with"]
        fused = isinstance(self.network, Eagle3Network | DFlashNetwork)
        wide = self.network.get_parameter("fc.weight").shape[0] if fused else text.hidden_size
        if taken and wide != text.hidden_size:
            raise InputError(
                f"the draft head ({self.format}) is {wide} wide and takes "
                f"{' and '.join(taken)} from its target; those of this {name} are "
                f"{text.hidden_size} wide"
            )
        layers = text.num_hidden_layers
        # some writers count the joined states in the second
        count = self.config.get("num_target_layers")
        meant = self.config.get("target_num_hidden_layers")
        if meant is None and count != len(self.reads or ()):
            meant = count
        if isinstance(meant, int) and meant != layers:
            raise InputError(
                f"the draft head ({self.format}) is for a target of {meant} layers, and this "
                f"{name} has {layers}; load the head that was trained for this target"
            )
        reads = self.reads_of(layers)
        if not all(0 <= number <= layers for number in reads):
            raise InputError(
                f"the draft head ({self.format}) reads the hidden states {list(reads)}, and this "
                f"{name} has {layers} layers; load the head that was trained for this target"
            )
