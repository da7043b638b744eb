"""EAGLE: a head over the target's hidden states drafts (Li et al. 2024, section 4)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..engine.accept.chain import pick
from ..engine.coins import RoundCoins
from ..engine.types import Context, Draft, Drafter, Scores, Verdict
from ..models.eagle import EagleDecoder
from ..models.guided import GuidedDecoder
from .model import catch_up


class EagleModel(GuidedDecoder):
    """An EAGLE head as the draft model of chains and trees, under the target's guidance.

    Its input at a token is the token and the hidden state that predicted it. For committed tokens
    that is the target's, which `observe` is told: before every draft the head reads again, with
    the target's hidden states, what it drafted on its own. For drafted ones it is the head's own
    output at the node above. So a draft depends on committed tokens and its own draws alone.

    A round's first call ends with the last committed token. From there a chain grows token by
    token; a tree grows with every call, and only its new nodes are read: the first ones are always
    those of the calls before.

    Args:
        head: the network.
        target: what it drafts for; from now on its calls leave their hidden states behind.

    Attributes:
        context: where the rows stand; None outside a generation: then no hidden state is known.
    """

    watched = True
    decoder: EagleDecoder

    def __init__(self, head: EagleDecoder, target: GuidedDecoder) -> None:
        super().__init__(head, head.of_inputs(target.made_of[0]), *target.made_of[1:])
        target.watched = True
        self.target = target
        self.context: Context | None = None
        self._features = torch.zeros(0)  # [R, slots, D]: hidden states in front of every slot
        self._lengths = torch.zeros(0)  # [B], committed tokens up to the last observation
        self._settled: list[int] = []  # per row, positions before it stand on the target's states
        self._own = torch.zeros(0)  # [R, 1 + N, D]: the head's states behind root and nodes
        self._drafted = torch.zeros(0)  # [B, 1 + N, V]: the laws there

    def start(self, rows: int) -> None:
        """Read the prefix; the target has just read it."""
        copies = 1 if self.scale is None else 2
        self._features = self.prefix.new_zeros(copies * rows, self.slots, self.decoder.dim)
        self._own = self._features[:, :1]
        self._settled = [-1] * rows
        if self.context is not None:
            self._lengths = self.context.lengths
            if self.offset > 1:
                assert self.target.hidden is not None, "the target starts first"
                real = self.keys[: self.offset - 1] >= self.pads[:, None]
                # what is padding in this batch may not be there in another
                self._features[:, 1 : self.offset] = self.target.hidden * real[..., None]
        super().start(rows)

    def _prefilled(self, length: int) -> Tensor:
        features = self.decoder.of_features(self._features[:, :length])
        return super()._prefilled(length) + features

    def extend(
        self,
        tokens: Tensor,
        start: list[int],
        draft: Draft | None = None,
        use: Sequence[Sequence[int]] | None = None,
    ) -> Tensor:
        """Laws `[B, n, V]` after each of `tokens [B, n]`, see the class; all layers run."""
        if draft is not None and draft.nodes:
            return self._grow(tokens, start, draft)
        if self.context is not None and start[0] < self.context.base[0]:
            return self._read(self.context, tokens.shape[1], start)
        # a chain's next token
        x = self._embedded(tokens, None) + self.decoder.of_features(self._own[:, -1:])
        self._own = self._forward(x, start)
        return self._laws(self._own)

    def _read(self, context: Context, n: int, start: list[int]) -> Tensor:
        """Read committed tokens, and those before them that have not been read as such yet."""
        known = [min(k, s) for k, s in zip(self._settled, start, strict=True)]
        tokens, first = catch_up(context, known)
        condition = torch.zeros_like(tokens, dtype=torch.bool)
        condition[:, 0] = torch.tensor([f < 0 for f in first], device=tokens.device)
        width = tokens.shape[1]
        begin = torch.tensor(first, device=tokens.device)[:, None]
        slots = self._of_all_rows(begin + self.offset + self.keys[:width])
        x = self._embedded(tokens, condition)
        x = x + self.decoder.of_features(pick(self._features, slots))
        hidden = self._forward(x, first)
        # rows that lack less than others read again, or a little past their end
        end = torch.tensor(context.base, device=tokens.device)[:, None] - 1
        self._own = pick(hidden, self._of_all_rows(end - begin))
        self._settled = list(context.base)
        asked = torch.tensor(start, device=tokens.device)[:, None]
        if n < width:
            columns = asked - begin + self.keys[:n]
            hidden = pick(hidden, self._of_all_rows(columns))
        laws = self._laws(hidden)
        self._drafted = pick(laws, end - asked)
        return laws

    def _grow(self, tokens: Tensor, start: list[int], draft: Draft) -> Tensor:
        """Read the nodes that a tree has gained."""
        assert draft.parents is not None
        known = self._own.shape[1] - 1
        above = pick(self._own, self._of_all_rows(draft.parents[:, known:] + 1))
        x = self._embedded(tokens[:, 1 + known :], None) + self.decoder.of_features(above)
        hidden = self._forward(x, start, draft)
        self._own = torch.cat([self._own, hidden], dim=1)
        self._drafted = torch.cat([self._drafted, self._laws(hidden)], dim=1)
        return self._drafted

    def _of_all_rows(self, index: Tensor) -> Tensor:
        """`[B, n]` of samples to `[R, n]` of rows."""
        return index.repeat(len(self.prefix) // len(index), 1)

    def observe(self, context: Context, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        """Take the target's hidden states in front of the tokens that have joined the output."""
        if scores.hidden is None:
            raise ValueError("EAGLE's head reads the target's hidden states, and it gives none")
        kept = verdict.path
        if kept is None:
            kept = self.keys[: draft.nodes].expand(context.rows, -1)
        # behind the last committed token, and behind every node that was kept: what lies behind
        # one that was not is overwritten before it is read
        index = F.pad(kept + 1, (1, 0))
        slots = self._lengths[:, None] + self.offset + self.keys[: index.shape[1]]
        rows = torch.arange(len(self.prefix), device=index.device)[:, None]
        states = pick(scores.hidden, self._of_all_rows(index))
        self._features[rows, self._of_all_rows(slots)] = states
        self._lengths = context.lengths


class EagleDrafter:
    """Another drafter at work with an EAGLE head: shows the head what the target's states were.

    Args:
        model: the head.
        drafter: of chains, fixed trees or dynamic trees, with `model` for its draft model.
    """

    def __init__(self, model: EagleModel, drafter: Drafter) -> None:
        self.model, self.drafter = model, drafter

    def start(self, context: Context) -> None:
        self.model.context = context
        self.drafter.start(context)

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        return self.drafter.propose(context, budget, coins)

    def observe(self, context: Context, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        self.model.observe(context, draft, scores, verdict)
        self.drafter.observe(context, draft, scores, verdict)
