"""A tiny random LLaVA that reads and speaks the words of the shapes world."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import (
    CLIPImageProcessor,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
)

from mmspec import VlmPipeline
from mmspec.eval.data.picture_questions import PictureQuestion
from mmspec.models.heads.formats.new import MAKERS
from mmspec.models.heads.formats.new_head import NewHead
from mmspec.train.tokenizers import exchange_tokenizer
from mmspec.worlds.shapes.exchanges import held_out_descriptions

SIDE, PATCH = 16, 8


def processor() -> LlavaProcessor:
    words = exchange_tokenizer()
    size = {"height": SIDE, "width": SIDE}
    return LlavaProcessor(
        CLIPImageProcessor(size=size, crop_size=size, do_center_crop=False),
        words,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=words.chat_template,
    )


def model(layers: int, seed: int) -> LlavaForConditionalGeneration:
    words = exchange_tokenizer()
    ends = dict(bos_token_id=None, eos_token_id=words.eos_token_id, pad_token_id=0)
    text = LlamaConfig(
        vocab_size=len(words),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        **ends,
    )
    vision = CLIPVisionConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=SIDE,
        patch_size=PATCH,
        projection_dim=16,
    )
    config = LlavaConfig(
        vision_config=vision, text_config=text, image_token_id=words.image_token_id, **ends
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = LlavaForConditionalGeneration(config)
        for weight in network.parameters():
            torch.nn.init.normal_(weight, mean=float(weight.ndim == 1), std=0.3)
    return network.eval()


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """A saved pipeline: the drafter is the target without its last layer."""
    path = tmp_path_factory.mktemp("tiny") / "vlm"
    target, drafter = model(2, 0), model(1, 0)
    shared = drafter.state_dict().keys()
    drafter.load_state_dict({name: target.state_dict()[name] for name in shared})
    with torch.random.fork_rng():
        torch.manual_seed(1)
        kinds = ("eagle", "eagle3", "specvlm")
        heads = {name: MAKERS[name](NewHead(target)).eval() for name in kinds}
    VlmPipeline(target, processor(), drafter=drafter, heads=heads).save_pretrained(path)
    return path


@pytest.fixture
def pipe(folder) -> VlmPipeline:
    return VlmPipeline.from_pretrained(folder)


@pytest.fixture(scope="session")
def items() -> tuple[PictureQuestion, ...]:
    """A long question about a scene, and one about a chart, of the shapes world."""
    lines = list(held_out_descriptions(4))
    made = [lines[0], lines[3]]
    return tuple(PictureQuestion(line.question, line.kind, line.answer, line) for line in made)
