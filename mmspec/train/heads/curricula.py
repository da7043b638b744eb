"""Curricula of heads: pictures, depth and loss of a step, by the part of the run that is over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...methods.parts.heads import BRANCHES, Choice
from .glancing import share_of

# levels of a draft that a step trains, one of these; deep ones cost as much as all above (HASS,
# Zhang et al. 2024, section 3.2)
DEPTHS = (1, 1, 2, 3)
LAWS = 0.5  # part of a curriculum after which heads of EAGLE's kind learn laws, not states
EXPLORED = 0.5
FIRST_SEEN, ALL_SEEN = 0.1, 0.5  # parts of MSD's after which some pictures are shown, and all
# whether pictures are shown, and arguments of `head_loss`
Curriculum = Callable[[float, np.random.Generator], tuple[bool, dict[str, Any]]]


def whole(done: float, rng: np.random.Generator) -> tuple[bool, dict[str, Any]]:
    """A head whose loss covers all that it drafts."""
    return True, {}


def slots(done: float, rng: np.random.Generator) -> tuple[bool, dict[str, Any]]:
    """A head of EAGLE's kind that says several tokens a call: the loss on laws after the middle."""
    return True, {"laws": done >= LAWS}


def falcon(done: float, rng: np.random.Generator) -> tuple[bool, dict[str, Any]]:
    """Falcon: ever fewer glances at the truth, and the loss on laws after the middle."""
    return True, {"laws": done >= LAWS, "glance": share_of(done)}


def levels(done: float, rng: np.random.Generator) -> tuple[bool, dict[str, Any]]:
    """A head that drafts from its own states: some steps go several levels deep.

    EAGLE's loss on hidden states comes first; then ViSpec's on laws, which are what is accepted.
    """
    return True, {"depth": int(rng.choice(DEPTHS)), "laws": done >= LAWS}


def vispec(done: float, rng: np.random.Generator) -> tuple[bool, dict[str, Any]]:
    """ViSpec's two stages, a half each (Kang et al. 2025, section 3.3).

    EAGLE's loss first; then that on laws, the head's own states fed back once.
    """
    return True, {"depth": 1} if done < LAWS else {"depth": 2, "laws": True}


def msd(done: float, rng: np.random.Generator) -> tuple[bool, dict[str, Any]]:
    """MSD: text alone first, then ever more pictures (Lin et al. 2025, section 3.3).

    Their probability rises from 0 at `FIRST_SEEN` to 1 at `ALL_SEEN`. The paper's text alone takes
    longer; it brings nothing where an answer says little without its picture.
    """
    shown = (done - FIRST_SEEN) / (ALL_SEEN - FIRST_SEEN)
    return bool(rng.random() < shown), levels(done, rng)[1]


CURRICULA: dict[str, Curriculum] = {
    **dict.fromkeys(("eagle", "eagle3", "specvlm"), levels),
    **dict.fromkeys(("dflash", "medusa", "hydra", "longspec"), whole),
    "flash": slots,
    "falcon": falcon,
    "vispec": vispec,
    "msd": msd,
}


def drawn_branch(rng: np.random.Generator) -> Choice:
    """Choice of a step of SpecVLM: its gate's, or in `EXPLORED` of the steps whole or one branch.

    Left to itself the gate settles on no pictures at all, before any branch has learned to shorten
    one, and then none ever does.
    """
    all_of_them: tuple[Choice, ...] = (*BRANCHES, "whole")
    number = rng.integers(len(all_of_them))
    return all_of_them[number] if rng.random() < EXPLORED else "gate"
