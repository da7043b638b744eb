"""Learning of judges of drafted tokens: what is left of drafts, the loss, what a threshold takes.

Bachmann et al. 2025 (Judge Decoding): a linear layer on the target's state of a token, learned by
weighted logistic regression, since few tokens are wrong. Garipov et al. 2025 (AutoJudge): labels
without annotators, and a threshold by recall.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..engine.accept.token import TokenRule
from ..engine.coins import RoundCoins
from ..engine.draft import Draft, Scores, Verdict
from ..engine.laws import Contract
from ..errors import InputError
from ..models.heads.judge import JudgeHead
from .labelled import places
from .settings import Bounded
from .trainer import Draw, Loss, TrainConfig

DRAFTED = 4  # tokens a round
LEFT = 0.5  # of the tokens that fall stay
RECALL = Bounded(0.9, 1.0)  # a setting
PENALTY = 0.03  # of the squared weights of standardized states

Labels = tuple[Tensor, Tensor, Tensor]
"""States `[M, D]`, whether the tokens are important `[M]`, and the target's probabilities `[M]`."""


@dataclass
class LeftTokens:
    """Drafted tokens that the token rule rejected, and that were left nonetheless.

    Attributes:
        rows, places: the sample of each, and how many tokens of the output stand in front `[M]`.
        states: the target's last hidden states once it has read them `[M, D]`.
        probs: the target's probabilities of them at temperature 1 `[M]`.
    """

    rows: Tensor
    places: Tensor
    states: Tensor
    probs: Tensor


@dataclass
class LenientRule:
    """The token rule, which by chance leaves the first token that falls where it is.

    Args:
        share: probability that a fallen token is left.
        generator: of that chance.
        logits: of the target's states, for probabilities at temperature 1; None: the laws that
            tokens are judged by are asked.
        ends: tokens that are never left: a text that ends says nothing false.
        within: places of the output at which tokens may be left `[B, L]`; None: all.
    """

    share: float
    generator: torch.Generator
    logits: Callable[[Tensor], Tensor] | None = None
    ends: Sequence[int] = ()
    within: Tensor | None = None
    contract: Contract = "lossy"
    noted: list[LeftTokens] = field(default_factory=list)
    _written: Tensor | None = None

    def verify(self, draft: Draft, scores: Scores, coins: RoundCoins) -> Verdict:
        """Judge chains."""
        verdict = TokenRule().verify(draft, scores, coins)
        written = torch.zeros_like(draft.lengths) if self._written is None else self._written
        self._written = written + verdict.counts
        if not draft.nodes:
            return verdict
        at = verdict.accepted.clamp_max(draft.nodes - 1)[:, None]
        token = draft.tokens.gather(1, at)
        chance = torch.rand(len(at), generator=self.generator) < self.share
        left = (verdict.accepted < draft.lengths) & chance.to(at.device)
        for end in self.ends:
            left &= token[:, 0] != end
        if self.within is not None:
            place = (written[:, None] + at).clamp_max(self.within.shape[1] - 1)
            left &= self.within.gather(1, place)[:, 0]
        last = torch.where(left[:, None], token, verdict.last)
        verdict.emitted.scatter_(1, verdict.accepted[:, None], last)
        verdict.last = last
        rows, (place,) = left.nonzero()[:, 0], at.T
        assert scores.hidden is not None
        before, states = (scores.hidden[rows, place[rows] + n] for n in (0, 1))
        laws = scores.probs[rows, place[rows]]
        if self.logits is not None:
            laws = self.logits(before).float().softmax(-1)
        probs = laws.gather(1, token[rows])[:, 0]
        self.noted.append(LeftTokens(rows, (written + place)[rows], states, probs))
        return verdict

    def left(self) -> LeftTokens:
        """The tokens that were left, in the order of rounds; some may lie behind a text's end."""
        names = ("rows", "places", "states", "probs")
        return LeftTokens(*(torch.cat([getattr(n, name) for n in self.noted]) for name in names))


class JudgeLearner:
    """Part of a recipe that learns a judge of labelled tokens, on their standardized states.

    Attributes:
        learned, unseen: labelled tokens to learn from, and held-out ones.
        settings: `recall`: the share of the important held-out tokens that the threshold refuses.
    """

    model: Any
    config: TrainConfig
    settings: dict[str, float]
    learned: tuple[Tensor, ...]
    unseen: tuple[Tensor, ...]
    draw: Draw

    def begin(self) -> None:
        """Make the judge, which knows nothing yet."""
        states = self.learned[0]
        self.standard = states.mean(0), states.std(0).clamp_min(1e-6)
        self.model = JudgeHead(states.shape[1])
        nn.init.zeros_(self.model.score.weight)
        self.draw = partial(places, self.config.batch_size)

    def loss(self, batch: Any, rng: np.random.Generator, step: int) -> Loss:
        states, labels, _ = self.learned
        chosen = (torch.as_tensor(batch) * len(labels)).long().to(labels.device)
        # both kinds weigh the same
        share = labels.float().mean()
        labels = labels[chosen]
        weights = torch.where(labels, 0.5 / share, 0.5 / (1 - share))
        mean, spread = self.standard
        logits = self.model.score((states[chosen] - mean) / spread)[:, 0]
        loss = F.binary_cross_entropy_with_logits(logits, (~labels).float(), weights)
        penalty = self.model.score.weight.square().sum() / 2
        return loss + PENALTY * penalty, {"wrong": float(share)}

    def folded(self, model: JudgeHead) -> JudgeHead:
        """The judge of states as they are, of one of standardized states."""
        out = copy.deepcopy(model)
        with torch.no_grad():
            mean, spread = self.standard
            out.score.weight.div_(spread)
            out.score.bias.sub_(out.score.weight @ mean)
        return out

    @torch.no_grad()
    def evaluate(self, model: Any) -> dict[str, float]:
        """Figures of the judge, and of the target's probabilities in its place."""
        states, labels, probs = self.unseen
        judged = self.folded(model)(states)
        threshold = float(judged[labels].quantile(self.settings["recall"]))
        return {
            "held_out_auc": roc_auc(judged, ~labels),
            "held_out_auc_of_probability": roc_auc(probs, ~labels),
            "held_out_tokens": float(len(labels)),
            "held_out_wrong": float(labels.float().mean()),
            "threshold": threshold,
            "held_out_taken_at_threshold": float((judged[~labels] > threshold).float().mean()),
        }

    def finished(
        self, model: nn.Module, record: dict[str, Any], fit: Mapping[str, Any]
    ) -> JudgeHead:
        """The judge that is saved, of a target with this `fit`; the record tells its tokens."""
        assert isinstance(model, JudgeHead)
        whole = self.folded(model)
        judge = JudgeHead(whole.config.hidden_size, record["held_out"]["threshold"], fit)
        judge.load_state_dict(whole.state_dict())
        record["config"] |= {**self.settings, "tokens": len(self.learned[1])}
        return judge


def check_kinds(labels: Tensor, of: str) -> None:
    """Raise an `InputError` unless there are labels `[M]` of both kinds, `of` some pictures."""
    if not 0 < int(labels.sum()) < len(labels):
        raise InputError(
            f"{of} gave {len(labels)} tokens to judge, {int(labels.sum())} of them wrong; some of "
            "both kinds are needed: raise pictures"
        )


def roc_auc(scores: Tensor, positive: Tensor) -> float:
    """Probability that a positive one of `scores [M]` is above a negative one, ties half."""
    one, other = scores[positive].double(), scores[~positive].double().sort().values
    below = torch.searchsorted(other, one) + torch.searchsorted(other, one, right=True)
    return float(below.double().mean() / (2 * len(other)))
