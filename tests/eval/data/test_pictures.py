"""Pictures from files: broken ones are named, turned ones turned; grids are cut row by row."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from mmspec.errors import InputError
from mmspec.eval.data.pictures import check_picture, read_picture, split_grid


def noise(width: int, height: int) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels)


def test_a_picture_comes_back(tmp_path):
    image = noise(7, 5)
    image.save(tmp_path / "a.png")
    check_picture(tmp_path / "a.png")
    assert np.array_equal(np.asarray(read_picture(tmp_path / "a.png")), np.asarray(image))


def test_exif_turns_the_picture(tmp_path):
    image = noise(8, 4)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter, clockwise
    image.save(tmp_path / "a.png", exif=exif)
    turned = np.asarray(read_picture(tmp_path / "a.png"))
    assert np.array_equal(turned, np.rot90(np.asarray(image), -1))


@pytest.mark.parametrize("read", [check_picture, read_picture])
@pytest.mark.parametrize("damage", ["empty", "text", "cut", "flipped"])
def test_a_broken_picture_is_named_in_one_line(tmp_path, read, damage):
    path = tmp_path / "a.png"
    noise(40, 40).save(path)
    data = bytearray(path.read_bytes())
    flipped = data.copy()
    flipped[len(data) // 2] ^= 0xFF
    path.write_bytes(
        {"empty": b"", "text": b"hello", "cut": data[:-2000], "flipped": flipped}[damage]
    )
    with pytest.raises(InputError, match=r"a\.png is no intact picture") as caught:
        read(path)
    assert "\n" not in str(caught.value)


def test_a_picture_that_is_missing_is_named(tmp_path):
    with pytest.raises(InputError, match=r"no picture .*a\.png"):
        read_picture(tmp_path / "a.png")


def test_a_grid_is_cut_row_by_row():
    tiles = [Image.new("RGB", (6, 4), (i, 0, 0)) for i in range(4)]
    grid = Image.new("RGB", (12, 8))
    for tile, corner in zip(tiles, [(0, 0), (6, 0), (0, 4), (6, 4)], strict=True):
        grid.paste(tile, corner)
    for count in (1, 2, 3, 4):
        parts = split_grid(grid, count)
        assert [np.asarray(p).tolist() for p in parts] == [
            np.asarray(t).tolist() for t in tiles[:count]
        ]


@pytest.mark.parametrize(("size", "count"), [((5, 4), 4), ((4, 5), 4), ((4, 4), 0), ((4, 4), 5)])
def test_what_is_no_grid_is_refused(size, count):
    with pytest.raises(ValueError, match="grid"):
        split_grid(Image.new("RGB", size), count)
