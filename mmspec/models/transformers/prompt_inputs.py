"""Inputs that a processor makes of questions about pictures: the tokens of transformers' own.

A question is text. Where it holds the name of a placeholder, such as `<image>`, the model reads
the letters of that name.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ...errors import InputError, reason

Question: TypeAlias = "str | list[dict[str, Any]]"  # one turn, or messages as templates want them
_BETWEEN = "\0"  # texts of messages


def process_questions(
    processor: Any, pictures: Sequence[Sequence[Any]], questions: Sequence[Question], model: Any
) -> dict[str, Tensor]:
    """Inputs that a processor makes of conversations, left-padded.

    The ids are those of its `apply_chat_template(…, tokenize=True)`: a start token that the
    template writes is not added once more.

    Args:
        processor: of transformers, with a chat template.
        pictures: those of every question, opened.
        questions: as many; texts of one turn each, or the messages of several.
        model: reads them: they are on its device, and what has a fraction is in its dtype.

    Raises:
        InputError: the processor has no chat template, or refuses a question or its pictures.
    """
    kind = type(processor).__name__
    if getattr(processor, "chat_template", None) is None:
        raise InputError(f"{kind} has no chat template; set processor.chat_template")
    # not taken by all models; and of training
    unknown = {"token_type_ids"} - {*inspect.signature(type(model).forward).parameters} | {"labels"}
    try:
        return {
            name: value.to(model.device, model.dtype if value.is_floating_point() else None)
            for name, value in _laid_out(processor, pictures, questions).items()
            if name not in unknown  # processors give them unasked
        }
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a processor raises anything at what it was not made for
        count = len(questions)
        for n in range(count if count > 1 else 0):
            try:
                _laid_out(processor, pictures[n : n + 1], questions[n : n + 1])
            except Exception as own:
                what = f"question {n + 1} of {count}, {_about(pictures[n])}"
                raise InputError(f"{kind} refuses {what}: {reason(own)}") from own
        what = "these questions" if count > 1 else _about(pictures[0])
        raise InputError(f"{kind} refuses {what}: {reason(error)}") from error


def text_ids(processor: Any, text: str) -> list[int]:
    """Token ids of plain text, without a start or an end; no placeholder is among them."""
    names = _placeholders(processor)
    pieces = re.split(f"({'|'.join(map(re.escape, names))})", text) if names else [text]
    found = []
    for piece in filter(None, pieces):
        if piece in names:
            found += _letters(processor.tokenizer, piece)
        else:
            found += processor.tokenizer(piece, add_special_tokens=False)["input_ids"]
    return found


def spelled(
    processor: Any, texts: Sequence[str], lay_out: Callable[[list[str]], dict[str, Tensor]]
) -> dict[str, Tensor]:
    """Inputs of users' texts, with the processor's placeholders in them as letters.

    In the place of such a name stands a token that occurs nowhere else, until the rest is ids.

    Args:
        texts: one a row.
        lay_out: gives `input_ids` and `attention_mask` `[R, T]`, and what else there is.

    Raises:
        InputError: the tokenizer has no token to spare.
    """
    names, tokenizer = _placeholders(processor), processor.tokenizer
    among = re.compile("|".join(map(re.escape, names)) or "(?!)")
    written = [among.findall(text) for text in texts]
    if not any(written):
        return lay_out(list(texts))
    for mark in (tokenizer.pad_token, *tokenizer.all_special_tokens):
        if not mark or mark in names or any(mark in text for text in texts):
            continue
        inputs = lay_out([mark.join(among.split(text)) for text in texts])
        stands = inputs["input_ids"] == tokenizer.convert_tokens_to_ids(mark)
        stands &= inputs["attention_mask"].bool()
        if stands.sum(1).tolist() == [len(own) for own in written]:
            return _replaced(tokenizer, inputs, stands, written)
    raise InputError(f"leave {' and '.join(names)} out of the text")


def one_start(tokenizer: Any, texts: Sequence[str]) -> dict[str, bool]:
    """Options of a processor's call for texts that may have a start token: no second one."""
    start = tokenizer.bos_token
    return {"add_special_tokens": False} if start and texts[0].startswith(start) else {}


def _laid_out(
    processor: Any, pictures: Sequence[Sequence[Any]], questions: Sequence[Question]
) -> dict[str, Tensor]:
    turns = [_turns(len(seen), said) for seen, said in zip(pictures, questions, strict=True)]

    def lay_out(joined: list[str]) -> dict[str, Tensor]:
        for said, own in zip(joined, turns, strict=True):
            for part, text in zip(_texts(own), said.split(_BETWEEN), strict=True):
                part["text"] = text
        texts = [processor.apply_chat_template(own, add_generation_prompt=True) for own in turns]
        how: dict[str, Any] = {"images": list(pictures)} if any(pictures) else {}
        how |= one_start(processor.tokenizer, texts)
        with _filled(processor.tokenizer):
            batch = processor(
                text=texts, padding=True, padding_side="left", return_tensors="pt", **how
            )
        return {name: value for name, value in batch.items() if isinstance(value, Tensor)}

    said = [[part["text"].replace(_BETWEEN, "") for part in _texts(own)] for own in turns]
    return spelled(processor, [_BETWEEN.join(texts) for texts in said], lay_out)


@contextmanager
def _filled(tokenizer: Any) -> Iterator[None]:
    """Rows are filled by the end of texts, where there is no token for it: filling is masked."""
    lacks = tokenizer.pad_token is None
    if lacks:
        tokenizer.pad_token = tokenizer.eos_token
    try:
        yield
    finally:
        if lacks:
            tokenizer.pad_token = None


def _turns(pictures: int, question: Question) -> list[dict[str, Any]]:
    """Messages as chat templates want them, with a placeholder for every picture; copies."""
    if not isinstance(question, str):
        return deepcopy(question)
    content: list[dict[str, str]] = [{"type": "image"} for _ in range(pictures)]
    return [{"role": "user", "content": [*content, {"type": "text", "text": question}]}]


def _texts(turns: list[dict[str, Any]]) -> list[dict[str, str]]:
    """The parts of messages that are text, in order."""
    return [part for turn in turns for part in turn["content"] if part["type"] == "text"]


def _placeholders(processor: Any) -> list[str]:
    """The texts that a processor puts pictures, videos or sounds in the place of."""
    names = (getattr(processor, f"{what}_token", None) for what in ("image", "video", "audio"))
    return list(dict.fromkeys(name for name in names if name))


def _replaced(
    tokenizer: Any, inputs: dict[str, Tensor], stands: Tensor, written: Sequence[Sequence[str]]
) -> dict[str, Tensor]:
    """Inputs with the letters of `written[row]`, in order, where a row of `stands [R, T]` is True.

    They are padded on the left.
    """
    ids, mask = inputs["input_ids"], inputs["attention_mask"].bool()
    columns, rows = [], []  # where each token comes from, and its id
    for row, names in enumerate(written):
        letters = iter([_letters(tokenizer, name) for name in names])
        pairs: list[tuple[int, int]] = []
        for column in mask[row].nonzero()[:, 0].tolist():
            own = next(letters) if stands[row, column] else [int(ids[row, column])]
            pairs += [(column, token) for token in own]
        columns.append([column for column, _ in pairs])
        rows.append(ids.new_tensor([token for _, token in pairs]))
    out = dict(inputs)
    for name, value in inputs.items():
        if value.shape == ids.shape:  # one a token, such as its kind: letters have the place's
            picked, fill = [v[c] for v, c in zip(value, columns, strict=True)], 0
            if name == "input_ids":
                picked, fill = rows, tokenizer.pad_token_id or 0
            out[name] = pad_sequence(picked, True, padding_value=fill, padding_side="left")
    return out


def _letters(tokenizer: Any, name: str) -> list[int]:
    own = tokenizer.convert_tokens_to_ids(name)
    found: list[int] = tokenizer(name, add_special_tokens=False, split_special_tokens=True)[
        "input_ids"
    ]
    if own in found:  # tokenizers split special tokens only, and this is another
        halves = [tokenizer(half, add_special_tokens=False) for half in (name[:1], name[1:])]
        found = [token for half in halves for token in half["input_ids"]]
    return found


def _about(pictures: Sequence[Any]) -> str:
    if not pictures:
        return "this text"
    sizes = ", ".join("×".join(map(str, picture.size)) for picture in pictures)
    return f"{'pictures' if len(pictures) > 1 else 'a picture'} of {sizes} pixels"
