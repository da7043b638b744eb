"""The drafter of blocks of video, and rules that route them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from ..options import Options, option
from ..part import Drafter, DraftOptions, Preset, Rule
from .reuse import NearReuseOptions
from .routing import ADVANTAGE_ROUTER, ROUTER, AdvantageOptions, GainOptions, ShareOptions
from .steps import OF_STEPS

ROUTER_TAU = 32.0


class StepsOptions(DraftOptions):
    draft_steps: int | None = option(
        None,
        "denoising steps of a drafted block; none: as many as its network was made for",
        1,
        1000,
    )


class BlockVideoOptions(NearReuseOptions, StepsOptions):
    forced_blocks: int = option(1, "first blocks of a clip that the target makes", 0, 65536)
    draft_ahead: bool | None = option(
        None, "whether the next block is drafted while the last is judged; none: on a GPU"
    )
    ranks: ClassVar[bool] = False


class JudgedOptions(Options):
    reward: str = option(ROUTER, "what judges frames: a reward, or the pipeline's own router")

    def needs(self) -> tuple[str, ...]:
        """The router, unless a reward takes its place."""
        return (ROUTER,) if self.reward == ROUTER else ()


class RewardOptions(JudgedOptions):
    frame_rule: Literal["worst", "mean"] = option(
        "worst", "whose reward a block's is: which frame's"
    )


class ThresholdOptions(RewardOptions):
    tau: float = option(ROUTER_TAU, "what a drafted block's worst frame must score; less is faster")


class OracleOptions(JudgedOptions, GainOptions):
    def measured(self) -> str | None:
        """Why not: nearness to the target is no reward of the target's own block."""
        told = "the router says how near a draft is to the target's block, and can't say which of "
        told += "them is better; name a reward of pictures"
        return told if self.reward == ROUTER else None


class RankOptions(RewardOptions, ShareOptions):
    target_speedup: float | None = option(
        None, "in place of a share: plain generation's seconds over those of a clip", 1, 100
    )
    target_quality: float | None = option(
        None, "in place of a share: the mean reward that drafts which stand have at least"
    )

    def rule(self) -> str:
        """The class that does it."""
        by_rank = self.target_quality is None
        return f".routing:{'RewardRankRule' if by_rank else 'RewardMeanRule'}"

    def goals(self) -> str | None:
        """Why not: a rule is told one goal."""
        given = dict(target_speedup=self.target_speedup, target_quality=self.target_quality)
        several = [name for name, value in given.items() if value is not None]
        several = ["draft_share", *several] if self.draft_share != 0.5 else several
        return f"{' and '.join(several)} are goals; leave one" if len(several) > 1 else None


def _of_blocks(
    name: str,
    rule: str,
    summary: str,
    role: Any = "method",
    settings: Mapping[str, Any] | None = None,
    **knob: tuple[float, ...],
) -> Preset:
    """Blocks of video, drafted by a cheap model and routed by a rule with a knob.

    Some are methods of the same name for steps of text, too.
    """
    ((option, sweep),) = knob.items()
    more: Any = dict(role=role, knob=option, sweep=sweep, serves=("video",))
    more |= {"settings": settings or {}}
    if name in OF_STEPS:
        more |= dict(serves=("video", "vlm"), of={"vlm": OF_STEPS[name]})
    return Preset(name, "block-video", rule, summary, **more)


PARTS = (
    Drafter(
        "block-video",
        "mmspec.draft.video.block_video:BlockVideoDrafter",
        "a small block-causal model drafts the next block of a clip",
        BlockVideoOptions,
        tokens="blocks",
        needs=("drafter",),
        units=True,
    ),
    Rule(
        "reward-threshold",
        ".routing:RewardThresholdRule",
        "a block stands where a reward is content with it",
        ThresholdOptions,
        contract="lossy",
        tokens="blocks",
        routes=True,
        rewarded=True,
        paper="Hu and Zhang 2026",
    ),
    Rule(
        "reward-rank",
        RankOptions.rule,
        "a block stands by its rank among those before it",
        RankOptions,
        {"wish": "target_quality"},
        contract="lossy",
        tokens="blocks",
        routes=True,
        rewarded=True,
        check=lambda options, drafter: options.goals(),
    ),
    Rule(
        "advantage",
        ".routing:AdvantageRule",
        "a block stands unless a router says that the target would do better",
        AdvantageOptions,
        needs=(ADVANTAGE_ROUTER,),
        contract="lossy",
        tokens="blocks",
        routes=True,
        rewarded=True,
        paper="Maheswaran et al. 2025",
    ),
    Rule(
        "oracle",
        ".routing:AdvantageRule",
        "the target makes the block too, and the better one stands",
        OracleOptions,
        {"advantage_tau": "gain_tau"},
        contract="lossy",
        tokens="blocks",
        routes=True,
        rewarded=True,
        foresees=True,
        paper="Maheswaran et al. 2025",
        check=lambda options, drafter: options.measured(),
    ),
    Rule(
        "random-routing",
        ".routing:RandomRoutingRule",
        "a block stands by chance",
        ShareOptions,
        contract="lossy",
        tokens="blocks",
        routes=True,
    ),
    _of_blocks(
        "sdvg",
        "reward-threshold",
        "a small model drafts each block, which stands if its worst frame scores enough",
        tau=(34.0, 32.0, 30.0, 28.0),
    ),
    _of_blocks(
        "sdvg-adaptive",
        "reward-rank",
        "sdvg with a target share of drafts, speed-up or mean score in place of a fixed threshold",
        draft_share=(0.25, 0.5, 0.75, 0.9),
    ),
    _of_blocks(
        "arbitrage",
        "advantage",
        "a small model drafts each block, and the target makes those that it would do better",
        advantage_tau=(0.3, 0.5, 0.7, 0.9),
    ),
    _of_blocks(
        "oracle-routing",
        "oracle",
        "both models make each block, and the one that a reward prefers stands",
        role="oracle",
        settings={"reward": "shapes_clip_score"},
        gain_tau=(0.0, 0.25, 0.5, 1.0),
    ),
    _of_blocks(
        "random-routing",
        "random-routing",
        "a small model drafts each block, which stands by chance, nobody looks at it",
        role="sceptic",
        draft_share=(0.25, 0.5, 0.75, 1.0),
    ),
)
