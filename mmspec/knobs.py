"""Which knobs the parts of a configuration read; imports no torch.

A part names its knobs here, and nowhere else: what no part of a configuration reads is refused.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from .errors import InputError
from .methods import DYNAMIC, REWARDED, ROWED, TREES, WINDOWED, Modality
from .registry import either

if TYPE_CHECKING:
    from .config import SpecConfig

Knobs = tuple[str, ...]
_GROWN: Knobs = ("tree_depth", "tree_width", "tree_beam", "tree_nodes", "siblings")
METHOD_KNOBS: dict[str, Knobs] = {"drafter-only": ("draft_steps",)}  # of video
DRAFTER_KNOBS: dict[str, Knobs] = {
    "block": ("siblings",),
    "early-exit": ("exit_layer",),
    "tree": ("tree_widths", "siblings"),
    **dict.fromkeys(DYNAMIC, _GROWN),
    "merged": ("merge", "tree_nodes"),
    "recycling": ("tree_widths",),
    **dict.fromkeys(WINDOWED, ("jacobi_init",)),
    "multiscale": ("upsampler", "draft_guidance", "draft_temperature"),
    "zipar": ("zipar_window",),
    "block-video": ("forced_blocks", "draft_steps", "draft_ahead"),
}
RULE_KNOBS: dict[str, Knobs] = {
    "lantern": ("neighbours", "lantern_delta", "lantern_variant"),
    "lantern++": ("neighbours", "lantern_lambda", "lantern_variant"),
    "grouped": ("group_size", "group_probability", "group_distance"),
    "cool": ("cool_delta", "cool_nu", "cool_length"),
    "local": (
        *("neighbours", "local_threshold", "local_radius", "local_criterion", "local_window"),
        *("local_turns", "local_advance", "local_slips"),
    ),
    "cspd-independent": ("softening",),
    **dict.fromkeys(REWARDED, ("frame_rule", "reward")),
    "random-routing": ("draft_share",),
}
RULE_KNOBS["reward-threshold"] += ("tau",)
RULE_KNOBS["reward-rank"] += ("draft_share", "target_speedup", "target_quality")
LENGTH_KNOBS: dict[str, Knobs] = {
    "heuristic": ("num_draft_tokens",),
    "confidence": ("confidence",),
    "specdec++": ("rejection",),
}
HEAD_KNOBS: dict[str, Knobs] = {"specvlm": ("branch",)}
COMPRESSOR_KNOBS: dict[str, str] = {
    "draft_compressor": "draft_keep",
    "target_compressor": "target_keep",
}
_PARTS: dict[str, dict[str, Knobs]] = {
    "drafter": DRAFTER_KNOBS,
    "rule": RULE_KNOBS,
    "length": LENGTH_KNOBS,
    "head": HEAD_KNOBS,
    "method": METHOD_KNOBS,
}
_REACH: dict[str, Knobs] = {  # how far ahead is drafted, see `_reach`, and whom it is a matter of
    "num_draft_tokens": ("model", "block", "lookup"),
    "max_draft_tokens": ("goodput", *LENGTH_KNOBS),
    "window": WINDOWED,
    "draft_rows": ROWED,
}
KNOBS: Knobs = tuple(
    dict.fromkeys(
        [
            *_REACH,
            *(knob for table in _PARTS.values() for knobs in table.values() for knob in knobs),
            *COMPRESSOR_KNOBS.values(),
        ]
    )
)


def knobs_of(config: SpecConfig, modality: Modality | None = None) -> Knobs:
    """The knobs that the parts of a configuration read.

    Args:
        config: with its parts filled in, see `SpecConfig.resolved`.
        modality: that it works for; None: any.
    """
    drafter = str(config.drafter)
    found = [*METHOD_KNOBS.get(config.method, ())] if modality in (None, "video") else []
    if drafter != "null":  # what drafts nothing has nothing judged
        drafters = (drafter, *config.merge) if drafter == "merged" else (drafter,)
        found += [knob for name in drafters for knob in DRAFTER_KNOBS.get(name, ())]
        found += RULE_KNOBS.get(str(config.rule), ())
        found += HEAD_KNOBS.get(str(config.head), ())
        if config.rule != "unverified":  # which takes all that there is at once
            found += LENGTH_KNOBS.get(str(config.length), ())
            found += _reach(config, drafters)
    found += [keep for compressor, keep in COMPRESSOR_KNOBS.items() if getattr(config, compressor)]
    return tuple(dict.fromkeys(found))


def _reach(config: SpecConfig, drafters: Knobs) -> Knobs:
    """What says how far ahead a configuration drafts, see `Extent.deepest`."""
    if config.length == "constant" or config.drafter in TREES:
        each = ((name, "window" if name in WINDOWED else "num_draft_tokens") for name in drafters)
        return tuple("draft_rows" if n in ROWED else knob for n, knob in each if n not in TREES)
    windowed = config.length == "goodput" and config.drafter in WINDOWED
    return ("window",) if windowed else ("max_draft_tokens",)


def check_read(config: SpecConfig, modality: Modality, given: Collection[str] = ()) -> None:
    """Raise an `InputError` for a knob that is set and that no part of a configuration reads.

    Args:
        config: with its parts filled in.
        modality: that it works for.
        given: knobs that were named, whatever they were set to; others count as set if they are
            not what `SpecConfig` has when nothing is said.
    """
    read = knobs_of(config, modality)
    for knob in KNOBS:
        said = knob in given or getattr(config, knob) != getattr(type(config), knob)
        if said and knob not in read:
            own = ", ".join(read) or "none"
            raise InputError(
                f"{knob} is a setting of {either(_readers(knob))}, and method {config.method!r} "
                f"does not read it; leave it out (settings that it reads: {own})"
            )


def _readers(knob: str) -> tuple[str, ...]:
    """The parts that read a knob."""
    for compressor, keep in COMPRESSOR_KNOBS.items():
        if keep == knob:
            return (compressor,)
    found = [name for table in _PARTS.values() for name, knobs in table.items() if knob in knobs]
    return tuple(dict.fromkeys([*_REACH.get(knob, ()), *found]))
