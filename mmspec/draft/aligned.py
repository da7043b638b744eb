"""Trajectory alignment: drafter and target denoise with shared noises (Wang et al. 2024)."""

from __future__ import annotations

import torch

from ..engine.coins import RoundCoins
from ..engine.types import Context, Draft, Gaussian, Scores, Verdict
from ..models.denoising import Backbone, Denoiser, last_noisy_law


class AlignedDrafter:
    """A smaller model drafts whole tokens and brings the noises that the target shall use, too.

    They are new in every round, so that no rule has seen them before; only the noise of the last
    noisy step is the drafter's alone, and the law there is what a node was drawn from. With an
    empty budget it still brings the noise of the one token that the target draws: plain sampling.

    Args:
        denoiser, backbone: of the smaller model.
        size: numbers C in a token.
    """

    def __init__(self, denoiser: Denoiser, backbone: Backbone, size: int) -> None:
        self.denoiser, self.backbone, self.size = denoiser, backbone, size

    def start(self, context: Context) -> None:
        self.backbone.start(context.rows)

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        depth, shared = max(budget), self.denoiser.steps - 1
        lengths = torch.tensor(budget, device=context.lengths.device)
        # a token's noises are numbered together: they do not depend on how many others follow
        noise = coins.normal((depth + 1, shared + 1, self.size)).to(context.tokens)
        tokens = context.tokens[:, :0]
        means, stds = [tokens], [tokens]
        for n in range(depth):
            condition = self.backbone.conditions(context, tokens)[:, -1]
            mean, std = last_noisy_law(self.denoiser, noise[:, n, :-1], condition)
            tokens = torch.cat([tokens, (mean + std * noise[:, n, -1])[:, None]], dim=1)
            means.append(mean[:, None])
            stds.append(std[:, None])
        law = Gaussian(torch.cat(means, 1), torch.cat(stds, 1))
        return Draft(tokens, lengths, law, noise=noise[:, :, :-1])

    def observe(self, context: Context, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        """There is nothing to learn."""
