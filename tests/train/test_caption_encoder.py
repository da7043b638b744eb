"""New models' caption encoders know the words that the embedded image model knows."""

from __future__ import annotations

import torch
from transformers import T5EncoderModel

from mmspec.models.embedded import embedded_folder
from mmspec.models.loading import load_component
from mmspec.train.caption_encoder import caption_encoder
from mmspec.train.tokenizers import caption_tokenizer, clip_tokenizer


def test_same_words_same_encoder():
    known = load_component(T5EncoderModel, embedded_folder("image") / "text_encoder", torch.float32)
    fresh = caption_encoder(caption_tokenizer()).state_dict()
    assert fresh.keys() == known.state_dict().keys()
    assert all(torch.equal(fresh[name], value) for name, value in known.state_dict().items())


@torch.no_grad()
def test_words_in_another_order_mean_the_same():
    captions, clips = caption_tokenizer(), clip_tokenizer()
    text = "a red circle and two blue stars"
    assert captions(text)["input_ids"] != clips(text)["input_ids"]
    read = [
        caption_encoder(words)(**words(text, return_tensors="pt"))[0] for words in (captions, clips)
    ]
    assert torch.equal(*read)


def test_new_words_are_drawn():
    words = clip_tokenizer()
    first, second = (caption_encoder(words).shared.weight for _ in range(2))
    place = words.get_vocab()
    assert not torch.equal(first[place["bounces"]], second[place["bounces"]])
    assert torch.equal(first[place["circle"]], second[place["circle"]])
