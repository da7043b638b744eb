"""Tiny processors of every family that answers, over a tokenizer of single bytes."""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    CLIPImageProcessor,
    GotOcr2ImageProcessor,
    Idefics3ImageProcessor,
    Idefics3Processor,
    InternVLProcessor,
    LlavaNextImageProcessor,
    LlavaNextProcessor,
    LlavaOnevisionImageProcessor,
    LlavaOnevisionProcessor,
    LlavaProcessor,
    PreTrainedTokenizerFast,
    Qwen2VLImageProcessor,
    Qwen2VLProcessor,
    Qwen2VLVideoProcessor,
    Qwen3VLProcessor,
    SmolVLMImageProcessor,
    SmolVLMProcessor,
    SmolVLMVideoProcessor,
)
from transformers.models.smolvlm import processing_smolvlm

FAMILIES = ["llava", "llava_next", "llava_onevision", "idefics3", "smolvlm"]
FAMILIES += ["internvl", "qwen2_vl", "qwen2_5_vl", "qwen3_vl"]
PLACEHOLDER = {"internvl": "<IMG_CONTEXT>"}
PLACEHOLDER |= dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl"), "<|image_pad|>")


class Reader:
    """What inputs are for, as far as a processor is asked for them."""

    device, dtype = torch.device("cpu"), torch.float32

    def forward(self, input_ids, attention_mask, pixel_values): ...


CPU = Reader()


def template(placeholder: str, start: str = "") -> str:
    """A chat template that begins with `start`."""
    return (
        start + "{% for m in messages %}User: {% for c in m['content'] %}"
        "{% if c['type'] == 'image' %}" + placeholder + "{% else %}{{ c['text'] }}{% endif %}"
        "{% endfor %}\n{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
    )


def tokenizer(*special: str, adds_start: bool = True) -> PreTrainedTokenizerFast:
    """One that knows every byte; with `adds_start` it puts `<s>` in front of a text."""
    known = {"<pad>": 0, "<s>": 1, "</s>": 2}
    known |= {byte: 3 + n for n, byte in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    core = Tokenizer(models.BPE(known, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    if adds_start:
        core.post_processor = processors.TemplateProcessing(
            "<s> $A", "<s> $A <s> $B", special_tokens=[("<s>", 1)]
        )
    made = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )
    made.add_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return made


def processor(family: str, start: str = "", adds_start: bool = True) -> Any:
    """That of a family; its template begins with `start`."""
    mark = PLACEHOLDER.get(family, "<image>")
    chat = template(mark, start)
    side, videos = {"height": 16, "width": 16}, Qwen2VLVideoProcessor()
    if family == "llava":
        words = tokenizer(mark, adds_start=adds_start)
        pictures: Any = CLIPImageProcessor(size={"shortest_edge": 16}, crop_size=side)
        return LlavaProcessor(pictures, words, 8, "default", chat, num_additional_image_tokens=1)
    if family == "llava_next":
        words = tokenizer(mark, adds_start=adds_start)
        pictures = LlavaNextImageProcessor(
            size={"shortest_edge": 16}, crop_size=side, image_grid_pinpoints=[[16, 32], [32, 16]]
        )
        how = dict(chat_template=chat, num_additional_image_tokens=1)
        return LlavaNextProcessor(pictures, words, 8, "default", **how)
    if family == "llava_onevision":
        words = tokenizer(mark, "<video>", adds_start=adds_start)
        pictures = LlavaOnevisionImageProcessor(
            size=side, image_grid_pinpoints=[[16, 32], [32, 16]]
        )
        how = dict(chat_template=chat, num_image_tokens=4, vision_feature_select_strategy="full")
        return LlavaOnevisionProcessor(pictures, words, videos, **how)
    if family == "idefics3":
        words = tokenizer("<global-img>", adds_start=adds_start)
        pictures = Idefics3ImageProcessor(
            size={"longest_edge": 32}, max_image_size={"longest_edge": 16}
        )
        return Idefics3Processor(pictures, words, image_seq_len=4, chat_template=chat)
    if family == "smolvlm":
        words = tokenizer("<image>", "<fake_token_around_image>", adds_start=adds_start)
        pictures = SmolVLMImageProcessor(
            size={"longest_edge": 32}, max_image_size={"longest_edge": 16}
        )
        # it spells numbers of videos' seconds with a package that pictures don't need
        processing_smolvlm.num2words = processing_smolvlm.num2words or str
        frames = SmolVLMVideoProcessor(
            size={"longest_edge": 32},
            max_image_size={"longest_edge": 16},
            video_sampling={"fps": 1, "max_frames": 4},
        )
        return SmolVLMProcessor(pictures, words, frames, image_seq_len=4, chat_template=chat)
    if family == "internvl":
        names = {
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": mark,
            "video_token": "<video>",
        }
        words = tokenizer(*names.values(), adds_start=adds_start)
        for name, token in names.items():
            setattr(words, name, token)
            setattr(words, f"{name}_id", words.convert_tokens_to_ids(token))
        pictures = GotOcr2ImageProcessor(size=side)
        return InternVLProcessor(pictures, words, videos, image_seq_length=4, chat_template=chat)
    marks = (mark, "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
    words = tokenizer(*marks, adds_start=adds_start)
    pictures = Qwen2VLImageProcessor(
        patch_size=4, merge_size=2, min_pixels=64, max_pixels=1024, temporal_patch_size=2
    )
    kind = Qwen3VLProcessor if family == "qwen3_vl" else Qwen2VLProcessor
    return kind(pictures, words, videos, chat_template=chat)
