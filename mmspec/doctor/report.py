"""Findings about a draft head, as lines and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

State = Literal["fault", "note", "fine"]
_WORDS: dict[State, str] = {"fault": "FAULT", "note": "note", "fine": "ok"}


@dataclass(frozen=True)
class Finding:
    """A finding of a check.

    Attributes:
        check: the check's name, such as "layers".
        state: "fault": it is wrong; "note": it may be; "fine": it is as it should be.
        text: what was found, in a line; of a fault also what to do.
    """

    check: str
    state: State
    text: str


@dataclass
class Diagnosis:
    """Findings about a head, and the trials behind them.

    Attributes:
        target, head: their names.
        findings: in the order of the checks.
        trials: what was accepted, by convention, as JSON values; see `Tally.as_dict`.
    """

    target: str
    head: str
    findings: list[Finding] = field(default_factory=list)
    trials: list[dict[str, Any]] = field(default_factory=list)

    def add(self, check: str, state: State, text: str) -> None:
        """Note a finding."""
        self.findings.append(Finding(check, state, " ".join(text.split())))

    @property
    def faults(self) -> list[Finding]:
        """Findings that are wrong."""
        return [one for one in self.findings if one.state == "fault"]

    def ordered(self) -> list[Finding]:
        """Findings with the faults on top, in the order of the checks.

        Of a check with a fault nothing else is fine.
        """
        wrong = {one.check for one in self.faults}
        others = [one for one in self.findings if one.state != "fault"]
        noted = [replace(one, state="note") if one.check in wrong else one for one in others]
        return self.faults + noted

    def lines(self) -> list[str]:
        """A line a finding, the faults on top."""
        found = self.ordered()
        width = max((len(one.check) for one in found), default=0)
        return [f"{_WORDS[one.state]:<5}  {one.check:<{width}}  {one.text}" for one in found]

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "target": self.target,
            "head": self.head,
            "healthy": not self.faults,
            "findings": [asdict(one) for one in self.ordered()],
            "trials": self.trials,
        }


def listed(items: Sequence[Any], most: int = 3) -> str:
    """The first items, and how many more there are."""
    shown = ", ".join(map(str, items[:most]))
    return shown if len(items) <= most else f"{shown} and {len(items) - most} more"
