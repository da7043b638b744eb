"""Which drafters, rules, lengths and heads go together; imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import InputError
from .methods import (
    BLOCK_HEADS,
    DYNAMIC,
    GAUSSIAN_RULES,
    GROWN,
    ROUTING_RULES,
    ROWED,
    SELF,
    STEPPED,
    STOPPING,
    TREE_RULES,
    TREES,
    WINDOWED,
)
from .registry import either, is_reference

if TYPE_CHECKING:
    from .config import SpecConfig

MOST_NODES = 256  # of a draft


def check_combination(config: SpecConfig) -> None:
    """Raise an `InputError`, which says why, unless the parts of a configuration go together.

    Args:
        config: complete, see `SpecConfig.resolved`.
    """
    if config.length != "constant" and int(config.num_draft_tokens or 0) > config.max_draft_tokens:
        raise InputError(
            f"num_draft_tokens ({config.num_draft_tokens}) is larger than max_draft_tokens "
            f"({config.max_draft_tokens})"
        )
    _check_head(config)
    if config.drafter_only and config.drafter != "null":
        raise InputError("method 'drafter-only' asks no target: nobody could judge a draft")
    _check_rule(config)
    if config.length in STOPPING and config.drafter != "model":
        raise InputError(
            f"length {config.length!r} watches the tokens of a draft model, "
            f"and drafter {config.drafter!r} is none"
        )
    _check_trees(config)
    _check_wishes(config)


def _check_rule(config: SpecConfig) -> None:
    """A rule judges what its drafter drafts."""
    rule, drafter = str(config.rule), str(config.drafter)
    if drafter in TREES and rule not in TREE_RULES and not is_reference(rule):
        raise InputError(
            f"rule {rule!r} judges chains and drafter {drafter!r} drafts trees; use 'recursive'"
        )
    if rule == "block" and drafter in ("coupled-jacobi", "gumbel-jacobi"):
        raise InputError(
            f"rule 'block' lets later tokens weigh on earlier ones, and drafter {drafter!r} "
            "keeps them as if nobody had looked; use rule 'token', or drafter 'jacobi'"
        )
    if drafter != "null" and (rule in GAUSSIAN_RULES) != (drafter in STEPPED):
        raise InputError(
            f"rule {rule!r} and drafter {drafter!r} do not go together: rules "
            f"{', '.join(GAUSSIAN_RULES)} judge vectors, and drafters {', '.join(STEPPED)} "
            "draft them"
        )
    if rule == "cspd-independent" and drafter != "aligned":
        raise InputError(
            "rule 'cspd-independent' judges whole tokens each by itself, and drafter "
            f"{drafter!r} drafts steps of one; use 'aligned'"
        )
    if drafter == "aligned" and config.length != "constant":
        raise InputError(
            f"drafter 'aligned' drafts a fixed number of iterations, and length {config.length!r} "
            "would not be asked; use 'constant'"
        )
    if drafter == "aligned" and rule != "cspd-independent" and config.num_draft_tokens != 1:
        raise InputError(
            f"rule {rule!r} judges one iteration of drafter 'aligned' at a time: the target's last "
            "denoising step adds no noise, so it never ends where the drafter's does, and what is "
            "drafted behind would be of another picture; leave num_draft_tokens 1"
        )
    if drafter != "null" and (rule in ROUTING_RULES) != (drafter == "block-video"):
        raise InputError(
            f"rule {rule!r} and drafter {drafter!r} do not go together: rules "
            f"{', '.join(ROUTING_RULES)} route blocks of video, and drafter 'block-video' drafts "
            "them"
        )
    if drafter == "block-video" and (config.length, config.num_draft_tokens) != ("constant", 1):
        raise InputError(
            "drafter 'block-video' drafts one block a round: leave length 'constant', and "
            "num_draft_tokens 1"
        )
    if rule == "unverified" and drafter not in ("multiscale", "zipar"):
        raise InputError(
            f"rule 'unverified' keeps every token, and drafter {drafter!r} counts on a target "
            "that judges them; use 'multiscale' or 'zipar'"
        )
    if drafter == "zipar" and rule != "unverified":
        raise InputError(
            f"rule {rule!r} judges tokens that are drafted in order, and drafter 'zipar' draws "
            "rows side by side; use 'unverified'"
        )
    if rule == "local" and drafter not in ROWED:
        raise InputError(
            f"rule 'local' judges tokens by where they are in the picture, and drafter "
            f"{drafter!r} does not say; use {either(ROWED)}"
        )
    if rule == "local" and drafter == "multiscale" and config.local_criterion == "ratio":
        raise InputError(
            "local_criterion 'ratio' divides by the probability with which a token was "
            "drafted, and of a picture scaled up nobody knows it; use 'threshold'"
        )


def _check_trees(config: SpecConfig) -> None:
    """Trees are of one law where a rule needs that, and not too large."""
    rule, drafter = str(config.rule), str(config.drafter)
    if drafter == "merged" and not config.merge:
        raise InputError("a merged tree needs drafters to merge")
    if drafter == "merged" and len(set(config.merge)) < len(config.merge):
        raise InputError("drafters to merge must differ: two of a kind draw the same tokens")
    # siblings of a merged tree come from several laws, and K-SEQ knows one
    one_law = drafter in ("model", "null", *SELF, *WINDOWED) or (
        drafter in ("tree", *DYNAMIC) and config.siblings == "independent"
    )
    if rule == "k-seq" and not one_law:
        raise InputError(
            "rule 'k-seq' judges siblings that were drawn independently; use siblings "
            "'independent' with drafter 'tree', or rule 'recursive'"
        )
    if (most := config.extent.largest) > MOST_NODES:
        raise InputError(f"this tree has up to {most} nodes; at most {MOST_NODES} are drafted")


def _check_wishes(config: SpecConfig) -> None:
    """A rule of video is told one wish."""
    wishes = ("draft_share", "target_speedup", "target_quality")
    wished = [name for name in wishes if getattr(config, name) != getattr(type(config), name)]
    if len(wished) > 1:
        raise InputError(f"{' and '.join(wished)} are wishes of one kind each; leave one")


def _check_head(config: SpecConfig) -> None:
    """A head has a drafter that it can serve, and what shortens pictures somebody to see them."""
    drafter = str(config.drafter)
    blocks = config.head in BLOCK_HEADS
    if config.head is None and drafter == "block":
        raise InputError(
            f"drafter 'block' needs a head that says several tokens a call: {either(BLOCK_HEADS)}"
        )
    if config.head is not None and (drafter != "block" if blocks else drafter not in GROWN):
        fitting = ("block",) if blocks else GROWN
        raise InputError(
            f"drafter {drafter!r} has no use for head {config.head!r}; use {either(fitting)}"
        )
    if config.draft_compressor is not None and "drafter" not in config.needs:
        raise InputError(
            "draft_compressor shortens what a draft model is shown, and method "
            f"{config.method!r} has none; use method 'draft'"
        )
