"""A clip as a small picture: whose frame is where, in whose colour."""

from __future__ import annotations

import pytest
from PIL import Image, ImageColor

from mmspec.eval.contact_sheet import BORDER, COLOURS, contact_sheet


@pytest.mark.parametrize(("count", "size"), [(2, (2, 1)), (4, (4, 1)), (6, (4, 2))])
def test_last_frames_in_reading_order(count, size):
    makers = ["target", "drafter", "drafter", "target", "drafter", "target"][:count]
    shades = [[Image.new("RGB", (10, 6), (10 * n + k, 0, 0)) for k in (5, 0)] for n in range(count)]
    sheet = contact_sheet(list(zip(makers, shades, strict=True)))
    width, height = 10 + 2 * BORDER, 6 + 2 * BORDER
    assert sheet.size == (size[0] * width, size[1] * height)
    for n, maker in enumerate(makers):
        left, top = n % 4 * width, n // 4 * height
        assert sheet.getpixel((left, top)) == ImageColor.getrgb(COLOURS[maker])
        assert sheet.getpixel((left + width - 1, top + height - 1)) == ImageColor.getrgb(
            COLOURS[maker]
        )
        assert sheet.getpixel((left + BORDER, top + BORDER)) == (10 * n, 0, 0)
