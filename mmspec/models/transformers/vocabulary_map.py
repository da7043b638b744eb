"""Tokens of one tokenizer in those of another, so that a model of other words can draft.

Timor et al. 2025, "Accelerating LLM Inference with Lossless Speculative Decoding Algorithms for
Heterogeneous Vocabularies": a draft model drafts among the tokens that both have (there TLI, in
transformers USD). Which these are is told from the bytes that tokens stand for, and of special
tokens from their names.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ...errors import InputError

_SPACE = "▁"  # SentencePiece's


def vocabulary_map(target: Any, drafter: Any, target_size: int, drafter_size: int) -> VocabularyMap:
    """The `VocabularyMap` of these tokenizers and sizes; the last ones that were made are kept."""
    return _made(target, drafter, target_size, drafter_size, len(target), len(drafter))


@lru_cache(maxsize=4)  # it takes a second for 150,000 tokens
def _made(target: Any, drafter: Any, size: int, drafter_size: int, *_: int) -> VocabularyMap:
    """A map; tokens that were added since make another."""
    return VocabularyMap(target, drafter, size, drafter_size)


def same_words(one: Any, other: Any) -> bool:
    """True if two tokenizers have the same tokens under the numbers that both use."""
    both = range(min(len(one), len(other)))
    return bool(one.convert_ids_to_tokens(both) == other.convert_ids_to_tokens(both))


class VocabularyMap:
    """The tokens of a target in those of a draft model.

    Args:
        target, drafter: fast tokenizers of the two, of byte-level BPE or SentencePiece's kinds.
        target_size, drafter_size: tokens that the models' laws are over.

    Raises:
        InputError: a tokenizer is of another kind, or the two have no token in common.
    """

    def __init__(self, target: Any, drafter: Any, target_size: int, drafter_size: int) -> None:
        self.target_size = target_size
        self._target, self._drafter = _Tokens(target, target_size), _Tokens(drafter, drafter_size)
        theirs, own = self._target.by_bytes, self._drafter.by_bytes
        both = {theirs[piece]: own[piece] for piece in theirs.keys() & own.keys()}
        named = self._target.special.keys() & self._drafter.special.keys()
        both |= {self._target.special[name]: self._drafter.special[name] for name in named}
        ends = target.eos_token_id, drafter.eos_token_id
        if None not in ends and ends[0] < target_size and ends[1] < drafter_size:
            both[ends[0]] = ends[1]
        if not both:
            raise InputError("the drafter's tokenizer has no token in common with the model's")
        order = sorted(both)
        shared = torch.tensor(order), torch.tensor([both[token] for token in order])
        self.shared: tuple[Tensor, Tensor] = shared
        self._known = both
        self._shared = {own: token for token, own in both.items()}
        self._spelled: dict[int, tuple[int, ...]] = {}

    def widened(self, logits: Tensor) -> Tensor:
        """The drafter's logits `[…, V_d]` as the target's `[…, V]`: −∞ for tokens that it lacks."""
        if self.shared[0].device != logits.device:
            self.shared = self.shared[0].to(logits.device), self.shared[1].to(logits.device)
        target, drafter = self.shared
        wide = logits.new_full((*logits.shape[:-1], self.target_size), -torch.inf)
        return wide.index_copy_(-1, target, logits[..., drafter])

    def spelled(self, token: int) -> tuple[int, ...]:
        """The drafter's tokens, at least one, that spell one of the target's."""
        if token not in self._spelled:
            known = self._known.get(token)
            self._spelled[token] = self._written(token) if known is None else (known,)
        return self._spelled[token]

    def run(self, token: int) -> tuple[int, ...]:
        """The tokens of both, two or more, that spell one that the drafter lacks; empty: none do.

        They are told as the target's.
        """
        piece, own = self._target.piece(token), self.spelled(token)
        if len(own) < 2 or piece is None or not all(each in self._shared for each in own):
            return ()
        run = tuple(self._shared[each] for each in own)
        return run if b"".join(self._target.piece(each) or b"" for each in run) == piece else ()

    def _written(self, token: int) -> tuple[int, ...]:
        piece = self._target.piece(token)
        if piece is None:  # a special token that the drafter lacks: its name is a text like others
            piece = str(self._target.tokenizer.convert_ids_to_tokens(token) or " ").encode()
        return self._drafter.written(piece)

    def retold(self, ids: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
        """Prompts `[B, T]` of the target's tokens as the drafter's inputs, padded on the left.

        Special tokens that the drafter lacks are left out, and what its tokenizer puts in front of
        a text stands in front.
        """
        real = torch.ones_like(ids) if mask is None else mask
        rows = [row[keep.bool()].tolist() for row, keep in zip(ids, real, strict=True)]
        told = [torch.tensor(self._told(row), device=ids.device) for row in rows]
        out, kept = (
            pad_sequence(each, True, padding_side="left")
            for each in (told, [torch.ones_like(row) for row in told])
        )
        return {"input_ids": out, "attention_mask": kept}

    def _told(self, row: Sequence[int]) -> list[int]:
        """One prompt, text by text between its special tokens."""
        out, text = list(self._drafter.first), list[int]()
        for token in (*row, None):
            if token is not None and self._target.piece(token) is not None:
                text.append(token)
                continue
            out += self._drafter.encoded(self._target.decoded(text)) if text else []
            text = []
            own = None if token is None else self._known.get(token)
            if own is not None and out[-1:] != [own]:  # it may be what stands in front already
                out.append(own)
        return out or [self._drafter.filler]


class _Tokens:
    """A tokenizer's tokens, the first `size` of them, and what they stand for.

    Attributes:
        by_bytes: tokens by the bytes that they stand for; of several the one that texts have.
        special: special tokens by name.
        first: tokens in front of every text.
        filler: any token.
    """

    def __init__(self, tokenizer: Any, size: int) -> None:
        self.tokenizer, self.size = tokenizer, size
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise InputError(
                f"{type(tokenizer).__name__} does not say what bytes its tokens stand for; a "
                "drafter of other words needs fast tokenizers (AutoTokenizer gives them)"
            )
        self._model = backend.model
        self.byte_level = _is_byte_level(tokenizer, json.loads(backend.to_str()))
        self._added = added = tokenizer.added_tokens_decoder
        names = tokenizer.convert_ids_to_tokens(range(min(len(tokenizer), size)))
        self._pieces = [self._piece(token, name) for token, name in enumerate(names)]
        self.special = {
            added[token].content: token
            for token, piece in enumerate(self._pieces)
            if piece is None and token in added
        }
        self._single: dict[int, int] = {}  # tokens that stand for a byte and for nothing else
        self.by_bytes: dict[bytes, int] = {}
        for token, piece in enumerate(self._pieces):
            if piece and self._falls_back(names[token]):
                self._single.setdefault(piece[0], token)
            elif piece:
                self.by_bytes.setdefault(piece, token)
        for byte, token in self._single.items():
            self.by_bytes.setdefault(bytes([byte]), token)
        self.filler = int(next(iter(self.by_bytes.values()), 0))
        bare, whole = self.encoded("a"), tokenizer("a")["input_ids"]
        begins = next((n for n in range(len(whole)) if whole[n : n + len(bare)] == bare), 0)
        self.first = whole[:begins]

    def piece(self, token: int) -> bytes | None:
        """The bytes that a token stands for; None: it is a special one, or unknown."""
        return self._pieces[token] if token < len(self._pieces) else None

    def decoded(self, ids: Sequence[int]) -> str:
        """The text of tokens."""
        how: dict[str, Any] = dict(clean_up_tokenization_spaces=False)
        return str(self.tokenizer.decode(ids, **how))

    def encoded(self, text: str) -> list[int]:
        """The tokens of a text, with nothing in front or behind."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return [token for token in ids if token < self.size]

    def written(self, piece: bytes) -> tuple[int, ...]:
        """Any bytes, at least one token, without what the tokenizer puts in front of a text."""
        known = self.by_bytes.get(piece)
        if known is not None:
            return (known,)
        if self.byte_level:
            text: str | None = "".join(_LETTERS[byte] for byte in piece)
        else:
            try:
                text = piece.decode().replace(" ", _SPACE)
            except UnicodeDecodeError:  # a part of a letter
                text = None
        if text is None:
            ids = [self.by_bytes.get(bytes([byte]), self.filler) for byte in piece]
        else:
            ids = [token.id for token in self._model.tokenize(text) if token.id < self.size]
        return tuple(ids) or (self.filler,)

    def _falls_back(self, name: str) -> bool:
        return not self.byte_level and len(name) == 6 and name.startswith("<0x")

    def _piece(self, token: int, name: str | None) -> bytes | None:
        added = self._added
        if name is None or (token in added and added[token].special):
            return None
        if token in added:
            content: str = added[token].content
            return (content if self.byte_level else content.replace(_SPACE, " ")).encode()
        if self.byte_level:
            known = all(letter in _BYTES for letter in name)
            return bytes(_BYTES[letter] for letter in name) if known else None
        if self._falls_back(name):
            return bytes([int(name[3:5], 16)])
        return name.replace(_SPACE, " ").encode()


def _is_byte_level(tokenizer: Any, parts: dict[str, Any]) -> bool:
    """True for byte-level BPE, False for SentencePiece's kinds.

    Raises:
        InputError: it is of neither kind.
    """
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


def _letters() -> dict[int, str]:
    """The letter that byte-level BPE writes for every byte: its own, or a later one."""
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printed]
    return {byte: chr(byte) for byte in printed} | {b: chr(256 + n) for n, b in enumerate(others)}


_LETTERS = _letters()
_BYTES = {letter: byte for byte, letter in _LETTERS.items()}
