"""Recipes of routers of steps: where the target's sentence would be better than the drafter's.

A model and its drafter describe pictures of the shapes world, and both write each sentence behind
what stands so far, sentences of both by lot. The world scores either (`score_step`): nobody has to
annotate texts, and no reward model is asked. `VlmAdvantageRecipe` learns the sign of Δ, the
target's score less the drafter's; `VlmRouterRecipe` the drafter's score by itself, which is what
reward-guided decoding asks. Both read the same states, so that what is asked makes the difference.

Source: Maheswaran et al. 2025, "Arbitrage: Efficient Reasoning via Advantage-Aware Speculation",
section 4: y = 1[Δ > 0] on balanced classes, models compared by Spearman's ρ of guess and Δ. Classes
are balanced there by leaving steps out, here by weights. Liao et al. 2025 is the rival.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...draft.steps import StepDrafter
from ...engine.accept.routing import RandomRoutingRule
from ...engine.coins import ProductionCoins
from ...engine.draft import Context, Draft
from ...engine.length.constant import ConstantLength
from ...engine.loop import run
from ...engine.protocols import Engine
from ...engine.stats import SpecStats
from ...errors import InputError
from ...files import atomic_folder
from ...models.heads.fit import TargetFit
from ...models.heads.step_router import StepRouter
from ...models.step_ends import StepEnds
from ...models.step_reward import Step, StepJudge
from ...models.step_target import OracleStepTarget
from ...worlds.shapes.exchanges import Picture, score_step
from ..card import write_card
from ..labelled import places
from ..routing import (
    RANKS,
    BestRanked,
    balanced_loss,
    gained_share,
    rank_correlation,
    wasted_share,
)
from ..settings import Bounded
from ..trainer import Loss, TrainConfig
from .pair import TOGETHER, Asked, VlmPairRecipe

STEP = 40  # tokens of a step at most
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of drafted steps that stand, in turn

Steps = tuple[Tensor, Tensor, Tensor]
"""States of drafted tokens `[M, STEP, D]` as halves, steps' lengths `[M]`, and scores `[M, 2]` of
the drafter's step and the target's."""


class _Noted:
    """Scores of steps, noted with the drafts that they are of, the target's first."""

    def __init__(self, score: StepJudge) -> None:
        self.score, self.seen = score, list[tuple[Draft, Tensor]]()

    def __call__(self, context: Context, draft: Draft) -> Tensor:
        scores = self.score(context, draft)
        self.seen.append((draft, scores))
        return scores

    def steps(self) -> Steps:
        """Steps that both wrote."""
        found = []
        for (_, target), (draft, own) in zip(self.seen[::2], self.seen[1::2], strict=True):
            rows = ~(own - target).isnan()
            assert draft.states is not None
            states = F.pad(draft.states, (0, 0, 0, STEP - draft.nodes)).half().cpu()
            lengths = draft.lengths.cpu()
            found.append((states[rows], lengths[rows], torch.stack([own, target], 1)[rows]))
        states, lengths, scores = (torch.cat(part) for part in zip(*found, strict=True))
        return states, lengths, scores


class VlmRouterRecipe(BestRanked, VlmPairRecipe):
    """Trains `router` on the model and the drafter of a pipeline folder: how good a draft is.

    Args:
        config: see `BaseRecipe`; a batch is of drafted steps.
        pipeline: folder of the two, in transformers' layout.
        settings: as text: `pictures` to learn from.
        rate: learning rate.

    Raises:
        InputError: there is no drafter, a setting is wrong, or no step of the pictures is worth
            asking for.
    """

    name, cache, adamw = "router", "steps", 0.01
    known: ClassVar = {"pictures": Bounded(800, 2**20)}
    texts: ClassVar[dict[str, str]] = dict(
        title="Router of steps",
        purpose="guesses how much of what a drafted sentence says is true",
        data="descriptions by target and drafter of pictures of the shapes world, drawn afresh",
        held_out="descriptions of pictures that training never shows",
        limits="any other drafter, or this one trained further; texts of another kind; what is "
        "left out of a description; its weights were chosen by the rank correlation told here, "
        "which is a little flattered by it",
    )

    def __init__(
        self,
        config: TrainConfig,
        pipeline: Path,
        settings: Mapping[str, str] | None = None,
        rate: float = 1e-3,
    ) -> None:
        super().__init__(config, pipeline, settings, rate)
        self.model = StepRouter(self.learned[0].shape[-1])
        self.draw = partial(places, config.batch_size)

    def check_labels(self, found: Sequence[Tensor], split: str, count: int) -> None:
        scores = found[2]
        better = int((scores[:, 1] > scores[:, 0]).sum())
        if not 0 < better < len(scores):
            raise InputError(
                f"{count} pictures ({split}) gave {len(scores)} steps, and the target does better "
                f"in {better} of them; some of both kinds are needed: raise pictures"
            )

    def described(self, asked: Asked, first: int) -> tuple[Tensor, ...]:
        """Steps of descriptions, greedy and at temperature 1 in turn."""
        numbers = [*range(first, first + len(asked.pictures))]
        warp = self.teacher.warp(numbers)
        target, _ = self.teacher.prompt(asked.shown, warp, 1 + STEP)
        drafts, _ = self.drafter.prompt(asked.shown, warp, 1 + STEP)
        drafts.drafts = True
        drafts.watch()
        ends = StepEnds(self.words, eos=self.teacher.ends)
        noted = _Noted(StepJudge(partial(_truth, asked.pictures), self.words, asked.shown.texts))
        coins = ProductionCoins(numbers, target.prefix.device)
        engine = Engine(
            OracleStepTarget(target, ends, STEP, noted, coins),
            StepDrafter(drafts, ends),
            RandomRoutingRule(SHARES[first // TOGETHER % len(SHARES)]),
            ConstantLength(STEP),
            coins,
            self.teacher.ends or None,
        )
        with self.teacher.decoder.repacked(), self.drafter.decoder.repacked():
            run(engine, len(numbers), target.limit, SpecStats(), device=coins.device)
        return noted.steps()

    def loss(self, batch: Any, rng: np.random.Generator, step: int) -> Loss:
        count, device = len(self.learned[1]), self.config.device
        chosen = (torch.as_tensor(batch) * count).long().to(device)
        states, lengths, scores = (of[chosen] for of in self.learned)
        return self.loss_of(self.model.logits(states.float(), lengths), *scores.float().unbind(1))

    def loss_of(self, logits: Tensor, drafted: Tensor, own: Tensor) -> Loss:
        """The loss of guesses `[n]` at steps of which the world gives both models' scores `[n]`."""
        loss = F.binary_cross_entropy_with_logits(logits, drafted)
        return loss, {"score": float(drafted.mean())}

    def asks(self, guess: Tensor) -> Tensor:
        """Numbers `[n]` that are the larger the more a guess speaks for asking the target."""
        return -guess

    @torch.no_grad()
    def evaluate(self, model: Any) -> dict[str, float]:
        """Rank correlation with the true Δ on held-out steps, and what asking by guesses wins.

        Shares are of asking for the half of the steps that guesses put first, for its gain over
        that of the best half, and for its steps in which the target was no better.
        """
        states, lengths, scores = self.unseen
        parts = zip(states.split(512), lengths.split(512), strict=True)
        asks = self.asks(torch.cat([model(part.float(), of) for part, of in parts]))
        gain = scores[:, 1] - scores[:, 0]
        asked, everywhere = asks > asks.median(), torch.ones_like(gain) > 0
        lot = torch.randperm(len(gain), generator=torch.Generator().manual_seed(0)).to(gain)
        figures = {
            RANKS: rank_correlation(asks, gain),
            "held_out_gained_share": gained_share(asks, gain),
            "held_out_gained_by_chance": gained_share(lot, gain),
            "held_out_wasted_share": wasted_share(asked, gain),
            "held_out_wasted_by_chance": wasted_share(everywhere, gain),
            "held_out_better": float((gain > 0).double().mean()),
            "held_out_steps": float(len(gain)),
        }
        return self.ranked(figures, model)

    def export(self, model: nn.Module, record: dict[str, Any]) -> None:
        self.take_best(model, record)
        fits = [vars(TargetFit.of(one)) for one in (self.target, self.drafter.model)]
        router = StepRouter(self.model.config.hidden_size, self.model.config.width)
        router.register_to_config(mmspec_target=fits[0], mmspec_drafter=fits[1])
        router.load_state_dict(model.state_dict())
        record["config"] |= self.settings | {"drafted_steps": len(self.learned[1])}
        folder = self.pipeline / self.name
        with atomic_folder(folder) as part:
            router.save_pretrained(part)
        write_card(folder, record=record, **self.card(record))


class VlmAdvantageRecipe(VlmRouterRecipe):
    """Trains `advantage_router` to say P(Δ > 0) of drafted steps; arguments as of `router`."""

    name = "advantage_router"
    texts: ClassVar = VlmRouterRecipe.texts | dict(
        title="Advantage router of steps",
        purpose="guesses whether more of what the target would say in place of a drafted sentence "
        "is true; its guess is no frequency, since both answers count alike in training",
    )

    def loss_of(self, logits: Tensor, drafted: Tensor, own: Tensor) -> Loss:
        better = own > drafted
        told = {"advantage": float((own - drafted).mean()), "better": float(better.float().mean())}
        return balanced_loss(logits, better), told

    def asks(self, guess: Tensor) -> Tensor:
        return guess


def _truth(pictures: Sequence[Picture], steps: Sequence[Step]) -> list[float]:
    """What the world says of steps of descriptions."""
    return [score_step(step.before, step.text, pictures[step.sample]) for step in steps]
