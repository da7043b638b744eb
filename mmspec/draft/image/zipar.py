"""ZipAR: rows of the picture are drawn side by side, and nobody verifies (He et al. 2024)."""

from __future__ import annotations

import torch

from ...engine.accept.chain import pick
from ...engine.coins import RoundCoins
from ...engine.draft import Context, Draft
from ...engine.laws import Opaque
from ...models.guided import GuidedDecoder
from ...models.token_grid import TokenGrid
from ..sound_laws import check_target
from .whole_picture import WholePictureDrafter


class ZipArDrafter(WholePictureDrafter):
    """Draws the whole picture with the target: a row starts when the one above is `window` ahead.

    A call draws the next token of every row under way. A token sees the tokens in front of it that
    are drawn. The first of a row follows the last one above; where that is still to come, the token
    that the layout forces there is known, or else a copy of the newest one above stands in. With a
    window of a whole row this is plain decoding.

    Args:
        model: the target.
        grid: the picture.
        window: tokens that a row is behind the one above it.
    """

    def __init__(self, model: GuidedDecoder, grid: TokenGrid, window: int) -> None:
        super().__init__()
        self.model, self.grid, self.window = model, grid, min(window, grid.stride)

    def start(self, context: Context) -> None:
        self.model.start(context.rows)

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        limit, stride, device = self.grid.length, self.grid.stride, context.tokens.device
        turn_of = torch.arange(limit) // stride * (self.window - stride) + torch.arange(limit)
        # tokens[:, n + 1] is place n; tokens[:, 0] stands for the prefix
        tokens = torch.zeros(context.rows, limit + 1, dtype=torch.long, device=device)
        known = torch.zeros(limit, dtype=torch.bool)
        drawn: list[int] = []
        calls = read = 0
        for turn in range(int(turn_of.max()) + 1):
            now = torch.nonzero(turn_of == turn).squeeze(1).tolist()
            for place in now:
                if place and not known[place - 1]:  # the end of the row above is still to come
                    newest = int(torch.nonzero(known[:place]).max())
                    fixed = int(self.grid.forced[place - 1])
                    tokens[:, place] = tokens[:, newest + 1] if fixed < 0 else fixed
            inputs = sorted({place - 1 for place in now} | set(drawn))
            readable = known.clone()
            readable[[place for place in inputs if place >= 0]] = True
            places = torch.tensor(inputs, device=device).expand(context.rows, -1)
            words, last = tokens.gather(1, places + 1), max(inputs)
            self.before_call()
            laws = self.model.extend_at(words, places, last, readable.to(device))  # [B, n, V]
            at = torch.tensor([inputs.index(place - 1) for place in now], device=device)
            positions = torch.tensor(now, device=device).expand(context.rows, -1)
            laws = pick(laws, at.expand(context.rows, -1))
            check_target(laws, positions)
            tokens[:, positions[0] + 1] = coins.draw(laws, positions)
            known[now], drawn = True, now
            calls, read = calls + 1, read + len(inputs)
        lengths = torch.tensor(budget, device=device)
        return Draft(tokens[:, 1:], lengths, Opaque(), calls=calls, read=read)
