"""The window of drafts whose tokens stay in place from round to round, by what it has brought."""

from __future__ import annotations

from ..draft import Context, Draft, Verdict
from .goodput import Experience, GoodputLength

_AGAIN = 16  # generations after which a window beside the best one is tried again
_FADE = 0.5  # of what a window has brought, every time that it is taken again


class SettledLength:
    """Chooses one window for a whole generation, by tokens a second of the generations before.

    Tokens stay in such a window, and every round makes those that lie far ahead better: how often
    a position stands says little of what a longer window would bring. So windows are compared as
    wholes. The longest comes first, then half of it and so on, down to none, as long as the shorter
    one brings more; the best is taken from then on, and now and then one beside it.

    Args:
        experience: of earlier generations; the longest window is the last that it has seconds for.
    """

    def __init__(self, experience: Experience) -> None:
        self.experience = experience
        most = len(experience.seconds) - 1
        self.windows = [most >> halvings for halvings in range(most.bit_length() + 1)]
        self._rows, self._window = 0, most

    def start(self, rows: int) -> None:
        self._rows, self._window = rows, self._choose()
        tokens, seconds = self.experience.windows.get(self._window, (0.0, 0.0))
        self.experience.windows[self._window] = _FADE * tokens, _FADE * seconds

    def seat(self, context: Context, rows: list[int]) -> None:
        return

    def _choose(self) -> int:
        known = self.experience.windows
        rates = {window: t / s for window, (t, s) in known.items() if s}
        longer = 0.0
        for window in self.windows:
            if window not in rates:
                return window
            if rates[window] < longer:
                break  # and still shorter ones would be worse
            longer = rates[window]
        best = max(rates, key=rates.__getitem__)
        self.experience.chosen += 1
        turn, due = divmod(self.experience.chosen, _AGAIN)
        if due:
            return best
        at = self.windows.index(best)
        beside = [*self.windows[max(0, at - 1) : at], *self.windows[at + 1 : at + 2]]
        return beside[turn % len(beside)]

    def budget(self) -> list[int]:
        return [self._window] * self._rows

    def observe(self, context: Context, draft: Draft, verdict: Verdict) -> None:
        tokens, seconds = self.experience.windows[self._window]
        told = tokens + sum(context.emitted), seconds + context.seconds
        self.experience.windows[self._window] = told


def goodput_length(experience: Experience, settled: bool = False) -> GoodputLength | SettledLength:
    """Policy that goes by tokens a second; `settled` says that tokens stay in a window."""
    return SettledLength(experience) if settled else GoodputLength(experience)
