"""The parts of an engine from their names in a `SpecConfig`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

from torch import Tensor

from ..config import SpecConfig
from ..draft.draft_model import ModelDrafter, TokenModel
from ..draft.feature.block import BlockDrafter
from ..draft.feature.feature_model import EagleDrafter, FeatureModel
from ..draft.image.multiscale import MultiScaleDrafter
from ..draft.image.spatial import SpatialDrafter
from ..draft.image.zipar import ZipArDrafter
from ..draft.jacobi.coupled import CoupledJacobiDrafter
from ..draft.jacobi.gumbel import GumbelJacobiDrafter
from ..draft.jacobi.jacobi import JacobiDrafter
from ..draft.null import NullDrafter
from ..draft.prompt_lookup import PromptLookupDrafter
from ..draft.self_speculation import SelfDrafter, exits, spread
from ..draft.tree.dynamic_tree import DynamicTreeDrafter
from ..draft.tree.fixed_tree import TreeDrafter
from ..draft.tree.merged import MergedDrafter
from ..draft.tree.token_recycling import RecyclingDrafter
from ..engine.accept.block import BlockRule
from ..engine.accept.cool import CoolRule
from ..engine.accept.greedy import GreedyRule
from ..engine.accept.grouped import GroupedRule
from ..engine.accept.kseq import KSeqRule
from ..engine.accept.lantern.lantern import LanternRule
from ..engine.accept.lantern.lantern_plus_plus import LanternPlusPlusRule
from ..engine.accept.lantern.released import ReleasedLanternRule
from ..engine.accept.local import LocalRule
from ..engine.accept.recursive import RecursiveRule
from ..engine.accept.token import TokenRule
from ..engine.accept.unverified import UnverifiedRule
from ..engine.laws import Contract
from ..engine.length.confidence import ConfidenceLength
from ..engine.length.constant import ConstantLength
from ..engine.length.goodput import Experience, GoodputLength
from ..engine.length.heuristic import HeuristicLength
from ..engine.length.specdec import SpecDecLength
from ..engine.protocols import AcceptanceRule, Drafter, DraftLength
from ..errors import InputError
from ..methods import SELF, WINDOWED
from ..models.codebook_neighbours import Neighbours
from ..models.guided import GuidedDecoder
from ..models.llamagen.spatial_heads import SpatialDecoder
from ..models.token_grid import TokenGrid
from ..registry import is_reference, resolve_own

WINDOWS: dict[str, type[JacobiDrafter]] = {
    "jacobi": JacobiDrafter,
    "coupled-jacobi": CoupledJacobiDrafter,
    "gumbel-jacobi": GumbelJacobiDrafter,
}


def make_rule(
    config: SpecConfig,
    temperature: float,
    codebook: Callable[[], Tensor | None] = lambda: None,
    near: Neighbours | None = None,
) -> AcceptanceRule:
    """The acceptance rule of a configuration; at temperature 0 those on chains are the greedy one.

    A rule of the user's own is itself at every temperature.

    Args:
        codebook: gives the vectors of the codes `[V, C]`, for the rules that pool like tokens;
            None: there are none.
        near: holds the table of its nearest codes.
    """
    config = config.resolved()
    rule = str(config.rule)
    if is_reference(rule):
        return _own_rule(rule)
    if rule == "greedy" and temperature != 0:
        raise InputError("rule 'greedy' needs temperature 0: it would ignore every other law")

    def neighbours(further: int = 0) -> Tensor:
        codes = codebook()
        if codes is None:
            raise InputError(f"rule {rule!r} pools the nearest codes, and this model has none")
        count = int(config.neighbours or 0) + further
        return (near or Neighbours())(codes, min(count, len(codes) - 1))

    # at temperature 0 laws are one-hot, and so these are greedy
    if rule == "recursive":
        return RecursiveRule()
    if rule == "k-seq":
        return KSeqRule()
    if rule in ("lantern", "lantern++") and config.lantern_variant == "released":
        if temperature == 0:
            raise InputError(
                "lantern_variant 'released' samples: at temperature 0 take 'paper', which is greedy"
            )
        strict = rule == "lantern"
        knob = {"delta": config.lantern_delta} if strict else {"lam": config.lantern_lambda}
        return ReleasedLanternRule(neighbours(1), int(config.neighbours or 0), **knob)
    if rule == "lantern":
        return LanternRule(neighbours(), config.lantern_delta)
    if rule == "lantern++":
        return LanternPlusPlusRule(neighbours(), config.lantern_lambda)
    if rule == "unverified":
        return UnverifiedRule()
    if rule == "local":
        pooled = neighbours() if config.neighbours else None
        theta, radius = float(config.local_threshold or 0), int(config.local_radius or 0)
        test: Any = config.local_criterion
        further = config.local_advance, int(config.local_slips or 0)
        return LocalRule(config.stride, theta, pooled, radius, test, *further)
    if temperature == 0:
        return GreedyRule()
    if rule == "grouped":
        bounds = config.group_probability, config.group_distance
        return GroupedRule(codebook(), config.group_size, *bounds)
    if rule == "cool":
        return CoolRule(config.cool_delta, config.cool_length, config.cool_nu)
    return BlockRule() if rule == "block" else TokenRule()


def _own_rule(reference: str) -> AcceptanceRule:
    """A rule that is no part of this library.

    Raises:
        InputError: it can't be imported or made, or is no rule.
    """
    made, contracts = resolve_own("rule", reference), get_args(Contract)
    try:
        rule: AcceptanceRule = made()
    except TypeError as error:
        raise InputError(
            f"rule {reference!r} must be a class without arguments: {error}"
        ) from error
    if not callable(getattr(rule, "verify", None)) or (
        getattr(rule, "contract", None) not in contracts
    ):
        raise InputError(
            f"rule {reference!r} is no acceptance rule: it needs verify(draft, scores, coins) and "
            f"a contract, {' or '.join(contracts)}"
        )
    return rule


def check_layers(config: SpecConfig, layers: int) -> None:
    """Raise an `InputError` if a target of so many layers can't draft with a part of itself."""
    if set(config.drafters) & set(SELF) and layers < 2:
        raise InputError(f"{config.drafter} needs a target of two layers or more")
    if config.exit_layer is not None and config.exit_layer >= layers:
        raise InputError(
            f"exit_layer must be below the target's {layers} layers, not {config.exit_layer}"
        )


def make_length(config: SpecConfig, experience: Callable[[], Experience]) -> DraftLength:
    """The draft-length policy of a configuration.

    `experience` gives what earlier generations have learnt of lengths.
    """
    parts = config.resolved()
    if parts.length == "confidence":
        return ConfidenceLength(config.extent.deepest, config.confidence)
    if parts.length == "specdec++":
        return SpecDecLength(config.extent.deepest, config.rejection)
    if parts.length == "goodput":
        return GoodputLength(experience())
    if parts.length == "heuristic":
        return HeuristicLength(int(parts.num_draft_tokens or 0), config.extent.deepest)
    return ConstantLength(0 if parts.drafter == "null" else config.extent.first_drafted)


def make_drafter(
    config: SpecConfig,
    target: GuidedDecoder,
    model: TokenModel | None,
    vocab_size: int,
    grid: TokenGrid,
    length: DraftLength,
    scaled_up: Callable[[], Tensor] | None = None,
    spatial: SpatialDecoder | None = None,
    rule: AcceptanceRule | None = None,
) -> Drafter:
    """The drafter of a configuration.

    Args:
        target: the network that is to be sped up; some drafters run a part of it.
        model: the draft model of those that need one, or a draft head.
        grid: the picture's tokens.
        length: the policy that the drafter may have to ask as it drafts.
        scaled_up: draws small pictures and scales them up, see `MultiScaleDrafter`.
        spatial: heads that look below and to the right.
        rule: what will judge the drafts; a relaxed one has a say in which tokens stay in a window.
    """

    config = config.resolved()
    if isinstance(model, GuidedDecoder):
        model.drafts = True
    nodes, siblings = int(config.tree_nodes or 0), config.siblings or "without-replacement"

    def make(name: str) -> Drafter:
        if name == "early-exit":
            return SelfDrafter(target, exits(target.layers, config.exit_layer))
        if name == "layer-skip":
            return SelfDrafter(target, spread(target.layers), search=True)
        if name == "merged":
            return MergedDrafter([make(part) for part in config.merge], nodes)
        if name == "lookup":
            return PromptLookupDrafter()
        if name == "recycling":
            return RecyclingDrafter(vocab_size, config.tree_widths)
        if name in WINDOWED:
            return WINDOWS[name](vocab_size, config.jacobi_init, grid.stride)
        if name == "multiscale":
            assert scaled_up is not None
            return MultiScaleDrafter(scaled_up)
        if name == "spatial":
            assert spatial is not None
            relaxed = rule if isinstance(rule, LocalRule) else None
            return SpatialDrafter(spatial, target, grid.stride, relaxed)
        if name == "zipar":
            return ZipArDrafter(target, grid, config.zipar_window)
        if name == "null":
            return NullDrafter()
        assert model is not None
        drafter = of_model(name, model)
        return EagleDrafter(model, drafter) if isinstance(model, FeatureModel) else drafter

    def of_model(name: str, model: TokenModel) -> Drafter:
        if name == "model":
            return ModelDrafter(model, getattr(length, "more", None))
        if name == "block":
            blocks: Any = model
            return BlockDrafter(blocks, "top" if siblings == "top" else "drawn")
        if name == "tree":
            return TreeDrafter(model, config.tree_widths, siblings)
        shape = (config.tree_depth, config.tree_width, config.tree_beam)
        depth, width, beam = (int(size or 0) for size in shape)
        return DynamicTreeDrafter(model, depth, width, beam, nodes, siblings)

    return make(str(config.drafter))
