"""A visitor of the page, what is asked for, and what the page shows, without a browser."""

from __future__ import annotations

import re
from types import SimpleNamespace

from mmspec.app.limits import Limits
from mmspec.app.page import Page
from mmspec.app.tabs import TABS, Tab

LIMITS = Limits(upload_bytes=200_000, prompt=200)


TAB = {tab.modality: tab for tab in TABS}


METHOD = {"image": "scd", "vlm": "draft", "continuous": "gamma-maximal", "video": "sdvg"}


def visitor(name: str = "one", host: str = "127.0.0.1", **headers: str) -> SimpleNamespace:
    return SimpleNamespace(
        session_hash=name, client=SimpleNamespace(host=host), headers=dict(headers)
    )


def given(tab: Tab, page: Page, **changes) -> dict:
    """The fields of a tab as they stand, but for the changes."""
    fields = {setting.name: setting.value for setting in tab.settings}
    fields |= {"prompt": "what is red", "method": METHOD[tab.modality], "knob": None, "more": ""}
    fields |= {"seed": 0, "model": page.cache.names(tab.modality)[0]}
    return {**fields, **changes}


def shown(page: Page, modality: str, who: SimpleNamespace | None = None, **changes) -> list[str]:
    """The last headline and panels that the page shows; updates that skip leave what was there."""
    tab, last = TAB[modality], ["", "", ""]
    for update in page.generate(tab, given(tab, page, **changes), who or visitor()):
        last = [new if isinstance(new, str) else old for old, new in zip(last, update, strict=True)]
    return last


def one(page: Page, modality: str = "image", who: SimpleNamespace | None = None, **changes) -> str:
    """The last headline, as text."""
    return re.sub("<[^>]*>", "", shown(page, modality, who, **changes)[0])


def images(html: str) -> list[str]:
    return re.findall(r'src="([^"]*)"', html)
