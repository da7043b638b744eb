"""A masked language model that continues a text: it fills a block of masked places in one call.

Such models are decoders of a published class, such as `Qwen2ForCausalLM`, whose tokens in a block
read each other both ways: DEER's drafter (Cheng et al. 2025), SDAR, Dream 7B.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...errors import InputError
from ..guided import GuidedDecoder
from ..masked_folders import MASK, READING, SEPARATOR, SHIFTED, Reading
from .causal import CausalDecoder


@dataclass(frozen=True)
class MaskedForm:
    """Form of a masked model's input and output, as its configuration states it.

    Attributes:
        mask: token of a masked place (`mask_token_id`).
        separator: token between the text and the places, None: there is none (`sep_token_id`).
        shifted: the logits of a place are those at the token in front of it (`shifted_logits`).
        reading: tokens of the text read what is in front of them, and are kept; or the "whole" of
            text and places, all anew for every call (`prefix_reading`).
    """

    mask: int
    separator: int | None = None
    shifted: bool = False
    reading: Reading = "causal"

    @classmethod
    def of(cls, model: PreTrainedModel) -> MaskedForm:
        """The form of a model.

        Raises:
            InputError: its configuration names no mask, or there is no such form.
        """
        config: Any = model.config.get_text_config()
        name, mask = type(model).__name__, getattr(config, MASK, None)
        if mask is None:
            raise InputError(
                f"{name} is no masked language model: its configuration names no {MASK}; train one "
                "(mmspec train text-masked-drafter), or use method 'draft'"
            )
        reading: Any = getattr(config, READING, "causal")
        if reading not in get_args(Reading):
            raise InputError(f"{READING} of {name} is causal or whole, not {reading!r}")
        rows = len(model.get_input_embeddings().weight)
        separator = getattr(config, SEPARATOR, None)
        for key, token in ((MASK, mask), (SEPARATOR, separator)):
            if token is not None and not (isinstance(token, int) and 0 <= token < rows):
                raise InputError(f"{key} of {name} is below its {rows} tokens, not {token!r}")
        return cls(mask, separator, bool(getattr(config, SHIFTED, False)), reading)

    @property
    def extra(self) -> int:
        """Tokens in front of the masked places that are not of the text."""
        return int(self.separator is not None)

    def behind(self, filled: Tensor) -> Tensor:
        """Tokens behind the text `[B, extra + K]`, of places `[B, K]`, -1 where masked."""
        places = filled.where(filled >= 0, self.mask)
        if self.separator is None:
            return places
        return torch.cat([places.new_full((len(places), 1), self.separator), places], 1)


class MaskedModel(GuidedDecoder):
    """A masked model over a text that grows.

    Text in a causal `reading` is read once: its keys and values stay, and a call reads the tokens
    that are new, and the block. The block's own entries are written over by the next call.

    Args:
        model: the draft model, which has not started.
        size: masked places K of a call.
        form: of its input and output; None: its configuration states it.

    Raises:
        InputError: it is no masked model of the target's words, or can't be read both ways.
    """

    returns = True  # its blocks stand wherever the text ends

    def __init__(self, model: object, size: int, form: MaskedForm | None = None) -> None:
        form = form or _stated(model)
        assert isinstance(model, GuidedDecoder)
        super().__init__(*model.again())
        self.form, self.size = form, size
        self.drafts = self.watched = True  # the output layer is run on the block alone

    def read(
        self,
        text: Tensor,
        ends: list[int],
        known: list[int],
        filled: Tensor | None = None,
        left: Tensor | None = None,
    ) -> Tensor:
        """Laws `[B, K, V]` of the K places behind the first `ends[b]` tokens of `text [B, …]`.

        Args:
            known: by row, tokens of the text that it has read before, and that are the same.
            filled: tokens that stand in the places already `[B, K]`, -1 where one is masked; None:
                all are.
            left: places that each row's block has `[B]`: nobody reads those behind, whose laws mean
                nothing; None: all K.
        """
        device = text.device
        end = torch.tensor(ends, device=device)[:, None]
        if self.form.reading == "whole":
            width = 1 + max(ends)
            places = (self.keys[:width] - 1).minimum(end - 1)
        else:
            width = max(1, *(e - k for e, k in zip(ends, known, strict=True)))
            places = (end - width + self.keys[:width]).clamp_min(-1)  # some rows read some again
        if filled is None:
            filled = text.new_full((len(text), self.size), -1)
        block = self.form.behind(filled)
        tokens = torch.cat([text.gather(1, places.clamp_min(0)), block], 1)
        places = torch.cat([places, end + self.keys[: block.shape[1]]], 1)
        x, slots = self._embedded(tokens, places < 0), places + self.offset
        last = slots[:, -1:, None]
        if left is not None:
            last = last - (self.size - left)[:, None, None]
        if self.form.reading == "whole":
            before = self.offset - 1
            x = torch.cat([self._prefilled(before), x], 1)
            slots = torch.cat([self.keys[:before].expand(len(slots), -1), slots], 1)
            reach = last.expand(-1, slots.shape[1], -1)
        else:
            own = self.keys[: slots.shape[1]] < width
            reach = torch.where(own[:, None], slots[..., None], last)
        length = self.offset + max(ends) + block.shape[1]
        out = self._at(x, slots, slots, length, self.keys[:length] <= reach)
        first = out.shape[1] - self.size - int(self.form.shifted)
        out = self.decoder.logits(out[:, first : first + self.size])
        return self._warped(self.running.of_all(out))


def _stated(model: object) -> MaskedForm:
    """The form that a language model's configuration states."""
    if not isinstance(model, GuidedDecoder) or not isinstance(model.decoder, CausalDecoder):
        raise InputError(
            "a masked drafter is a language model of transformers, of the target's words; use "
            "method 'draft'"
        )
    network = model.decoder.model
    form = MaskedForm.of(network)
    if model.decoder.recurrent.modules:
        raise InputError(
            f"{type(network).__name__} keeps a state of its text, so that no place reads what "
            "follows; use method 'draft'"
        )
    return form
