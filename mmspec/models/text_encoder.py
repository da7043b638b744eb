"""Captions to T5 features: left-padded, as LlamaGen reads them, or one by one, as Wan does."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from .caption_cleaning import clean_caption, repaired
from .truncation import lost_words, tell, tell_lost

_NAMED: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()  # by tokenizer, what it lacks


def encode_captions(
    tokenizer: Any, encoder: nn.Module, captions: list[str], length: int, clean: bool = False
) -> tuple[Tensor, Tensor]:
    """T5 features of captions, moved to the right end of a prefix of `length`.

    Args:
        clean: by `clean_caption`, as LlamaGen's published models were trained; else they are put
            into lower case alone.

    Returns:
        features `[B, length, caption_dim]`, zero where padded, and the mask `[B, length]`, True
        where a caption token stands. Captions longer than `length` are cut, as T5's tokenizer does,
        and a warning names what is lost.
    """
    device = next(encoder.parameters()).device
    read = [clean_caption(c) if clean else c.strip().lower() for c in captions]
    gone = [c for c, left in zip(captions, read, strict=True) if c.strip() and not left]
    what = "cleaned as the model's captions were"
    tell("cleaned", dict.fromkeys(gone, ""), lambda c: f"nothing is left of {_quoted(c)}, {what}")
    batch = tokenizer(
        read, max_length=length, padding="max_length", truncation=True, return_tensors="pt"
    )
    name_unknown(tokenizer, read, batch["input_ids"])
    full = batch["attention_mask"].bool().all(-1).tolist()
    long = [caption for caption, filled in zip(read, full, strict=True) if filled]
    tell_lost(lost_words(tokenizer, long, length), length)
    ids, mask = batch["input_ids"].to(device), batch["attention_mask"].to(device).bool()
    features = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
    shift = length - mask.sum(-1)  # right-padded to left-padded: roll each row by its own padding
    order = (torch.arange(length, device=device) - shift[:, None]) % length
    features = features.gather(1, order[..., None].expand(-1, -1, features.shape[-1]))
    mask = mask.gather(1, order)
    return features * mask[..., None], mask


def encode_prompt(tokenizer: Any, encoder: Any, prompt: str, length: int) -> Tensor:
    """T5 features `[T, text_dim]` of one prompt, without padding; beyond `length` tokens it is cut.

    A warning names what that loses. Text is repaired and its white space made single, as in Wan.
    """
    words = " ".join(repaired(prompt).split())
    ids = tokenizer(words, max_length=length, truncation=True, return_tensors="pt")["input_ids"]
    name_unknown(tokenizer, [words], ids)
    if ids.shape[1] >= length:
        tell_lost(lost_words(tokenizer, [words], length), length)
    weight = next(encoder.parameters())
    if not ids.shape[1]:  # nothing said, by a tokenizer that marks no end
        return weight.new_zeros(0, encoder.config.d_model)
    return encoder(input_ids=ids.long().to(weight.device)).last_hidden_state[0]


def name_unknown(tokenizer: Any, prompts: list[str], ids: Tensor) -> None:
    """Warn of words in prompts that the model can't know, as its tokenizer has one id for all.

    Each word is named once, however often and in whatever way it is asked for.
    """
    unknown = tokenizer.unk_token_id
    if unknown is None or not bool((ids == unknown).any()):
        return
    named = _NAMED.setdefault(tokenizer, set())
    words = [word for word in unknown_words(tokenizer, " ".join(prompts)) if word not in named]
    named.update(words)
    tell("unknown", dict.fromkeys(words, ""), lambda w: f"the model does not know {_quoted(w)}")


def _quoted(texts: Iterable[str]) -> str:
    return ", ".join(map(repr, texts))


def unknown_words(tokenizer: Any, text: str) -> list[str]:
    """Words of a text that a model can't know, as its tokenizer has one id for all such words.

    A word is known if it is at the start of a text or behind a space.
    """
    unknown = tokenizer.unk_token_id
    if unknown is None:
        return []

    def known(word: str) -> bool:
        forms = [tokenizer(form, add_special_tokens=False) for form in (word, f" {word}")]
        return any(unknown not in form["input_ids"] for form in forms)

    words = dict.fromkeys(re.findall(r"[\w'-]+", text))
    return [word for word in words if not known(word)]
