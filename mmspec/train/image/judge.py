"""Recipe of a judge of drafted image tokens over a frozen LlamaGen.

For what is learned see `judging`. Labels are found as AutoJudge finds them (Garipov et al. 2025):
a drafted token is put in the target's place, the target finishes, and whether the answer is still
right tells whether the token was important. One such test costs a picture, so that all tokens of a
block of the grid are tested at once, and the shapes world's detector says what is right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from ...draft.draft_model import ModelDrafter
from ...engine.coins import ProductionCoins
from ...engine.length.constant import ConstantLength
from ...engine.loop import run
from ...engine.protocols import Engine
from ...engine.stats import SpecStats
from ...errors import InputError
from ...models.guided import GuidedDecoder
from ...models.heads.fit import TargetFit
from ...models.llamagen.image_model import LlamaGenImageModel
from ...models.llamagen.transformer import LlamaGenTransformer
from ...models.setting import Setting
from ...models.target import TokenTarget
from ...worlds.shapes.detector import detect
from ...worlds.shapes.prompts import Prompt, prompt_list, sample_prompt
from ...worlds.shapes.scoring import score_prompt
from ...worlds.shapes.vocabulary import TASKS
from ..batches import MIX
from ..card import ship, write_card
from ..feature_cache import cache_folder
from ..judging import DRAFTED, LEFT, RECALL, JudgeLearner, Labels, LenientRule, check_kinds
from ..labelled import gathered
from ..settings import Bounded, Known, settings_of
from ..trainer import TrainConfig
from .distillation_data import TaughtRecipe

TOGETHER = 32  # pictures that are drawn at a time
HELD_OUT = 4  # pictures to learn from for one that is held out
AGAIN = 2**40  # added to the seeds of pictures that are drawn once more


@dataclass(frozen=True)
class Told:
    """Captions as both networks read them.

    Attributes:
        prompts: with what must be in the pictures.
        condition, mask: see `ImageModel.condition`, rows without a caption last.
    """

    prompts: Sequence[Prompt]
    condition: Tensor
    mask: Tensor

    def some(self, rows: Sequence[int]) -> Told:
        """The captions of some rows."""
        both = [*rows, *(len(self.prompts) + row for row in rows)]
        return Told([self.prompts[row] for row in rows], self.condition[both], self.mask[both])


class ImageJudgeRecipe(JudgeLearner, TaughtRecipe):
    """Trains `judge` on the transformer and the drafter of a pipeline folder.

    The two draw captions of the shapes world; in one block of each picture some tokens that the
    target rejects are left. They are harmless if the picture is right. They are important if it is
    wrong, is wrong again as the target draws anew what follows them, and is right as the target
    draws them, too. Of other pictures nothing is told: the target itself errs.

    Args:
        config: see `BaseRecipe`; a batch is of labelled tokens.
        pipeline: folder of the two; see `TaughtRecipe` for what else it holds.
        settings: as text: `pictures` to learn from; `block`, the side of a block in tokens; and
            `recall`: the share of the important tokens of held-out pictures that the threshold
            refuses.
        rate: learning rate.
        guidance_scale, top_k: with which pictures are drawn.

    Raises:
        InputError: there is no drafter, a setting is wrong, or the pictures gave no tokens of both
            kinds.
    """

    name, adamw = "judge", 0.0
    known: ClassVar[Known] = {
        "pictures": Bounded(2400, 2**20),
        "block": Bounded(4, 64),
        "recall": RECALL,
    }
    texts: ClassVar[dict[str, str]] = dict(
        title="Judge of drafted image tokens",
        purpose="says of an image token that the target has read and would not say whether the "
        "picture stays right",
        data="pictures that target and drafter draw for captions of the shapes world",
        held_out="captions that training never shows",
        limits="any other target, or this one trained further; what the detector does not see, "
        "such as texture: it asks for objects, counts, colours and places alone; labels are of "
        "blocks, so that a harmless token beside an important one counts as one",
    )

    def __init__(
        self,
        config: TrainConfig,
        pipeline: Path,
        settings: Mapping[str, str] | None = None,
        rate: float = 1e-2,
        guidance_scale: float = 2.0,
        top_k: int = 100,
    ) -> None:
        self.settings = settings_of(settings or {}, self.known, self.name)
        if not (pipeline / "drafter").is_dir():
            raise InputError(f"{pipeline} has no drafter, whose tokens a judge is to learn from")
        super().__init__(config, pipeline, guidance_scale, top_k, rate)

    def new_model(self) -> nn.Module:
        """The judge, once there are labelled tokens."""
        drafter = self.component(LlamaGenTransformer, "drafter")
        beside = self.vq, self.text_encoder, self.tokenizer
        self.families = [LlamaGenImageModel(n, *beside) for n in (self.teacher, drafter)]
        self.decoders = [family.decoder() for family in self.families]
        self.grid = self.families[0].grid(self.resolution, self.resolution)
        self.side = min(round(self.settings["block"]), self.grid.columns)
        made_by = ["transformer", "drafter", "vq_model", "text_encoder"]
        home = cache_folder(self.pipeline, "blocks", made_by)
        count = round(self.settings["pictures"])
        self.learned = self._gathered(home, "train", count)
        self.unseen = self._gathered(home, "held_out", max(1, count // HELD_OUT))
        self.begin()
        return self.model

    def _gathered(self, home: Path, split: str, count: int) -> tuple[Tensor, ...]:
        how = f"{self.side}-{self.scale:g}-{self.warp.top_k}"
        file = home / f"{split}-{count}-{self.config.seed}-{how}.pt"
        prompts = cache(partial(self.prompts, split, count))
        found = gathered(
            file, split, count, TOGETHER, lambda a, b: self.labelled(self.told(prompts()[a:b]), a)
        )
        check_kinds(found[1], f"{count} pictures ({split})")
        return tuple(part.to(self.config.device) for part in found)

    def prompts(self, split: str, count: int) -> list[Prompt]:
        """Captions, and what they ask for."""
        if split == "held_out":
            return prompt_list(math.ceil(count / len(TASKS)), seed=1)[:count]
        rng = np.random.default_rng([self.config.seed, 2])
        return [sample_prompt(rng, MIX[number % len(MIX)]) for number in range(count)]

    def told(self, prompts: Sequence[Prompt]) -> Told:
        captions = [prompt.prompt for prompt in prompts]
        return Told(prompts, *self.families[0].condition(captions, None, True, self.grid))

    def decoder_of(self, told: Told, number: int = 0) -> GuidedDecoder:
        """The target, or network 1, the drafter, for captions."""
        family, grid = self.families[number], self.grid
        prefix, sizes = family.embed(told.condition), (grid.length, grid.columns, 1 + DRAFTED)
        setting = Setting(prefix, told.mask, self.scale, self.warp, *sizes)
        return GuidedDecoder(self.decoders[number], setting)

    def labelled(self, told: Told, first: int) -> Labels:
        """Labelled tokens of pictures for captions, of which the first is number `first`."""
        rows, length = len(told.prompts), self.grid.length
        rng = np.random.default_rng([self.config.seed, 3, first])
        target, drafts = self.decoder_of(told), self.decoder_of(told, 1)
        target.watch()
        drafts.drafts = True
        chance = torch.Generator().manual_seed((self.config.seed * 2**20 + first) % 2**63)
        rule = LenientRule(LEFT, chance, within=self.blocks(rows, rng))
        seeds = [self.config.seed * 2**20 + first + row for row in range(rows)]
        coins, policy = ProductionCoins(seeds, self.config.device), ConstantLength(DRAFTED)
        engine = Engine(TokenTarget(target), ModelDrafter(drafts), rule, policy, coins)
        tokens = run(engine, rows, length, SpecStats(), device=self.config.device).tokens
        left = rule.left()
        places: dict[int, list[int]] = {}
        for row, place in zip(left.rows.tolist(), left.places.tolist(), strict=True):
            places.setdefault(row, []).append(place)
        right = self.right(told, tokens[:, :length])
        wrong = [row for row in places if not right[row]]
        ends = [max(places[row]) + 1 for row in wrong], [min(places[row]) for row in wrong]
        behind, instead = (self.redrawn(told, tokens, wrong, known, seeds) for known in ends)
        blamed = {
            row: not again and without
            for row, again, without in zip(wrong, behind, instead, strict=True)
        }
        label = {row: blamed.get(row, False) for row in places if right[row] or blamed[row]}
        chosen = [n for n, row in enumerate(left.rows.tolist()) if row in label]
        labels = [label[row] for row in left.rows[chosen].tolist()]
        return (
            left.states[chosen].float().cpu(),
            torch.tensor(labels, dtype=torch.bool),
            left.probs[chosen].float().cpu(),
        )

    def blocks(self, rows: int, rng: np.random.Generator) -> Tensor:
        """A block of every picture, drawn by chance: True at its tokens `[B, L]`."""
        grid, last = self.grid, max(1, self.grid.columns - self.side + 1)
        corners = torch.from_numpy(rng.integers(0, last, (2, rows, 1)))
        number = torch.arange(grid.length)
        offsets = torch.stack([number // grid.columns, number % grid.columns])[:, None] - corners
        inside = (offsets >= 0) & (offsets < self.side)
        return inside.all(0).to(self.config.device)

    def redrawn(
        self,
        told: Told,
        tokens: Tensor,
        rows: Sequence[int],
        known: Sequence[int],
        seeds: list[int],
    ) -> list[bool]:
        """Tell of some pictures whether they are right as the target draws them from a place on.

        Args:
            rows: of the pictures.
            known: tokens of each that stay.
            seeds: of all rows.
        """
        if not rows:
            return []
        some = told.some(rows)
        coins = ProductionCoins([seeds[row] + AGAIN for row in rows], self.config.device)
        out = self.finished_by(self.decoder_of(some), tokens[list(rows)], known, coins)
        return self.right(some, out)

    def finished_by(
        self, target: GuidedDecoder, tokens: Tensor, known: Sequence[int], coins: ProductionCoins
    ) -> Tensor:
        """Pictures `[b, L]` whose first `known` tokens are those of `tokens [b, ≥ L]`."""
        length, rows = self.grid.length, len(known)
        out, first = tokens[:, :length].clone(), min(*known, length)
        stays = torch.tensor(known, device=out.device)
        target.start(rows)
        read = torch.cat([out[:, :1], out[:, :first]], 1)  # the first input is the prompt's last
        law = target.extend(read, [-1] * rows)[:, -1]
        for place in range(first, length):
            drawn = coins.round(place)[1].draw(law)
            out[:, place] = torch.where(place < stays, out[:, place], drawn)
            if place + 1 < length:
                law = target.extend(out[:, place : place + 1], [place] * rows)[:, -1]
        return out

    def right(self, told: Told, tokens: Tensor) -> list[bool]:
        """Tell of every picture `[B, L]` whether the detector finds what its caption asks for."""
        pixels = self.families[0].pixels(self.grid.codes(tokens), self.grid)
        drawn = (pixels.permute(0, 2, 3, 1).cpu().numpy() * 255).round().astype(np.uint8)
        found = zip(told.prompts, drawn, strict=True)
        return [score_prompt(prompt.metadata(), detect(picture))[0] for prompt, picture in found]

    def export(self, model: nn.Module, record: dict[str, Any]) -> None:
        judge = self.finished(model, record, vars(TargetFit.of(self.teacher)))
        folder = ship(self.pipeline, self.name, judge, self.kind)
        write_card(folder, record=record, **self.card(record))
