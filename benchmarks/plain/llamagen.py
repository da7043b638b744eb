"""LlamaGen: mmspec's own class, against a Llama of transformers with its weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, T5Config, T5EncoderModel

from mmspec import ImagePipeline
from mmspec.models.llamagen.transformer import LlamaGenTransformer
from mmspec.models.llamagen.vq import VQModel

from .sizes import Published
from .subjects import PROMPT, Cache, DrawnSubject
from .words import tokenizer

SMALL_VQ = {"ch": 32, "ch_mult": (1,) * 5, "num_res_blocks": 1, "z_channels": 32}


def network(model: Published, layers: int, side: int) -> LlamaGenTransformer:
    """The transformer, for `side` by `side` codes."""
    sizes: dict[str, Any] = {**model.sizes, "vocab_size": model.codes, "n_layer": layers}
    made = LlamaGenTransformer(**sizes, block_size=side * side)
    made.init_weights()
    torch.nn.init.normal_(made.output.weight, std=0.02)
    return made.eval()


def subject(transformer: Any, side: int) -> LlamaGenSubject:
    """The pipeline, with a small text encoder and a small decoder of pixels."""
    width, codes = transformer.config.caption_dim, transformer.config.vocab_size
    words = tokenizer()
    encoder = T5EncoderModel(
        T5Config(vocab_size=len(words), d_model=width, d_kv=8, d_ff=16, num_layers=1, num_heads=1)
    )
    vq = VQModel(codebook_size=codes, **SMALL_VQ)
    return LlamaGenSubject(ImagePipeline(transformer, vq.eval(), encoder.eval(), words))


class LlamaGenSubject(DrawnSubject):
    """A LlamaGen pipeline. Its Llama reads the same prefix, in rows of its own for guidance.

    The Llama's rotary positions are on a line, those of LlamaGen on a grid: the work is the same,
    the tokens are not. Nothing joins the rows of its guidance pairs, and each draws a token.
    """

    same = False

    def __init__(self, pipe: ImagePipeline) -> None:
        super().__init__(pipe)
        self.llama = as_llama(pipe.transformer)
        model = pipe.image_model(pipe.transformer)
        _, self.grid = pipe.network(None, None)
        self.top_k = model.top_k
        with torch.inference_mode():
            condition, self.mask = model.condition([PROMPT], None, True, self.grid)
            self.prefix = model.embed(condition)

    def theirs(self, rows: int, cache: Cache) -> Tensor:
        return self.llama.generate(
            inputs_embeds=self.prefix.repeat_interleave(rows, 0),
            attention_mask=self.mask.long().repeat_interleave(rows, 0),
            top_k=self.top_k,
            max_new_tokens=self.grid.length,
            cache_implementation=cache,
            pad_token_id=0,
            eos_token_id=None,
            **self.drawing,
        )[:rows]


def as_llama(model: LlamaGenTransformer) -> LlamaForCausalLM:
    """The Llama of transformers that has the weights of a LlamaGen."""
    config, layers = model.config, list[Any](model.layers)
    heads = config.n_kv_head or config.n_head
    like = model.output.weight
    made = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=model.tok_embeddings.num_embeddings,
            hidden_size=config.dim,
            intermediate_size=layers[0].feed_forward.w1.out_features,
            num_hidden_layers=config.n_layer,
            num_attention_heads=config.n_head,
            num_key_value_heads=heads,
            max_position_embeddings=model.prefix_length + model.grid**2,
            rms_norm_eps=config.norm_eps,
            tie_word_embeddings=False,
        )
    )
    state: dict[str, Tensor] = {
        "model.embed_tokens.weight": model.tok_embeddings.weight,
        "model.norm.weight": model.norm.weight,
        "lm_head.weight": model.output.weight,
    }
    keys = heads * (config.dim // config.n_head)
    for n, layer in enumerate(layers):
        q, k, v = layer.attention.wqkv.weight.split([config.dim, keys, keys])
        at, mlp = f"model.layers.{n}.", layer.feed_forward
        state |= {
            f"{at}self_attn.q_proj.weight": q,
            f"{at}self_attn.k_proj.weight": k,
            f"{at}self_attn.v_proj.weight": v,
            f"{at}self_attn.o_proj.weight": layer.attention.wo.weight,
            f"{at}mlp.gate_proj.weight": mlp.w1.weight,
            f"{at}mlp.up_proj.weight": mlp.w3.weight,
            f"{at}mlp.down_proj.weight": mlp.w2.weight,
            f"{at}input_layernorm.weight": layer.attention_norm.weight,
            f"{at}post_attention_layernorm.weight": layer.ffn_norm.weight,
        }
    made.load_state_dict(state)
    return made.to(like.device, like.dtype).eval()
