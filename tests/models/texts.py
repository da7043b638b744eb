"""A tiny language model of random weights and a tokenizer of bytes, and their GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from gguf.quants import quantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

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


def write_gguf(path: Path, llama: LlamaForCausalLM, words: Any, bits: int = 32) -> Path:
    """A file as llama.cpp's converter writes it, in float32 or in blocks of eight bits."""
    writer, config = GGUFWriter(path, "llama"), llama.config
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(SHARED)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    saved = words.backend_tokenizer.to_str()
    names = words.convert_ids_to_tokens(range(len(words)))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(names)
    kinds = [TokenType.CONTROL if name in SPECIAL else TokenType.NORMAL for name in names]
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in merges(saved)])
    writer.add_bos_token_id(words.bos_token_id)
    writer.add_eos_token_id(words.eos_token_id)
    if words.chat_template:
        writer.add_chat_template(words.chat_template)
    for name, weight in llama.state_dict().items():
        if name == "lm_head.weight":
            continue
        value = weight.float()
        if name.endswith(("q_proj.weight", "k_proj.weight")):  # llama.cpp turns neighbours
            heads = HEADS if "q_proj" in name else SHARED
            halves = value.view(heads, 2, -1, value.shape[1])
            value = halves.transpose(1, 2).reshape(value.shape)
        array = value.contiguous().numpy()
        if bits == 8 and value.ndim == 2:
            packed = GGMLQuantizationType.Q8_0
            writer.add_tensor(_named(name), quantize(array, packed), raw_dtype=packed)
        else:
            writer.add_tensor(_named(name), array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def merges(saved: str) -> list[list[str]]:
    """The merges of a saved tokenizer."""
    import json

    return json.loads(saved)["model"]["merges"]


def _named(name: str) -> str:
    parts = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "model.layers": "blk",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "post_attention_layernorm": "ffn_norm",
        "input_layernorm": "attn_norm",
    }
    for theirs, own in parts.items():
        name = name.replace(theirs, own)
    return name
