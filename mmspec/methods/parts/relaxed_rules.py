"""Relaxed acceptance rules of token ids."""

from __future__ import annotations

from typing import Any, Literal

from ..options import Options, option
from ..part import Drafter, Offers, Preset, Rule
from .shared import NearestOptions


class LanternOptions(NearestOptions):
    lantern_variant: Literal["paper", "released"] = option(
        "paper", "what the paper says, or what the authors' code computes"
    )


class DeltaOptions(LanternOptions):
    lantern_delta: float = option(
        0.1, "probability that like tokens may lend; more is faster and further off", 0, 1
    )


class LambdaOptions(LanternOptions):
    lantern_lambda: float = option(
        2.0, "how often a token counts for its own probability; more is faster", 1, 1e6
    )


class GroupedOptions(Options):
    group_size: int = option(
        14, "tokens that are judged as one; more is faster and further off", 1, 65536
    )
    group_probability: float | None = option(
        0.15,
        "how far a group's probabilities may be from the drafted token's; none: anywhere",
        high=1,
        above=0,
    )
    group_distance: float | None = option(
        None,
        "how far its codes may be from the drafted token's; none: anywhere",
        high=1e6,
        above=0,
    )


class CoolOptions(Options):
    cool_delta: float = option(
        1.0, "how far the test is relaxed; more is faster and further off", 0, 1e6
    )
    cool_nu: float = option(0.7, "how much less it is relaxed from token to token", 0, 100)
    cool_length: int = option(8, "tokens over which it is relaxed by cool_delta on average", 1, 256)


class JudgeOptions(Options):
    judge_threshold: float | None = option(
        None,
        "how sure a judge must be that a token will do; less is faster and further off, at 0 it is "
        "not asked; none: as it was trained",
        0,
        1,
    )
    judge_floor: float = option(
        0.1, "probability that a token needs at least for a judge to take it", 0, 1
    )

    def needs(self) -> tuple[str, ...]:
        """The judge, if it is asked."""
        return () if self.judge_threshold == 0 else ("judge",)


def _read(options: Any, drafter: Drafter) -> str | None:
    """Why not: a judge looks at states of tokens that the target has read."""
    if drafter.ahead and options.judge_threshold != 0:
        return (
            f"drafter {drafter.name!r} guesses a token that the target has not read, and rule "
            "'judge' looks at what it made of it; use drafter 'model', or judge_threshold 0"
        )
    return None


def _lantern(name: str, own: str, summary: str, options: type, paper: str, **more: str) -> Rule:
    """A rule with a class of its own, and the released one as a variant."""

    def released(options: Any) -> bool:
        return options.lantern_variant == "released"

    def reference(options: Any) -> str:
        return f".lantern.{'released:ReleasedLanternRule' if released(options) else own}"

    def nearest(options: Any, offers: Offers) -> Any:
        return offers["nearest"]()(options.neighbours + released(options))  # they look at one more

    given: dict[str, Any] = {"neighbours": nearest, "k": "neighbours", **more}
    both: Any = dict(contract="lossy", trees=True, paper=paper)
    return Rule(name, reference, summary, options, given, **both)


def _judged(summary: str, **more: Any) -> Preset:
    """A draft model whose tokens a head judges."""
    sweep = (0.9, 0.7, 0.5, 0.3)
    return Preset("judge", "model", "judge", summary, knob="judge_threshold", sweep=sweep, **more)


PARTS = (
    _lantern(
        "lantern",
        "lantern:LanternRule",
        "a token's nearest codes lend it probability, up to δ",
        DeltaOptions,
        "Jang et al. 2024",
        delta="lantern_delta",
    ),
    _lantern(
        "lantern++",
        "lantern:LanternPlusPlusRule",
        "a token's nearest codes lend it probability, up to λ times its own",
        LambdaOptions,
        "Park et al. 2025",
        lam="lantern_lambda",
    ),
    Rule(
        "grouped",
        ".grouped:GroupedRule",
        "tokens of about the same probability are judged as a group",
        GroupedOptions,
        {"probability_bound": "group_probability", "distance_bound": "group_distance"},
        contract="lossy",
        greedy=True,
        paper="So et al. 2025",
    ),
    Rule(
        "cool",
        ".cool:CoolRule",
        "the ratio test is relaxed, and less so further into the draft",
        CoolOptions,
        {"delta": "cool_delta", "length": "cool_length", "nu": "cool_nu"},
        contract="bounded",
        greedy=True,
        paper="Li et al. 2026",
    ),
    Rule(
        "judge",
        ".judge:JudgeRule",
        "a token stands that is likely enough, and that a judge takes if one is asked",
        JudgeOptions,
        {"threshold": "judge_threshold", "floor": "judge_floor"},
        contract="lossy",
        soft=True,
        check=_read,
        paper="Bachmann et al. 2025",
    ),
    _judged(
        "a smaller model drafts; a head on the target's states says which tokens will do",
        of={
            "image": _judged(
                "a smaller model drafts; a head says which tokens leave the picture right",
                settings={"judge_floor": 0.01},  # laws of pictures are wide
            )
        },
    ),
    Preset(
        "likely",
        "model",
        "judge",
        "a smaller model drafts; what the target finds likely enough will do",
        role="sceptic",
        knob="judge_floor",
        sweep=(0.3, 0.1, 0.03, 0.01),
        settings={"judge_threshold": 0.0},
    ),
    Preset(
        "lantern",
        "dynamic-tree",
        "lantern",
        "a token stands if its nearest codes are likely enough with it, by δ",
        knob="lantern_delta",
        sweep=(0.02, 0.05, 0.1, 0.2),
        serves=("image",),
    ),
    Preset(
        "lantern++",
        "tree",
        "lantern++",
        "lantern's test by λ times the token's own probability, on a fixed tree",
        knob="lantern_lambda",
        sweep=(1.5, 2.0, 5.0, 20.0),
        serves=("image",),
    ),
    Preset(
        "gsd",
        "coupled-jacobi",
        "grouped",
        "tokens of about the same probability are judged as a group",
        knob="group_size",
        sweep=(3, 10, 20, 50),
    ),
    Preset(
        "cool-sd",
        "coupled-jacobi",
        "cool",
        "the ratio test is relaxed, and less so further into the draft",
        knob="cool_delta",
        sweep=(0.5, 1.0, 2.0, 4.0),
    ),
)
