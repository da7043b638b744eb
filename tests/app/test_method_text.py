"""Every method that the page offers has its contract, its knob and its settings in method_text."""

from __future__ import annotations

import pytest

from mmspec.app import method_text
from mmspec.app.tabs import TABS
from mmspec.methods import MODALITIES, PIPELINES, SpecConfig, serving

GREEDY = {
    tab.modality for tab in TABS for s in tab.settings if s.label == "Temperature; 0 is greedy"
}
OFFERED = [(tab.modality, method) for tab in TABS for method in tab.methods]


@pytest.mark.parametrize(("modality", "method"), OFFERED)
def test_a_method_in_words(modality, method):
    config = method_text.SpecConfig(method)
    html = method_text.about(config, modality)
    parts = config.resolve(modality)
    contract = parts.contract
    compared = parts.preset.role != "method"
    gain = method_text.COMPARED if compared else method_text.HEADINGS[contract]
    assert html.startswith(f'<div class="mm-about"><p><b>{gain}.</b> ')  # before how it works
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
def test_groups_of_methods(modality):
    """The recommended method alone, then all others by what they promise and need, and in the end
    those for comparison."""
    names = [name for name in serving(modality) if name != "verdict"]
    first = PIPELINES[modality].first[0]
    groups = method_text.grouped(names, modality, first)
    assert sorted(name for _, group in groups for name, _ in group) == sorted(names)
    (heading, recommended), *others, (last, _) = groups
    assert [name for name, _ in recommended] == [first]
    assert heading.startswith("Recommended. ")
    assert last == method_text.COMPARED
    order = [
        heading + needs
        for heading in method_text.HEADINGS.values()
        for needs in (method_text.ALONE, method_text.WITH)
    ]
    places = [order.index(heading) for heading, _ in others]
    assert places == sorted(set(places))
    for heading, group in others:
        for name, _ in group:
            parts = SpecConfig(name).resolve(modality)
            assert heading.startswith(method_text.HEADINGS[parts.contract])
            assert heading.endswith(method_text.WITH) == bool(parts.needs)


def test_a_list_where_nothing_is_recommended():
    """A model whose parts serve none of the methods that are recommended."""
    (alone,) = method_text.grouped(["sjd"], "image", None)
    assert alone[0] == method_text.HEADINGS["exact"] + method_text.ALONE
    assert method_text.grouped([], "image", None) == []
