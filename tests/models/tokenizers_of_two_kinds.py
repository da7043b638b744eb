"""Small tokenizers of the two kinds that language models have."""

from __future__ import annotations

import json

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

TEXT = [
    "the red star is left of the blue ring",
    "a photo of three green hearts and a star",
    "über die Brücke – naïve café, 日本 🙂",
    "  two  spaces\nand lines\n",
] * 4


def byte_level(vocabulary: int, end: str = "<|end|>") -> PreTrainedTokenizerFast:
    """Byte-level BPE, as GPT-2's and Llama 3's."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[end, "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(TEXT, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token=end, pad_token="<pad>")


def sentence_piece(vocabulary: int) -> PreTrainedTokenizerFast:
    """BPE with bytes to fall back on, as Llama 2's; bytes are tokens like others."""
    learned = Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, show_progress=False)
    learned.pre_tokenizer = pre_tokenizers.Metaspace()
    learned.train_from_iterator(TEXT[:2] * 4, trainer)
    model = json.loads(learned.to_str())["model"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += sorted(model["vocab"], key=model["vocab"].get)
    merges = [tuple(pair) for pair in model["merges"]]
    numbers = {token: number for number, token in enumerate(tokens)}
    made = Tokenizer(models.BPE(numbers, merges, unk_token="<unk>", byte_fallback=True))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
