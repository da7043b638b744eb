"""Recipe of the VQ image tokenizer: reconstruction, with the codebook kept by moving averages.

The codes are the running means of the latents that fall to them (van den Oord et al. 2017,
appendix A.1), started by k-means; a code that nothing uses is moved onto a random latent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...models.llamagen.vq import VQModel
from ...worlds.shapes.detector import detect
from ..base import BaseRecipe
from ..batches import scene_batch
from ..trainer import Loss, TrainConfig

RESOLUTIONS = (64, 128)  # px
EMBEDDED = dict(
    codebook_size=1024,
    codebook_embed_dim=8,
    codebook_show_usage=False,
    ch=64,
    ch_mult=(1, 2),
    num_res_blocks=1,
    z_channels=64,
    patch_size=4,
)


class ImageTokenizerRecipe(BaseRecipe):
    """Trains `VQModel` on shapes-world pictures of 64 and 128 pixels.

    Args:
        config, rate: see `BaseRecipe`; a batch is of pictures of 128 px.
        pipeline: folder that receives `vq_model`.
        init: component whose weights to start from; None: from nothing.
        commit: weight of the commitment loss.
        edges: weight of `edge_loss`, which decides how crisp the outlines are.
    """

    name = "vq_model"
    texts: ClassVar = dict(
        title="VQ image tokenizer of the shapes world",
        purpose="turns 64 or 128 px pictures into 8×8 or 16×16 tokens of 1,024 codes and back",
        limits="knows only shapes-world pictures; grain finer than about 4 px is smoothed away",
    )

    def __init__(
        self,
        config: TrainConfig,
        pipeline: Path,
        init: str | None = None,
        rate: float = 1e-3,
        commit: float = 0.25,
        edges: float = 4.0,
    ) -> None:
        super().__init__(config, pipeline, rate)
        self.commit, self.edges = commit, edges
        self.draw = partial(_draw, config.batch_size)
        self.vq = VQModel(**EMBEDDED)
        started = self.start(init, self.vq)
        self.free_steps = 0 if started else 60
        self.codebook = CodebookAverage(self.vq, started)
        self.model = nn.ModuleDict({"vq": self.vq, "codebook": self.codebook})

    def optimizers(self) -> Sequence[torch.optim.Optimizer]:
        weights = [p for n, p in self.vq.named_parameters() if n != "quantize.embedding.weight"]
        return [torch.optim.AdamW(weights, self.rate, betas=(0.9, 0.98), weight_decay=1e-4)]

    def loss(self, batch: Tensor, rng: np.random.Generator, step: int) -> Loss:
        pixels = batch.to(self.config.device)
        z = self.vq.latents(pixels)
        # a short start without the bottleneck gives k-means latents worth clustering
        if step < self.free_steps:
            code, commit = z, z.new_zeros(())
        else:
            ids = self.codebook.update(self.vq, z.detach().float(), rng)
            code = self.vq.quantize.codebook()[ids].movedim(-1, 1)
            commit = F.mse_loss(z, code)
            code = z + (code - z).detach()  # straight-through
        out = self.vq.decode_latents(code)
        error = F.mse_loss(out, pixels)
        edges = self.edges * edge_loss(out, pixels)
        loss = F.l1_loss(out, pixels) + error + edges + self.commit * commit
        return loss, {"psnr": psnr(error), "used": self.codebook.used}

    @torch.inference_mode()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        vq, figures = self.trained(model), dict[str, float]()
        for side in RESOLUTIONS:
            pixels = scene_batch(self.held_out_rng(), 96, side, "held_out")[1]
            pixels = pixels.to(self.config.device)
            tokens = vq.encode(pixels)
            grid = side // vq.downsample_factor
            out = vq.decode(tokens, grid, grid).clamp(-1, 1)
            figures[f"held_out_psnr_{side}"] = psnr(F.mse_loss(out, pixels))
            figures[f"held_out_recognised_{side}"] = recognised(out, pixels)
        return {**figures, "held_out_codes": float(tokens.unique().numel())}

    def export(self, model: nn.Module, record: dict[str, Any]) -> None:
        super().export(self.trained(model), record)

    @staticmethod
    def trained(model: nn.Module) -> VQModel:
        """The tokenizer inside what the trainer averages."""
        vq: Any = model.get_submodule("vq")
        return cast(VQModel, vq)


def _draw(size: int, rng: np.random.Generator, step: int) -> Tensor:
    # the same codes serve both sizes; four small pictures cost as much as a large one
    if step % 2:
        return scene_batch(rng, size, 128)[1]
    return scene_batch(rng, 4 * size, 64)[1]


class CodebookAverage(nn.Module):
    """Moving-average codebook updates: hits `count [V]` and latent sums `total [V, C]` per code.

    Args:
        vq: the tokenizer whose codes it moves, in place.
        started: the codes are trained ones; otherwise the first latents set them by k-means.
    """

    count: Tensor
    total: Tensor

    def __init__(
        self, vq: VQModel, started: bool, decay: float = 0.98, alive: float = 0.05
    ) -> None:
        super().__init__()
        self.decay, self.alive, self.used = decay, alive, 0.0
        weight = vq.quantize.embedding.weight.requires_grad_(False)
        self.register_buffer("count", torch.full((len(weight),), float(started)))
        self.register_buffer("total", weight.detach() * float(started))

    @torch.no_grad()
    def update(self, vq: VQModel, z: Tensor, rng: np.random.Generator) -> Tensor:
        """Assign latents `[B, C, h, w]` to codes `[B, h, w]` and move the codes."""
        flat = z.movedim(1, -1).flatten(0, -2)  # [N, C]
        weight, count, total = vq.quantize.embedding.weight, self.count, self.total
        if not count.any():
            weight.copy_(k_means(flat, len(weight), rng))
            count.fill_(1.0)
            total.copy_(weight)
        ids = vq.quantize.nearest(z)
        index = ids.flatten()
        hits = torch.zeros_like(count).index_add_(0, index, torch.ones_like(flat[:, 0]))
        sums = torch.zeros_like(total).index_add_(0, index, flat)
        count.lerp_(hits, 1 - self.decay)
        total.lerp_(sums, 1 - self.decay)
        dead = (count < self.alive).nonzero().flatten()
        if len(dead):
            fresh = flat[torch.from_numpy(rng.integers(0, len(flat), len(dead))).to(flat.device)]
            total[dead], count[dead] = fresh, 1.0
        weight.copy_(F.normalize(total / count[:, None], dim=-1))
        self.used = float((hits > 0).float().mean())
        return ids


def k_means(points: Tensor, k: int, rng: np.random.Generator, rounds: int = 10) -> Tensor:
    """`k` centres `[k, C]` on the unit sphere by Lloyd's algorithm on `points [N, C]`."""
    pick = torch.from_numpy(rng.choice(len(points), k, replace=len(points) < k))
    centres = points[pick.to(points.device)]
    for _ in range(rounds):
        ids = (points @ centres.T).argmax(-1)
        sums = torch.zeros_like(centres).index_add_(0, ids, points)
        empty = sums.norm(dim=-1, keepdim=True) < 1e-6
        centres = F.normalize(torch.where(empty, centres, sums), dim=-1)
    return centres


def edge_loss(out: Tensor, pixels: Tensor) -> Tensor:
    """Absolute error of the differences between neighbours, along both axes of a picture."""
    across, down = (F.l1_loss(out.diff(dim=d), pixels.diff(dim=d)) for d in (-1, -2))
    return across + down


def recognised(out: Tensor, pixels: Tensor) -> float:
    """The share of pictures in which a detector sees the same things as in the originals.

    Things are objects with their shape and colour. Both are pictures `[B, 3, h, w]` in [-1, 1]. A
    model of tokens draws no more prompts right than its tokenizer gives back.
    """
    both = (x.add(1).mul(127.5).round().byte().movedim(1, -1).cpu().numpy() for x in (out, pixels))
    seen = [[Counter((d.shape, d.color) for d in detect(x)) for x in pictures] for pictures in both]
    return sum(a == b for a, b in zip(*seen, strict=True)) / len(out)


def psnr(mse: Tensor) -> float:
    """Peak signal-to-noise ratio in dB for pixels in [-1, 1]."""
    return float(10 * torch.log10(4 / mse.detach()))
