"""The GGUF file of a tiny language model and its tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from gguf.quants import quantize
from texts import HEADS, LAYERS, SHARED, SPECIAL, WIDTH
from transformers import LlamaForCausalLM


def write_gguf(
    path: Path,
    llama: LlamaForCausalLM,
    words: Any,
    bits: int = 32,
    *,
    more: Mapping[str, np.ndarray] | None = None,
    without: str = "",
    say: Callable[[GGUFWriter], object] = lambda writer: None,
) -> Path:
    """A file as llama.cpp's converter writes it, in float32 or in blocks of eight bits.

    Args:
        more: further tensors.
        without: a tensor that is left out.
        say: writes further fields.
    """
    writer, config = GGUFWriter(path, "llama"), llama.config
    say(writer)
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
        if _named(name) == without:
            continue
        if bits == 8 and value.ndim == 2:
            packed = GGMLQuantizationType.Q8_0
            writer.add_tensor(_named(name), quantize(array, packed), raw_dtype=packed)
        else:
            writer.add_tensor(_named(name), array)
    for name, array in (more or {}).items():
        writer.add_tensor(name, array)
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
