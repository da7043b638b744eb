"""MAR: a masked autoregressive encoder–decoder over continuous tokens, under the published names.

Li et al. 2024, "Autoregressive Image Generation without Vector Quantization", sections 3.3 and 3.4.
The encoder reads the known tokens behind a buffer that says what to draw; the decoder fills the
unknown places with a mask token and gives a condition for each, from which a diffusion head draws
the token. Attention is bidirectional: nothing is cached from one iteration to the next.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.modeling_utils import ModelMixin
from torch import Tensor, nn

from ...engine.accept.chain import pick
from ...registry import check_name
from ..llamagen.transformer import mlp
from .diffusion_head import DiffusionHead
from .schedule import DiffusionSchedule, NoiseSchedule

Condition = Literal["class", "caption"]
EPS = 1e-6  # of the layer norms


class MarTransformer(ModelMixin, ConfigMixin):
    """Conditions of continuous tokens, given any set of known ones, and the head that draws them.

    Args:
        token_dim: channels C of a token.
        grid: side of the token grid; L = grid².
        buffer_size: tokens T in front that hold the condition.
        encoder_embed_dim, encoder_depth, encoder_num_heads: sizes of the encoder, D.
        decoder_embed_dim, decoder_depth, decoder_num_heads: sizes of the decoder, E.
        mlp_ratio: width of the MLPs over that of the blocks.
        diffloss_d, diffloss_w: depth and width of the diffusion head.
        noise_schedule: that the head was trained with.
        condition: "class" (one label, the same in all of the buffer) or "caption" (text features,
            one token each).
        class_num: classes of "class".
        caption_dim: width of the text features of "caption".
        sample_guidance, sample_temperature: what pictures are drawn with unless a call says
            otherwise.
    """

    @register_to_config
    def __init__(
        self,
        token_dim: int = 16,
        grid: int = 16,
        buffer_size: int = 64,
        encoder_embed_dim: int = 768,
        encoder_depth: int = 12,
        encoder_num_heads: int = 12,
        decoder_embed_dim: int = 768,
        decoder_depth: int = 12,
        decoder_num_heads: int = 12,
        mlp_ratio: float = 4.0,
        diffloss_d: int = 6,
        diffloss_w: int = 1024,
        noise_schedule: NoiseSchedule = "cosine",
        condition: Condition = "class",
        class_num: int = 1000,
        caption_dim: int = 2048,
        sample_guidance: float = 3.0,
        sample_temperature: float = 1.0,
    ) -> None:
        super().__init__()
        check_name("condition", condition, get_args(Condition))
        check_name("noise schedule", noise_schedule, get_args(NoiseSchedule))
        self.length, self.prefix_length = grid**2, buffer_size
        width, inner = encoder_embed_dim, decoder_embed_dim
        if condition == "class":
            self.class_emb = nn.Embedding(class_num, width)
        else:
            self.caption_emb = mlp(caption_dim, width, width, False, "tanh")
        self.fake_latent = nn.Parameter(torch.zeros(1, width))
        self.z_proj = nn.Linear(token_dim, width)
        self.z_proj_ln = nn.LayerNorm(width, EPS)
        positions = buffer_size + self.length
        self.encoder_pos_embed_learned = nn.Parameter(torch.zeros(1, positions, width))
        self.encoder_blocks = nn.ModuleList(
            MarBlock(width, encoder_num_heads, mlp_ratio) for _ in range(encoder_depth)
        )
        self.encoder_norm = nn.LayerNorm(width, EPS)
        self.decoder_embed = nn.Linear(width, inner)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, inner))
        self.decoder_pos_embed_learned = nn.Parameter(torch.zeros(1, positions, inner))
        self.decoder_blocks = nn.ModuleList(
            MarBlock(inner, decoder_num_heads, mlp_ratio) for _ in range(decoder_depth)
        )
        self.decoder_norm = nn.LayerNorm(inner, EPS)
        self.diffusion_pos_embed_learned = nn.Parameter(torch.zeros(1, self.length, inner))
        head = DiffusionHead(token_dim, inner, diffloss_w, diffloss_d)
        self.diffloss = nn.ModuleDict({"net": head})

    @property
    def blocks(self) -> list[nn.Module]:
        """Blocks of the encoder, then of the decoder."""
        return [*self.encoder_blocks, *self.decoder_blocks]

    @property
    def head(self) -> DiffusionHead:
        """Draws a token from its condition."""
        head = self.diffloss["net"]
        assert isinstance(head, DiffusionHead)
        return head

    @property
    def schedule(self) -> DiffusionSchedule:
        """The timesteps that the head was trained on."""
        return DiffusionSchedule.trained(self.config.noise_schedule)

    def init_weights(self) -> None:
        """The published initialization."""
        for name, weight in self.named_parameters():
            if (weight.ndim > 1 and "emb" in name) or name in ("fake_latent", "mask_token"):
                nn.init.normal_(weight, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        self.head.init_weights()

    def classes(self, labels: Tensor) -> Tensor:
        """The buffer `[R, T, D]` of class labels `[R]`."""
        return self.class_emb(labels)[:, None].expand(-1, self.prefix_length, -1)

    def captions(self, features: Tensor) -> Tensor:
        """The buffer `[R, T, D]` of text features `[R, T, caption_dim]`, zero where padded."""
        return self.caption_emb(features.to(self.fake_latent.dtype))

    def nothing(self, rows: int) -> Tensor:
        """The buffer `[rows, T, D]` of "no class" or "no caption"."""
        return self.fake_latent[None].expand(rows, self.prefix_length, -1)

    def forward(self, tokens: Tensor, positions: Tensor, buffer: Tensor, wanted: Tensor) -> Tensor:
        """Conditions `[R, m, E]` of the tokens at the places `wanted [R, m]`.

        Args:
            tokens: the known ones `[R, n, C]`.
            positions: where they stand on the grid, `[R, n]`.
            buffer: what to draw, `[R, T, D]`; see `classes`, `captions` and `nothing`.
        """
        return self.decode(self.encode(tokens, positions, buffer), positions, wanted)

    def encode(self, tokens: Tensor, positions: Tensor, buffer: Tensor) -> Tensor:
        """Encode the buffer and the known tokens, `[R, T + n, D]`."""
        start = self.prefix_length
        embedded = self.encoder_pos_embed_learned[0]
        x = torch.cat(
            [buffer + embedded[:start], self.z_proj(tokens) + embedded[start + positions]], dim=1
        )
        x = self.z_proj_ln(x)
        for block in self.encoder_blocks:
            x = block(x)
        return self.encoder_norm(x)

    def decode(self, known: Tensor, positions: Tensor, wanted: Tensor) -> Tensor:
        """Conditions `[R, m, E]` at the places `wanted [R, m]`, from what the encoder made."""
        x, start = self.decoder_embed(known), self.prefix_length
        grid = self.mask_token.to(x).expand(len(x), self.length, -1)
        grid = grid.scatter(1, positions[..., None].expand(-1, -1, x.shape[-1]), x[:, start:])
        x = torch.cat([x[:, :start], grid], dim=1)
        x = x + self.decoder_pos_embed_learned
        *most, last = self.decoder_blocks
        for block in most:
            x = block(x)
        z: Tensor = self.decoder_norm(last(x, queries=start + wanted))
        return z + self.diffusion_pos_embed_learned[0, wanted]


class MarBlock(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int, mlp_ratio: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, EPS)
        self.attn = MarAttention(width, heads)
        self.norm2 = nn.LayerNorm(width, EPS)
        self.mlp = mlp(width, int(width * mlp_ratio), width, True, "none")

    def forward(self, x: Tensor, queries: Tensor | None = None) -> Tensor:
        """`[R, S, D]` to the same; `queries [R, m]`: to `[R, m, D]`, of these places alone."""
        read = self.attn(self.norm1(x), queries)
        x = (x if queries is None else pick(x, queries)) + read
        return x + self.mlp(self.norm2(x))


class MarAttention(nn.Module):
    """Bidirectional attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor, queries: Tensor | None) -> Tensor:
        parts = self.qkv(x).chunk(3, dim=-1)
        if queries is not None:
            parts = (pick(parts[0], queries), *parts[1:])
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        read = F.scaled_dot_product_attention(q, k, v)
        return self.proj(read.transpose(1, 2).flatten(2))
