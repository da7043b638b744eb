"""Judges of the drafts of a text: the target by its laws, or somebody who scores whole steps."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ...engine.accept.routed import RoutedRule
from ...engine.coins import Coins
from ...engine.draft import Context, Draft
from ...engine.protocols import AcceptanceRule
from ...errors import InputError
from ...methods import ResolvedConfig
from ...methods.parts.steps import StepOptions
from ...models.guided import GuidedDecoder
from ...models.heads.step_router import StepRouter
from ...models.step_ends import StepEnds
from ...models.step_reward import StepJudge
from ...models.step_target import OracleStepTarget, StepScorer, StepTarget
from ...models.target import TokenTarget
from ...models.transformers.processed_laws import ProcessedTarget
from ...models.transformers.prompted import refuse
from ..stopping import Stops
from .beside import Beside
from .request import Request


def step_ends(config: ResolvedConfig, beside: Beside, stops: Stops) -> StepEnds | None:
    """Tells where steps end; None: the method has no steps."""
    if not config.drafter.units:
        return None
    return StepEnds(beside.tokenizers[0], config.of(StepOptions).step, stops.eos)


def judging(
    config: ResolvedConfig,
    beside: Beside,
    request: Request,
    target: GuidedDecoder,
    vocab_size: int,
    rule: AcceptanceRule,
    ends: StepEnds | None,
    coins: Coins,
) -> TokenTarget:
    """The target as the loop's: it judges drafts by its laws, or writes steps that fell.

    Args:
        ends: of steps; None: there are none.
        coins: of the generation.
    """
    if request.judged.looks and getattr(rule, "local", False):
        refuse("logits processors that read the text, where tokens are drawn again in place")
    if isinstance(rule, RoutedRule) and not rule.router.always:
        unasked = "where places of a block stand though nobody asks the target"
        if request.judged.looks:
            refuse(f"logits processors that read the text, {unasked}")
        if request.scores is not None or request.logits is not None:
            refuse(f"output_scores and output_logits, {unasked}")
    if ends is None:
        kept = request.scores, request.logits
        return ProcessedTarget(target, request.judged, vocab_size, *kept)
    if request.scores is not None or request.logits is not None:
        refuse("output_scores and output_logits, where a draft model writes steps")
    how = target, ends, config.of(StepOptions).step_tokens
    scorer = _scorer(beside, request) if config.rule.rewarded else None
    if not config.rule.foresees:
        return StepTarget(*how, scorer)
    assert scorer is not None
    return OracleStepTarget(*how, scorer, coins)


def _scorer(beside: Beside, request: Request) -> StepScorer:
    if beside.reward is None:
        assert beside.router is not None
        return partial(_guess, beside.router)
    tokenizer, ids = beside.tokenizers[0], request.ids
    real = request.mask if request.mask.shape == ids.shape else torch.ones_like(ids).bool()
    rows = [row[told].tolist() for row, told in zip(ids, real, strict=True)]
    prompts = [tokenizer.decode(row, skip_special_tokens=True) for row in rows]
    return StepJudge(beside.reward, tokenizer, prompts)


def _guess(router: StepRouter, context: Context, draft: Draft) -> Tensor:
    """A router's guesses `[B]` at drafted steps."""
    assert draft.states is not None, "the draft model is watched where a router is asked"
    guesses: Tensor = router(draft.states, draft.lengths)
    return guesses


def check_heard(config: ResolvedConfig) -> None:
    """Raise an `InputError` if the answers are not the target's own, for a listener to hear."""
    if config.other_law or config.weights is not None or config.rule.routes:
        raise InputError(
            "a listener hears the target's own answers, and here another network gives them; leave "
            "the listener out, or target_compressor and target_weights, or routing"
        )
