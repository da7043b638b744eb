"""A tiny language model of random weights and a tokenizer of bytes."""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from mmspec import SpecConfig

CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ("<|im_start|>", "<|im_end|>")
HEADS, SHARED, WIDTH, LAYERS, POSITIONS = 4, 2, 64, 2, 512
TEXT = "the cat saw the dog and the dog saw the cat. " * 4


def tokenizer(chat: bool = True) -> PreTrainedTokenizerFast:
    """All bytes and a few merges; ends texts with `<|im_end|>`."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    bytes_ = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=280, initial_alphabet=bytes_, special_tokens=list(SPECIAL), show_progress=False
    )
    core.train_from_iterator([TEXT], trainer)
    made = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|im_end|>",
        bos_token=AddedToken("<|im_start|>", special=True, normalized=False),
    )
    if chat:
        made.chat_template = CHAT
    return made


def model(words: Any, seed: int = 0) -> LlamaForCausalLM:
    """A Llama with tied embeddings, in float64; sharp enough that texts repeat themselves."""
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=WIDTH,
        intermediate_size=96,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=SHARED,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=words.bos_token_id,
        eos_token_id=words.eos_token_id,
        rms_norm_eps=1e-5,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = LlamaForCausalLM(config)
        for weight in made.parameters():
            nn.init.normal_(weight, mean=float(weight.ndim == 1), std=0.1)
    return made.double().eval()


def check_seeds(pipe: Any, prompts: list[str]) -> list[list[int]]:
    """Check that a seed draws the same answer alone and in a batch; returns the answers' tokens."""

    def seeds() -> list[torch.Generator]:
        return [torch.Generator().manual_seed(n) for n in range(len(prompts))]

    how = {"max_new_tokens": 12, "temperature": 1.0}
    together = pipe(prompts, generator=seeds(), **how).tokens
    for n, prompt in enumerate(prompts):
        assert pipe(prompt, generator=seeds()[n], **how).tokens[0] == together[n]
    return together


def by_itself(method: str) -> SpecConfig:
    """A method whose table, if it has one, does not live on from call to call."""
    config = SpecConfig(method)
    lives = config.resolve("vlm").options.get("table_lives", False)
    return config if lives is False else config.replace(table_lives=False)
