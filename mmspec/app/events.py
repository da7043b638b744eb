"""What all events of the page share."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ..errors import InputError
from . import markup

logger = logging.getLogger(__name__)
BROKEN = "something went wrong on the server; its log says what"
# outside of the queue, in which long runs wait
QUIET: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden", "queue": False}
HEAVY = {**QUIET, "queue": True}  # a picture to be shown takes memory


def refused(make: Callable[[], object]) -> str:
    """Why something can't be made, in one line; "": it is. A visitor never sees a trace."""
    try:
        make()
    except (InputError, FloatingPointError) as error:
        return str(error)
    except Exception:
        logger.exception("the demo's page failed")
        return BROKEN
    return ""


def safely(make: Callable[[], str]) -> str:
    """The text that is made, or a message that says why not."""
    made: list[str] = []
    why = refused(lambda: made.append(make()))
    return markup.message(why, "error") if why else made[0]
