"""Every method that the page offers has its contract, its knob and its settings in method_text."""

from __future__ import annotations

import pytest

from mmspec.app import method_text
from mmspec.app.tabs import TABS
from mmspec.methods import MODALITIES, PIPELINES, SpecConfig, serving

GREEDY = {
    tab.modality for tab in TABS for s in tab.settings if (s.name, s.low) == ("temperature", 0)
}
OFFERED = [(tab.modality, method) for tab in TABS for method in tab.methods]


@pytest.mark.parametrize(("modality", "method"), OFFERED)
def test_a_method_in_words(modality, method):
    config = method_text.SpecConfig(method)
    html = method_text.about(config, modality)
    contract = config.resolve(modality).contract
    assert method_text.CONTRACTS[contract].replace("'", "&#x27;") in html
    assert ("temperature 0" in html) == (contract == "exact" and modality in GREEDY)
    found = method_text.knob(method, modality)
    assert method_text.configured(method, modality, found and found[1], "") == (method, config)
    if found is not None:
        option, value = found
        low = option.low
        wanted = value - 1 if low is None else low if low != value else low + 1
        name, moved = method_text.configured(method, modality, wanted, "length=constant")
        assert name.startswith(f"{method}[{option.name}=")
        assert moved.options[option.name] == wanted


@pytest.mark.parametrize("modality", MODALITIES)
def test_lists_begin_with_the_recommended_method_and_end_with_comparisons(modality):
    names = [name for name in serving(modality) if name != "verdict"]
    first = PIPELINES[modality].first[0]
    choices = method_text.labelled(names, modality, first)
    assert sorted(name for _, name in choices) == sorted(names)
    promise = SpecConfig(first).resolve(modality).contract
    assert choices[0] == (f"{first} · {promise} · recommended", first)
    promises = [label.split(" · ")[1] for label, _ in choices[1:] if "comparison" not in label]
    order = [list(method_text.CONTRACTS).index(promise) for promise in promises]
    assert order == sorted(order)
    compared = ["comparison" in label for label, _ in choices]
    assert compared == sorted(compared)
