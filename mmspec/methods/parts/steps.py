"""The drafter of steps of text, and rules that route them."""

from __future__ import annotations

from typing import Any, Literal

from ..options import Options, option
from ..part import Drafter, DraftOptions, Preset, Role, Rule
from .routing import ADVANTAGE_ROUTER, ROUTER, AdvantageOptions, GainOptions, ShareOptions

STEP_REWARD = "reward"  # what scores steps, given to the pipeline itself


class StepOptions(DraftOptions):
    step: Literal["sentence", "line", "paragraph"] = option(
        "sentence", "what a step is: it ends with a sentence, a line, or an empty line"
    )
    step_tokens: int = option(64, "most tokens of a step", 1, 256, limits=("depth",))

    def first(self, stride: int) -> int:
        return self.step_tokens

    def calls(self, depth: int) -> list[int]:
        return [1] * depth


class StepRewardOptions(Options):
    reward_tau: float = option(
        0.7, "what a drafted step must score to stand; less is faster and further off"
    )


def _of_steps(
    name: str, rule: str, summary: str, role: Role = "method", **knob: tuple[float, ...]
) -> Preset:
    """Steps of text, drafted by a smaller model and routed by a rule with a knob."""
    ((option, sweep),) = knob.items()
    return Preset(
        name, "steps", rule, summary, role=role, knob=option, sweep=sweep, serves=("vlm",)
    )


OF_STEPS = {  # methods that block video has too, by name
    preset.name: preset
    for preset in (
        _of_steps(
            "arbitrage",
            "step-advantage",
            "a smaller model drafts each step, and the target writes those that it would do better",
            advantage_tau=(0.3, 0.5, 0.7, 0.9),
        ),
        _of_steps(
            "oracle-routing",
            "step-oracle",
            "both models write each step, and the one that a reward prefers stands",
            "oracle",
            gain_tau=(0.0, 0.25, 0.5, 1.0),
        ),
        _of_steps(
            "random-routing",
            "step-random",
            "a smaller model drafts each step, which stands by chance, nobody looks at it",
            "sceptic",
            draft_share=(0.25, 0.5, 0.75, 1.0),
        ),
    )
}
_LOSSY: Any = dict(contract="lossy", routes=True)

PARTS = (
    Drafter(
        "steps",
        ".steps:StepDrafter",
        "a smaller model drafts a step of text",
        StepOptions,
        needs=("drafter",),
        depth="step_tokens",
        knob="step_tokens",
        fixed=True,
        units=True,
    ),
    Rule(
        "step-advantage",
        ".routing:AdvantageRule",
        "a step stands unless a router says that the target would do better",
        AdvantageOptions,
        needs=(ADVANTAGE_ROUTER,),
        paper="Maheswaran et al. 2025",
        rewarded=True,
        **_LOSSY,
    ),
    Rule(
        "step-reward",
        ".routing:RewardThresholdRule",
        "a step stands where a router or a reward is content with it",
        StepRewardOptions,
        {"tau": "reward_tau"},
        needs=(ROUTER,),
        paper="Liao et al. 2025",
        rewarded=True,
        **_LOSSY,
    ),
    Rule(
        "step-oracle",
        ".routing:AdvantageRule",
        "the target writes the step too, and the better one stands",
        GainOptions,
        {"advantage_tau": "gain_tau"},
        needs=(STEP_REWARD,),
        paper="Maheswaran et al. 2025",
        rewarded=True,
        foresees=True,
        **_LOSSY,
    ),
    Rule(
        "step-random",
        ".routing:RandomRoutingRule",
        "a step stands by chance",
        ShareOptions,
        **_LOSSY,
    ),
    _of_steps(
        "reward-guided",
        "step-reward",
        "a smaller model drafts each step, which stands if it scores enough by itself",
        reward_tau=(0.95, 0.9, 0.7, 0.5),
    ),
)
