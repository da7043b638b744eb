"""Caption encoders of new models: small T5s that begin with what the embedded image model's knows.

Captions of pictures, continuous tokens and clips speak of the same things; a text encoder from
nothing learns that over again, and the network behind it ignores the caption for as long.
"""

from __future__ import annotations

import torch
from transformers import PreTrainedTokenizerBase, T5Config, T5EncoderModel

from ..models.embedded import embedded_folder
from ..models.loading import load_component
from .image.target import TEXT_ENCODER
from .tokenizers import caption_tokenizer


def caption_encoder(tokenizer: PreTrainedTokenizerBase) -> T5EncoderModel:
    """A text encoder of these words: the embedded image model's, by word; others are as drawn."""
    encoder = T5EncoderModel(T5Config(vocab_size=len(tokenizer), **TEXT_ENCODER))
    origin = embedded_folder("image") / "text_encoder"
    known = load_component(T5EncoderModel, origin, torch.float32).state_dict()
    old = caption_tokenizer().get_vocab()
    shared = [(place, old[word]) for word, place in tokenizer.get_vocab().items() if word in old]
    to, of = torch.tensor(shared).unbind(1)
    embeddings = encoder.shared.weight.detach().clone()
    names = {"shared.weight", "encoder.embed_tokens.weight"}
    embeddings[to] = next(known[name] for name in names if name in known)[of]
    encoder.load_state_dict(
        {name: embeddings if name in names else known[name] for name in encoder.state_dict()}
    )
    return encoder
