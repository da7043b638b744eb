"""The words of the shapes world as tokenizers: of captions, clips, and questions and answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from ..worlds.shapes.exchanges import lexicon
from ..worlds.shapes.vocabulary import COLORS, NUMBERS, PLURALS, RELATIONS, SHAPES
from ..worlds.shapes.wording import PIECE
from ..worlds.video_world.vocabulary import BOUNCES, CUES, DIRECTIONS, PASSES

PHRASE = "a photo of "
PREFIX = 16  # tokens of a caption, padding included
# messages whose content is a text, or a list of pictures and texts
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{ '<|' + message['role'] + '|>' }}
{%- if message['content'] is string -%}{{ message['content'] }}
{%- else -%}
{%- for part in message['content'] -%}
{%- if part['type'] == 'image' -%}<image>{%- else -%}{{ part['text'] }}{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- if message['role'] == 'assistant' -%}</s>{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"""


def caption_tokenizer() -> PreTrainedTokenizerFast:
    """A word-level tokenizer of the shapes world's captions, in T5's conventions."""
    text = f"{PHRASE} an and the {' '.join(RELATIONS)} {' '.join(COLORS)} {' '.join(SHAPES)}"
    return _t5_tokenizer(f"{text} {' '.join(PLURALS.values())} {' '.join(NUMBERS.values())}")


def clip_tokenizer() -> PreTrainedTokenizerFast:
    """A word-level tokenizer of the clip world's captions, in T5's conventions."""
    things = [*COLORS, *SHAPES, *PLURALS.values(), *NUMBERS.values()]
    motions = [*DIRECTIONS, *BOUNCES, *PASSES.values(), *CUES]
    return _t5_tokenizer(
        f"a an and move moves stands bounces between turns {' '.join(things + motions)}"
    )


def caption_ids(tokenizer: Any, captions: Sequence[str]) -> Any:
    """Token ids `[B, PREFIX]` of captions, padded, as a tensor."""
    how = {"padding": "max_length", "truncation": True, "max_length": PREFIX}
    return tokenizer(captions, **how, return_tensors="pt").input_ids


def _t5_tokenizer(text: str) -> PreTrainedTokenizerFast:
    """A tokenizer of the words of a text."""
    vocabulary = ["<pad>", "</s>", "<unk>", *dict.fromkeys(text.split())]
    tokenizer = Tokenizer(
        models.WordLevel({w: i for i, w in enumerate(vocabulary)}, unk_token="<unk>")
    )
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=PREFIX,
    )


def exchange_tokenizer() -> PreTrainedTokenizerFast:
    """A word-level tokenizer of the shapes world's questions and answers, for a model of pictures.

    A token is a word with the space in front of it, so decoding gives the very text. A request is
    `<|user|><image>How many stars are there?<|assistant|>`, and an answer ends with `</s>`.
    """
    special = ["<pad>", "</s>", "<unk>", "<image>", "<|user|>", "<|assistant|>"]
    vocabulary = {word: i for i, word in enumerate([*special, *lexicon()])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(PIECE), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        extra_special_tokens={
            "image_token": "<image>",
            "user_token": "<|user|>",
            "assistant_token": "<|assistant|>",
        },
        chat_template=CHAT_TEMPLATE,
        padding_side="left",
        model_max_length=1024,
    )
