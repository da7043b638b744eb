"""Recipe of DFlash's head over a target of pictures: laws of blocks, from the target's features.

At best a masked cell's law is the mean of the target's there, over what may stand in front of it in
the block. The target's law behind the scene's own tokens is one of these, and the cross-entropy to
them is least at their mean. Beside it stands `−log Σ min(p, q)`, of what is accepted. Both laws are
taken after guidance and at the temperature of decoding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import InputError
from ...models.heads.formats.new import spread
from ...models.llamagen.dflash_head import DFlashHead, known_above
from ..heads.head_losses import denoised
from ..heads.objectives import Places, acceptance, cross_entropy, log_acceptance, objective_of
from ..settings import settings_of
from ..trainer import Draw, Loss, TrainConfig
from .distillation_data import TaughtRecipe, TeacherLaws, recent_batch

POOL = 60  # batches whose hidden states and laws are kept, the newest ones
USES = 10  # steps for one new batch: heads learn few pictures by heart very soon
STARTS = 12  # blocks of each scene in a step
DECAY = 0.9  # weight of a place over the one in front: it counts only where that one stands
SIZES = {"block": 16, "layers": 2, "joined": 3, "reach": 1}  # settings


@dataclass
class BlockExample(TeacherLaws):
    """A batch of scenes and what the target says of it.

    Attributes:
        last: the target's inputs `[2B, 1 + S, D]` at the prefix's last column and at all tokens.
        states: hidden states `[2B, T − 1 + S, A · D]` behind the prefix and all tokens but the
            last, unconditional rows behind the others.
        real: which of these are of no padding `[2B, T − 1 + S]`.
    """

    last: Tensor
    states: Tensor
    real: Tensor


class DFlashRecipe(TaughtRecipe):
    """Trains `dflash` on the target of a pipeline folder.

    Args:
        config, pipeline, guidance_scale, top_k, rate, init, temperature: see `TaughtRecipe`.
        objective: the loss on laws, one of `OBJECTIVES`; None: see the module.
        settings: as text: `block`, `layers`, `joined` hidden states of the target, and `reach`, see
            `DFlashHead`.

    Raises:
        InputError: a setting is unknown or none of its values, or the objective is unknown.
    """

    name = "dflash"

    def __init__(
        self,
        config: TrainConfig,
        pipeline: Path,
        guidance_scale: float = 2.0,
        top_k: int = 100,
        rate: float = 3e-3,
        init: str | None = None,
        temperature: float = 1.0,
        objective: str | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.sizes = settings_of(settings or {}, SIZES, "dflash")
        for size in ("block", "layers", "joined"):
            if not self.sizes[size]:
                raise InputError(f"{size} of dflash must be 1 or more, not 0")
        self.objective = None if objective is None else objective_of(objective)
        super().__init__(config, pipeline, guidance_scale, top_k, rate, init, temperature)

    @property
    def draw(self) -> Draw:
        return partial(recent_batch, POOL, USES)

    def new_model(self) -> DFlashHead:
        target, sizes = self.teacher.config, self.sizes
        width = self.teacher.layers[0].get_parameter("feed_forward.w1.weight").shape[0]
        reads = tuple(sorted({*spread(sizes["joined"], len(self.teacher.layers))}))
        head: DFlashHead = DFlashHead(
            target.dim,
            target.n_head,
            target.n_kv_head,
            width,
            sizes["layers"],
            sizes["block"],
            reads,
            sizes["reach"],
            target.norm_eps,
            target.rope_base,
        )
        head.init_weights()
        return head

    def loss(self, batch: int, rng: np.random.Generator, step: int) -> Loss:
        if batch not in self._examples:
            device = torch.device(self.config.device).type
            with torch.autocast(device, enabled=False):  # the target speaks as it does in decoding
                self._examples[batch] = self.example(*self.scenes(batch))
            self._examples.pop(batch - POOL, None)
        example = self._examples[batch]
        shape = len(example.tokens), STARTS
        first = torch.from_numpy(rng.integers(0, example.tokens.shape[1], shape))
        logits, inside = self.lesson(self.model, example, first.to(example.tokens.device))
        total, weights, metrics = logits.new_zeros(()), 0.0, {}
        for n in range(logits.shape[2]):
            if not inside[:, :, n].any():
                break
            places = self.places(example, logits, first, inside, n)
            weight = DECAY**n
            loss = (
                cross_entropy(places) + log_acceptance(places)
                if self.objective is None
                else self.objective(places)
            )
            total, weights = total + weight * loss.mean(), weights + weight
            metrics[f"acceptance_{n + 1}"] = float(acceptance(places).detach().mean())
        return total / weights, metrics

    def places(
        self, example: BlockExample, logits: Tensor, first: Tensor, inside: Tensor, n: int
    ) -> Places:
        """The n-th cells of blocks, those that lie `inside [B, A, K]` the picture.

        Args:
            logits, first: see `lesson`.
        """
        picked = inside[:, :, n]
        own = logits[:, :, n][picked] / self.warp.temperature
        rows = picked.nonzero()[:, 0]
        cells = first.to(rows.device)[picked] + n
        ids, probs = example.ids[rows, cells].long(), example.probs[rows, cells].to(own)
        law = torch.zeros_like(own).scatter_(-1, ids, probs)
        said = example.tokens[rows, cells]
        return Places(own, own, own, law, said, rows * example.tokens.shape[1] + cells)

    def lesson(self, head: Any, example: BlockExample, first: Tensor) -> tuple[Tensor, Tensor]:
        """Guided logits `[B, A, K, V]` of blocks, and which of their cells are in the picture.

        Args:
            first: the blocks' first cells `[B, A]`; what is in front of each is committed.
        """
        tokens, teacher, device = example.tokens, self.teacher, first.device
        width, cells, rows = teacher.prefix_length, tokens.shape[1], len(tokens)
        index, known = known_above(first, head.most, teacher.grid, head.config.reach)
        index = index.clamp_max(cells - 1)
        above = teacher.tok_embeddings(tokens.gather(1, index.flatten(1)).view_as(index))
        both = first.repeat(2, 1)
        begun = example.last[torch.arange(2 * rows, device=device)[:, None], both]
        told = above.repeat(2, 1, 1, 1, 1), known.repeat(2, 1, 1, 1)
        blocks = head.blocks(begun, *told)  # [2B, A, 1 + K, D]
        cos, sin = head.turns(width, teacher.grid)
        steps = torch.arange(blocks.shape[2], device=device)
        at = (width - 1 + both[..., None] + steps).clamp_max(width + cells - 1).flatten(1)
        columns = torch.arange(example.real.shape[1], device=device)
        turns = cos[:, columns], sin[:, columns]
        context = head.network.context(head.fuse(example.states.float()), turns)
        seen = (columns < width - 1 + both[..., None]) & example.real[:, None]
        hidden = denoised(head.network, blocks, (cos[0, at], sin[0, at]), context, seen)
        logits = self.guided(teacher.output(hidden * teacher.norm.weight))
        return logits, first[..., None] + steps[1:] - 1 < cells

    @torch.no_grad()
    def example(self, captions: list[str], pixels: Tensor) -> BlockExample:
        """States and laws of the target for scenes with `captions` and `pixels [B, 3, H, W]`."""
        tokens = self.vq.encode(pixels.to(self.config.device))
        features, mask = self.encode(captions)
        model = self.started(features, mask, tokens.shape[1], tuple(self.model.config.reads))
        before, (behind, laws) = model.hidden, self.read(model, tokens)
        prefix, both = self.condition(self.teacher, features, mask)
        blank = prefix.shape[1] - model.offset  # columns that are padding in every row
        states = behind
        if before is not None:
            states = torch.cat([F.pad(before.half(), (0, 0, blank, 0)), behind], dim=1)
        real = F.pad(both[:, :-1], (0, tokens.shape[1]), value=True)
        embedded = self.teacher.tok_embeddings(tokens).repeat(2, 1, 1)
        last = torch.cat([prefix[:, -1:], embedded], dim=1)
        probs, ids = laws.topk(self.kept, dim=-1)
        return BlockExample(tokens, probs.half(), ids.short(), last, states, real)

    @cached_property
    def held_out_example(self) -> BlockExample:
        """States and laws at scenes of an evaluation."""
        return self.example(*self.held_out_scenes())

    @torch.no_grad()
    def evaluate(self, model: Any) -> dict[str, float]:
        example, cells = self.held_out_example, self.held_out_example.tokens.shape[1]
        size, rng = min(int(model.most), cells), self.held_out_rng()
        first = torch.from_numpy(rng.integers(0, cells - size + 1, (len(example.tokens), STARTS)))
        logits, inside = self.lesson(model, example, first.to(example.tokens.device))
        found = [
            float(acceptance(self.places(example, logits, first, inside, n)).mean())
            for n in range(size)
        ]
        named = {f"held_out_acceptance_at_{n}": found[n - 1] for n in (1, 2, 4, 8, 16) if n <= size}
        return {**named, "target_entropy": example.entropy}

    def card(self, record: dict[str, Any]) -> dict[str, str]:
        return dict(
            title="DFlash head of the shapes world's transformer",
            purpose=f"drafts {self.model.most} image tokens in a call from the embedded target's "
            "hidden states, with the target's own embeddings and output layer",
            limits=f"distilled at guidance {self.scale:g}, top-k {self.warp.top_k} and temperature "
            f"{self.warp.temperature:g}: elsewhere it is accepted less often; it reads this "
            "target's hidden states and no other's; cells of a block don't know of each other",
            data=f"{-(-record['step'] // USES) * record['config']['batch_size']:,} scenes of the "
            f"procedural shapes world, each about {USES} times",
        )
