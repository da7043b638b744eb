"""Every method that the page offers has its contract, its knob and its settings in method_text."""

from __future__ import annotations

import pytest

from mmspec.app import method_text
from mmspec.app.tabs import TABS
from mmspec.config import REAL, WHOLE

GREEDY = {
    tab.modality for tab in TABS for s in tab.settings if (s.name, s.low) == ("temperature", 0)
}
OFFERED = [(tab.modality, method) for tab in TABS for method in tab.methods]


@pytest.mark.parametrize(("modality", "method"), OFFERED)
def test_a_method_in_words(modality, method):
    config = method_text.SpecConfig(method)
    html = method_text.about(config, modality)
    contract = method_text.contract(config, modality)
    assert method_text.CONTRACTS[contract].replace("'", "&#x27;") in html
    assert ("temperature 0" in html) == (contract == "exact" and modality in GREEDY)
    knob = method_text.knob(method, modality)
    assert method_text.configured(method, modality, knob and knob.value, "") == (method, config)
    if knob is not None:
        assert knob.label.startswith(f"{knob.name}: {method_text.KNOBS[knob.name]}")
        low = (WHOLE | REAL)[knob.name][0]
        wanted = knob.value - 1 if low < -1e9 else low if low != knob.value else low + 1
        name, moved = method_text.configured(method, modality, wanted, "length=constant")
        assert name.startswith(f"{method}[{knob.name}=")
        assert getattr(moved, knob.name) == wanted
