"""Recipe of the row drafter: a masked transformer that fills a block of picture tokens in a call.

The tokens in front of a random place are known and read each other in their order; those of a block
behind it are masked and read everything, each other as well, as in MaskGIT (Chang et al. 2022). The
best that a place can say is the mean of the target's laws there, over what stands in front of it in
the block. The target's law behind the scene's own tokens is one of these, and the cross-entropy to
them is least at their mean. The total variation stands beside it, as in `image_drafter`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...models.llamagen.transformer import LlamaGenTransformer
from ..trainer import Loss
from .distillation_data import DistillationExample, TeacherLaws, distillation
from .drafter import DRAFTER, SmallerTransformerRecipe

BLOCK = 16  # masked places of a call at most: a row of the embedded target's pictures
STARTS = 4  # of each scene that an evaluation tries


class ImageRowDrafterRecipe(SmallerTransformerRecipe):
    """Trains `row_drafter` for the target of a folder; arguments as of `DistillationRecipe`."""

    name = "row_drafter"

    def new_model(self) -> LlamaGenTransformer:
        config = self.teacher.config
        names = ("vocab_size", "block_size", "cls_token_num", "caption_dim")
        same = {name: config[name] for name in names}
        student: LlamaGenTransformer = LlamaGenTransformer(
            **{**DRAFTER, **same, "mask_token_id": config.vocab_size}
        )
        student.init_weights()
        return student

    def loss(self, batch: int, rng: np.random.Generator, step: int) -> Loss:
        example = self.example_number(batch)
        size = int(rng.integers(1, BLOCK + 1))  # a block is cut at a picture's end and by a user
        first = self._starts(example, size, rng)
        variation, divergence = self.distance(self.model, example, first, size)
        return variation + divergence, {"acceptance": 1 - float(variation.detach())}

    @staticmethod
    def _starts(example: DistillationExample, size: int, rng: np.random.Generator) -> Tensor:
        """Number of each row's first masked token `[B]`; the block ends inside the picture."""
        rows, cells = example.tokens.shape
        first = rng.integers(0, max(1, cells - size + 1), rows)
        return torch.from_numpy(first).to(example.tokens.device)

    def distance(
        self, model: Any, example: DistillationExample, first: Tensor, size: int
    ) -> tuple[Tensor, Tensor]:
        """Total variation and cross-entropy at a block of `size` places from `first [B]` on."""
        return distillation(*self.lesson(model, example, first, size))

    def lesson(
        self, model: Any, example: DistillationExample, first: Tensor, size: int
    ) -> tuple[Tensor, TeacherLaws]:
        """Guided logits `[B, K, V]` of a block's places, and the target's laws there."""
        size = min(size, example.tokens.shape[1])
        places = first[:, None] + torch.arange(size, device=first.device)  # [B, K]
        rows = torch.arange(len(places), device=first.device)[:, None]
        said = self.guided(self.denoised(model, example, first, size))
        laws = (example.tokens, example.probs, example.ids)
        return said[rows, places], TeacherLaws(*(law[rows, places] for law in laws))

    def denoised(
        self, model: Any, example: DistillationExample, first: Tensor, size: int
    ) -> Tensor:
        """Logits `[2B, S, V]` at every token of a picture, of which a block is masked.

        Args:
            first: number of each row's first masked token `[B]`.
            size: of the block; tokens behind it are hidden.
        """
        tokens, cells = example.tokens, example.tokens.shape[1]
        numbers = torch.arange(cells, device=tokens.device)
        place = numbers - first[:, None]  # in the block, below 0 in front of it
        tokens = tokens.masked_fill(place >= 0, model.config.mask_token_id)
        prefix, real = self.condition(model, example.features, example.mask)
        length, width = cells + prefix.shape[1], prefix.shape[1]
        columns = torch.arange(length, device=tokens.device)
        last = torch.where((place >= 0) & (place < size), first[:, None] + size - 1, numbers)
        reach = torch.cat([columns[:width].expand(len(last), -1), last + width], dim=1)
        seen = columns <= reach[..., None]
        seen = seen.repeat(2, 1, 1)
        seen[:, :, :width] &= real[:, None]
        seen |= columns[:, None] == columns  # so that the softmax of padding is defined
        mask = torch.zeros_like(seen, dtype=prefix.dtype).masked_fill_(~seen, -torch.inf)[:, None]
        h = torch.cat([prefix, model.tok_embeddings(tokens).repeat(2, 1, 1)], dim=1)
        rotary = model.rotary()[:length]
        for layer in model.layers:
            h = layer(h, rotary, mask)
        logits: Tensor = model.output(model.norm(h[:, width:]))
        return logits

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        example = self.example(*self.held_out_scenes())
        rng = self.held_out_rng()
        size = min(BLOCK, example.tokens.shape[1])
        found = []
        for _ in range(STARTS):
            logits, laws = self.lesson(model, example, self._starts(example, size, rng), size)
            found.append(self.acceptance(logits, laws))
        by_place = torch.stack(found).mean((0, 1))
        named = {
            f"held_out_acceptance_at_{n}": float(by_place[n - 1]) for n in (1, 4, 16) if n <= size
        }
        return {**named, "target_entropy": example.entropy}

    def card(self, record: dict[str, Any]) -> dict[str, str]:
        return dict(
            title="Masked row drafter of the shapes world",
            purpose=f"fills up to {BLOCK} masked image tokens of the embedded target in one call",
            limits="distilled at guidance 2 and top-k 100: elsewhere it is accepted less often; "
            "places of a block don't know of each other, so that later ones are accepted less",
            data=f"{self.pool * record['config']['batch_size']:,} scenes of the procedural shapes "
            "world, each many times",
        )
