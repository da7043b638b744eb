"""The parts of an engine for continuous tokens from their names in a `SpecConfig`."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ...config import SpecConfig
from ...draft.denoising.frozen import FrozenDrafter
from ...draft.denoising.small_head import DenoisingDrafter
from ...engine.accept.gaussian.block import GaussianBlockRule
from ...engine.accept.gaussian.gamma_maximal import GammaMaximalRule
from ...engine.accept.gaussian.independent import IndependentRule
from ...engine.accept.gaussian.reflection import ReflectionRule
from ...engine.length.constant import ConstantLength
from ...engine.length.heuristic import HeuristicLength
from ...engine.protocols import AcceptanceRule, Drafter, DraftLength
from ...errors import InputError
from ...methods import GAUSSIAN_RULES
from ...models.mar.denoising_target import Denoiser
from ...models.mar.schedule import DiffusionSchedule


def make_gaussian_rule(config: SpecConfig) -> AcceptanceRule:
    """The acceptance rule of a configuration.

    Raises:
        InputError: it judges token ids.
    """
    config = config.resolved()
    if config.rule == "reflection":
        return ReflectionRule()
    if config.rule == "gaussian-block":
        return GaussianBlockRule()
    if config.rule == "cspd-independent":
        return IndependentRule(config.softening)
    if config.rule == "gamma-maximal" or config.drafter == "null":  # plain sampling
        return GammaMaximalRule()
    raise InputError(
        f"rule {config.rule!r} judges token ids, and the tokens of this pipeline are vectors; use "
        f"{' or '.join(map(repr, GAUSSIAN_RULES))}"
    )


def make_step_length(config: SpecConfig) -> DraftLength:
    """The draft-length policy of a configuration.

    Raises:
        InputError: it weighs what is known of token ids alone.
    """
    config = config.resolved()
    if config.length == "heuristic":
        return HeuristicLength(int(config.num_draft_tokens or 0), config.extent.deepest)
    if config.length == "constant":
        return ConstantLength(config.extent.deepest)
    raise InputError(
        f"length {config.length!r} has no figures for denoising steps; use 'constant' or "
        "'heuristic'"
    )


def make_step_drafter(
    config: SpecConfig,
    schedule: DiffusionSchedule,
    temperature: float = 1.0,
    learned_variance: bool = True,
    small: Denoiser | None = None,
    condition: Tensor | Callable[[], Tensor] | None = None,
) -> Drafter:
    """The drafter of denoising steps of a configuration.

    Args:
        schedule, temperature, learned_variance: of the target's head.
        small, condition: the smaller head of those that need one, and what it is told of every
            token, see `DenoisingDrafter`.

    Raises:
        InputError: the drafter drafts no denoising steps, or needs a smaller head.
    """
    drafter = config.resolved().drafter
    if drafter == "frozen":
        return FrozenDrafter(schedule, temperature, learned_variance)
    if drafter != "denoiser":
        raise InputError(f"drafter {drafter!r} drafts no denoising steps; use 'frozen'")
    if small is None or condition is None:
        raise InputError("drafter 'denoiser' needs a smaller head; use 'frozen', which needs none")
    return DenoisingDrafter(small, condition)
