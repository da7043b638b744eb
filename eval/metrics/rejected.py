"""Options that a response mentions to reject them: "not A but C", "option B is wrong, so C"."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

ENGLISH = r"[AI] (?!(?:and|or|nor|is|because|since|but)\b)[a-z]"  # the article and the pronoun
BLANK = "#"  # stands where an option was rejected; no letter, and part of no word

_FALSE = (
    r"(?:wrong|incorrect|false|untrue|inaccurate|impossible|implausible|invalid|unlikely|"
    r"excluded|eliminated|rejected|dismissed|discarded|ruled\s+out|out\b)"
)
_SURELY = r"(?:(?:clearly|obviously|definitely|certainly|also|both|all|simply|therefore|thus)\s+)*"
_VERB = r"(?:is|are|was|were|seems?|looks?|appears?|sounds?|(?:can|would|must|should|could)\s+be)"
_DENIED = (
    r"(?:(?:is|are|was|were|do|does|did|can|could|would|should)(?:n['’]t|\s+not)|cannot|can['’]t)\b"
    rf"(?!\s+(?:only|just|merely|(?:be\s+)?{_FALSE}))"
)
_BEHIND = rf"(?:\s+{_VERB}\s+{_SURELY}{_FALSE}|\s+{_SURELY}{_DENIED}|\s*[:—–]\s*{_FALSE})"
_PLURAL = r"(?:are|were|seem|look|do|did|can|could|would)"
_FILLING = r"(?:\s+(?:be|been|is|are|the|either|both))*"
_NOT = (
    r"(?:\b(?:can)?not|n['’]t|\bneither|\bnor|\brather\s+than|\binstead\s+of|\bunlike)" + _FILLING
)
_RULES_OUT = r"\b(?:rul(?:e|es|ed|ing)\s+out|eliminat\w*|exclud\w*|reject\w*|dismiss\w*|discard\w*)"
_CALLS_FALSE = r"\b(?:wrong|incorrect|false)\s+(?:answers?|options?|choices?|ones?)\s+(?:is|are):?"
_DECLARED = re.compile(
    r"(?<!wrong )(?<!incorrect )(?<!false )\banswer(?:\s+is)?[\s:*]*(?:(?:option|choice)\s*)?"
    r"[\s(\[*]*\Z",
    re.IGNORECASE,
)


def without_rejected(response: str, options: Mapping[str, str]) -> str:
    """The response with `BLANK` in the place of options that it rejects.

    Rejected is what follows a "not", "neither", "rather than", "rule out" and the like, and what
    is said to be wrong, out, or not so. What was said of such an option earlier does not count
    either, unless it was declared to be the answer. A "not" that is part of an option's own text
    rejects nothing.

    Args:
        options: their texts by letter.
    """
    own = [text for text in options.values() if re.search(_NOT, text, re.IGNORECASE)]
    kept = [m.span() for m in re.finditer(rf"(?i:{as_words(own)})", response)] if own else []
    forms = _forms(options, "")
    one, named = _any(forms), _any(_forms(options, rf"(?!{ENGLISH})"))
    patterns = (
        rf"(?i:{_NOT})\s+(?P<options>{_list(named, 'or|nor')}|{named})",
        rf"(?i:{_RULES_OUT}{_FILLING})\s+(?P<options>{_list(named, 'and|or')}|{named})",
        rf"(?i:{_CALLS_FALSE})\s+(?P<options>{_list(named, 'and|or')}|{named})",
        rf"(?P<options>{_list(one, 'and|or')})(?i:(?=\s+{_PLURAL}){_BEHIND})",
        rf"(?P<options>{one})(?i:{_BEHIND})",
    )
    text = list(response)
    for match in (m for pattern in patterns for m in re.finditer(pattern, response)):
        begin, end = match.span("options")
        if any(first <= match.start() < last for first, last in kept):
            continue
        for place in re.finditer(one, response[begin:end]):
            start, stop = begin + place.start(), begin + place.end()
            spans = [(start, stop)]
            for form in forms:
                if re.fullmatch(form, place.group()):
                    spans += [m.span() for m in re.finditer(form, response[: match.end()])]
            for first, last in spans:
                if not _DECLARED.search(response[:first]):
                    text[first:last] = BLANK * (last - first)
    return "".join(text)


def _forms(options: Mapping[str, str], guard: str) -> list[str]:
    """A pattern for every option, by letter or text; `guard` stands before a bare letter."""
    forms = []
    for letter, text in options.items():
        named = r"(?i:options?|choices?|answers?|letter)\s+"
        quote, end = r"[(\[\"'*]", r"[)\]\"'*]*(?![\w'’])"
        form = rf"(?<![\w'])(?:(?:{named}{quote}*|{quote}+){letter}|{guard}{letter}){end}"
        if len(text.strip()) > 1 or text.strip().isdigit():
            form += rf"|(?i:{as_words([text])})"
        forms.append(f"(?:{form})")
    return forms


def _any(forms: Iterable[str]) -> str:
    """A pattern of any of them, those of long texts first: "dark red" is not "red"."""
    return f"(?:{'|'.join(sorted(forms, key=len, reverse=True))})"


def _list(one: str, words: str) -> str:
    """A pattern of several: "A or B", "A, B and C"."""
    return rf"{one}(?:\s*,\s*{one})*\s*,?\s+(?:{words})\s+{one}"


def as_words(texts: Iterable[str]) -> str:
    """A pattern of any of the texts where no word or number goes on before or after it."""
    either = "|".join(re.escape(text.strip()) for text in texts)
    return rf"(?<![\w.-])(?:{either})(?![\w-]|[.,]\d)"
