"""HTML of the page, piece by piece; every text that is not ours goes through `escape`."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable, Sequence
from typing import Any

from PIL import Image, ImageColor

from ..eval.contact_sheet import COLOURS

OPEN = "#c9ced6"  # of what is not there yet


def escape(text: Any) -> str:
    """Text as HTML shows it; braces and dollars too, which the page's own templates would read."""
    escaped = html.escape(str(text))
    return escaped.translate({ord(sign): f"&#{ord(sign)};" for sign in "{}$`"})


def data_uri(image: Image.Image, form: str = "png", **options: Any) -> str:
    """A picture inside the page itself, so that no file has to be served."""
    file = io.BytesIO()
    image.save(file, form, **options)
    return f"data:image/{form};base64,{base64.b64encode(file.getvalue()).decode()}"


def picture(image: Image.Image, alt: str, kind: str = "") -> str:
    """An `<img>`; `kind` is a class of the page's style sheet."""
    return f'<img class="{kind}" src="{data_uri(image)}" alt="{escape(alt)}">'


def figure(*parts: str, caption: str = "") -> str:
    """Parts beside each other over a caption, which is text."""
    told = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f'<figure class="mm-figure"><div class="mm-pair">{"".join(parts)}</div>{told}</figure>'


def mosaic(colours: Sequence[str], columns: int, alt: str) -> str:
    """Picture with a cell per token, row by row."""
    cells = Image.new("RGB", (columns, len(colours) // columns))
    cells.putdata([ImageColor.getrgb(colour) for colour in colours])
    return picture(cells, alt, "mm-mosaic")


def blend(share: float) -> str:
    """The colour of what is the drafter's by a share and the target's for the rest."""
    pair = zip(
        ImageColor.getrgb(COLOURS["target"]), ImageColor.getrgb(COLOURS["drafter"]), strict=True
    )
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pair)


def spans(pieces: Iterable[tuple[str, bool]]) -> str:
    """Text in pieces, each of which was drafted or not."""
    marked = [
        f'<span class="mm-{"drafter" if drafted else "target"}">{escape(text)}</span>'
        for text, drafted in pieces
    ]
    return f'<div class="mm-text">{"".join(marked)}</div>'


def legend(drafter: str, target: str) -> str:
    """Legend of the two colours."""
    return (
        '<div class="mm-legend">'
        f'<span class="mm-key" style="background:{COLOURS["drafter"]}"></span>{escape(drafter)} '
        f'<span class="mm-key" style="background:{COLOURS["target"]}"></span>{escape(target)}</div>'
    )


def meters(rows: Iterable[tuple[str, str]]) -> str:
    """Figures under their names."""
    cells = [f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in rows]
    return f'<dl class="mm-meters">{"".join(cells)}</dl>'


def panel(title: str, note: str, *parts: str) -> str:
    """Panel of one of the two sides."""
    return (
        f'<section class="mm-panel"><h3>{escape(title)} <small>{escape(note)}</small></h3>'
        f"{''.join(parts)}</section>"
    )


def hint(text: str, more: str = "") -> str:
    """A line under a field; `more` of it shows when it is pressed."""
    if not more:
        return f'<p class="mm-hint">{escape(text)}</p>'
    return f'<details class="mm-hint"><summary>{escape(text)}</summary>{escape(more)}</details>'


def options(groups: Iterable[tuple[str, Iterable[tuple[str, str]]]]) -> str:
    """Choices of a list under headings; each has a value and a text to it."""
    found = []
    for heading, choices in groups:
        inside = "".join(
            f'<option value="{escape(value)}">{escape(value)}: {escape(text)}</option>'
            for value, text in choices
        )
        found.append(f'<optgroup label="{escape(heading)}">{inside}</optgroup>')
    return "".join(found)


def message(text: str, kind: str = "info") -> str:
    """A line above the results: "info" or "error"; empty text: none."""
    role = "alert" if kind == "error" else "status"
    return f'<p class="mm-message mm-{kind}" role="{role}">{escape(text)}</p>' if text else ""


def seconds(count: float) -> str:
    """A wait in words: seconds, or from two minutes on minutes."""
    return f"{max(1, round(count))} s" if count < 120 else f"{count / 60:.0f} min"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Text in rows and columns."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="mm-table" tabindex="0">{table}</div>'
