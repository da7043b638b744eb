"""Matplotlib figures as inline SVG whose colours and font are the page's."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

# Drawn in the colours of the light page; inline they become its variables, which a dark page sets
# anew (page.css).
INK, MUTED, GRID = "#1c2128", "#59636e", "#dde2e8"
SERIES = (
    *("#6e7781", "#2a6fdb", "#d4620a", "#1a8a4a", "#8a46c4", "#c9285f", "#0b7f93", "#8f5a24"),
    "#6a7611",
)
PHASES = (
    *("#a3adb8", "#75808c", "#dd9f2c", "#3c74b8", "#bf5140", "#8463ac", "#5fa37c", "#bdae98"),
    "#d08aa4",
)
VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--grid",
    **{color: f"--series-{i}" for i, color in enumerate(SERIES)},
    **{color: f"--phase-{i}" for i, color in enumerate(PHASES)},
}

_REFERENCE = re.compile(r"\b(id=\"|href=\"#|url\(#)")  # to an element of the figure


@contextmanager
def style(salt: str) -> Iterator[None]:
    """Matplotlib's settings while a figure is made and drawn; the same input gives the same text.

    Names come from users, so nothing is read as a formula.
    """
    import matplotlib

    settings: dict[Any, Any] = {
        "svg.hashsalt": salt,
        "svg.fonttype": "none",
        "text.parse_math": False,
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],
        "font.size": 10,
        "text.color": INK,
        "axes.labelcolor": MUTED,
        "axes.edgecolor": MUTED,
        "axes.facecolor": "none",
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.unicode_minus": True,
        "figure.facecolor": "none",
        "savefig.facecolor": "none",
        "grid.color": GRID,
        "grid.linewidth": 0.8,
        "legend.frameon": False,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "lines.linewidth": 1.8,
        "lines.markersize": 5,
    }
    with matplotlib.rc_context(settings):
        yield


def inline(figure: Any, name: str, label: str) -> str:
    """A figure as an `<svg>` for a page: no ids shared with others, no date, text as text.

    Args:
        figure: of matplotlib, made under `style`.
        name: unique on the page.
        label: what a screen reader says.
    """
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>\s*", "", text, count=1, flags=re.DOTALL)
    # tags alone: names of users stand between them
    text = re.sub(r"<[^>]*>", lambda tag: _of_the_page(tag.group(), name), text)
    (view,) = re.findall(r'viewBox="[^"]*"', text[: text.index(">")])
    head = f'<svg role="img" aria-label="{escape(label)}" {view}>'
    return head + text[text.index(">") + 1 :].strip()


def apart(svg: str, mark: str) -> str:
    """An inline figure whose ids are no other's, though two figures were drawn under one name."""
    return re.sub(r"<[^>]*>", lambda tag: _REFERENCE.sub(rf"\g<1>{mark}-", tag.group()), svg)


def standalone(figure: Any, name: str, label: str) -> str:
    """A figure as a file of its own, on white; arguments as of `inline`."""
    file = io.StringIO()
    about = {"Date": None, "Title": name, "Description": label}
    figure.savefig(file, format="svg", facecolor="white", metadata=about)
    return file.getvalue()


def _of_the_page(tag: str, name: str) -> str:
    tag = _REFERENCE.sub(rf"\g<1>{name}-", tag)
    tag = re.sub(r"'DejaVu Sans'[^;\"]*", "system-ui, sans-serif", tag)
    for color, variable in VARIABLES.items():
        tag = tag.replace(color, f"var({variable}, {color})")
    return tag
