"""Tokens of one tokenizer in those of another, so that a model of other words can draft.

Timor et al. 2025, "Accelerating LLM Inference with Lossless Speculative Decoding Algorithms for
Heterogeneous Vocabularies": a draft model drafts among the tokens that both have (there TLI, in
transformers USD). Which these are is told from the bytes that tokens stand for.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor

from ...errors import InputError

_SPACE = "▁"  # SentencePiece's


class VocabularyMap:
    """The tokens of a target in those of a draft model.

    Args:
        target, drafter: fast tokenizers of the two, of byte-level BPE or SentencePiece's kinds.
        target_size, drafter_size: tokens that the models' laws are over.

    Raises:
        InputError: a tokenizer is of another kind, or the two have no token in common.
    """

    def __init__(self, target: Any, drafter: Any, target_size: int, drafter_size: int) -> None:
        self.target, self.drafter, self.target_size = target, drafter, target_size
        self._bytes = _pieces(target)[:target_size]
        self._writes = _Writer(drafter)
        first: dict[bytes, int] = {}  # of several tokens of the same bytes, one counts
        for token, piece in enumerate(self._bytes):
            if piece:
                first.setdefault(piece, token)
        both: dict[int, int] = {}  # the drafter's token by the target's
        for token, piece in enumerate(_pieces(drafter)[:drafter_size]):
            if piece in first:
                both.setdefault(first[piece], token)
        ends = target.eos_token_id, drafter.eos_token_id
        if None not in ends:
            both[ends[0]] = ends[1]
        if not both:
            raise InputError("the drafter's tokenizer has no token in common with the model's")
        self._spelled: dict[int, tuple[int, ...]] = {known: (own,) for known, own in both.items()}
        order = sorted(both)
        self.shared = torch.tensor(order), torch.tensor([both[token] for token in order])

    def widened(self, logits: Tensor) -> Tensor:
        """The drafter's logits `[…, V_d]` as the target's `[…, V]`: −∞ for tokens that it lacks."""
        target, drafter = (ids.to(logits.device) for ids in self.shared)
        wide = logits.new_full((*logits.shape[:-1], self.target_size), -torch.inf)
        return wide.index_copy_(-1, target, logits[..., drafter])

    def spelled(self, token: int) -> tuple[int, ...]:
        """The drafter's tokens, at least one, that spell one of the target's."""
        if token not in self._spelled:
            piece = self._bytes[token] if token < len(self._bytes) else None
            if piece is None:  # a special token: its name is as good as another text
                piece = str(self.target.convert_ids_to_tokens(token) or " ").encode()
            self._spelled[token] = self._writes(piece)
        return self._spelled[token]

    def retold(self, ids: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
        """Prompts `[B, T]` of the target's tokens as the drafter's inputs, padded on the left.

        Special tokens of the target are left out, and the drafter's own first one is put in front.
        """
        real = torch.ones_like(ids) if mask is None else mask
        rows = [row[keep.bool()].tolist() for row, keep in zip(ids, real, strict=True)]
        how: dict[str, Any] = dict(skip_special_tokens=True, clean_up_tokenization_spaces=False)
        told = [self.drafter(self.target.decode(row, **how))["input_ids"] for row in rows]
        first = self.drafter.bos_token_id
        first = (self.drafter.eos_token_id or 0) if first is None else first
        told = [row or [first] for row in told]
        width = max(map(len, told))
        out = torch.zeros(len(told), width, dtype=torch.long)
        kept = torch.zeros_like(out)
        for place, row in enumerate(told):
            out[place, width - len(row) :], kept[place, width - len(row) :] = torch.tensor(row), 1
        return {"input_ids": out.to(ids.device), "attention_mask": kept.to(ids.device)}


def same_words(one: Any, other: Any) -> bool:
    """True if two tokenizers have the same tokens under the same numbers."""
    return bool(one.get_vocab() == other.get_vocab())


class _Writer:
    """Any bytes in a tokenizer's tokens, without what it puts in front of a text."""

    def __init__(self, tokenizer: Any) -> None:
        self._model = _backend(tokenizer).model
        self._byte_level = _is_byte_level(tokenizer)
        self._bytes = {
            piece: token
            for token, piece in enumerate(_pieces(tokenizer))
            if piece and len(piece) == 1
        }
        self._unknown: int = tokenizer.unk_token_id or 0

    def __call__(self, piece: bytes) -> tuple[int, ...]:
        if self._byte_level:
            text: str | None = "".join(_LETTERS[byte] for byte in piece)
        else:
            try:
                text = piece.decode().replace(" ", _SPACE)
            except UnicodeDecodeError:  # a part of a letter
                text = None
        if text is None:
            ids = tuple(self._bytes.get(bytes([byte]), self._unknown) for byte in piece)
        else:
            ids = tuple(token.id for token in self._model.tokenize(text))
        return ids or (self._unknown,)


def _backend(tokenizer: Any) -> Any:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise InputError(
            f"{type(tokenizer).__name__} does not say what bytes its tokens stand for; a drafter "
            "of other words needs fast tokenizers (AutoTokenizer gives them)"
        )
    return backend


def _is_byte_level(tokenizer: Any) -> bool:
    """True for byte-level BPE, False for SentencePiece's kinds.

    Raises:
        InputError: it is of neither kind.
    """
    parts = json.loads(_backend(tokenizer).to_str())
    steps = parts.get("decoder") or {}
    kinds = {step["type"] for step in steps.get("decoders", [steps]) if step}
    if "ByteLevel" in kinds:
        return True
    if kinds & {"Metaspace", "Replace"} and parts["model"]["type"] in ("BPE", "Unigram"):
        return False
    raise InputError(
        f"{type(tokenizer).__name__} is neither byte-level BPE nor of SentencePiece's kinds, and "
        "only those tokenizers are understood of a drafter of other words, and of its target"
    )


def _pieces(tokenizer: Any) -> list[bytes | None]:
    """The bytes that every token stands for, by its number; None: it is a special one."""
    byte_level = _is_byte_level(tokenizer)
    added = tokenizer.added_tokens_decoder
    out: list[bytes | None] = []
    for token, piece in enumerate(tokenizer.convert_ids_to_tokens(range(len(tokenizer)))):
        if piece is None or (token in added and added[token].special):
            out.append(None)
        elif token in added:
            out.append(added[token].content.encode())
        elif byte_level:
            known = all(letter in _BYTES for letter in piece)
            out.append(bytes(_BYTES[letter] for letter in piece) if known else None)
        elif len(piece) == 6 and piece.startswith("<0x"):
            out.append(bytes([int(piece[3:5], 16)]))
        else:
            out.append(piece.replace(_SPACE, " ").encode())
    return out


def _letters() -> dict[int, str]:
    """The letter that byte-level BPE writes for every byte: its own, or a later one."""
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printed]
    return {byte: chr(byte) for byte in printed} | {b: chr(256 + n) for n, b in enumerate(others)}


_LETTERS = _letters()
_BYTES = {letter: byte for byte, letter in _LETTERS.items()}
