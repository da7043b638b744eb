"""A tokenizer that knows the benchmark's prompt and a family's own marks, and no other word."""

from __future__ import annotations

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from .subjects import PROMPT

COMMON = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
BOS = 1


def tokenizer(**marks: str) -> PreTrainedTokenizerFast:
    """A tokenizer that begins prompts with `<s>`.

    Args:
        marks: the family's own special tokens by name.
    """
    words = sorted({*PROMPT.split(), *["User:", "Assistant:"]})
    vocabulary = {word: n for n, word in enumerate([*COMMON.values(), *marks.values(), *words])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", BOS)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core, extra_special_tokens=marks, padding_side="left", **COMMON
    )


def ids_of(words: PreTrainedTokenizerFast) -> dict[str, int]:
    """Ids of padding, start and end, as configs name them."""
    return {f"{n}_token_id": getattr(words, f"{n}_token_id") for n in ("pad", "bos", "eos")}
