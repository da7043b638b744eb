"""Limits on requests of the demo: bad input is refused in one line, before any work."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from ..errors import InputError
from ..picture import WEB_FORMATS, check_picture, open_picture
from . import markup

logger = logging.getLogger(__name__)
BROKEN = "something went wrong on the server; its log says what"


@dataclass(frozen=True)
class Limits:
    """Limits of one visitor's request, and of all visitors together.

    Attributes:
        upload_bytes: of a picture or a report.
        uploads_bytes: of all that are kept, each for an hour or so.
        request_bytes: of any other request's body.
        pixels: of a picture.
        prompt: characters.
        settings: characters of a method's further settings.
        rows: methods of a report.
        waiting: runs in the queue, behind the one at work.
        waiting_of_host: those of visitors at one machine that is not this one.
        seconds: of a run, from the loaded model on.
        most_seed: largest seed; browsers are exact below 2**53.
    """

    upload_bytes: int = 10_000_000
    uploads_bytes: int = 200_000_000
    request_bytes: int = 100_000
    pixels: int = 16_000_000
    prompt: int = 500
    settings: int = 300
    rows: int = 200
    waiting: int = 8
    waiting_of_host: int = 2
    seconds: float = 1800
    most_seed: int = 2**32 - 1


def checked_text(text: Any, what: str, most: int) -> str:
    """Text of at most `most` characters, without blanks around it."""
    if not isinstance(text, str):
        raise InputError(f"{what} must be text")
    if len(text) > most:
        raise InputError(f"{what} has {len(text):,} characters, more than {most:,}; shorten it")
    return text.strip()


def checked_number(value: Any, what: str, low: float, high: float, whole: bool = True) -> Any:
    """A number from `low` to `high`; an integer if it is to be whole."""
    kind = "an integer" if whole else "a number"
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not low <= value <= high or (whole and value != int(value)):
        raise InputError(f"{what} must be {kind} from {low} to {high}, not {value!r}")
    return int(value) if whole else float(value)


def checked_picture(path: Any, limits: Limits) -> Image.Image:
    """An uploaded picture in RGB: a PNG, JPEG or WebP that can be read whole."""
    file = checked_upload(path, "picture", limits)
    return open_picture(file, **_taken(limits))


def glance_at_picture(path: Any, limits: Limits) -> None:
    """Check an uploaded picture as far as can be done without reading it whole."""
    check_picture(checked_upload(path, "picture", limits), **_taken(limits))


def _taken(limits: Limits) -> dict[str, Any]:
    """What pictures are taken; parsers of other formats never see what a visitor uploads."""
    return {"formats": WEB_FORMATS, "most_pixels": limits.pixels, "name": "the picture"}


def checked_upload(path: Any, what: str, limits: Limits) -> Path:
    """The file of an upload, small enough."""
    if not path:
        raise InputError(f"there is no {what}; upload one")
    file = Path(str(path))
    if not file.is_file():
        raise InputError(f"the {what} is no longer here; upload it again")
    if file.stat().st_size > limits.upload_bytes:
        raise InputError(
            f"the {what} has {file.stat().st_size:,} bytes, more than {limits.upload_bytes:,}"
        )
    return file


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
