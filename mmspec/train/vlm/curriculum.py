"""Curricula of draft heads, by method: what each training step shows and asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

# levels of a draft that a step trains, one of these; deep ones cost as much as all above (HASS,
# Zhang et al. 2024, section 3.2)
DEPTHS = (1, 1, 2, 3)


@dataclass(frozen=True)
class Turn:
    """A step.

    Attributes:
        seen: whether pictures are shown.
        how: what else the head's `loss` takes.
    """

    seen: bool = True
    how: dict[str, Any] = field(default_factory=dict)


Curriculum = Callable[[float, np.random.Generator], Turn]


def whole(done: float, rng: np.random.Generator) -> Turn:
    """A head whose loss covers all that it drafts."""
    return Turn()


def levels(done: float, rng: np.random.Generator) -> Turn:
    """A head that drafts from its own states: some steps go several levels deep."""
    return Turn(how={"depth": int(rng.choice(DEPTHS))})


def vispec(done: float, rng: np.random.Generator) -> Turn:
    """ViSpec's two stages, a half each (Kang et al. 2025, section 3.3).

    EAGLE's loss first; then that on laws, the head's own states fed back once.
    """
    return Turn(how={"depth": 1} if done < 0.5 else {"depth": 2, "stage": 2})


def msd(done: float, rng: np.random.Generator) -> Turn:
    """MSD: text alone for the first half, then ever more pictures (Lin et al. 2025, section 3.3).

    Their probability rises from 0 in the middle to 1 at the end.
    """
    return Turn(bool(rng.random() < 2 * done - 1), levels(done, rng).how)


CURRICULA: dict[str, Curriculum] = {
    "eagle": levels,
    "vispec": vispec,
    "specvlm": levels,
    "msd": msd,
    "flash": whole,
    "dflash": whole,
    "hydra": whole,
}
