"""Every knob of speculation in one frozen, validated place; imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from .errors import InputError
from .registry import check_name


@dataclass(frozen=True)
class Method:
    """A named preset: which drafter, acceptance rule and length policy work together."""

    drafter: str
    rule: str
    length: str
    summary: str


METHODS: dict[str, Method] = {
    "plain": Method("null", "token", "constant", "one token a target call: the baseline"),
    "draft": Method("model", "token", "constant", "a smaller model of the same vocabulary drafts"),
    "sjd": Method("jacobi", "token", "constant", "the target drafts a window itself (Jacobi)"),
    "scd": Method("coupled-jacobi", "token", "constant", "Jacobi whose tokens stay put (coupled)"),
}
DRAFTERS = ("null", "model", "jacobi", "coupled-jacobi")
WINDOWED = ("jacobi", "coupled-jacobi")
RULES = ("token", "block", "greedy")
LENGTHS = ("constant", "heuristic")
JacobiInit = Literal["uniform", "previous"]
JACOBI_INITS: tuple[JacobiInit, ...] = get_args(JacobiInit)


@dataclass(frozen=True)
class SpecConfig:
    """How to speculate.

    Args:
        method: preset of drafter, rule and length policy; see `METHODS`.
        drafter, rule, length: one of the preset's parts by name, in place of the preset's.
        num_draft_tokens: tokens drafted a round (γ) by a draft model; where the heuristic starts.
        max_draft_tokens: most tokens that a length policy may ask for.
        window: positions in a Jacobi window (W); the paper takes 16, fewer cost less on a CPU.
        jacobi_init: how a position enters the window, see `JacobiDrafter`.

    Raises:
        InputError: a name is unknown or a number out of range.
    """

    method: str = "draft"
    drafter: str | None = None
    rule: str | None = None
    length: str | None = None
    num_draft_tokens: int = 4
    max_draft_tokens: int = 16
    window: int = 12
    jacobi_init: JacobiInit = "previous"

    def __post_init__(self) -> None:
        check_name("method", self.method, METHODS)
        for part, known in (("drafter", DRAFTERS), ("rule", RULES), ("length", LENGTHS)):
            if (name := getattr(self, part)) is not None:
                check_name(part, name, known)
        check_name("jacobi_init", self.jacobi_init, JACOBI_INITS)
        for knob, most in (("num_draft_tokens", 64), ("max_draft_tokens", 64), ("window", 256)):
            value = getattr(self, knob)
            if not isinstance(value, int) or not 1 <= value <= most:
                raise InputError(f"{knob} must be an integer from 1 to {most}, not {value!r}")
        if self.num_draft_tokens > self.max_draft_tokens:
            raise InputError(
                f"num_draft_tokens ({self.num_draft_tokens}) is larger than max_draft_tokens "
                f"({self.max_draft_tokens})"
            )

    def resolved(self) -> SpecConfig:
        """The same with drafter, rule and length filled in from the preset."""
        preset = METHODS[self.method]
        return replace(
            self,
            drafter=self.drafter or preset.drafter,
            rule=self.rule or preset.rule,
            length=self.length or preset.length,
        )

    @property
    def most_drafted(self) -> int:
        """The largest draft that this configuration can ask for."""
        parts = self.resolved()
        if parts.drafter == "null":
            return 0
        if parts.length == "heuristic":
            return self.max_draft_tokens
        return self.first_drafted

    @property
    def first_drafted(self) -> int:
        """What the first round drafts: a window, or γ tokens."""
        return self.window if self.resolved().drafter in WINDOWED else self.num_draft_tokens
