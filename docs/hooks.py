"""Gathers the site's pages from the whole repository, under their own paths.

A page lies once, where GitHub shows it (`pipelines/README.md`), and its relative links hold on
GitHub and on the site alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
UNDER_TEXT = re.compile(r"^(> |)(?![->|#\s])(\S.*)\n(?=\1- )", re.MULTILINE)  # a list, at once
LINK = re.compile(r"\]\(<?([^)\s>#]+)")


def on_files(files: Files, config: Any) -> Files:
    """Puts the pages of the nav, what they link to, and styles in place of those of `docs_dir`.

    Reports and model cards are linked from other pages, and are pages without an entry in the nav.
    """
    root = Path(config.config_file_path).parent
    for file in list(files):
        if not Path(file.abs_src_path or "").is_relative_to(config.theme.dirs[0]):
            files.remove(file)
    styles = [path for path in config.extra_css if (root / path).is_file()]  # plugins make others
    todo, seen = [*entries(config.nav), *styles], set()
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        seen.add(path)
        file = File(path, str(root), config.site_dir, config.use_directory_urls)
        files.append(file)
        if path.endswith(".md"):
            todo += linked(root, path)
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Sets lists apart from the text above them: GitHub needs no empty line, this site does."""
    pieces = re.split(f"({FENCED.pattern})", markdown, flags=FENCED.flags)
    apart = [UNDER_TEXT.sub(r"\1\2\n\1\n", text) for text in pieces[::2]]
    return "".join(sum(zip(apart, [*pieces[1::2], ""], strict=True), ()))


def entries(nav: Any) -> Iterator[str]:
    """The pages of a nav, sections opened."""
    for item in nav.values() if isinstance(nav, dict) else nav:
        if isinstance(item, str):
            yield item
        else:
            yield from entries(item)


def linked(root: Path, page: str) -> Iterator[str]:
    """The files of the repository that a page links to, as paths from its root."""
    for link in LINK.findall(FENCED.sub("", (root / page).read_text())):
        target = ((root / page).parent / link).resolve()
        if "://" not in link and target.is_file() and target.is_relative_to(root):
            yield target.relative_to(root).as_posix()
