"""A frozen language model as the teacher of draft heads; it asks itself, too."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from ...draft.null import NullDrafter
from ...engine.warp import Warp
from ...errors import InputError
from ...models.transformers.prompted import EncodedPrompt
from ..heads.teacher import Teacher

ASKED = 64  # tokens of a prompt that the model writes at most
LIKELY = 100  # tokens of a law that such a prompt is drawn from: the tail of a small model is noise
_MARK = "\N{SECTION SIGN}words\N{SECTION SIGN}"


class TextTeacher(Teacher):
    """Answers prompts at temperatures from 0 to 1.

    Args:
        model, limit, reads: see `Teacher`.
        tokenizer: its own.
    """

    temperatures = (0.0, 0.4, 0.7, 1.0)

    def __init__(
        self, model: PreTrainedModel, tokenizer: Any, limit: int, reads: tuple[int, ...] = ()
    ) -> None:
        super().__init__(model, limit, reads)
        self.tokenizer = tokenizer

    def encoded(self, prompts: list[list[int]], limit: int | None = None) -> EncodedPrompt:
        """Prompts of token ids, left-padded; `limit`: tokens to come, None: an answer's."""
        device = self.model.device
        rows = [torch.tensor(ids, device=device) for ids in prompts]
        mask = [torch.ones_like(row, dtype=torch.bool) for row in rows]
        return self.decoder.prompt(
            pad_sequence(rows, True, padding_side="left"),
            pad_sequence(mask, True, padding_side="left"),
            self.limit if limit is None else limit,
        )

    @torch.inference_mode()
    def invented(self, seeds: list[int]) -> list[list[int]]:
        """Prompts that the model writes in the place of a user (Magpie, Xu et al. 2024).

        It goes on behind what its chat template puts in front of a user's words; without a template
        behind its start token. What the template puts behind the words follows.

        Args:
            seeds: one a prompt.
        """
        before, behind = self.turn()
        prompt = self.encoded([before] * len(seeds), ASKED)
        target = self.placed(prompt, Warp(1.0, LIKELY))
        ends = {*self.ends, *behind[:1]}
        context, _ = self.answer(target, NullDrafter(), 0, seeds, tuple(ends))
        rows = zip(context.tokens.tolist(), context.lengths.tolist(), strict=True)
        words = [[token for token in row[:count] if token not in ends] for row, count in rows]
        return [[*before, *own, *behind] for own in words]

    def turn(self) -> tuple[list[int], list[int]]:
        """Token ids in front of a user's words, and behind them up to the answer."""
        if getattr(self.tokenizer, "chat_template", None) is None:
            starts = self.tokenizer.bos_token_id, self.tokenizer.eos_token_id
            first = next((token for token in starts if token is not None), None)
            if first is None:
                raise InputError(
                    f"{type(self.tokenizer).__name__} has neither a chat template nor a start "
                    "token; give prompts of your own as data"
                )
            return [first], []
        said = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": _MARK}], add_generation_prompt=True, tokenize=False
        )
        parts = said.split(_MARK)
        if len(parts) != 2:
            raise InputError(
                "the chat template does not show a user's words as they are; give prompts of your "
                "own as data"
            )
        before, behind = (
            self.tokenizer(part, add_special_tokens=False)["input_ids"] for part in parts
        )
        return before, behind
