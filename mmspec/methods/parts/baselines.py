"""Baselines that speculation is compared with: plain decoding, others in the target's place."""

from __future__ import annotations

from ..part import Drafter, Preset
from .blocks import StepsOptions
from .pipelines import MODALITIES
from .shared import ONE_LAW, NullOptions

PARTS = (
    Drafter(
        "null",
        "mmspec.draft.null:NullDrafter",
        "nothing is drafted",
        NullOptions,
        drafts=False,
        **ONE_LAW,
    ),
    Preset(
        "plain",
        "null",
        "token",
        "one token a target call: the baseline",
        role="baseline",
        serves=MODALITIES,
    ),
    Preset(
        "drafter-only",
        "null",
        "token",
        "the draft model in place of the target",
        role="sceptic",
        serves=MODALITIES,
        answers="drafter",
        options={"video": StepsOptions},
    ),
    Preset(
        "verdict",
        "null",
        "token",
        "small experts answer and reason, the model gives the verdict",
        serves=("vlm",),
        answers="experts",
    ),
)
