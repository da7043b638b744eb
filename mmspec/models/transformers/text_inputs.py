"""Inputs that a tokenizer makes of texts and conversations: the tokens of transformers' own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ...errors import InputError, reason


def process_texts(
    tokenizer: Any, prompts: Sequence[str | Sequence[Mapping[str, Any]]], device: Any
) -> dict[str, Tensor]:
    """Inputs `input_ids`, `attention_mask` `[B, T]` of prompts, left-padded.

    The ids are those of `apply_chat_template(…, add_generation_prompt=True)`, or without a chat
    template those of the text.

    Args:
        tokenizer: of transformers; it stays as it is.
        prompts: texts of one turn each, or the messages of several.

    Raises:
        InputError: there are messages and no chat template, or it refuses them.
    """
    template = getattr(tokenizer, "chat_template", None) is not None
    rows = []
    for prompt in prompts:
        if not template and not isinstance(prompt, str):
            kind = type(tokenizer).__name__
            raise InputError(f"{kind} has no chat template; give a text, or set chat_template")
        turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        try:
            if template:
                said = tokenizer.apply_chat_template(
                    turns, add_generation_prompt=True, tokenize=False
                )
                ids = tokenizer(said, add_special_tokens=False)["input_ids"]
            else:
                ids = tokenizer(prompt)["input_ids"]
        except Exception as error:  # a template raises what it likes
            raise InputError(f"the tokenizer refuses the prompt: {reason(error)}") from error
        rows.append(torch.tensor(ids, device=device))
    fill = next((n for n in (tokenizer.pad_token_id, tokenizer.eos_token_id) if n is not None), 0)
    mask = [torch.ones_like(ids) for ids in rows]
    return {
        "input_ids": pad_sequence(rows, True, padding_value=fill, padding_side="left"),
        "attention_mask": pad_sequence(mask, True, padding_side="left"),
    }
