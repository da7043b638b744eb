"""Recipe of the spatial heads: the target's guided laws, learnt from its own hidden states.

Heads are worth their acceptance, Σ min(p, q) = 1 − TV(p, q), so the loss is that of
`image_drafter`: the total variation beside the divergence that gets it started.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...models.llamagen.spatial_heads import SpatialHeads, guided_states, mean_state
from ..trainer import Draw, Loss
from .distillation_data import TaughtRecipe, TeacherLaws, distillation, recent_batch

HEADS = dict(cell_dim=192, hidden_dim=384, reach=2, left=2)
POOL = 60  # batches whose hidden states and laws are kept, the newest ones
USES = 10  # steps for one new batch: heads learn few pictures by heart very soon
WITH_STALE = 4  # one batch in so many has stale states: they cost another pass of the target
CHANGED = 0.35  # tokens that the target saw otherwise, in stale states
STALE = 0.5  # rows above of which stale states are shown: those of a window that has moved on
BLIND = 0.1  # rows above of which only the tokens are shown: those of a block's further rows
CUT = 0.1  # cells that are shown nothing on the right: those where a draft ends inside a row

Shown = Literal["fresh", "stale", "unseen"]
SHOWN: tuple[Shown, ...] = get_args(Shown)


@dataclass
class SpatialExample(TeacherLaws):
    """A batch of scenes and what the target makes of it.

    Attributes:
        hidden: in front of each of the tokens `[2B, S, D]`, unconditional rows last.
        stale: the same, when the target saw other tokens in some places; or once more as they are.
        summary: means of the prefix's states `[2B, 1, D]`.
    """

    hidden: Tensor
    stale: Tensor
    summary: Tensor


class ImageSpatialRecipe(TaughtRecipe):
    """Trains `SpatialHeads` on the frozen target of a pipeline folder; arguments as of its base."""

    name = "spatial"

    @property
    def draw(self) -> Draw:
        return partial(recent_batch, POOL, USES)

    def new_model(self) -> SpatialHeads:
        self.row = self.teacher.grid
        return SpatialHeads(dim=self.teacher.config.dim, **HEADS)

    def loss(self, batch: int, rng: np.random.Generator, step: int) -> Loss:
        if batch not in self._examples:
            device = torch.device(self.config.device).type
            with torch.autocast(device, enabled=False):  # the target speaks as it does in decoding
                example = self.example(*self.scenes(batch), batch % WITH_STALE == 0)
            self._examples[batch] = example
            self._examples.pop(batch - POOL, None)
        example = self._examples[batch]
        variation, divergence = distillation(self.logits(self.model, example, rng), example)
        return variation + divergence, {"acceptance": 1 - float(variation.detach())}

    @torch.no_grad()
    def example(
        self, captions: list[str], pixels: Tensor, with_stale: bool = True
    ) -> SpatialExample:
        """States and laws of the target for scenes with `captions` and `pixels [B, 3, H, W]`."""
        tokens = self.vq.encode(pixels.to(self.config.device))
        model = self.started(*self.encode(captions), tokens.shape[1])
        assert model.hidden is not None
        summary = mean_state(model.hidden, model.pads)
        hidden, laws = self.read(model, tokens)
        probs, ids = laws.topk(self.kept, dim=-1)
        stale = hidden
        if with_stale:
            chance = torch.Generator(tokens.device).manual_seed(int(tokens.sum()))
            drawn = probs.flatten(0, 1).multinomial(1, generator=chance).view_as(tokens)
            drawn = ids.gather(-1, drawn[..., None])[..., 0]
            change = torch.rand(tokens.shape, generator=chance, device=tokens.device) < CHANGED
            stale, _ = self.read(model, torch.where(change, drawn, tokens))
        return SpatialExample(tokens, probs.half(), ids.short(), hidden, stale, summary.half())

    def logits(
        self,
        heads: SpatialHeads,
        example: SpatialExample,
        rng: np.random.Generator | None = None,
        shown: Shown = "fresh",
    ) -> Tensor:
        """The heads' logits `[B, S, V]`, every token behind those that it really followed.

        Args:
            rng: says for every row above which of its states are shown, and hides cells now and
                then, as drafting does.
            shown: without `rng`, which states are.
        """
        tokens, device, reach = example.tokens, example.tokens.device, heads.config.reach
        grid = tokens.unflatten(1, (-1, self.row))  # [B, side, side]
        kind = torch.full(grid.shape[:2], SHOWN.index(shown))  # of the states of every row
        cut = torch.zeros(grid.shape, dtype=torch.bool)
        if rng is not None:
            kind = torch.from_numpy(rng.choice(3, kind.shape, p=(1 - STALE - BLIND, STALE, BLIND)))
            cut = torch.from_numpy(rng.random(cut.shape) < CUT)
        kind = kind.to(device)[..., None, None]
        fresh, stale = (
            guided_states(hidden.float(), self.scale).unflatten(1, (-1, self.row))
            for hidden in (example.hidden, example.stale)
        )
        states = torch.where(kind == 2, heads.unseen, torch.where(kind == 1, stale, fresh))
        features = heads.features(states, F.embedding(grid, self.decoder.embeddings))
        # row r reads row r − 1: cells beyond an edge on all sides but the last row, which none read
        outside = heads.outside.expand(len(grid), -1)
        line = outside[:, None, None].expand(-1, 1, self.row, -1)
        column = outside[:, None, None].expand(-1, self.row, reach, -1)
        features = torch.cat([line, features[:, :-1]], dim=1)
        features = torch.cat([column, features, column], dim=2)
        slots = [features[:, :, i : i + self.row] for i in range(heads.above)]
        for i in range(reach + 1, heads.above):
            slots[i] = torch.where(cut.to(device)[..., None], heads.outside, slots[i])
        above = torch.stack(slots, dim=3).flatten(1, 2)  # [B, S, 2 reach + 1, F]
        summary = heads.summary(guided_states(example.summary.float(), self.scale)[:, 0])
        below, skip = heads.look_below(above, summary)
        out = skip + heads.look_right(below, self._left(heads, grid))
        return F.linear(out, self.output).float()

    def _left(self, heads: SpatialHeads, grid: Tensor) -> Tensor:
        """Combine what the tokens on the left in a grid say, `[B, S, H]`."""
        total: Tensor | float = 0.0
        for k in range(heads.config.left):
            shifted = F.pad(grid, (k + 1, 0), value=len(self.decoder.embeddings))[..., : self.row]
            total = total + F.embedding(shifted, heads.table(k, self.decoder.embeddings))
        assert isinstance(total, Tensor)
        return total.flatten(1, 2)

    @property
    def output(self) -> Tensor:
        """The target's output layer `[V, D]`, with its norm's weight."""
        weight: Tensor = self.teacher.output.weight * self.teacher.norm.weight
        return weight.detach()

    @cached_property
    def held_out_example(self) -> SpatialExample:
        """States and laws at scenes of an evaluation."""
        return self.example(*self.held_out_scenes())

    @torch.no_grad()
    def evaluate(self, model: Any) -> dict[str, float]:
        example = self.held_out_example
        fresh, stale, unseen = (
            self.acceptance(self.logits(model, example, None, shown), example).mean(0)
            for shown in SHOWN
        )
        return {
            "held_out_acceptance": float(fresh[self.row :].mean()),
            "held_out_acceptance_first_row": float(fresh[: self.row].mean()),
            "held_out_acceptance_stale_states": float(stale[self.row :].mean()),
            "held_out_acceptance_unseen_states": float(unseen[self.row :].mean()),
            "target_entropy": example.entropy,
        }

    def card(self, record: dict[str, Any]) -> dict[str, str]:
        return dict(
            title="Spatial drafting heads of the shapes world",
            purpose=f"drafts {self.row}×{self.row} image tokens row by row from its target's "
            "hidden states",
            limits="distilled at guidance 2 and top-k 100: elsewhere it is accepted less often; it "
            "reads this target's hidden states and no other's",
            data=f"{-(-record['step'] // USES) * record['config']['batch_size']:,} scenes of the "
            f"procedural shapes world, each about {USES} times",
        )
