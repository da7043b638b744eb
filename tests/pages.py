"""The pages of the project, for the tests that read them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAMES = ("*.md", "*/README.md", "pipelines/*.md", "mmspec/*/README.md", "docs/**/*.md")
KEPT = ("build", "dist", "out", "runs", "site")  # what commands leave behind
_FOUND = [page for name in (*NAMES, "assets/**/*.md") for page in ROOT.glob(name)]
# links are left out, and so are caches and what commands leave behind
PAGES = {
    page.relative_to(ROOT).as_posix(): page
    for page in _FOUND
    if page.resolve() == page and not page.relative_to(ROOT).parts[0].startswith((".", *KEPT))
}
TEXTS = {name: page.read_text() for name, page in PAGES.items()}
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(text: str, kind: str) -> list[str]:
    """The fenced blocks of a language."""
    return [block for found, block in FENCED.findall(text) if found == kind]


def anchors(text: str) -> set[str]:
    """Of headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.*)$", FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def links(text: str) -> list[str]:
    """The links of a page, those to other hosts left out."""
    found = re.findall(r"\]\(([^)\s]+)\)", FENCED.sub("", text))
    return [link for link in found if "://" not in link]
