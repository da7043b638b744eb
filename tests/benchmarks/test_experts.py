"""Experts are counted and predicted right; time is not tested."""

from __future__ import annotations

import itertools
import json
from math import isclose

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.experts import measure
from benchmarks.experts.routing import expected, touched_by, watched
from mmspec.errors import InputError

SMALLER = {**measure.SIZES, "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2}


@pytest.fixture(params=["mixtral", "qwen3-moe"])
def model(request, monkeypatch):
    monkeypatch.setattr(measure, "SIZES", SMALLER)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return measure.SMALL[request.param]().eval()


def by_hand(layer, x) -> set[int]:
    """Experts of inputs `[t, D]` from the router's weights alone."""
    scores = x @ layer.mlp.gate.weight.T
    return set(scores.topk(layer.mlp.gate.top_k).indices.flatten().tolist())


def test_hooks_count_what_a_count_by_hand_does(model):
    """A call over 5 tokens behind a text, in each layer."""
    text = torch.arange(1, 14)[None]
    layers, read = model.model.layers, []
    for layer in layers:
        layer.mlp.register_forward_pre_hook(lambda _, given: read.append(given[0][0]))
    with torch.inference_mode():
        cache = model(text[:, :8], use_cache=True)
        read.clear()
        name = next(n for n in ("cache", "past_key_values") if n in cache)
        with watched(model) as routes:
            model(text[:, 8:], **{name: cache[name]})
        assert [len(calls) for calls in routes] == [1, 1]
        for layer, (chosen,), x in zip(layers, routes, read, strict=True):
            assert len(chosen) == 5
            assert set(chosen.flatten().tolist()) == by_hand(layer, x)
        whole = measure.routes_of(model, text, 4)
        assert [route.shape for route in whole] == [(4, chosen.shape[1])] * 2


def test_hooks_go_away(model):
    with watched(model) as routes:
        pass
    model(torch.tensor([[1, 2]]))
    assert routes == [[], []]


@pytest.mark.parametrize(("experts", "chosen", "tokens"), [(4, 1, 3), (4, 2, 3), (5, 3, 2)])
def test_prediction_equals_enumeration(experts, chosen, tokens):
    """Count the ways in which tokens can choose K different experts each, independently."""
    choices = list(itertools.combinations(range(experts), chosen))
    ways = list(itertools.product(choices, repeat=tokens))
    mean = sum(len(set().union(*way)) for way in ways) / len(ways)
    assert isclose(expected(experts, chosen, tokens), mean, rel_tol=1e-12)


def test_windows_of_a_text():
    routes = torch.tensor([[0, 1], [0, 1], [2, 3], [0, 2]])
    assert touched_by(routes, 1) == 2
    assert touched_by(routes, 2) == pytest.approx((2 + 4 + 3) / 3)
    assert touched_by(routes, 4) == 4


def test_the_fit_finds_a_cost_of_its_form():
    sizes = {n: expected(8, 2, n) for n in (1, 4, 12, 32)}
    seconds = {n: 3 + 0.5 * touched + 0.01 * n for n, touched in sizes.items()}
    assert measure.fit(seconds, sizes) == pytest.approx([3, 0.5, 0.01])


def test_the_command(monkeypatch, capfd, tmp_path):
    monkeypatch.setattr(measure, "SIZES", SMALLER)
    monkeypatch.setattr(measure, "TEXT", 40)
    assert main(["experts", "--samples", "1", "--json", "-o", str(tmp_path)]) == 0
    printed = json.loads(capfd.readouterr().out)
    assert json.loads((tmp_path / "experts.json").read_text()) == printed
    found = printed["models"]
    page, drawn = ((tmp_path / f"experts.{kind}").read_text() for kind in ("md", "svg"))
    for record in found:
        for call in record["calls"].values():
            assert f"| {call['expected']:.2f} | {call['relative']:.2f} |" in page
        assert record["model"] in page
    assert "<svg" in drawn
    assert [(r["experts"], r["chosen"]) for r in found] == [(8, 2), (32, 4)]
    for record in found:
        first, last = record["calls"]["1"], record["calls"]["32"]
        assert first["experts"] == first["expected"] == record["chosen"]
        assert record["chosen"] <= last["experts"] <= record["experts"]
        assert first["relative"] == first["predicted"] == 1


def test_dense_models_are_refused():
    with pytest.raises(InputError, match="no sparse experts"), watched(torch.nn.Linear(2, 2)):
        pass
