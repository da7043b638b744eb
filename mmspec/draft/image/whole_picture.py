"""Base of the drafters that draw a whole picture with the target, whose draft nobody verifies."""

from __future__ import annotations

from collections.abc import Callable

from ...engine.protocols import Drafter


class WholePictureDrafter(Drafter):
    """Draws the picture in one round, by calls of the target.

    Attributes:
        before_call: called before every one of them; what it raises breaks the picture off.
    """

    def __init__(self) -> None:
        self.before_call: Callable[[], None] = lambda: None
