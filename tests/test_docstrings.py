"""Docstrings open with what a reader looks for: a noun or a verb, no riddle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RIDDLES = {
    *("What", "Whether", "How", "Where", "Who", "When", "Which", "Of", "One", "See", "As"),
    *("There", "That", "It", "All", "Every", "Those"),
}


def openers() -> Iterator[tuple[str, str]]:
    """Place and first word of every public docstring."""
    for room in ("mmspec", "pipelines", "eval", "benchmarks"):
        for file in sorted((ROOT / room).rglob("*.py")):
            tree = ast.parse(file.read_text())
            for node in ast.walk(tree):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                    name = getattr(node, "name", "module")
                    text = ast.get_docstring(node)
                    if text and not name.startswith("_"):
                        yield f"{file.relative_to(ROOT)}: {name}", text.split()[0]


def test_docstrings_open_with_a_noun_or_a_verb():
    found = list(openers())
    assert len(found) > 2000  # they are found at all
    assert [place for place, word in found if word in RIDDLES] == []
