"""A clip as one small picture: a frame of every block, framed in the colour of who made it."""

from __future__ import annotations

from PIL import Image

COLOURS = {"drafter": "#0072b2", "target": "#d55e00"}  # who made it; apart to colour-blind eyes
COLUMNS, BORDER = 4, 4


def contact_sheet(blocks: list[tuple[str, list[Image.Image]]]) -> Image.Image:
    """Blocks in reading order, four a line, each by its last frame.

    Args:
        blocks: of each who made it, and its frames, all of one size.
    """
    width, height = blocks[0][1][0].size
    cell = width + 2 * BORDER, height + 2 * BORDER
    columns = min(COLUMNS, len(blocks))
    lines = -(-len(blocks) // columns)
    sheet = Image.new("RGB", (columns * cell[0], lines * cell[1]), "white")
    for number, (maker, frames) in enumerate(blocks):
        left, top = number % columns * cell[0], number // columns * cell[1]
        sheet.paste(COLOURS[maker], (left, top, left + cell[0], top + cell[1]))
        sheet.paste(frames[-1], (left + BORDER, top + BORDER))
    return sheet
