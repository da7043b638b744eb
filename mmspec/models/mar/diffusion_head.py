"""MAR's diffusion head: a small MLP that predicts the noise in one token, given its condition.

Li et al. 2024, "Autoregressive Image Generation without Vector Quantization", section 3.2
(denoising MLP), under the published tensor names. The module trains and holds the weights;
generation runs in `denoiser.HeadDenoiser`.
"""

from __future__ import annotations

import torch.nn.functional as F
from diffusers.models.embeddings import get_timestep_embedding
from torch import Tensor, nn

EPS = 1e-6  # of the layer norms
FREQUENCIES = 256


class DiffusionHead(nn.Module):
    """Residual MLP blocks whose shift, scale and gate follow from timestep and condition.

    Args:
        token_dim: channels C of a token.
        z_dim: channels D of a condition.
        width, depth: of the blocks.
    """

    def __init__(self, token_dim: int, z_dim: int, width: int, depth: int) -> None:
        super().__init__()
        self.token_dim, self.width = token_dim, width
        self.time_embed = TimestepEmbedder(width)
        self.cond_embed = nn.Linear(z_dim, width)
        self.input_proj = nn.Linear(token_dim, width)
        self.res_blocks = nn.ModuleList(ResBlock(width) for _ in range(depth))
        self.final_layer = FinalLayer(width, 2 * token_dim)

    @property
    def blocks(self) -> list[ResBlock]:
        """The residual blocks in order."""
        return [block for block in self.res_blocks if isinstance(block, ResBlock)]

    @property
    def modulations(self) -> list[nn.Linear]:
        """Give shift, scale and gate of every block, and shift and scale of the last layer."""
        return [*(block.modulation for block in self.blocks), self.final_layer.modulation]

    def init_weights(self) -> None:
        """The published initialization: every block starts as the identity, the output as zero."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        for i in (0, 2):
            nn.init.normal_(_linear(self.time_embed.mlp, i).weight, std=0.02)
        for layer in self.modulations:
            nn.init.zeros_(layer.weight)
        nn.init.zeros_(self.final_layer.linear.weight)

    def forward(self, x: Tensor, timesteps: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """Predicted noise and variance, both `[N, C]`.

        Args:
            x: noisy tokens `[N, C]`.
            timesteps: of the 1,000 that the head was trained on, `[N]`.
            z: conditions `[N, D]`.

        Returns:
            The noise, and where the variance lies between its bounds, nominally in [-1, 1].
        """
        y = F.silu(self.time_embed(timesteps) + self.cond_embed(z))
        h = self.input_proj(x)
        for block in self.res_blocks:
            h = block(h, y)
        noise, between = self.final_layer(h, y).chunk(2, dim=-1)
        return noise, between


class TimestepEmbedder(nn.Module):
    """Sinusoids of the timestep, and an MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(FREQUENCIES, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, timesteps: Tensor) -> Tensor:
        waves = get_timestep_embedding(timesteps, FREQUENCIES, True, downscale_freq_shift=0)
        return self.mlp(waves.to(_linear(self.mlp, 0).weight))


class ResBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.in_ln = nn.LayerNorm(width, EPS)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        # the published name counts a SiLU in front, which `DiffusionHead` applies once for all
        self.adaLN_modulation = nn.Sequential(nn.Identity(), nn.Linear(width, 3 * width))

    @property
    def modulation(self) -> nn.Linear:
        return _linear(self.adaLN_modulation, 1)

    @property
    def linears(self) -> tuple[nn.Linear, nn.Linear]:
        """The two layers of the MLP."""
        return _linear(self.mlp, 0), _linear(self.mlp, 2)

    def forward(self, h: Tensor, y: Tensor) -> Tensor:
        shift, scale, gate = self.adaLN_modulation(y).chunk(3, dim=-1)
        return h + gate * self.mlp(self.in_ln(h) * (1 + scale) + shift)


class FinalLayer(nn.Module):
    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.norm_final = nn.LayerNorm(width, EPS, elementwise_affine=False)
        self.linear = nn.Linear(width, out)
        self.adaLN_modulation = nn.Sequential(nn.Identity(), nn.Linear(width, 2 * width))

    @property
    def modulation(self) -> nn.Linear:
        return _linear(self.adaLN_modulation, 1)

    def forward(self, h: Tensor, y: Tensor) -> Tensor:
        shift, scale = self.adaLN_modulation(y).chunk(2, dim=-1)
        return self.linear(self.norm_final(h) * (1 + scale) + shift)


def _linear(layers: nn.Sequential, index: int) -> nn.Linear:
    layer = layers[index]
    assert isinstance(layer, nn.Linear)
    return layer
