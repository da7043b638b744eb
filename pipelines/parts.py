"""The parts of an engine from their names in a `SpecConfig`."""

from __future__ import annotations

from collections.abc import Callable

from ..config import WINDOWED, SpecConfig
from ..draft.coupled import CoupledJacobiDrafter
from ..draft.dynamic import DynamicTreeDrafter
from ..draft.gumbel import GumbelJacobiDrafter
from ..draft.jacobi import JacobiDrafter
from ..draft.lookup import PromptLookupDrafter
from ..draft.merged import MergedDrafter
from ..draft.model import ModelDrafter, TokenModel
from ..draft.null import NullDrafter
from ..draft.recycling import RecyclingDrafter
from ..draft.self import SelfDrafter, exits, spread
from ..draft.tree import TreeDrafter
from ..engine.accept.block import BlockRule
from ..engine.accept.greedy import GreedyRule
from ..engine.accept.kseq import KSeqRule
from ..engine.accept.recursive import RecursiveRule
from ..engine.accept.token import TokenRule
from ..engine.length.confidence import ConfidenceLength
from ..engine.length.constant import ConstantLength
from ..engine.length.goodput import Experience, GoodputLength
from ..engine.length.heuristic import HeuristicLength
from ..engine.length.specdec import SpecDecLength
from ..engine.types import AcceptanceRule, Drafter, DraftLength
from ..errors import InputError
from ..models.guided import GuidedDecoder

WINDOWS: dict[str, type[JacobiDrafter]] = {
    "jacobi": JacobiDrafter,
    "coupled-jacobi": CoupledJacobiDrafter,
    "gumbel-jacobi": GumbelJacobiDrafter,
}


def make_rule(config: SpecConfig, temperature: float) -> AcceptanceRule:
    """The acceptance rule of a configuration; at temperature 0 the exact rule is the greedy one."""
    greedy = config.resolved().rule == "greedy"
    if greedy and temperature != 0:
        raise InputError("rule 'greedy' needs temperature 0: it would ignore every other law")
    rule = config.resolved().rule
    if rule == "recursive":
        return RecursiveRule()  # at temperature 0 laws are one-hot, and so these two are greedy
    if rule == "k-seq":
        return KSeqRule()
    if temperature == 0:
        return GreedyRule()
    return BlockRule() if rule == "block" else TokenRule()


def make_length(config: SpecConfig, experience: Callable[[], Experience]) -> DraftLength:
    """The draft-length policy of a configuration.

    `experience` gives what earlier generations have learnt of lengths.
    """
    parts = config.resolved()
    if parts.length == "confidence":
        return ConfidenceLength(config.deepest, config.confidence)
    if parts.length == "specdec++":
        return SpecDecLength(config.deepest, config.rejection)
    if parts.length == "goodput":
        return GoodputLength(experience())
    if parts.length == "heuristic":
        return HeuristicLength(config.num_draft_tokens, config.deepest)
    return ConstantLength(0 if parts.drafter == "null" else config.first_drafted)


def make_drafter(
    config: SpecConfig,
    target: GuidedDecoder,
    model: TokenModel | None,
    vocab_size: int,
    row: int,
    length: DraftLength,
) -> Drafter:
    """The drafter of a configuration.

    Args:
        target: the network that is to be sped up; some drafters run a part of it.
        model: the draft model of those that need one.
        row: positions in a row of the picture.
        length: the policy that the drafter may have to ask as it drafts.
    """

    def make(name: str) -> Drafter:
        if name == "early-exit":
            return SelfDrafter(target, exits(target.layers, config.exit_layer))
        if name == "layer-skip":
            return SelfDrafter(target, spread(target.layers), search=True)
        if name == "merged":
            return MergedDrafter([make(part) for part in config.merge], config.tree_nodes)
        if name == "lookup":
            return PromptLookupDrafter()
        if name == "recycling":
            return RecyclingDrafter(vocab_size, config.tree_widths)
        if name in WINDOWED:
            return WINDOWS[name](vocab_size, config.jacobi_init, row)
        if name == "null":
            return NullDrafter()
        assert model is not None
        if name == "model":
            return ModelDrafter(model, getattr(length, "more", None))
        if name == "tree":
            return TreeDrafter(model, config.tree_widths, config.siblings)
        depth, width, beam = config.tree_depth, config.tree_width, config.tree_beam
        return DynamicTreeDrafter(model, depth, width, beam, config.tree_nodes, config.siblings)

    return make(str(config.resolved().drafter))
