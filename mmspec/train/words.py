"""The words of the shapes world's captions as a tokenizer."""

from __future__ import annotations

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from ..worlds.shapes.vocabulary import COLORS, NUMBERS, PLURALS, RELATIONS, SHAPES

PHRASE = "a photo of "
PREFIX = 16  # tokens of a caption, padding included


def caption_tokenizer() -> PreTrainedTokenizerFast:
    """A word-level tokenizer of the shapes world's captions, in T5's conventions."""
    text = f"{PHRASE} an and the {' '.join(RELATIONS)} {' '.join(COLORS)} {' '.join(SHAPES)}"
    text += f" {' '.join(PLURALS.values())} {' '.join(NUMBERS.values())}"
    vocabulary = ["<pad>", "</s>", "<unk>", *dict.fromkeys(text.split())]
    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(vocabulary)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=PREFIX,
    )
