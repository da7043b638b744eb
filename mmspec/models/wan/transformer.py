"""Block-causal Wan: a text-to-video diffusion transformer, under the published tensor names.

Wan team 2025, "Wan: Open and Advanced Large-Scale Video Generative Models" (Wan2.1-T2V); causal
over blocks of latent frames as CausVid (Yin et al. 2025) and Self-Forcing (Huang et al. 2025) made
it: frames of a block read each other and the clean blocks before it. The network predicts the
velocity v = noise − x_0 of flow matching; `sampler` draws with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.modeling_utils import ModelMixin
from torch import Tensor, nn

from ...errors import InputError
from .block import WanBlock, WanHead, later, mlp, rotary_3d, sinusoids
from .cache import WanCache
from .reuse import Run
from .window import ContextWindow, attend_blocks

TIMESTEPS = 1000.0  # that the network counts; t / 1000 of a noisy latent is noise
Reader = Callable[[int, Tensor, Tensor, Tensor], Tensor]  # layer, queries, keys, values
Through = Callable[[Run, Tensor, int], Tensor]  # how layers are run, their input, their number
Memory = dict[int, tuple[Tensor, Tensor]]  # by layer, keys and values of clean frames


class WanTransformer(ModelMixin, ConfigMixin):
    """Velocities of noisy latent frames, given clean blocks before them and a text.

    Latents are `[B, F, C, H, W]` everywhere, F frames from the clip's start on or from the block to
    come; timesteps run from 0 (clean) to 1000 (noise) and are a frame's own.

    Args:
        patch_size: of a token in latent frames, rows and columns; a token is of one frame.
        text_len: tokens T of the text, filled with zeros.
        in_dim, out_dim: channels C of what is read and predicted.
        dim: width D.
        ffn_dim: width of the feed-forward layers.
        freq_dim: sinusoids of the timestep.
        text_dim: width of the text features.
        num_heads, num_layers: of the blocks.
        qk_norm: whether queries and keys are normed.
        cross_attn_norm: whether the cross-attention's norm is learned, else there is none.
        eps: of the norms.
        num_frame_per_block: latent frames of a block of the clip.
        window, sink: earlier blocks that a block reads, see `ContextWindow`.
        context_noise: timestep that clean blocks are said to have.
        sample_height, sample_width, sample_frames: latents of the clips that it was made for; in a
            longer one, made block by block, a sink is no farther away than in these.
        sample_steps, sample_shift, sample_renoise: steps from noise to a block that it was made
            for, how they are warped and whether their noise is fresh, see `FewStepSampler`.
        sample_guidance: classifier-free guidance that it was made for; 1: none, such as of a model
            that was distilled from a guided one; None: none, or as the model for which it drafts.
    """

    @register_to_config
    def __init__(
        self,
        patch_size: Sequence[int] = (1, 2, 2),
        text_len: int = 512,
        in_dim: int = 16,
        dim: int = 1536,
        ffn_dim: int = 8960,
        freq_dim: int = 256,
        text_dim: int = 4096,
        out_dim: int = 16,
        num_heads: int = 12,
        num_layers: int = 30,
        qk_norm: bool = True,
        cross_attn_norm: bool = True,
        eps: float = 1e-6,
        num_frame_per_block: int = 3,
        window: int | None = None,
        sink: int = 0,
        context_noise: float = 0.0,
        sample_height: int = 60,
        sample_width: int = 104,
        sample_frames: int = 21,
        sample_steps: int = 4,
        sample_shift: float = 5.0,
        sample_renoise: float = 1.0,
        sample_guidance: float | None = None,
    ) -> None:
        super().__init__()
        if patch_size[0] != 1:
            raise ValueError(f"a token is of one frame, not of {patch_size[0]}")
        if dim % (2 * num_heads):
            raise ValueError(f"dim {dim} can't be cut into {num_heads} heads of even width")
        self.window = ContextWindow(window, sink)
        size = (patch_size[0], patch_size[1], patch_size[2])
        self.patch_embedding = nn.Conv3d(in_dim, dim, size, size)
        self.text_embedding = mlp(text_dim, dim, dim)
        self.time_embedding = nn.Sequential(
            nn.Linear(freq_dim, dim), nn.SiLU(), nn.Linear(dim, dim)
        )
        self.time_projection = nn.Sequential(nn.SiLU(), nn.Linear(dim, 6 * dim))
        self.blocks = nn.ModuleList(
            WanBlock(dim, ffn_dim, num_heads, qk_norm, cross_attn_norm, eps)
            for _ in range(num_layers)
        )
        self.head = WanHead(dim, out_dim * math.prod(size), eps)

    @property
    def layers(self) -> list[WanBlock]:
        """The layers in order; `blocks` is their published name. Other blocks are of the clip."""
        return [layer for layer in self.blocks if isinstance(layer, WanBlock)]

    def init_weights(self) -> None:
        """The published initialization; what is predicted starts as zero."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
            elif isinstance(module, WanBlock | WanHead):
                nn.init.normal_(module.modulation, std=self.config.dim**-0.5)
        self.patch_embedding.reset_parameters()
        nn.init.xavier_uniform_(self.patch_embedding.weight.flatten(1))
        for embedding in (self.text_embedding, self.time_embedding):
            for layer in embedding:
                if isinstance(layer, nn.Linear):
                    nn.init.normal_(layer.weight, std=0.02)
        nn.init.zeros_(self.head.head.weight)

    def tokens(self, height: int, width: int) -> int:
        """Tokens of a latent frame of `height` × `width`.

        Raises:
            InputError: patches do not fill the frame.
        """
        _, rows, columns = self.config.patch_size
        if height % rows or width % columns:
            raise InputError(f"latents of {height}×{width} can't be cut into {rows}×{columns}")
        return int((height // rows) * (width // columns))

    # --- a whole clip -----------------------------------------------------------------------------

    def forward(
        self,
        noisy: Tensor,
        timesteps: Tensor,
        text: Tensor,
        clean: Tensor | None = None,
        memory: Memory | None = None,
    ) -> Tensor:
        """Velocities `[B, F, C, H, W]` of all frames of a clip at once, for training.

        Args:
            noisy: frames with noise `[B, F, C, H, W]`.
            timesteps: of each, `[B, F]`.
            text: features `[B, T, text_dim]`, zero where padded, T at most `text_len`.
            clean: the same frames without noise, which blocks then read of those before them, as
                behind `commit`; None: they read the noisy ones.
            memory: empty at first, it then spares further calls with this text and these clean
                frames the work over them; not to be learned through.

        Raises:
            InputError: the frames are no whole blocks.
        """
        frames, size = noisy.shape[1], self.config.num_frame_per_block
        if frames % size:
            raise InputError(f"{frames} frames are no blocks of {size}")
        positions, mixed, times = tuple(range(frames)), noisy, timesteps
        if clean is not None and not memory:
            known = torch.full_like(timesteps, self.config.context_noise)
            positions, mixed = positions * 2, torch.cat([clean, noisy], dim=1)
            times = torch.cat([known, timesteps], dim=1)
        tokens = size * self.tokens(*noisy.shape[-2:])
        copies = 1 if clean is None else 2

        def read(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if memory is not None and clean is not None:
                if layer not in memory:
                    half = k.shape[2] // 2
                    memory[layer] = k[:, :, :half], v[:, :, :half]
                else:
                    known_k, known_v = memory[layer]
                    k, v = torch.cat([known_k, k], dim=2), torch.cat([known_v, v], dim=2)
            return attend_blocks(q, k, v, tokens, self.window, copies)

        return self._run(mixed, times, positions, self.read_text(text), read, frames)

    # --- block by block ---------------------------------------------------------------------------

    def start(
        self,
        text: Tensor,
        height: int,
        width: int,
        limit: int | None = None,
        window: ContextWindow | None = None,
    ) -> WanCache:
        """An empty cache for clips of the text features `[B, T, text_dim]`, one a row.

        It takes `limit` blocks at most; a rolling window needs no limit.
        """
        size, told = self.config.num_frame_per_block, self.read_text(text)
        tokens, known = size * self.tokens(height, width), self.config.sample_frames // size

        def moved(keys: Tensor, blocks: int) -> Tensor:
            return later(keys, blocks * size)

        return WanCache(told, tokens, window or self.window, limit, known, moved)

    def denoise(
        self, noisy: Tensor, timestep: float, cache: WanCache, clean: Tensor | None = None
    ) -> Tensor:
        """Velocities `[B, F, C, H, W]` of the block that comes next, given its noisy frames.

        `clean` are frames of one or more blocks before it that are not committed yet, which this
        call does along the way. A call that commits none may reuse residuals, see `WanCache.reuse`.
        """
        return self._advance(noisy, timestep, cache, clean)

    def commit(self, clean: Tensor, cache: WanCache) -> None:
        """Write keys and values of the next block, or several, given its clean frames."""
        self._advance(clean[:, :0], 0.0, cache, clean)

    def _advance(
        self, noisy: Tensor, timestep: float, cache: WanCache, clean: Tensor | None
    ) -> Tensor:
        size, known = self.config.num_frame_per_block, 0 if clean is None else clean.shape[1]
        if noisy.shape[1] not in (0, size) or known % size:
            given = f"{noisy.shape[1]} noisy and {known} clean frames"
            raise InputError(f"{given} are no blocks of {size}")
        blocks, first = known // size, cache.blocks * size
        cache.room(blocks + noisy.shape[1] // size)
        latents = noisy if clean is None else torch.cat([clean, noisy], dim=1)
        rows, frames = latents.shape[:2]
        times = torch.full((rows, frames), timestep, device=latents.device)
        times[:, :known] = self.config.context_noise
        positions, read = tuple(range(first, first + frames)), partial(cache.attend, clean=blocks)
        through: Through | None = None
        if cache.reuse is not None and not blocks:
            through = partial(cache.reuse.through, block=cache.blocks, timestep=timestep)
        wanted = noisy.shape[1]
        velocities = self._run(latents, times, positions, cache.text, read, wanted, through)
        cache.advance(blocks)
        return velocities

    # --- both -------------------------------------------------------------------------------------

    def read_text(self, text: Tensor) -> Tensor:
        """Keys and values `[layers, 2, B, heads, text_len, head_dim]` that layers have of a text.

        Args:
            text: features `[B, T, text_dim]`; padding is read too, as in the published model.
        """
        missing = self.config.text_len - text.shape[1]
        if missing < 0:
            raise InputError(f"a text of {text.shape[1]} tokens; at most {self.config.text_len}")
        filled = F.pad(text.to(self.patch_embedding.weight), (0, 0, 0, missing))
        told = self.text_embedding(filled)
        return torch.stack(
            [torch.stack(layer.cross_attn.keys_values(told)) for layer in self.layers]
        )

    def _run(
        self,
        latents: Tensor,
        timesteps: Tensor,
        positions: tuple[int, ...],
        text: Tensor,
        read: Reader,
        wanted: int,
        through: Through | None = None,
    ) -> Tensor:
        """Velocities `[B, wanted, C, H, W]` of the last frames of `latents [B, F, C, H, W]`.

        Args:
            timesteps: of the frames `[B, F]`.
            positions: of the frames in the clip.
            text: see `read_text`.
            read: the self-attention of a layer.
            through: runs the layers, or spares some; None: all run.
        """
        weight = self.patch_embedding.weight
        x = self.patch_embedding(latents.to(weight).transpose(1, 2))  # [B, D, F, h, w]
        height, width = x.shape[-2:]
        x = x.flatten(3).permute(0, 2, 3, 1)  # [B, F, h · w, D]
        told = self.time_embedding(sinusoids(timesteps, self.config.freq_dim).to(weight))
        modulation = self.time_projection(told).unflatten(-1, (6, -1))
        double, head_dim = weight.dtype == torch.float64, text.shape[-1]
        rotary = rotary_3d(positions, height, width, head_dim, double, x.device)
        layers, first = self.layers, len(positions) - wanted
        last = len(layers) - 1

        def run(numbers: Iterable[int], x: Tensor) -> Tensor:
            for n in numbers:
                silent = first if n == last else 0
                x = layers[n](x, modulation, rotary, text[n], partial(read, n), silent)
            return x

        x = through(run, x, len(layers)) if through is not None else run(range(len(layers)), x)
        y: Tensor = self.head(x, told[:, first:])  # [B, wanted, h · w, patch · C]
        _, rows, columns = self.config.patch_size
        y = y.unflatten(2, (height, width)).unflatten(-1, (rows, columns, -1))
        y = y.permute(0, 1, 6, 2, 4, 3, 5).flatten(5, 6).flatten(3, 4)
        return y.to(latents.dtype)
