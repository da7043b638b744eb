"""Acceptance rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ..options import option
from ..part import Drafter, Offers, Rule

_HERE = "mmspec.engine.accept"
# decibels that rule "reward-threshold" usually asks of the router; no other reward's scale has them
ROUTER_TAU = 32.0
ROUTER = "router"  # the reward that a pipeline has itself


@dataclass(frozen=True)
class NearestOptions:
    """Of rules that pool like tokens."""

    neighbours: int = option(
        20, "like tokens that count together; more is faster and further off", 0, 65536
    )


LanternVariant = Literal["paper", "released"]


@dataclass(frozen=True)
class LanternOptions(NearestOptions):
    """Of LANTERN."""

    lantern_delta: float = option(
        0.1, "probability that like tokens may lend; more is faster and further off", 0, 1
    )
    lantern_variant: LanternVariant = option(
        "paper", "what the paper says, or what the authors' code computes"
    )


@dataclass(frozen=True)
class LanternPlusPlusOptions(NearestOptions):
    """Of LANTERN++."""

    lantern_lambda: float = option(
        2.0, "how often a token counts for its own probability; more is faster", 1, 1e6
    )
    lantern_variant: LanternVariant = option(
        "paper", "what the paper says, or what the authors' code computes"
    )


@dataclass(frozen=True)
class GroupedOptions:
    """Of grouped verification."""

    group_size: int = option(
        14, "tokens that are judged as one; more is faster and further off", 1, 65536
    )
    group_probability: float | None = option(
        0.15,
        "how far a group's probabilities may be from the drafted token's; none: anywhere",
        0,
        1,
    )
    group_distance: float | None = option(
        None, "how far its codes may be from the drafted token's; none: anywhere", 0, 1e6
    )


@dataclass(frozen=True)
class CoolOptions:
    """Of annealed relaxation."""

    cool_delta: float = option(
        1.0, "how far the test is relaxed; more is faster and further off", 0, 1e6
    )
    cool_nu: float = option(0.7, "how much less it is relaxed from token to token", 0, 100)
    cool_length: int = option(8, "tokens over which it is relaxed by cool_delta on average", 1, 256)


@dataclass(frozen=True)
class LocalOptions(NearestOptions):
    """Of local verification."""

    local_threshold: float = option(
        0.1, "probability that a drafted token must reach; less is faster", 0, 1
    )
    local_radius: int = option(0, "how many tokens around a fallen one fall with it", 0, 16)
    local_criterion: Literal["threshold", "ratio"] = option(
        "threshold", "what is compared with the threshold: a probability, or a ratio of two"
    )
    local_window: int = option(
        2, "tokens that a row of an island is behind the one above it as it is drawn again", 1, 256
    )
    local_turns: int | None = option(
        None,
        "most calls in which fallen tokens are drawn again; none: as many as it takes",
        0,
        65536,
    )
    local_advance: int | None = option(
        None, "tokens that join the output in a round at least; none: all", 1, 65536
    )
    local_slips: int = option(0, "fallen tokens that are passed over before that", 0, 65536)


@dataclass(frozen=True)
class IndependentOptions:
    """Of CSpD as it was released."""

    softening: float = option(
        42.0, "how much the test is softened; more is faster and further off", 1, 1e6
    )


@dataclass(frozen=True)
class RewardOptions:
    """Of rules that judge blocks by a reward."""

    frame_rule: Literal["worst", "mean"] = option(
        "worst", "whose reward a block's is: which frame's"
    )
    reward: str = option(ROUTER, "what judges frames: a reward, or the pipeline's own router")

    def needs(self) -> tuple[str, ...]:
        """The router, unless a reward takes its place."""
        return (ROUTER,) if self.reward == ROUTER else ()


@dataclass(frozen=True)
class ThresholdOptions(RewardOptions):
    """Of a fixed threshold."""

    tau: float = option(ROUTER_TAU, "what a drafted block's worst frame must score; less is faster")


@dataclass(frozen=True)
class ShareOptions:
    """Of rules that are told how many drafts stand."""

    draft_share: float = option(
        0.5, "part of the drafted blocks that is to stand; more is faster", 0, 1
    )


@dataclass(frozen=True)
class RankOptions(RewardOptions, ShareOptions):
    """Of a threshold that adapts itself."""

    target_speedup: float | None = option(
        None, "in place of a share: plain generation's seconds over those of a clip", 1, 100
    )
    target_quality: float | None = option(
        None, "in place of a share: the mean reward that drafts which stand have at least"
    )

    def rule(self) -> str:
        """The class that does it."""
        name = "reward_rank:RewardRankRule"
        if self.target_quality is not None:
            name = "reward_mean:RewardMeanRule"
        return f"{_HERE}.routing.{name}"

    def goals(self) -> str | None:
        """Why not: a rule is told one goal."""
        given = dict(target_speedup=self.target_speedup, target_quality=self.target_quality)
        several = [name for name, value in given.items() if value is not None]
        several = ["draft_share", *several] if self.draft_share != 0.5 else several
        return f"{' and '.join(several)} are goals; leave one" if len(several) > 1 else None


def _nearest(options: Any, offers: Offers) -> Any:
    """The table of nearest codes; the released rules look at one more."""
    return offers["nearest"]()(options.neighbours + (options.lantern_variant == "released"))


def _lantern(name: str) -> Any:
    """The class of a variant."""
    own = f"{_HERE}.lantern.{name}"
    released = f"{_HERE}.lantern.released:ReleasedLanternRule"
    return lambda options: released if options.lantern_variant == "released" else own


def _without_law(options: LocalOptions, drafter: Drafter) -> str | None:
    if options.local_criterion != "ratio" or drafter.known:
        return None
    return (
        "local_criterion 'ratio' divides by the probability with which a token was drafted, and "
        f"drafter {drafter.name!r} does not know it; use 'threshold'"
    )


PARTS = (
    Rule(
        "token",
        f"{_HERE}.token:TokenRule",
        "a token stands with probability p / q",
        greedy=True,
        paper="Leviathan et al. 2023",
    ),
    Rule(
        "block",
        f"{_HERE}.block:BlockRule",
        "the draft is judged as a whole",
        greedy=True,
        joint=True,
        paper="Sun et al. 2024",
    ),
    Rule(
        "greedy",
        f"{_HERE}.greedy:GreedyRule",
        "the target's likeliest token stands",
        contract="exact-greedy",
        paper="Leviathan et al. 2023",
    ),
    Rule(
        "recursive",
        f"{_HERE}.recursive:RecursiveRule",
        "siblings take their turns against what is left of the target's law",
        trees=True,
        paper="Jeon et al. 2024",
    ),
    Rule(
        "k-seq",
        f"{_HERE}.kseq:KSeqRule",
        "one of several independent siblings is selected",
        trees=True,
        one_law=True,
        paper="Sun et al. 2023",
    ),
    Rule(
        "lantern",
        _lantern("lantern:LanternRule"),
        "a token's nearest codes lend it probability, up to δ",
        LanternOptions,
        {"neighbours": _nearest, "k": "neighbours", "delta": "lantern_delta"},
        contract="lossy",
        trees=True,
        paper="Jang et al. 2024",
    ),
    Rule(
        "lantern++",
        _lantern("lantern_plus_plus:LanternPlusPlusRule"),
        "a token's nearest codes lend it probability, up to λ times its own",
        LanternPlusPlusOptions,
        {"neighbours": _nearest, "k": "neighbours", "lam": "lantern_lambda"},
        contract="lossy",
        trees=True,
        paper="Park et al. 2025",
    ),
    Rule(
        "grouped",
        f"{_HERE}.grouped:GroupedRule",
        "tokens of about the same probability are judged as a group",
        GroupedOptions,
        {"probability_bound": "group_probability", "distance_bound": "group_distance"},
        contract="lossy",
        greedy=True,
        paper="So et al. 2025",
    ),
    Rule(
        "cool",
        f"{_HERE}.cool:CoolRule",
        "the ratio test is relaxed, and less so further into the draft",
        CoolOptions,
        {"delta": "cool_delta", "length": "cool_length", "nu": "cool_nu"},
        contract="bounded",
        greedy=True,
        paper="Li et al. 2026",
    ),
    Rule(
        "local",
        f"{_HERE}.local:LocalRule",
        "a set of tokens stands, and islands of the others are drawn again",
        LocalOptions,
        {
            "neighbours": lambda o, f: f["nearest"]()(o.neighbours) if o.neighbours else None,
            **{name: f"local_{name}" for name in ("threshold", "radius", "criterion")},
            **{name: f"local_{name}" for name in ("advance", "slips")},
        },
        contract="lossy",
        positions=True,
        check=_without_law,
        paper="Peruzzo et al. 2026",
    ),
    Rule(
        "unverified",
        f"{_HERE}.unverified:UnverifiedRule",
        "all that is drafted stands",
        contract="lossy",
        judges=False,
    ),
    Rule(
        "reflection",
        f"{_HERE}.gaussian.reflection:ReflectionRule",
        "what falls is mirrored",
        tokens="vectors",
        paper="De Bortoli et al. 2025",
    ),
    Rule(
        "gamma-maximal",
        f"{_HERE}.gaussian.gamma_maximal:GammaMaximalRule",
        "what falls is drawn from the residual",
        tokens="vectors",
        paper="De Bortoli et al. 2025",
    ),
    Rule(
        "gaussian-block",
        f"{_HERE}.gaussian.block:GaussianBlockRule",
        "denoising steps are judged together",
        tokens="vectors",
        paper="Sun et al. 2024",
    ),
    Rule(
        "cspd-independent",
        f"{_HERE}.gaussian.independent:IndependentRule",
        "each token by itself, none is taken back",
        IndependentOptions,
        contract="lossy",
        tokens="vectors",
        independent=True,
        paper="Wang et al. 2024",
    ),
    Rule(
        "reward-threshold",
        f"{_HERE}.routing.reward_threshold:RewardThresholdRule",
        "a block stands where a reward is content with it",
        ThresholdOptions,
        contract="lossy",
        tokens="blocks",
        rewarded=True,
        needs=ThresholdOptions.needs,
    ),
    Rule(
        "reward-rank",
        RankOptions.rule,
        "a block stands by its rank among those before it",
        RankOptions,
        {"wish": "target_quality"},
        contract="lossy",
        tokens="blocks",
        rewarded=True,
        needs=RankOptions.needs,
        check=lambda options, drafter: options.goals(),
    ),
    Rule(
        "random-routing",
        f"{_HERE}.routing.random_routing:RandomRoutingRule",
        "a block stands by chance",
        ShareOptions,
        contract="lossy",
        tokens="blocks",
    ),
)
