"""The one reader of pictures: every mode and type against values from its definition."""

from __future__ import annotations

import io
from contextlib import suppress

import numpy as np
import pytest
import torch
from PIL import Image

from mmspec.errors import InputError
from mmspec.picture import MOST_PIXELS, check_picture, open_picture


def noise(height: int, width: int, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, channels), np.uint8)


def encoded(image: Image.Image, kind: str = "PNG", **how) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **how)
    return file.getvalue()


def pixels(picture, *args, **how) -> np.ndarray:
    image = open_picture(picture, *args, **how)
    assert image.mode == "RGB"
    return np.asarray(image)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_turns_pictures(tmp_path, kind, orientation):
    turns = {
        1: lambda x: x,
        2: lambda x: x[:, ::-1],
        3: lambda x: x[::-1, ::-1],
        4: lambda x: x[::-1],
        5: lambda x: x.swapaxes(0, 1),
        6: lambda x: np.rot90(x, -1),
        7: lambda x: np.rot90(x, 2).swapaxes(0, 1),
        8: lambda x: np.rot90(x, 1),
    }
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"a.{kind.lower()}"
    image = Image.fromarray(noise(16, 8))
    how = {"lossless": True} if kind == "WEBP" else {}
    image.save(path, kind, exif=exif, **how)
    stored = pixels(encoded(image, kind)) if kind == "JPEG" else np.asarray(image)
    wanted = turns[orientation](stored)
    assert np.array_equal(pixels(path), wanted)
    with Image.open(path) as opened:
        assert np.array_equal(pixels(opened), wanted)
    deep = Image.fromarray(np.arange(6, dtype=np.uint16).reshape(2, 3) * 257)
    turned = pixels(encoded(deep, exif=exif))[..., 0]
    assert np.array_equal(turned, turns[orientation](np.arange(6).reshape(2, 3)))


@pytest.mark.parametrize(("name", "below"), [("white", 255), ("#808080", 128)])
def test_the_background_shows_through_all_kinds_of_alpha(name, below):
    colors = noise(4, 5)
    alpha = np.linspace(0, 255, 20).round().reshape(4, 5, 1)
    share = alpha / 255
    rgba = np.concatenate([colors, alpha.astype(np.uint8)], 2)
    wanted = share * colors + (1 - share) * below
    for given in (Image.fromarray(rgba), encoded(Image.fromarray(rgba)), rgba):
        assert np.abs(pixels(given, name) - wanted).max() <= 1
    grey = Image.fromarray(colors[..., 0])
    grey.putalpha(Image.fromarray(rgba[..., 3]))
    wanted = share * colors[..., :1] + (1 - share) * below
    assert np.abs(pixels(encoded(grey), name) - wanted).max() <= 1
    assert np.abs(pixels(grey.convert("La"), name) - wanted).max() <= 2  # multiplied before
    pair = Image.fromarray(np.array([[0, 1]], np.uint8), "P")
    pair.putpalette([255, 0, 0, 0, 0, 255])
    for kind in ("PNG", "GIF", "WEBP"):
        how = {"lossless": True} if kind == "WEBP" else {}
        shown = pair.copy()
        shown.info["transparency"] = 0
        shown = shown.convert("RGBA") if kind == "WEBP" else shown
        assert pixels(encoded(shown, kind, **how), name).tolist() == [[[below] * 3, [0, 0, 255]]]
    half = encoded(pair, transparency=bytes([51, 255]))  # an alpha for every colour
    ((first, second),) = pixels(half, name).tolist()
    assert np.abs(np.array(first) - (0.2 * np.array([255, 0, 0]) + 0.8 * below)).max() <= 1
    assert second == [0, 0, 255]
    keyed = encoded(Image.fromarray(np.array([[7, 9]], np.uint8)), transparency=7)
    assert pixels(keyed, name)[0, :, 0].tolist() == [below, 9]
    deep = Image.fromarray(np.array([[700, 9 * 257]], np.uint16))
    assert pixels(encoded(deep, transparency=700), name)[0, :, 0].tolist() == [below, 9]


def test_white_is_below_unless_said():
    clear = Image.new("RGBA", (1, 1), (0, 0, 0, 0))
    assert pixels(clear).tolist() == [[[255, 255, 255]]]


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_sixteen_bits_are_scaled(kind):
    deep = np.array([[0, 128, 257, 25700, 32768, 65535]], np.uint16)
    wanted = np.repeat((deep / 65535 * 255).round()[..., None], 3, 2)
    image = Image.fromarray(deep)
    assert np.array_equal(pixels(encoded(image, kind)), wanted)
    assert np.array_equal(pixels(image), wanted)
    turned = deep.astype(">u2")  # most significant byte first, as some TIFF files are
    assert np.array_equal(pixels(turned[..., None]), wanted)
    image = Image.frombytes("I;16B", (deep.shape[1], deep.shape[0]), turned.tobytes())
    assert np.array_equal(pixels(image), wanted)
    if kind == "TIFF":
        assert np.array_equal(pixels(encoded(image, kind)), wanted)
    if kind == "PNG":
        image = Image.fromarray(deep.astype(np.int32))
        assert image.mode == "I"
        assert np.array_equal(pixels(image), wanted)


def test_floats_are_scaled():
    values = np.array([[0, 0.2, 0.5, 1]], np.float32)
    image = Image.fromarray(values)
    for given in (image, encoded(image, "TIFF")):
        assert pixels(given)[0, :, 0].tolist() == [0, 51, 128, 255]


def test_cmyk_is_what_its_inks_leave():
    inks = np.array([[[0, 0, 0, 0], [255, 0, 0, 0], [0, 255, 255, 0], [0, 0, 0, 255]]], np.uint8)
    image = Image.fromarray(inks, "CMYK")
    wanted = [[[255, 255, 255], [0, 255, 255], [255, 0, 0], [0, 0, 0]]]
    for given in (image, encoded(image, "TIFF")):
        assert pixels(given).tolist() == wanted


def test_lab_is_brought_to_srgb():
    """Colours in CIELAB under D50, from the standard's matrices."""
    rgb = np.array([[200, 80, 60], [70, 150, 90], [80, 100, 190], [128] * 3, [255] * 3]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    to_d50 = np.array(
        [
            [0.4360747, 0.3850649, 0.1430804],
            [0.2225045, 0.7168786, 0.0606169],
            [0.0139322, 0.0971045, 0.7141733],
        ]
    )
    x, y, z = np.cbrt(linear @ to_d50.T / to_d50.sum(1)).T
    lab = np.stack([(116 * y - 16) * 2.55, 500 * (x - y) + 128, 200 * (y - z) + 128], 1)
    levels = lab.round().clip(0, 255).astype(np.uint8)
    image = Image.fromarray(levels[None] ^ np.array([0, 128, 128], np.uint8), "LAB")
    found = pixels(encoded(image, "TIFF"))[0]
    assert np.abs(found - rgb * 255).max() <= 2  # of half a step in each


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_of_an_animation_the_first_frame(kind):
    frames = [Image.new("RGB", (4, 4), color) for color in ("red", "blue")]
    how = {"lossless": True} if kind == "WEBP" else {}
    given = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **how)
    assert pixels(given)[0, 0].tolist() == [255, 0, 0]


ARRAYS = [
    lambda x: x,
    lambda x: x.astype(np.uint16) * 257,
    lambda x: x / 255,
    lambda x: (x / 255).astype(np.float32).transpose(2, 0, 1),
    lambda x: torch.tensor(x).permute(2, 0, 1),
    lambda x: torch.tensor(x),
    lambda x: torch.tensor(x).permute(2, 0, 1) / 255,
    lambda x: (torch.tensor(x).permute(2, 0, 1) / 255).double().requires_grad_(),
]


@pytest.mark.parametrize("made", ARRAYS)
@pytest.mark.parametrize("channels", [1, 3])
def test_arrays_and_tensors(made, channels):
    levels = noise(6, 7, channels)
    wanted = np.repeat(levels, 3, 2) if channels == 1 else levels
    assert np.array_equal(pixels(made(levels)), wanted)
    if channels == 1:
        assert np.array_equal(pixels(made(levels).squeeze()), wanted)


def test_what_could_be_channels_twice_is_read_as_its_library_does():
    array = noise(3, 8, 3)
    assert np.array_equal(pixels(array), array)
    assert np.array_equal(pixels(torch.tensor(array)), array.transpose(1, 2, 0))
    half = torch.tensor(array).bfloat16() / 255
    assert np.abs(pixels(half).astype(int) - array.transpose(1, 2, 0)).max() <= 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (np.full((4, 4, 3), -1.0), "the picture holds floats from -1 to -1; scale them"),
        (np.full((4, 4, 3), 200.0), "holds floats from 200 to 200"),
        (torch.full((3, 4, 4), float("nan")), "holds floats from nan to nan"),
        (np.zeros((4, 4, 3), np.int64), "holds int64; give uint8"),
        (np.zeros((5, 4, 2), np.uint8), r"has the shape \[5, 4, 2\]"),
        (np.zeros((0, 4, 3), np.uint8), r"has the shape \[0, 4, 3\]"),
        (torch.zeros(1, 3, 4, 4), r"has the shape \[1, 3, 4, 4\]"),
        (Image.fromarray(np.full((1, 1), 70000, np.int32)), "from 70000 to 70000, and 16 bits"),
        (Image.fromarray(np.full((1, 1), 3, np.float32)), "floats from 3 to 3"),
        ([1, 2], "is a list; give a PIL image"),
        (None, "is a NoneType"),
        (b"no picture", "can't read the picture: it is no picture in a known format"),
        ("none.png", "no picture none.png"),
        ("HTTPS://example.org/a.png", "not fetched from the web; give a file"),
        ("file:///a.png", "no picture file:///a.png: give the path alone"),
        ("data:image/png;base64," + "A" * 9999, "AAAA…: give its bytes, decoded"),
        (".", r"can't read \.: "),
    ],
)
def test_what_is_no_picture_is_one_line(given, said):
    with pytest.raises(InputError, match=said) as caught:
        open_picture(given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("color", ["whte", "", "#ffffff00", None, 3, (1, 2, 3)])
def test_what_is_no_background_is_one_line(color):
    with pytest.raises(InputError, match=r"no background .*; name a colour"):
        open_picture(Image.new("RGB", (1, 1)), color)


@pytest.mark.parametrize("read", [check_picture, open_picture])
@pytest.mark.parametrize("damage", ["empty", "text", "cut", "flipped"])
def test_a_damaged_file_is_named_in_one_line(tmp_path, read, damage):
    path = tmp_path / "a.png"
    Image.fromarray(noise(40, 40)).save(path)
    check_picture(path)
    data = bytearray(path.read_bytes())
    flipped = data.copy()
    flipped[len(data) // 2] ^= 0xFF
    path.write_bytes(
        {"empty": b"", "text": b"hello", "cut": data[:-2000], "flipped": flipped}[damage]
    )
    with pytest.raises(InputError, match=r"can't read .*a\.png: ") as caught:
        read(path)
    assert "\n" not in str(caught.value)


def test_damage_anywhere_is_no_traceback():
    """Bytes of every kind of file are changed at random: a picture, or one line."""
    chance = np.random.default_rng(1)
    image = Image.fromarray(noise(12, 12, 4))
    for kind in ("PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP"):
        data = encoded(image.convert("RGB") if kind == "JPEG" else image, kind)
        for _ in range(60):
            worse = np.frombuffer(data, np.uint8).copy()
            worse[chance.integers(0, len(worse), 3)] = chance.integers(0, 256, 3)
            with suppress(InputError):
                assert open_picture(worse.tobytes()).mode == "RGB"


def test_large_pictures_are_refused_before_they_are_decoded(tmp_path, recwarn):
    path = tmp_path / "huge.png"
    Image.new("1", (10_000, 2 * MOST_PIXELS // 10_000)).save(path)  # Pillow would warn
    for read in (check_picture, open_picture):
        with pytest.raises(InputError, match="10000×10000 pixels, more than 50,000,000"):
            read(path)
    with pytest.raises(InputError, match="2×3 pixels, more than 5"):
        open_picture(np.zeros((3, 2), np.uint8), most_pixels=5)
    assert not recwarn


def test_only_some_formats():
    bitmap = encoded(Image.new("RGB", (2, 2)), "BMP")
    with pytest.raises(InputError, match="can't read it: it is no PNG, JPEG or WebP picture"):
        open_picture(bitmap, formats=("PNG", "JPEG", "WebP"), name="it")
