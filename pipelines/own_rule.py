"""A rule of the user's own, named as "module:Class", without a declaration."""

from __future__ import annotations

from typing import get_args

from ..engine.laws import Contract
from ..engine.protocols import AcceptanceRule
from ..errors import InputError
from ..registry import resolve_own


def own_rule(reference: str) -> AcceptanceRule:
    """Make it: a class that takes no arguments.

    Raises:
        InputError: it can't be imported or made, or is no rule.
    """
    made, contracts = resolve_own("rule", reference), get_args(Contract)
    try:
        rule: AcceptanceRule = made()
    except TypeError as error:
        raise InputError(
            f"rule {reference!r} must be a class without arguments: {error}"
        ) from error
    if not callable(getattr(rule, "verify", None)) or (
        getattr(rule, "contract", None) not in contracts
    ):
        raise InputError(
            f"rule {reference!r} is no acceptance rule: it needs verify(draft, scores, coins) and "
            f"a contract, {' or '.join(contracts)}"
        )
    return rule
