"""Folders of pictures: what is read is what was saved, and what can't be read is named."""

from __future__ import annotations

import re

import numpy as np
import pytest
from PIL import Image

from mmspec.errors import InputError
from mmspec.eval.data.folders import check_paired, read_images


@pytest.fixture
def folder(tmp_path, crops):
    """`b.png`, `a.jpg`, `sub/c.webp`."""
    (tmp_path / "set" / "sub").mkdir(parents=True)
    crops[0].save(tmp_path / "set" / "b.png")
    crops[1].resize((40, 30)).save(tmp_path / "set" / "a.JPG")
    crops[2].save(tmp_path / "set" / "sub" / "c.webp", lossless=True)
    return tmp_path / "set"


def decode(folder):
    return list(read_images(folder).batches(4))


def test_pictures_by_sorted_id(folder, crops):
    images = read_images(folder)
    assert images.ids == ["a", "b", "sub/c"]
    assert len(images) == 3
    assert images.files["a"].size == (40, 30)
    (first, two), (second, one) = images.batches(2)
    assert (first, second) == (["a", "b"], ["sub/c"])
    assert [image.size for image in two + one] == [(40, 30), (64, 64), (64, 64)]
    assert np.array_equal(two[1], crops[0])
    assert np.array_equal(one[0], crops[2])
    assert {image.mode for image in two + one} == {"RGB"}


def test_grey_palette_and_opaque_pictures_become_rgb(tmp_path, crops):
    for mode in ("L", "P", "RGBA", "CMYK"):
        suffix = "jpg" if mode == "CMYK" else "png"
        crops[0].convert(mode).save(tmp_path / f"{mode}.{suffix}")
    ((_, images),) = decode(tmp_path)
    assert {image.mode for image in images} == {"RGB"}
    grey = read_images(tmp_path).files["L"].load()
    assert np.array_equal(np.asarray(grey)[..., 0], crops[0].convert("L"))
    assert np.array_equal(read_images(tmp_path).files["RGBA"].load(), crops[0])


def test_dot_files_are_left_out(folder):
    (folder / ".DS_Store").write_bytes(b"finder")
    (folder / ".thumbnails").mkdir()
    (folder / ".thumbnails" / "a.png").write_bytes(b"none")
    assert read_images(folder).ids == ["a", "b", "sub/c"]


def test_two_files_of_one_id(folder, crops):
    crops[3].save(folder / "b.jpg")
    with pytest.raises(InputError, match=r"b\.jpg and .*b\.png have the same id 'b': keep one"):
        read_images(folder)


@pytest.mark.parametrize("name", ["notes.txt", "sub/film.gif", "a.jpg.part"])
def test_a_file_that_is_no_picture(folder, name):
    (folder / name).write_bytes(b"text")
    with pytest.raises(InputError, match=f"{re.escape(name)} is no picture"):
        read_images(folder)


def test_empty_and_absent(tmp_path):
    with pytest.raises(InputError, match="no pictures in"):
        read_images(tmp_path)
    with pytest.raises(InputError, match=r"no folder .*absent"):
        read_images(tmp_path / "absent")


@pytest.mark.parametrize("content", [b"", b"no picture", b"GIF89a\x01\x00\x01\x00\x00\x00\x00;"])
def test_other_content_under_a_pictures_name(folder, content):
    (folder / "b.png").write_bytes(content)
    with pytest.raises(InputError, match=r"can't read .*b\.png"):
        read_images(folder)


@pytest.mark.parametrize("name", ["b.png", "a.JPG", "sub/c.webp"])
def test_truncated(folder, name):
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[: len(whole) * 2 // 3])
    with pytest.raises(InputError, match=f"can't read .*{re.escape(name)}") as error:
        decode(folder)
    assert "\n" not in str(error.value)


def test_corrupt(folder):
    whole = bytearray((folder / "b.png").read_bytes())
    middle = len(whole) // 2
    whole[middle : middle + 200] = bytes(200)
    (folder / "b.png").write_bytes(whole)
    with pytest.raises(InputError, match=r"can't read .*b\.png"):
        decode(folder)


def test_pictures_are_read_as_everywhere(tmp_path, crops):
    """Turned by EXIF, 16 bits scaled, the background where transparent, one frame of several."""
    exif = Image.Exif()
    exif[0x0112] = 6
    crops[0].resize((40, 20)).save(tmp_path / "a.png", exif=exif)
    Image.new("RGBA", (8, 8)).save(tmp_path / "b.png")
    Image.fromarray(np.full((8, 8), 32768, np.uint16)).save(tmp_path / "c.png")
    crops[0].save(tmp_path / "d.png", save_all=True, append_images=[crops[1]])
    images = read_images(tmp_path, "#0000ff")
    a, b, c, d = (images.files[name].load() for name in "abcd")
    assert images.files["a"].size == a.size == (20, 40)
    assert np.array_equal(a, np.rot90(crops[0].resize((40, 20)), -1))
    assert np.asarray(b).reshape(-1, 3).tolist() == [[0, 0, 255]] * 64
    assert np.asarray(read_images(tmp_path).files["b"].load()).min() == 255
    assert np.array_equal(np.asarray(c), np.full((8, 8, 3), 128))
    assert np.array_equal(d, crops[0])


def test_a_jpeg_with_a_preview_is_one_picture(tmp_path, crops):
    crops[0].save(tmp_path / "x.jpg", "MPO", save_all=True, append_images=[crops[1]])
    ((_, (image,)),) = decode(tmp_path)
    assert np.abs(np.asarray(image, int) - np.asarray(crops[0], int)).mean() < 10


def test_more_pixels_than_is_safe(folder):
    Image.new("1", (10_000, 5_001)).save(folder / "b.png")
    with pytest.raises(InputError, match=r"b\.png has 10000×5001 pixels"):
        read_images(folder)


def test_pairs(tmp_path, crops):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        crops[0].save(tmp_path / name / "a.png")
    crops[1].save(tmp_path / "two" / "b.jpg")
    with pytest.raises(
        InputError, match=r"two \(2 pictures\) .*one \(1\) .* 1 only in .*two, .*'b'"
    ):
        check_paired(read_images(tmp_path / "one"), read_images(tmp_path / "two"))
    crops[1].resize((64, 32)).save(tmp_path / "one" / "b.png")
    with pytest.raises(InputError, match=r"b\.png is 64×32 and .*b\.jpg 64×64: resize one set"):
        check_paired(read_images(tmp_path / "one"), read_images(tmp_path / "two"))
    crops[1].save(tmp_path / "one" / "b.png")
    check_paired(read_images(tmp_path / "one"), read_images(tmp_path / "two"))
