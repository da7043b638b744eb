"""Recursive rejection: siblings take their turns against what is left of the target's law.

Miao et al. 2023 (SpecInfer) for siblings drawn with replacement; Jeon et al. 2024 (RSD) and Chen et
al. 2024 (Sequoia) without; with siblings chosen without chance it is EAGLE-2's rule.
"""

from __future__ import annotations

from torch import Tensor

from ..laws import Contract
from .in_turn import SiblingRule


class RecursiveRule(SiblingRule):
    """Try a node's children in order; the first that stands is followed.

    Child x, drawn from q, stands with probability min(1, p(x) / q(x)); if it falls, p becomes
    norm([p − q]+) for the next one, and q loses x where siblings were drawn without replacement.
    When no child stands, one token is drawn from the p that is left. On a chain this is the token
    rule.
    """

    contract: Contract = "exact"

    def credit(self, p: Tensor, x: Tensor) -> Tensor:
        return p.gather(2, x)
