"""Distance that calls of a generation go back, for layers that keep their last slots alone."""

from __future__ import annotations

from collections.abc import Sequence

_TIMES = 4  # drafts


def most_back(scratch: int) -> int:
    """Slots that a call may go back, of a generation whose calls add `scratch` tokens at most.

    They are a draft, one that is drafted behind it while it is read, what rows read again as
    others catch up, and as much to spare.
    """
    return _TIMES * (scratch + 1)


class Reach:
    """The slots up to which rows have been written.

    Args:
        ends: by row, the first slot that nobody has written.
        room: slots that a call may go back, see `StaticCache`; None: any number.

    Attributes:
        again: tokens that a row may read again where others catch up; None: any number.
    """

    def __init__(self, ends: Sequence[int], room: int | None = None) -> None:
        self.ends, self.room = list(ends), room
        self.again = None if room is None else max(1, room // _TIMES)

    def call(self, first: Sequence[int], count: int) -> None:
        """Notice a call that writes `count` slots of each row, from `first` on.

        Raises:
            RuntimeError: it goes back too far: what it wants to read may be gone.
        """
        pairs = list(zip(self.ends, first, strict=True))
        back = max(end - 1 - at for end, at in pairs)
        if self.room is not None and back > self.room:
            raise RuntimeError(
                f"a call goes back by {back} slots, and there is room for {self.room}"
            )
        self.ends = [max(end, at + count) for end, at in pairs]
