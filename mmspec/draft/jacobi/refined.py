"""A coupled window that a small model refines between the target's calls."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ...engine.accept.chain import pick, ratios
from ...engine.coins import RoundCoins
from ...engine.draft import Context, Draft, Scores, Verdict
from ...engine.laws import Categorical
from ...methods.parts.windows import JacobiInit
from ...models.token_model import TokenModel, catch_up
from ..shared_coins import InnerCoins
from ..sound_laws import faults, mended
from .coupled import settled
from .proactive import ProactiveDrafter

_FLOOR = 1e-4  # added to a drafter's probabilities before they are divided by each other


class RefinedJacobiDrafter(ProactiveDrafter):
    """A coupled window whose laws a small model corrects for the tokens that have changed.

    The target gave its law P at a place behind the tokens that stood in front of it then. Some of
    them have moved since, so its next law is another. The drafter reads the window as it was and as
    it is: its laws D there say how far a law moves with its context, and P · D_now / D_then, with a
    bounded ratio, foresees the target's. Where the target has given no law yet, the drafter's own
    is the guess. Each token moves on to the new law by the same coupling, and that changes what
    stands in front of others: so it goes on for a few refinements, a call of the drafter each, and
    one more reads what the target will read.

    The output is exact: a law follows from what was drawn in front of its place alone, and given
    that its token follows it, however often it moved on.

    Args:
        model: the drafter.
        vocab_size, init, row: see `JacobiDrafter`.
        refinements: in front of every call of the target.
        trust: bound of the ratio, and of its inverse.
        widths: candidates of the first positions, see `ProactiveDrafter`; none: the window alone.
    """

    carries = True  # what is drawn lives on from round to round, see `GuardedDrafter`
    _known: list[int]  # per row, places before this one are in the drafter's cache as committed

    def __init__(
        self,
        model: TokenModel,
        vocab_size: int,
        init: JacobiInit = "previous",
        row: int = 1,
        refinements: int = 2,
        trust: float = 8.0,
        widths: tuple[int, ...] = (),
    ) -> None:
        super().__init__(vocab_size, init, row, widths)
        self.model, self.refinements, self.trust = model, refinements, trust
        self._read: Tensor | None = None  # [B, 1 + W, V]: the drafter's laws at the last window

    def start(self, context: Context) -> None:
        super().start(context)
        self.model.start(context.rows)
        self._known, self._read = [-1] * context.rows, None

    def seat(self, context: Context, rows: list[int]) -> None:
        super().seat(context, rows)
        self.model.seat(context, rows)
        for row in rows:
            self._known[row] = -1

    def window(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        last = self._last
        shift = None if self._laws is None else self._shift
        window = super().window(context, budget, coins)
        if not window.nodes:
            self._read = None
            return window
        assert isinstance(window.law, Categorical)
        given = law = window.law.probs
        tokens, read = window.tokens, self._read
        foreseen = torch.zeros_like(tokens, dtype=torch.bool)
        good = ~foreseen
        if shift is not None and last is not None and read is not None:
            # where its places stood in the last window, and whether the target gave laws there
            index = shift[:, None] + self._places
            foreseen = index <= last.lengths[:, None]
            read = pick(read, index.clamp_max(read.shape[1] - 1))
        for number in range(self.refinements):
            now, told = (x[:, : window.nodes] for x in self._laws_at(context, tokens))
            after, good = now, good & told
            if read is not None:
                ratio = (now + _FLOOR) / (read + _FLOOR)
                corrected = given * ratio.clamp(1 / self.trust, self.trust)
                corrected = corrected / corrected.sum(-1, keepdim=True)
                after = torch.where(foreseen[..., None], corrected, now)
            own = InnerCoins(coins, 1 + number)
            stays = own.accept(ratios(after, law, tokens), window.lengths)
            tokens, law = settled(after, law, tokens, stays, own), after
        self._read = self._laws_at(context, tokens)[0]
        draft = Draft(tokens, window.lengths, Categorical(law))
        draft.faulty = faults(good, draft)
        return draft

    def _laws_at(self, context: Context, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The drafter's laws `[B, 1 + W, V]` at the window and behind it, and if they are any."""
        inputs, first = catch_up(context, self._known)
        (width, window), device = (inputs.shape[1], tokens.shape[1]), tokens.device
        # a row whose text is shorter than others catch up on has its window further in front
        own = [base - start for base, start in zip(context.base, first, strict=True)]
        behind = torch.tensor(own, device=device)[:, None]
        at = torch.arange(width + window, device=device) - behind
        window_tokens = tokens.gather(1, at.clamp(0, window - 1))
        read = torch.where(at < 0, F.pad(inputs, (0, window)), window_tokens)
        laws = self.model.extend(read, first)
        self._known = [base - 1 for base in context.base]
        return mended(pick(laws, behind - 1 + torch.arange(window + 1, device=device)))

    def observe(self, context: Context, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        super().observe(context, draft, scores, verdict)
        # what was accepted has been read as it stands, and the token behind it has not
        if draft.nodes:
            # candidates were not read
            accepted = [0] * context.rows if self.widths else context.accepted
            kept = zip(self._known, accepted, context.emitted, strict=True)
            self._known = [known + 1 + stood if new else known for known, stood, new in kept]
