"""Recipe of a video pipeline's advantage router: where the target would do better than a draft.

Clips are made as those of the router beside it (`VideoRouterRecipe`), but what is learned is the
sign of an advantage: the clip world's judge scores the drafter's block and the target's, each
behind what the clip has shown, and Δ is the target's score less the draft's. Where both fail, or
both do well, Δ is 0 and the target is not worth its time, however far apart the two blocks are.
The judge knows what a prompt of this world asks for; no reward of pictures has a say.

Source: Maheswaran et al. 2025, "Arbitrage: Efficient Reasoning via Advantage-Aware Speculation",
section 4: cross-entropy of y = 1[Δ > 0] on balanced classes, models compared by Spearman's ρ of
guess and Δ; the weights here are those of the evaluation whose ρ is highest. Classes are balanced
there by leaving pairs out, here by weights. Either way the guess is no frequency: it is that of a
world in which both classes are as frequent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ...models.wan.vae import to_bytes
from ...worlds.video_world.actor import View
from ...worlds.video_world.judge import judge_views
from ...worlds.video_world.prompts import ClipPrompt
from ..routing import (
    RANKS,
    BestRanked,
    balanced_loss,
    gained_share,
    rank_correlation,
    wasted_share,
)
from ..trainer import Loss
from .router import ROUTER, Drafts, VideoRouterRecipe


class VideoAdvantageRecipe(BestRanked, VideoRouterRecipe):
    """Trains a `FrameRouter` to say P(Δ > 0) of drafted blocks, see `AdvantageReward`.

    Args:
        config, rate, init: see `BaseRecipe`; a batch is of clips.
        pipeline: folder as of `VideoRouterRecipe`; it receives `advantage_router`.
    """

    name, cache = "advantage_router", "advantages"
    sizes: ClassVar = {**ROUTER, "unit": 1.0, "usual": 0.0}
    texts: ClassVar = dict(
        title="Advantage router of the clip world's block video",
        purpose="guesses where the target's next block would be better than the drafter's",
        limits="knows the drafts of one drafter for one target, and a judge that knows the clip "
        "world alone; its guess is no frequency, since both answers count alike in training; its "
        "weights were chosen by the rank correlation told here, which is a little flattered by it",
        data="blocks that both models make of clips of moving shapes, from the same noise, behind "
        "blocks of both, scored by the clip world's judge",
    )

    def drafts(self, prompts: Sequence[ClipPrompt], rng: np.random.Generator) -> Iterator[Drafts]:
        """The drafts of clips that both models make together, and each block's Δ `[B, 1]`."""
        shown: list[list[View]] = [[] for _ in prompts]
        for pairs in self.pairs([prompt.prompt for prompt in prompts], rng):
            drafted, own = (
                [
                    [View.of(frame) for frame in clip]
                    for clip in to_bytes(frames).movedim(2, -1).cpu().numpy()
                ]
                for frames in (pairs.drafted, pairs.own)
            )
            gains = []
            for prompt, past, *both in zip(prompts, shown, drafted, own, strict=True):
                draft, target = (judge_views([*past, *new], prompt).blocks[-1] for new in both)
                gains.append(round(float(target - draft), 6))  # rounding is no advantage
            yield self.drafted(pairs, torch.tensor(gains, device=pairs.own.device)[:, None])
            for past, stands, *both in zip(shown, pairs.stands.tolist(), drafted, own, strict=True):
                past += both[not stands]

    def loss_of(self, guesses: Sequence[Tensor], worth: Tensor) -> Loss:
        logits = torch.stack([guess.mean(1) for guess in guesses], dim=1)
        better = worth > 0
        told = {"advantage": float(worth.mean()), "better": float(better.double().mean())}
        return balanced_loss(logits.flatten(), better.flatten()), told

    @torch.no_grad()
    def evaluate(self, model: Any) -> dict[str, float]:
        """Rank correlation with the true Δ on held-out blocks, and what asking by guesses wins.

        The wasted share is of the blocks whose guess is above 0.5; that of random routing is the
        share of all blocks where Δ ≤ 0. First blocks are left out.
        """
        guess, gain = self.held_out(model, lambda frames: frames.mean(1))
        figures = {
            RANKS: rank_correlation(guess, gain),
            "held_out_wasted_share": wasted_share(guess > 0, gain),
            "held_out_wasted_by_chance": wasted_share(torch.ones_like(gain) > 0, gain),
            "held_out_gained_share": gained_share(guess, gain),
        }
        return self.ranked(figures, model)

    def export(self, model: Any, record: dict[str, Any]) -> None:
        """Add the weights that ranked best to the pipeline; the record has their figures."""
        self.take_best(model, record)
        super().export(model, record)
