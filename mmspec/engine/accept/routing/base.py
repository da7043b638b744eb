"""What rules share that route blocks of video to the drafter or the target."""

from __future__ import annotations

import torch
from torch import Tensor

from ....errors import InputError
from ...draft import Draft, Scores, Verdict

FRAME_RULES = ("worst", "mean")  # how the rewards of a block's frames become one


def block_rewards(scores: Scores, frame_rule: str) -> Tensor:
    """The reward of every block `[B, N]`: of its worst frame, or the mean; NaN if a frame's is.

    Raises:
        ContractError: nobody was asked for rewards.
    """
    frames = scores.rewards
    if not frames.shape[1]:
        return frames.new_zeros(frames.shape[:2])
    return frames.amin(-1) if frame_rule == "worst" else frames.mean(-1)


def check_frame_rule(frame_rule: str) -> None:
    """Raise an `InputError` for one that there is not."""
    if frame_rule not in FRAME_RULES:
        raise InputError(f"frame_rule must be {' or '.join(FRAME_RULES)}, not {frame_rule!r}")


def check_share(draft_share: float) -> None:
    """Raise an `InputError` for a share that is none."""
    if not 0 <= draft_share <= 1:
        raise InputError(f"draft_share must be from 0 to 1, not {draft_share!r}")


def routed(draft: Draft, stands: Tensor) -> Verdict:
    """Blocks stand where `stands [B, N]` says; the target makes the others. N is 0 or 1."""
    tokens, keep = draft.tokens, stands & draft.live()
    rows, nodes, *shape = tokens.shape
    emitted = tokens if nodes else tokens.new_zeros(rows, 1, *shape)  # for the target to fill
    one = torch.ones_like(draft.lengths)
    return Verdict(keep.sum(1), emitted, emitted, one, keep=keep)
