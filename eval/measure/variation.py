"""Total variation of a rule: its distance from the target's law, enumerated on real rounds.

The figure is the total variation between the law of the token that comes next, as the shipped rule
emits it from a draft of one node, and the target's own law. The laws are those of rounds that took
place; nothing is sampled. Of an exact rule it is 0 up to rounding.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...engine.coins import RoundCoins
from ...engine.draft import Context, Draft, Scores, Verdict
from ...engine.laws import Categorical, Contract, OneHot, WithoutReplacement
from ...engine.proof.enumeration import EnumeratingCoins, enumerate_law
from ...engine.protocols import AcceptanceRule, Engine
from ...methods import SpecConfig
from ...pipelines.image.token_pipeline import TokenImagePipeline
from ..run.job import Job

ROUNDS = 8  # rounds measured, spread over a generation
EVERY = 7  # rounds between two of them
_AT_ONCE = 2**18  # probabilities of as many rows as a cache holds


@dataclass
class Step:
    """A node of a draft, the first or any that is judged by itself, and what the target says of it.

    Attributes:
        law: what the node was drawn from `[V]`; a one-hot row if it was chosen.
        target: the target's law there `[V]`.
        states: the target's behind each token in the node's place `[V, D]`; None: the rule reads
            none.
        early: the law of an early layer of the target there `[V]`; None: the rule reads none.
    """

    law: Tensor
    target: Tensor
    states: Tensor | None = None
    early: Tensor | None = None


@dataclass
class WatchedRule:
    """A rule that notes the laws it is shown, and judges as ever."""

    rule: AcceptanceRule
    steps: list[Step] = field(default_factory=list)
    rounds: int = 0
    states: tuple[Tensor, Tensor] | None = None  # tokens `[K]`, and those behind them `[K, D]`

    contract: Contract = "exact"
    local: bool = False

    def __post_init__(self) -> None:
        self.contract, self.local = self.rule.contract, getattr(self.rule, "local", False)

    def verify(self, draft: Draft, scores: Scores, coins: RoundCoins) -> Verdict:
        """The rule's own verdict."""
        if draft.nodes and scores.calls:
            # a local rule judges every node by itself, and has few rounds
            for node in range(0, draft.nodes, EVERY) if self.local else (0,):
                if self.due:
                    self._note(draft, scores, node)
        self.rounds += 1
        return self.rule.verify(draft, scores, coins)

    @property
    def due(self) -> bool:
        """True if this round is one of those that are measured."""
        return len(self.steps) < ROUNDS and (self.local or self.rounds % EVERY == 0)

    def _note(self, draft: Draft, scores: Scores, node: int) -> None:
        law, target, states = draft.law, scores.probs[0, node].cpu(), None
        early = None if scores.early is None else scores.early[0, node].cpu()
        if self.states is not None:
            tokens, behind = self.states
            states = behind.new_zeros(len(target), behind.shape[1])
            states[tokens] = behind
        if isinstance(law, Categorical | WithoutReplacement):
            self.steps.append(Step(law.probs[0, node].cpu(), target, states, early))
        elif isinstance(law, OneHot):
            chosen = torch.zeros_like(target)
            chosen[draft.tokens[0, node]] = 1
            self.steps.append(Step(chosen, target, states, early))


class WatchedTarget:
    """A target that first reads, in rounds that are measured, all that might have been drafted.

    A draft of one node holds a single token, and what a judge makes of the others is part of the
    rule's law, too. Each that the drafter may have drawn is read behind the same text; the draft's
    own entries are written over these.

    Args:
        target: scores tokens; its model leaves hidden states behind.
        rule: is given the states.
    """

    def __init__(self, target: Any, rule: WatchedRule) -> None:
        self.target, self.rule = target, rule

    def __getattr__(self, name: str) -> Any:
        return getattr(self.target, name)

    def score(self, context: Context, draft: Draft) -> Scores:
        """The target's own scores."""
        if draft.nodes and self.rule.due:
            self.rule.states = self._states(context, draft)
        scores: Scores = self.target.score(context, draft)
        return scores

    def _states(self, context: Context, draft: Draft) -> tuple[Tensor, Tensor]:
        """Tokens that may have been drafted first `[K]`, and states behind them `[K, D]`."""
        law, width, found = draft.law, draft.nodes, []
        drawn = draft.tokens[0, :1]
        if isinstance(law, Categorical | WithoutReplacement):
            drawn = law.probs[0, 0].nonzero()[:, 0]
        for some in drawn.split(width):
            tokens = F.pad(some, (0, width - len(some)))[None].expand(context.rows, -1)
            lengths = torch.full_like(draft.lengths, len(some))
            parents = torch.full_like(tokens, -1)
            beside = Draft(tokens, lengths, OneHot(), parents, bounds=(1, width))
            found.append(self.target.score(context, beside).hidden[0, 1 : 1 + len(some)])
        return drawn.cpu(), torch.cat(found).cpu()


def tv_per_step(pipe: TokenImagePipeline, job: Job, config: SpecConfig) -> list[float]:
    """Total variation at some rounds of one generation; empty where nothing was drafted."""
    if config.resolve().drafter_only:
        return _between_models(pipe, job)
    seen: list[WatchedRule] = []

    def watch(engine: Engine) -> None:
        watched = WatchedRule(engine.rule)
        engine.rule = watched
        seen.append(watched)
        if getattr(watched.rule, "reads_states", False):
            engine.target = WatchedTarget(engine.target, watched)

    before = pipe.speculation
    pipe.enable_speculation(config)
    pipe.on_engine = watch
    try:
        generator = torch.Generator().manual_seed(job.seed)
        call: dict[str, Any] = {**job.call, "output_type": "tokens"}
        pipe(job.prompt(0).prompt, generator=generator, **call)
    finally:
        pipe.on_engine = None
        pipe.enable_speculation(before)
    return [variation(rule.rule, step) for rule in seen for step in rule.steps]


def _between_models(pipe: TokenImagePipeline, job: Job) -> list[float]:
    """Variation of the draft model alone, along the target's output."""
    prompt, generator = job.prompt(0).prompt, torch.Generator().manual_seed(job.seed)
    tokens, _ = pipe(
        prompt, generator=generator, output_type="tokens", return_dict=False, **job.call
    )
    ours = pipe.token_laws([prompt], tokens, of_drafter=True, **job.call)
    gap: Tensor = (ours - pipe.token_laws([prompt], tokens, **job.call)).abs().sum(-1) / 2
    return [float(v) for v in gap[0]]


def variation(rule: AcceptanceRule, step: Step) -> float:
    """Total variation between the law of the emitted token and the target's, in [0, 1]."""
    q, p = step.law.double(), step.target.double()
    q, p = q / q.sum(), p / p.sum()
    emitted = emitted_law(rule, q, p, step.states, step.early)
    return 0.5 * sum(abs(emitted.get(i, 0.0) - float(p[i])) for i in range(len(p)))


def emitted_law(
    rule: AcceptanceRule,
    q: Tensor,
    p: Tensor,
    states: Tensor | None = None,
    early: Tensor | None = None,
) -> dict[int, float]:
    """The law of the first emitted token when the draft is one token from q `[V]` and the target
    wants p `[V]`; `states [V, D]` and `early [V]` are those of a `Step`."""

    def run(coins: EnumeratingCoins, rows: int) -> list[int]:
        proposal, verification = coins.round(0)
        tokens = proposal.draw(q.expand(rows, 1, -1))
        law: OneHot | Categorical = Categorical(q.expand(rows, 1, -1))
        if float(q.max()) == 1:
            law = OneHot()
        after = torch.zeros(rows, len(p), dtype=p.dtype)
        after[:, 0] = 1  # of no interest: what follows an accepted token
        hidden = None if states is None else states[F.pad(tokens, (1, 0))]
        scores = Scores(torch.stack([p.expand(rows, -1), after], 1), hidden)
        scores.early = None if early is None else early.to(p).expand(rows, 2, -1)
        first = torch.zeros(rows, 1, dtype=torch.long)
        draft = Draft(tokens, first[:, 0] + 1, law, positions=first)
        verdict = rule.verify(draft, scores, verification)
        emitted: list[int] = verdict.emitted[:, 0].tolist()
        return emitted

    return enumerate_law(run, at_once=max(64, _AT_ONCE // len(p)))


def summarize(values: list[float]) -> tuple[float, float] | None:
    """Mean and largest; None where there is none."""
    return (statistics.fmean(values), max(values)) if values else None
