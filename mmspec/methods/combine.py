"""Checks that parts go together, told from what they declare."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import InputError
from ..registry import either
from . import registry
from .draft_size import MOST_NODES
from .part import Drafter, Rule

if TYPE_CHECKING:
    from .parts.pipelines import PipelineKind
    from .resolved import ResolvedConfig

_WHAT = {"ids": "token ids", "vectors": "vectors", "blocks": "blocks of video"}


def check_combination(config: ResolvedConfig, where: PipelineKind) -> None:
    """Raise an `InputError`, which says why, unless the parts of a configuration go together.

    Args:
        config: the configuration.
        where: it is to work.
    """
    drafter, rule, length, tokens = config.drafter, config.rule, config.length, where.tokens
    _check_head(config)
    if config.preset.answers != "target" and drafter.drafts:
        raise InputError(f"method {config.method!r} asks no target: nobody could judge a draft")
    if length.watches and not drafter.watched:
        raise InputError(
            f"length {length.name!r} watches the tokens of a draft model, and drafter "
            f"{drafter.name!r} is none"
        )
    carry = [part.name for part, _ in config.drafters if part.settled]
    if length.recalls and carry:
        raise InputError(
            f"length {length.name!r} goes by what earlier drafts were, and drafter {carry[0]!r} "
            "drafts the same tokens again: the output would have another law; use 'goodput'"
        )
    own = not drafter.drafts  # nothing is judged: a rule that nobody asked for is of no account
    for part, idle in ((drafter, own), (rule, own and config.config.rule is None)):
        if part.tokens != tokens and not idle:
            does_what = "drafts" if isinstance(part, Drafter) else "judges"
            able = [n for n, p in registry.parts(part.kind).items() if p.tokens == tokens]
            raise InputError(
                f"{part.kind} {part.name!r} {does_what} {_WHAT[part.tokens]}, and the tokens of a "
                f"model that {where.does} are {_WHAT[tokens]}; use {either(able)}"
            )
    fits = own or tokens in length.tokens
    if not fits or (drafter.fixed and length.depth != "drafter"):
        able = [n for n, p in registry.parts("length").items() if tokens in p.tokens]
        able = able[:1] if drafter.fixed else able
        raise InputError(
            f"length {length.name!r} has no figures for what drafter {drafter.name!r} drafts; use "
            f"{either(able)}"
        )
    _check_rule(config)
    _check_size(config)
    _check_caches(config)


def _check_rule(config: ResolvedConfig) -> None:
    """A rule judges what its drafter drafts."""
    drafter, rule = config.drafter, config.rule
    if drafter.tree and not rule.trees:
        raise InputError(
            f"rule {rule.name!r} judges chains and drafter {drafter.name!r} drafts trees; use "
            "'recursive'"
        )
    if drafter.drafts and rule.routes != drafter.units:
        able = [n for n, p in registry.parts("rule").items() if p.routes == drafter.units]
        able = [name for name in able if registry.rule(name).tokens == drafter.tokens]
        whole = "as a whole" if rule.routes else "token by token"
        raise InputError(
            f"rule {rule.name!r} judges drafts {whole}, and drafter {drafter.name!r} makes others; "
            f"use {either(able)}"
        )
    if rule.joint and drafter.settled:
        raise InputError(
            f"rule {rule.name!r} lets later tokens weigh on earlier ones, and drafter "
            f"{drafter.name!r} keeps them as if nobody had looked; use rule 'token', or drafter "
            "'jacobi'"
        )
    if rule.independent and not drafter.whole:
        raise InputError(
            f"rule {rule.name!r} judges whole tokens each by itself, and drafter {drafter.name!r} "
            "drafts steps of one; use 'aligned'"
        )
    if drafter.whole and not rule.independent and config.options.get("num_draft_tokens") != 1:
        raise InputError(
            f"rule {rule.name!r} judges one iteration of drafter {drafter.name!r} at a time: the "
            "target's last denoising step adds no noise, so it never ends where the drafter's "
            "does, and what is drafted behind would be of another picture; leave num_draft_tokens 1"
        )
    if not rule.judges and drafter.unjudged == "never":
        raise InputError(
            f"rule {rule.name!r} keeps every token, and drafter {drafter.name!r} counts on a "
            f"target that judges them; use {either(_drafters(lambda d: d.unjudged != 'never'))}"
        )
    if rule.judges and drafter.unjudged == "always":
        able = [n for n, p in registry.parts("rule").items() if not p.judges]
        raise InputError(
            f"rule {rule.name!r} judges tokens that are drafted in order, and drafter "
            f"{drafter.name!r} does not draft so; use {either(able)}"
        )
    if rule.positions and not drafter.positions:
        raise InputError(
            f"rule {rule.name!r} judges tokens by where they are in the picture, and drafter "
            f"{drafter.name!r} does not say; use {either(_drafters(lambda d: d.positions))}"
        )
    # siblings of a merged tree come from several laws
    if rule.one_law and not drafter.one_law(config.drafter_options):
        raise InputError(
            f"rule {rule.name!r} judges siblings that were drawn independently; use siblings "
            "'independent' with drafter 'tree', or rule 'recursive'"
        )
    for part, options in config.chosen:
        fault = part.check(options, drafter) if isinstance(part, Rule) else None
        if fault is not None:
            raise InputError(fault)


def _drafters(able: Callable[[Drafter], bool]) -> list[str]:
    return [name for name, part in registry.parts("drafter").items() if able(part)]


def _check_size(config: ResolvedConfig) -> None:
    """Drafts are not too large, and lengths not contrary."""
    if config.merged and not config.options["merge"]:
        raise InputError("a merged tree needs drafters to merge")
    merge = config.options.get("merge", ())
    if len(set(merge)) < len(merge):
        raise InputError("drafters to merge must differ: two of a kind draw the same tokens")
    first, most = (config.options.get(f"{n}_draft_tokens") for n in ("num", "max"))
    if first is not None and most is not None and first > most:
        raise InputError(f"num_draft_tokens ({first}) is larger than max_draft_tokens ({most})")
    if (nodes := config.draft_size().largest) > MOST_NODES:
        raise InputError(f"this tree has up to {nodes} nodes; at most {MOST_NODES} are drafted")


def _check_head(config: ResolvedConfig) -> None:
    """A head has a drafter that it can serve, and what shortens pictures somebody to see them."""
    drafter, head = config.asks, config.head
    kind = "block" if head is not None and head.blocks else "token"
    kinds = {kind, "token"} if head is not None and head.trees else {kind}
    if head is None and drafter.model == "block" and not drafter.needs:
        able = [name for name, part in registry.parts("head").items() if part.blocks]
        raise InputError(
            f"drafter {drafter.name!r} needs a head that says several tokens a call: {either(able)}"
        )
    if head is not None and drafter.model not in kinds:
        raise InputError(
            f"drafter {drafter.name!r} has no use for head {head.name!r}; use "
            f"{either(_drafters(lambda d: d.model in kinds))}"
        )
    if config.config.target_weights is not None and config.preset.answers != "target":
        raise InputError(
            f"target_weights rounds the target where it answers, and with method {config.method!r} "
            "another does; leave it out"
        )
    own, target = config.draft_weights, config.config.target_weights
    if config.rounds and own is not None and target is not None:
        bits = [registry.WEIGHTS.get(name).bits for name in (own, target)]
        if bits[0] >= bits[1]:
            raise InputError(
                f"method {config.method!r} drafts on weights in {own}, which are no fewer bytes "
                f"than target_weights {target!r}; leave target_weights out, or round drafts further"
            )
    said = {
        "draft_compressor": "shortens what a draft model is shown",
        "draft_cache": "chooses what stays in a draft model's cache",
        "draft_weights": "rounds the weights of what drafts",
    }
    for name, does in said.items():
        known = config.model_drafts or (config.rounds and name == "draft_weights")
        if getattr(config.config, name) is not None and not known:
            raise InputError(
                f"{name} {does}, and method {config.method!r} has no model that drafts; use method "
                "'draft'"
            )


def _check_caches(config: ResolvedConfig) -> None:
    """Entries can leave a cache, and there is a draft model that writes ahead if one has to."""
    own, masked = config.config, "masked" in config.needs
    if own.target_cache is not None:
        others = (
            (config.preset.answers != "target", "lets another answer; use draft_cache"),
            (config.head is not None, "has a draft head, which reads all of the target's prompt"),
            (config.rounds, "drafts with a copy of the target, which reads its cache whole"),
        )
        for wrong, why in others:
            if wrong:
                raise InputError(f"target_cache shortens the target's, and {config.method!r} {why}")
    if own.draft_cache is not None and masked:
        raise InputError(
            f"draft_cache keeps entries of a model that reads in order, and {config.method!r} "
            "drafts with a masked one; leave it out"
        )
    ahead = [c.part.name for c in config.chosen if getattr(c.part, "ahead", False)]
    if ahead and masked:
        raise InputError(
            f"cache compressor {ahead[0]!r} has the draft model write ahead token by token, and "
            f"that of {config.method!r} is a masked one; use 'snapkv'"
        )
