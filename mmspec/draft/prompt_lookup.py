"""Prompt lookup: what followed the last words the time before (Saxena 2023; Fu et al. 2024)."""

from __future__ import annotations

import torch
from torch import Tensor

from ..engine.coins import RoundCoins
from ..engine.draft import Context, Draft
from ..engine.laws import OneHot
from ..engine.protocols import Drafter


class PromptLookupDrafter(Drafter):
    """Copies what follows the latest earlier place with the same last tokens; needs no model.

    What reaches the end of the text goes on from that place again: text that repeats itself is
    expected to go on so.

    Args:
        longest, shortest: lengths of the matching n-gram; the longest that is found counts.
        prompt: tokens `[N, P]` in front of every sample's output that may be copied from as well;
            -1 for padding, which is like no token.
    """

    def __init__(self, longest: int = 3, shortest: int = 1, prompt: Tensor | None = None) -> None:
        self.longest, self.shortest, self.prompt = longest, shortest, prompt

    def seat(self, context: Context, rows: list[int]) -> None:
        """Forget nothing: the text is all that there is."""

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        text, lengths = context.tokens, context.lengths
        if self.prompt is not None:
            prompt = context.of_samples(self.prompt)
            text = torch.cat([prompt, text], dim=1)
            lengths = lengths + prompt.shape[1]
        width, device = max(budget), text.device
        if not width:
            return Draft(context.tokens[:, :0], torch.zeros_like(lengths), OneHot())
        begin = self._match(text, lengths)  # [B]: where the copy starts, -1 for nowhere
        real = torch.where(begin < 0, 0, torch.tensor(budget, device=device))
        if len(text) == 1 and device.type == "cpu":  # a row alone is read with its filling
            width = int(real)
        start = begin.clamp_min(0)
        steps = torch.arange(width, device=device) % (lengths - start).clamp_min(1)[:, None]
        # what is no token, and filling, is drafted as token 0
        tokens = text.gather(1, start[:, None] + steps).clamp_min(0)
        return Draft(tokens, real, OneHot())

    def _match(self, text: Tensor, lengths: Tensor) -> Tensor:
        """Find where the latest earlier copy of each row's longest known suffix ends, `[B]`."""
        begin = torch.full_like(lengths, -1)
        ends = torch.arange(text.shape[1], device=text.device)
        # same[b, j]: the n tokens in front of place j are the row's last n
        same = (ends > 0) & (ends < lengths[:, None])
        for n in range(1, self.longest + 1):
            last = text.gather(1, (lengths - n).clamp_min(0)[:, None])
            back = torch.roll(text == last, n, dims=1) & (ends >= n) & (lengths >= n)[:, None]
            same = same & back
            if n >= self.shortest:
                found = torch.where(same, ends, -1).amax(1)
                begin = torch.where(found >= 0, found, begin)
        return begin
