"""Pictures as users hand them over: the one reader of the project, 8-bit RGB whatever comes."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from PIL import Image, ImageCms, ImageColor, ImageOps, UnidentifiedImageError

from .errors import InputError, reason

if TYPE_CHECKING:
    from torch import Tensor

MOST_PIXELS = 50_000_000  # of one picture; more would take gigabytes before any model sees it
BACKGROUND = "white"  # what shows where a picture is transparent

Picture: TypeAlias = "Image.Image | str | Path | bytes | np.ndarray[Any, Any] | Tensor"
"""An opened picture, a file's path or content, or an array: `[H, W]`, `[H, W, C]` or `[C, H, W]`
with C 1, 3 or 4; bytes, 16-bit numbers, or floats from 0 to 1."""

Formats: TypeAlias = "tuple[str, ...] | None"  # by Pillow's names; None: all
WEB_FORMATS = ("PNG", "JPEG", "WebP")

_CHANNELS = (1, 3, 4)
_WEB = "pictures are not fetched from the web; give a file"
_ADDRESSES = {  # that are no paths, and what to do with each
    "http://": _WEB,
    "https://": _WEB,
    "data:": "give its bytes, decoded",
    "file://": "give the path alone",
}
_SHOWN = 80  # characters of an address that an error quotes
_HALF = 0.5 / 255  # how far beyond 0 to 1 a float may be: it rounds to a level


def open_picture(
    picture: Picture,
    background: str = BACKGROUND,
    *,
    formats: Formats = None,
    most_pixels: int = MOST_PIXELS,
    name: str | None = None,
) -> Image.Image:
    """The picture in 8-bit RGB, turned as its EXIF data say; the first frame of an animation.

    Sixteen bits and floats are scaled from their whole range (65,535, 1.0) to 255, CIELAB becomes
    sRGB, and what is transparent in any way lets the background through.

    Args:
        picture: what there is. Of an array whose first and last sides could both be channels, they
            are the last of numpy's and the first of torch's.
        background: a colour, as CSS names them.
        formats: that a file may have.
        most_pixels: that it may have.
        name: what errors call it; None: its path, or "the picture".

    Raises:
        InputError: no file, no picture, a truncated one, one of too many pixels, numbers out of
            range, or no colour.
    """
    over = check_background(background)
    if isinstance(picture, str | os.PathLike | bytes):
        with _opened(picture, formats, name) as image:
            return _rgb(image, over, most_pixels)
    with _naming(name or "the picture", formats):
        if not isinstance(picture, Image.Image):
            picture = _of_array(picture)
        return _rgb(picture, over, most_pixels)


def check_picture(
    path: str | Path | bytes,
    formats: Formats = None,
    *,
    most_pixels: int = MOST_PIXELS,
    name: str | None = None,
) -> tuple[int, int]:
    """Raise early what would end a long run: checks a PNG's checksums, of other formats the header.

    Args:
        path, formats, most_pixels, name: see `open_picture`.

    Returns:
        its two sides as they are stored, before EXIF turns it.

    Raises:
        InputError: no file, no picture, a damaged one, or one of too many pixels.
    """
    with _opened(path, formats, name) as image:
        _check_size(image, most_pixels)
        image.verify()
        return image.size


def check_background(background: str) -> tuple[int, int, int]:
    """A colour's red, green and blue, 0 to 255.

    Raises:
        InputError: it is none, or a transparent one.
    """
    try:
        color: tuple[int, ...] = ImageColor.getrgb(background)
        red, green, blue = color
    except (AttributeError, TypeError, ValueError) as error:  # no text or colour, a fourth part
        raise InputError(
            f"no background {background!r}; name a colour, as white or '#808080'"
        ) from error
    return red, green, blue


@contextmanager
def _opened(
    source: str | os.PathLike[str] | bytes, formats: Formats, name: str | None
) -> Iterator[Image.Image]:
    """A file whose header is read; what goes wrong inside is one line."""
    encoded = isinstance(source, bytes)
    for scheme, instead in _ADDRESSES.items():
        if isinstance(source, str) and source.lower().startswith(scheme):
            address = source if len(source) <= _SHOWN else source[:_SHOWN] + "…"
            raise InputError(f"no picture {address}: {instead}")
    name = name or ("the picture" if encoded else str(source))
    with _naming(name, formats), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of pixels that `_check_size` counts, of odd metadata
        file: Any = io.BytesIO(source) if isinstance(source, bytes) else source
        with Image.open(file, formats=formats) as image:
            yield image


@contextmanager
def _naming(name: str, formats: Formats) -> Iterator[None]:
    """Turn errors over a picture into one line that names it."""
    try:
        yield
    except _RefusedError as error:
        raise InputError(f"{name} {error}") from error
    except FileNotFoundError as error:
        raise InputError(f"no picture {name}") from error
    except UnidentifiedImageError as error:
        kind = " or".join(", ".join(formats or ()).rsplit(",", 1))
        what = f"no {kind} picture" if kind else "no picture in a known format"
        raise InputError(f"can't read {name}: it is {what}") from error
    except Exception as error:  # Pillow's parsers raise anything at damaged files
        raise InputError(f"can't read {name}: {reason(error)}") from error


class _RefusedError(ValueError):
    """Fault of a picture, without its name."""


def _check_size(image: Image.Image, most: int) -> None:
    if image.width * image.height > most:
        raise _RefusedError(
            f"has {image.width}×{image.height} pixels, more than {most:,}; make it smaller first"
        )


def _rgb(image: Image.Image, background: tuple[int, int, int], most: int) -> Image.Image:
    _check_size(image, most)
    image = ImageOps.exif_transpose(image)
    if image.mode == "F" or image.mode.startswith("I"):
        image = _of_deep(image)
    elif image.mode == "LAB":
        lab, srgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
        return ImageCms.profileToProfile(image, lab, srgb, outputMode="RGB") or image
    elif image.mode == "La":  # grey that is multiplied with its alpha
        image = image.convert("LA")
    if not image.has_transparency_data:
        return image.convert("RGB")
    seen = image.convert("RGBA")
    below = Image.new("RGBA", seen.size, (*background, 255))
    return Image.alpha_composite(below, seen).convert("RGB")


def _of_deep(image: Image.Image) -> Image.Image:
    """Grey of 8 bits, of more bits or floats. 32-bit integers are where Pillow puts 16-bit ones."""
    values: np.ndarray[Any, Any] = np.asarray(image)
    if image.mode == "I":
        if values.min() < 0 or values.max() > 65535:
            raise _RefusedError(
                f"has values from {values.min()} to {values.max()}, and 16 bits hold 0 to 65535; "
                "save it with 8 or 16 bits"
            )
        values = values.astype(np.uint16)
    grey = Image.fromarray(_levels(values))
    if (hidden := image.info.get("transparency")) is not None:  # one value is see-through
        grey.putalpha(Image.fromarray(np.where(values == hidden, 0, 255).astype(np.uint8)))
    return grey


def _of_array(array: Any) -> Image.Image:
    """An image of an array or a tensor."""
    first = hasattr(array, "detach")  # torch's
    if first:
        array = array.detach().cpu()
        array = (array.float() if array.is_floating_point() else array).numpy()
    if not isinstance(array, np.ndarray):
        raise _RefusedError(
            f"is a {type(array).__name__}; give a PIL image, a file's path, an array or a tensor"
        )
    shape = array.shape
    ends = [end for end in ((0, -1) if first else (-1, 0)) if array.ndim == 3]
    ends = [end for end in ends if shape[end] in _CHANNELS]
    if array.size == 0 or not (array.ndim == 2 or ends):
        raise _RefusedError(
            f"has the shape {list(shape)}; give [H, W, 3] or [3, H, W], or without colour [H, W]"
        )
    if ends:
        array = np.moveaxis(array, ends[0], -1)
    levels = _levels(array)
    return Image.fromarray(levels[..., 0] if levels.shape[2:] == (1,) else levels)


def _levels(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Levels 0 to 255, scaled from the type's range; floats have 0 to 1."""
    values = values.astype(values.dtype.newbyteorder("="), copy=False)
    if values.dtype == np.uint8:
        return np.ascontiguousarray(values)
    if values.dtype != np.uint16 and not np.issubdtype(values.dtype, np.floating):
        raise _RefusedError(f"holds {values.dtype}; give uint8, uint16, or floats from 0 to 1")
    shares = values.astype(np.float32)
    if values.dtype.kind == "u":
        shares /= 65535
    low, high = shares.min(), shares.max()
    if not (low >= -_HALF and high <= 1 + _HALF):  # NaN too
        raise _RefusedError(f"holds floats from {low:g} to {high:g}; scale them to 0 to 1")
    return np.rint(shares.clip(0, 1) * 255).astype(np.uint8)
