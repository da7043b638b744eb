"""Captions as published text encoders were given them: LlamaGen's T5, and Wan's.

LlamaGen's features come from DeepFloyd's T5 embedder, which rewrites a caption before it encodes it
(FoundationVision/LlamaGen, `language/t5.py`, `clean_caption`, applied twice). A model sees at work
what it saw in training only if its captions go the same way, oddities included.
"""

from __future__ import annotations

import html
import re
import warnings
from collections.abc import Sequence
from urllib.parse import unquote_plus

import ftfy
from bs4 import BeautifulSoup, MarkupResemblesLocatorWarning, ParserRejectedMarkup

_FILES = "png|jpg|jpeg|bmp|webp|eps|pdf|apk|mp4"
_DOMAINS = "com|co|ru|net|org|edu|gov|it"
_DASHES = (
    "\u002d\u058a\u05be\u1400\u1806\u2010-\u2015\u2e17\u2e1a\u2e3a\u2e3b\u2e40\u301c\u3030\u30a0"
    "\ufe31\ufe32\ufe58\ufe63\uff0d"
)


def _address(scheme: str) -> str:
    """The start of a web address, or a domain with a path; a mail address is left."""
    return rf"\b(?:{scheme}:(?:/{{1,3}}|[a-z0-9%])|[a-z0-9.\-]+[.](?:{_DOMAINS})[\w/-]*\b/?(?!@))"


# what is found, and what takes its place, in the order in which they are applied
_BEFORE_HTML = (("<person>", "person"), (_address("https?"), ""), (_address("www"), ""))
_AFTER_HTML = (
    (r"@\w+\b", ""),  # a user's name
    ("[\u31c0-\u9fff]+", ""),  # Chinese characters, and the blocks in front of them
    (rf"[\{_DASHES}]+", "-"),
    ("[`´«»“”¨]", '"'),
    ("[‘’]", "'"),
    ("&quot;?", ""),
    ("&amp", ""),
    (r"\d{1,3}(?:\.\d{1,3}){3}", " "),  # a network address
    (r"\d:\d\d\s+$", ""),  # a time of day at the end
    (r"\\n", " "),  # a line break that was written out
    (r"#\d{1,3}\b", ""),
    (r"#\d{5,}\b", ""),
    (r"\b\d{6,}\b", ""),
    (rf"\S+\.(?:{_FILES})", ""),
    ("[\"']{2,}", '"'),
    (r"\.{2,}", " "),
    (r"[#®•©™&@·º½¾¿¡§~()\[\]{}|\\/*]+", " "),
    (r"\s+\.\s+", " "),
)
_AFTER_REPAIR = (
    (r"\b[a-zA-Z]{1,3}\d{3,15}\b", ""),  # numbers of articles: jc6640
    (r"\b[a-zA-Z]+\d+[a-zA-Z]+\b", ""),
    (r"\b\d+[a-zA-Z]+\d+\b", ""),
    (r"(?:worldwide\s+)?(?:free\s+)?shipping", ""),
    (r"(?:free\s)?download(?:\sfree)?", ""),
    (r"\bclick\b\s(?:for|on)\s\w+", ""),
    (rf"\b(?:{_FILES})(?:\simages?)?", ""),
    (r"\bpage\s+\d+\b", ""),
    (r"\b\d*[a-zA-Z]+\d+[a-zA-Z]+\d+[a-zA-Z\d]*\b", " "),
    (r"\b\d+\.?\d*[xх×]\d+\.?\d*\b", ""),  # a size; one x is Cyrillic
    (r"\b\s+:\s+", ": "),
    (r"(\D[,./])\b", r"\1 "),
    (r"\s+", " "),
    (r"^[\"']([\w\W]+)[\"']$", r"\1"),
    (r"^['_,\-:;]", ""),
    (r"['_,\-:+]$", ""),
    (r"^\.\S+$", ""),
)


def clean_caption(caption: str) -> str:
    """A caption as LlamaGen's authors encode it: cleaned of web text, twice.

    Lower case; without web addresses, tags, users' names, Chinese characters, and what shops and
    files are called; dashes and quotes of one kind; most other signs, and hyphens and underscores
    where there are more than three, are blanks.
    """
    for _ in range(2):
        caption = _replaced(unquote_plus(caption).strip().lower(), _BEFORE_HTML)
        caption = _replaced(_without_tags(caption), _AFTER_HTML)
        if len(re.findall("[-_]", caption)) > 3:  # words-made-into-one
            caption = re.sub("[-_]", " ", caption)
        caption = _replaced(repaired(caption), _AFTER_REPAIR).strip()
    return caption


def repaired(text: str) -> str:
    """Text whose encoding is mended (ftfy) and whose HTML entities are characters.

    As Wan's tokenizer does it; white space is made single beside it.
    """
    return html.unescape(html.unescape(ftfy.fix_text(text))).strip()


def _replaced(text: str, rules: Sequence[tuple[str, str]]) -> str:
    for pattern, other in rules:
        text = re.sub(pattern, other, text)
    return text


def _without_tags(text: str) -> str:
    try:
        with warnings.catch_warnings():  # a caption such as "cat.jpg" is no file to be opened
            warnings.simplefilter("ignore", MarkupResemblesLocatorWarning)
            return BeautifulSoup(text, "html.parser").text
    except ParserRejectedMarkup:  # a declaration that never ends, in older Pythons
        return text
