"""What a processor makes of questions about pictures: the tokens that transformers' own has.

A question is text. Where it holds the name of a placeholder, such as `<image>`, the model reads
the letters of that name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import InputError, reason


def asked(
    processor: Any, pictures: Sequence[Sequence[Any]], questions: Sequence[str], model: Any
) -> dict[str, Tensor]:
    """What a processor makes of conversations of one turn each, left-padded.

    The ids are those of its `apply_chat_template(…, tokenize=True)`: a start token that the
    template writes is not added once more.

    Args:
        processor: of transformers, with a chat template.
        pictures: those of every question, opened.
        questions: as many.
        model: reads them: they are on its device, and what has a fraction is in its dtype.

    Raises:
        InputError: the processor has no chat template, or refuses a question or its pictures.
    """
    kind = type(processor).__name__
    if getattr(processor, "chat_template", None) is None:
        raise InputError(f"{kind} has no chat template; set processor.chat_template")
    try:
        return {
            name: value.to(model.device, model.dtype if value.is_floating_point() else None)
            for name, value in _laid_out(processor, pictures, questions).items()
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


def _laid_out(
    processor: Any, pictures: Sequence[Sequence[Any]], questions: Sequence[str]
) -> dict[str, Tensor]:
    names = _placeholders(processor)
    among = re.compile("|".join(map(re.escape, names)) or "(?!)")
    written = [among.findall(question) for question in questions]
    mark = _unused(processor, pictures, questions, names) if any(written) else ""
    texts = _rendered(processor, pictures, [among.sub(mark, text) for text in questions])
    given: dict[str, Any] = {"images": list(pictures)} if any(pictures) else {}
    start = processor.tokenizer.bos_token
    if start and texts[0].startswith(start):
        given["add_special_tokens"] = False
    batch: dict[str, Any] = processor(
        text=texts, **given, padding=True, padding_side="left", return_tensors="pt"
    )
    inputs = {name: value for name, value in batch.items() if isinstance(value, Tensor)}
    return _spelled(processor.tokenizer, inputs, mark, written) if mark else inputs


def _rendered(
    processor: Any, pictures: Sequence[Sequence[Any]], questions: Sequence[str]
) -> list[str]:
    """Conversations as the chat template writes them, with a placeholder for every picture."""
    turns = []
    for seen, text in zip(pictures, questions, strict=True):
        content: list[dict[str, str]] = [{"type": "image"}] * len(seen)
        turns.append([{"role": "user", "content": [*content, {"type": "text", "text": text}]}])
    return [processor.apply_chat_template(turn, add_generation_prompt=True) for turn in turns]


def _placeholders(processor: Any) -> list[str]:
    """The texts that a processor puts pictures, videos or sounds in the place of."""
    names = (getattr(processor, f"{what}_token", None) for what in ("image", "video", "audio"))
    return list(dict.fromkeys(name for name in names if name))


def _unused(
    processor: Any,
    pictures: Sequence[Sequence[Any]],
    questions: Sequence[str],
    placeholders: Sequence[str],
) -> str:
    """A token that no conversation has, to keep a place in it."""
    tokenizer = processor.tokenizer
    bare = _rendered(processor, pictures, [""] * len(questions))
    for token in (tokenizer.pad_token, *tokenizer.all_special_tokens):
        if token and token not in placeholders and not any(token in t for t in (*bare, *questions)):
            return str(token)
    raise InputError(f"leave {' and '.join(placeholders)} out of the question")


def _spelled(
    tokenizer: Any, inputs: dict[str, Tensor], mark: str, written: Sequence[Sequence[str]]
) -> dict[str, Tensor]:
    """Inputs with the letters of `written[row]`, in order, in the places of the token `mark`."""
    ids, mask = inputs["input_ids"], inputs["attention_mask"].bool()
    kept = tokenizer.convert_tokens_to_ids(mark)
    sources, rows = [], []  # from which column each comes, and its id
    for row, names in enumerate(written):
        letters = iter([_letters(tokenizer, name) for name in names])
        pairs: list[tuple[int, int]] = []
        for column in mask[row].nonzero()[:, 0].tolist():
            token = int(ids[row, column])
            pairs += [(column, x) for x in (next(letters) if token == kept else [token])]
        sources.append([column for column, _ in pairs])
        rows.append(torch.tensor([token for _, token in pairs], device=ids.device))
    width = max(map(len, rows))
    padding = tokenizer.pad_token_id or 0
    out = dict(inputs)
    for name, value in inputs.items():
        if (
            value.shape == ids.shape
        ):  # one a token, such as its kind: of letters the mark's
            picked = [v[s] for v, s in zip(value, sources, strict=True)]
            picked = rows if name == "input_ids" else picked
            fill = padding if name == "input_ids" else 0
            out[name] = torch.stack([F.pad(v, (width - len(v), 0), value=fill) for v in picked])
    return out


def _letters(tokenizer: Any, name: str) -> list[int]:
    """Ids of a placeholder's name as text."""
    own = tokenizer.convert_tokens_to_ids(name)
    found: list[int] = tokenizer(name, add_special_tokens=False, split_special_tokens=True)[
        "input_ids"
    ]
    if own in found:  # tokenizers split special tokens only, and this is another
        halves = [tokenizer(half, add_special_tokens=False) for half in (name[:1], name[1:])]
        found = [token for half in halves for token in half["input_ids"]]
    return found


def _about(pictures: Sequence[Any]) -> str:
    """What a question is asked of, for messages."""
    if not pictures:
        return "this text"
    sizes = ", ".join("×".join(map(str, picture.size)) for picture in pictures)
    return f"{'pictures' if len(pictures) > 1 else 'a picture'} of {sizes} pixels"
