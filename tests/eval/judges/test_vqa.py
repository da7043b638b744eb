"""BLIP's answers against transformers' own, one question at a time, with a tiny random network."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import (
    BertTokenizer,
    BlipConfig,
    BlipForQuestionAnswering,
    BlipImageProcessor,
    BlipProcessor,
)

from mmspec.errors import InputError
from mmspec.eval.judges.vqa import BlipAnswerer

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] is there a red dog in the picture ? yes no star blue cat"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("blip") / "blip-vqa-tiny"
    vocabulary = WORDS.split()
    (path.parent / "vocab.txt").write_text("\n".join(vocabulary))
    tokenizer = BertTokenizer(str(path.parent / "vocab.txt"))
    size = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    text = {
        **size,
        "num_hidden_layers": 1,
        "encoder_hidden_size": 16,
        "vocab_size": len(vocabulary),
        "bos_token_id": tokenizer.cls_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "sep_token_id": tokenizer.sep_token_id,
        "eos_token_id": tokenizer.sep_token_id,
    }
    vision = {**size, "num_hidden_layers": 1, "image_size": 32, "patch_size": 8}
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = BlipForQuestionAnswering(BlipConfig(text_config=text, vision_config=vision))
        for weight in model.parameters():  # answers that hang on picture and question
            if weight.ndim > 1:
                torch.nn.init.normal_(weight, std=0.8)
    model.save_pretrained(path)
    processor = BlipProcessor(BlipImageProcessor(size={"height": 32, "width": 32}), tokenizer)
    processor.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def cases():
    rng = np.random.default_rng(1)
    texts = ["is there a red dog ?", "is there a star in the picture ?", "blue cat ?", "a dog ?"]
    images = [Image.fromarray(p) for p in rng.integers(0, 256, (6, 40, 50, 3), np.uint8)]
    pairs = [(image, text) for image in images for text in texts]
    return [image for image, _ in pairs], [text for _, text in pairs]


def test_batches_answer_like_transformers_alone(folder, cases):
    model = BlipForQuestionAnswering.from_pretrained(folder).eval()
    processor = BlipProcessor.from_pretrained(folder)
    expected = []
    for image, text in zip(*cases, strict=True):
        inputs = processor(images=image, text=text, return_tensors="pt")
        with torch.inference_mode():
            [tokens] = model.generate(**inputs, do_sample=False, num_beams=1, max_new_tokens=10)
        expected.append(processor.decode(tokens, skip_special_tokens=True))
    assert len(set(expected)) > 2
    assert BlipAnswerer(folder, batch=5).texts(*cases) == expected


def test_only_the_word_yes_is_yes(folder, monkeypatch):
    judge = BlipAnswerer(folder)
    said = ["yes", " Yes ", "no", "yes it is", "", "red"]
    monkeypatch.setattr(judge, "texts", lambda images, questions: said)
    assert judge.answer([], []) == [True, True, False, False, False, False]
    assert judge.name == "blip-vqa-tiny"


def test_a_folder_that_is_missing_is_named(tmp_path):
    with pytest.raises(InputError, match="nowhere"):
        BlipAnswerer(tmp_path / "nowhere")
