"""LlamaGen: a Llama-style transformer over VQ image tokens, under the published tensor names.

Sun et al. 2024, "Autoregressive Model Beats Diffusion", section 2.2. A prefix of caption features
(or one class embedding) is followed by the image tokens in raster order; rotary positions are 2-D
on the grid. The module trains and holds the weights; generation runs in `LlamaGenDecoder`.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.modeling_utils import ModelMixin
from torch import Tensor, nn

MOST_TOKENS = 256**2  # of a picture


class LlamaGenTransformer(ModelMixin, ConfigMixin):
    """Next-token model of image token grids.

    Args:
        vocab_size: codes of the image tokenizer, V.
        block_size: tokens of the largest grid, a square.
        dim, n_layer, n_head, n_kv_head: sizes of the transformer, D = dim.
        multiple_of, ffn_dim_multiplier: the SwiGLU width is 8/3 · dim, scaled, rounded up.
        model_type: "t2i" (caption features) or "c2i" (class labels).
        caption_dim: width of the caption features.
        cls_token_num: prefix length T.
        num_classes: classes of "c2i".
        rope_base, norm_eps: as in Llama.
        rotary_prefix: "zero" multiplies the prefix's queries and keys by 0, as the published
            checkpoints were trained (every caption token then weighs the same); "identity"
            leaves them as they are, so that image tokens can attend to words by content.
        sample_guidance, sample_top_k: what pictures are drawn with unless a call says otherwise.
        clean_captions: captions are encoded as `clean_caption` rewrites them, as those that the
            published models were trained with.
        mask_token_id: token of a masked place, of a network that fills blocks of them: V, behind
            the codes. It is read and never said. None: the network says the next token.
    """

    _no_split_modules: ClassVar = ["LlamaGenBlock"]  # of a device map

    @register_to_config
    def __init__(
        self,
        vocab_size: int = 16384,
        block_size: int = 256,
        dim: int = 1280,
        n_layer: int = 36,
        n_head: int = 20,
        n_kv_head: int | None = None,
        multiple_of: int = 256,
        ffn_dim_multiplier: float | None = None,
        model_type: Literal["t2i", "c2i"] = "t2i",
        caption_dim: int = 2048,
        cls_token_num: int = 120,
        num_classes: int = 1000,
        rope_base: float = 10000.0,
        norm_eps: float = 1e-5,
        rotary_prefix: Literal["zero", "identity"] = "zero",
        sample_guidance: float = 2.0,
        sample_top_k: int = 100,
        clean_captions: bool = False,
        mask_token_id: int | None = None,
    ) -> None:
        super().__init__()
        if not 1 <= block_size <= MOST_TOKENS or round(block_size**0.5) ** 2 != block_size:
            raise ValueError(f"block_size must be a square up to {MOST_TOKENS}, not {block_size}")
        if model_type == "c2i" and cls_token_num != 1:
            raise ValueError(f"a class is one token: cls_token_num must be 1, not {cls_token_num}")
        if mask_token_id not in (None, vocab_size):
            raise ValueError(f"mask_token_id must be {vocab_size}, not {mask_token_id}")
        self.grid = round(block_size**0.5)
        self.prefix_length = cls_token_num
        kv_heads = n_kv_head or n_head
        self.cls_embedding: nn.Module
        if model_type == "t2i":
            self.cls_embedding = CaptionEmbedder(caption_dim, dim, cls_token_num)
        else:
            self.cls_embedding = LabelEmbedder(num_classes, dim)
        words = vocab_size + (mask_token_id is not None)
        self.tok_embeddings = nn.Embedding(words, dim)
        hidden = int(8 * dim / 3)
        if ffn_dim_multiplier is not None:
            hidden = int(ffn_dim_multiplier * hidden)
        hidden = multiple_of * -(-hidden // multiple_of)
        self.layers = nn.ModuleList(
            LlamaGenBlock(dim, n_head, kv_heads, hidden, norm_eps) for _ in range(n_layer)
        )
        self.norm = nn.RMSNorm(dim, norm_eps)
        self.output = nn.Linear(dim, vocab_size, bias=False)

    def init_weights(self, std: float = 0.02) -> None:
        """The published initialization: normal weights, a zero output layer."""
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=std)
        nn.init.zeros_(self.output.weight)

    def rotary(self, grid: int | None = None) -> Tensor:
        """Rotary factors `[T + grid², head_dim / 2]`, complex, of the prefix and a square grid."""
        head_dim = self.config.dim // self.config.n_head
        base, start = self.config.rope_base, self.config.rotary_prefix
        factors = rotary_2d(grid or self.grid, head_dim, base, self.prefix_length, start)
        return factors.to(self.output.weight.device)

    def forward(self, *inputs: Any, **options: Any) -> Tensor:
        """Logits `[B, S + 1, V]` after the prefix and after each of the tokens, see `hidden`."""
        h = self.hidden(*inputs, **options)
        return self.output(self.norm(h[:, self.prefix_length - 1 :]))

    def hidden(
        self,
        tokens: Tensor,
        prefix: Tensor,
        prefix_mask: Tensor | None = None,
        grid: int | None = None,
    ) -> Tensor:
        """Hidden states of the last layer `[B, T + S, D]` of prefix and tokens, without a cache.

        Args:
            tokens: image token ids `[B, S]`.
            prefix: embedded condition `[B, T, D]`, from `cls_embedding`.
            prefix_mask: `[B, T]`, False where the caption is padding; None: all real.
            grid: side of the token grid; None: `block_size`'s.
        """
        h = torch.cat([prefix, self.tok_embeddings(tokens)], dim=1)
        length = h.shape[1]
        rotary = self.rotary(grid)[:length]
        mask = None if prefix_mask is None else causal_mask(prefix_mask, length)
        for layer in self.layers:
            h = layer(h, rotary, mask)
        return h


def causal_mask(prefix_mask: Tensor, length: int) -> Tensor:
    """Mask to add to attention scores `[B, 1, length, length]`; it hides padding and the future.

    A padded query reads itself, so that its softmax is defined.
    """
    batch, prefix = prefix_mask.shape
    mask = torch.ones(length, length, dtype=torch.bool, device=prefix_mask.device).tril()
    mask = mask.repeat(batch, 1, 1)
    mask[:, :, :prefix] &= prefix_mask[:, None, :]
    mask |= torch.eye(length, dtype=torch.bool, device=prefix_mask.device)
    return torch.where(mask, 0.0, -torch.inf)[:, None]


class CaptionEmbedder(nn.Module):
    """Caption features `[B, T, caption_dim]` to the transformer's width."""

    def __init__(self, caption_dim: int, dim: int, token_num: int) -> None:
        super().__init__()
        self.cap_proj = mlp(caption_dim, dim, dim, False, "tanh")
        self.register_buffer(
            "uncond_embedding", torch.randn(token_num, caption_dim) / caption_dim**0.5
        )

    def forward(self, features: Tensor) -> Tensor:
        return self.cap_proj(features)


class LabelEmbedder(nn.Module):
    """Class labels `[B]` to a prefix of length 1; label `num_classes` means "no class"."""

    def __init__(self, num_classes: int, dim: int) -> None:
        super().__init__()
        self.embedding_table = nn.Embedding(num_classes + 1, dim)

    def forward(self, labels: Tensor) -> Tensor:
        return self.embedding_table(labels)[:, None]


def mlp(inward: int, hidden: int, out: int, bias: bool, approximate: str) -> nn.Sequential:
    """Two linear layers, under the published names, and GELU between them."""
    first, second = nn.Linear(inward, hidden, bias), nn.Linear(hidden, out, bias)
    return nn.Sequential(OrderedDict(fc1=first, act=nn.GELU(approximate), fc2=second))


class LlamaGenBlock(nn.Module):
    def __init__(self, dim: int, n_head: int, n_kv_head: int, hidden: int, eps: float) -> None:
        super().__init__()
        self.attention = LlamaGenAttention(dim, n_head, n_kv_head)
        self.feed_forward = FeedForward(dim, hidden)
        self.attention_norm = nn.RMSNorm(dim, eps)
        self.ffn_norm = nn.RMSNorm(dim, eps)

    def forward(self, x: Tensor, rotary: Tensor, mask: Tensor | None) -> Tensor:
        h: Tensor = x + self.attention(self.attention_norm(x), rotary, mask)
        return h + self.feed_forward(self.ffn_norm(h))


class LlamaGenAttention(nn.Module):
    def __init__(self, dim: int, n_head: int, n_kv_head: int) -> None:
        super().__init__()
        self.n_head, self.n_kv_head, self.head_dim = n_head, n_kv_head, dim // n_head
        self.wqkv = nn.Linear(dim, (n_head + 2 * n_kv_head) * self.head_dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def heads(self, x: Tensor, rotary: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values `[B, heads, S, head_dim]` of inputs `[B, S, D]`."""
        heads = self.wqkv(x).unflatten(-1, (-1, self.head_dim))  # [B, S, heads, head_dim]
        turned, v = heads.split([self.n_head + self.n_kv_head, self.n_kv_head], dim=2)
        q, k = rotate(turned, rotary).split([self.n_head, self.n_kv_head], dim=2)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def joined(self, out: Tensor) -> Tensor:
        """Project the heads' results `[B, heads, S, head_dim]` to outputs `[B, S, D]`."""
        return self.wo(out.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor, rotary: Tensor, mask: Tensor | None) -> Tensor:
        return self.joined(attend(*self.heads(x, rotary), mask))


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Attention of `[B, heads, S, head_dim]`; `mask [B, 1, S, S]` is added, None means causal."""
    grouped = q.shape[1] != k.shape[1]
    if mask is not None:
        mask = mask.to(q.dtype)
    if mask is not None and q.device.type == "cpu" and q.requires_grad and not grouped:
        # training on a CPU: the fused kernel's backward costs more than these products
        scores = torch.matmul(q * q.shape[-1] ** -0.5, k.transpose(-1, -2)) + mask
        return scores.softmax(-1) @ v
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=grouped
    )


class FeedForward(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


def rotate(x: Tensor, rotary: Tensor) -> Tensor:
    """Turn neighbouring pairs of `x [B, S, heads, head_dim]` by `rotary [S, head_dim / 2]`.

    Rows that stand at different places have factors of their own, `[B, S, head_dim / 2]`.
    """
    exact = x if x.dtype == torch.float64 else x.float()
    pairs = torch.view_as_complex(exact.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * rotary.unsqueeze(-2)).flatten(-2).type_as(x)


def rotary_2d(
    grid: int, head_dim: int, base: float, prefix: int, rotary_prefix: Literal["zero", "identity"]
) -> Tensor:
    """Complex factors `[prefix + grid², head_dim / 2]`: rows turn one half, columns the other."""
    half = head_dim // 2
    speeds = 1.0 / base ** (torch.arange(0, half, 2, dtype=torch.float32) / half)  # [half / 2]
    places = torch.cartesian_prod(torch.arange(grid), torch.arange(grid))  # [grid², 2]
    turns = (places[..., None] * speeds).flatten(1)
    start = torch.zeros if rotary_prefix == "zero" else torch.ones
    image = torch.polar(torch.ones_like(turns), turns)
    return torch.cat([start(prefix, half, dtype=image.dtype), image])
