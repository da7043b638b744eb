"""Blocks that a router leads through: the law by enumeration, against a slow twin, and what is off.

The slow twin walks all outcomes by transformers' own forward calls, without a cache.
"""

from __future__ import annotations

import functools
import itertools
import math

import pytest
import torch
from masked_networks import PROMPT, SHORT, VOCAB, joint, network, slow, target
from toys import EXACT, distance, whole_loop

from mmspec.draft.masked import own_chain
from mmspec.engine.accept.naive import on_lenient_chain
from mmspec.engine.accept.routed import RoutedRule
from mmspec.engine.accept.verify_router import (
    HysteresisRouter,
    NeverRouter,
    ScoreRouter,
    SpanRouter,
    UcbRouter,
    VerifyRouter,
)
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.loop import run
from mmspec.engine.protocols import Engine
from mmspec.engine.stats import SpecStats
from mmspec.models.target import TokenTarget


def routed(model, router, size, limit, ahead=None, how="drawn", confidence=0.5):
    """The enumerated law of whole outputs."""
    rule = RoutedRule(router, confidence)

    def both(rows):
        guided = target(model, [0] * rows, limit, SHORT)
        return TokenTarget(guided), own_chain(guided, size, how, rule)

    with torch.inference_mode():
        return whole_loop(limit, both, None, rule, ConstantLength(ahead or size), at_once=1)


def block_laws(model, text, places, prompt=SHORT):
    """Laws of a block's places behind a text: its tokens read each other both ways."""
    mask, shifted = model.config.mask_token_id, model.config.shifted_logits
    ids = [*prompt, *text, *(mask if token < 0 else token for token in places)]
    known = len(ids) - len(places)
    seen = torch.ones(len(ids), len(ids)).tril().bool()
    seen[known:] = True
    bias = torch.zeros(len(ids), len(ids)).double().masked_fill(~seen, -torch.inf)[None, None]
    out = model(input_ids=torch.tensor([ids]), attention_mask=bias, use_cache=False).logits[0]
    first = known - int(shifted)
    return out[first : first + len(places)].softmax(-1).tolist()


@functools.cache  # ways through a block often meet again
def published(model, decides, size, limit, confidence, text=(), places=None):
    """The law of whole outputs, by hand: `decides(laws of the run, sure places)` verifies."""
    places = places or (-1,) * size
    room = limit - len(text)
    if not room:
        return {text: 1.0}
    law: dict[tuple[int, ...], float] = {}

    def add(share, tokens, rest):
        tokens = tokens[:room]
        then = published(model, decides, size, limit, confidence, (*text, *tokens), rest)
        for out, mass in then.items():
            law[out] = law.get(out, 0.0) + share * mass

    if room == 1:
        for token, share in enumerate(slow(model, [*SHORT, *text]).tolist()):
            add(share, (token,), None)
        return law
    budget = min(size, room - 1)
    filled = [*itertools.takewhile(lambda token: token >= 0, places)]
    if filled:
        add(1.0, tuple(filled[:budget]), places[len(filled[:budget]) :])
        return law
    laws = block_laws(model, text, places)
    masked = [n for n, token in enumerate(places) if token < 0]
    length = len([*itertools.takewhile(lambda token: token < 0, places)])
    for drawn in itertools.product(range(VOCAB), repeat=len(masked)):
        share = math.prod(laws[n][x] for n, x in zip(masked, drawn, strict=True))
        x0 = dict(zip(masked, drawn, strict=True))
        sure = [n for n in masked if laws[n][x0[n]] > confidence]
        if not decides(laws[:length], len(sure)):
            fills = sure or [max(masked, key=lambda n: laws[n][x0[n]])]
            then = tuple(x0[n] if n in fills else token for n, token in enumerate(places))
            for out, mass in published(model, decides, size, limit, confidence, text, then).items():
                law[out] = law.get(out, 0.0) + share * mass
            continue
        behind = [*itertools.takewhile(lambda token: token >= 0, places[length:])]
        nodes = [*(x0[n] for n in range(length)), *behind][:budget]
        p = [slow(model, [*SHORT, *text, *nodes[:n]]).tolist() for n in range(len(nodes) + 1)]
        found = on_lenient_chain(nodes, p, laws, lambda i, x: i >= length, False)
        for tokens, mass in found.items():
            add(share * mass, tokens, places[len(tokens) :])
    return law


def always(laws, sure):
    return True


def never(laws, sure):
    return False


def scored(cost, threshold):
    def decides(laws, sure):
        expected, kept = 0.0, 1.0
        for law in laws:
            entropy = -sum(x * math.log(x) for x in law if x > 0) / math.log(VOCAB)
            kept *= math.exp(-entropy)
            expected += kept
        return expected - cost * sure >= threshold

    return decides


# --- exact ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize(
    ("how", "size", "ahead", "limit"), [("drawn", 2, 2, 3), ("top", 2, 2, 4), ("top", 3, 2, 3)]
)
def test_who_always_verifies_is_exact(size, ahead, limit, shifted, how):
    """The law is that of the exact variant: the model's own at block size 1."""
    model = network(vocab=VOCAB, shifted=shifted)
    law = routed(model, VerifyRouter(), size, limit, ahead, how)
    with torch.inference_mode():
        assert distance(law, joint(model, limit)) < EXACT


# --- lossy, and by how much -----------------------------------------------------------------------

CASES = {
    "never": (lambda threshold: NeverRouter(), lambda threshold: never),
    "score": (
        lambda threshold: ScoreRouter("entropy", "dynamic", 1.0, 1.0, threshold),
        lambda threshold: scored(1.0, threshold),
    ),
}


@pytest.mark.parametrize(
    ("case", "size", "limit", "shifted", "threshold"),
    [
        ("never", 2, 3, False, 0.5),
        ("score", 2, 3, False, 0.5),
        pytest.param("never", 2, 4, True, 0.5, marks=pytest.mark.slow),
        pytest.param("score", 2, 4, True, 0.5, marks=pytest.mark.slow),
        pytest.param("score", 3, 3, True, 1.2, marks=pytest.mark.slow),
    ],
)
def test_the_law_is_that_of_the_slow_twin(case, size, limit, shifted, threshold):
    """It is off from the model's own law, and says by how much."""
    model = network(vocab=VOCAB, shifted=shifted)
    router, decides = (make(threshold) for make in CASES[case])
    law = routed(model, router, size, limit)
    with torch.inference_mode():
        assert distance(law, published(model, decides, size, limit, 0.5)) < EXACT
        assert sum(law.values()) == pytest.approx(1, abs=EXACT)
        off = distance(law, joint(model, limit))
    assert 0.01 < off < 1, off


def test_the_twin_that_always_verifies_is_exact():
    model = network(vocab=VOCAB)
    with torch.inference_mode():
        twin = published(model, always, 2, 3, 0.5)
        assert distance(twin, joint(model, 3)) < EXACT


@pytest.mark.slow
def test_a_run_of_one_place_is_exact_without_a_judge():
    """It is a block of one place: a router of runs of two verifies all that has to be."""
    model = network(vocab=VOCAB, shifted=True)
    law = routed(model, SpanRouter(2), 2, 4)
    with torch.inference_mode():
        assert distance(law, joint(model, 4)) < EXACT


def test_confidence_alone_is_off_at_any_threshold():
    """Confidence alone, in blocks of two: 1 never fills both places at once, 0 always."""
    model = network(vocab=VOCAB, shifted=True)
    with torch.inference_mode():
        truth = joint(model, 3)
    off = [
        distance(routed(model, NeverRouter(), 2, 3, confidence=level), truth)
        for level in (1.0, 0.0)
    ]
    assert off[0] > 0.001
    assert off[1] > 0.001
    assert off[0] != pytest.approx(off[1], abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "router",
    [
        lambda: HysteresisRouter("entropy", "dynamic", 1.0, 1.0, 0.5, 0.2),
        lambda: UcbRouter(1.0),
    ],
)
def test_routers_with_a_memory_are_off_too(router):
    model = network(vocab=VOCAB, shifted=True)
    law = routed(model, router(), 2, 4)
    assert sum(law.values()) == pytest.approx(1, abs=EXACT)
    with torch.inference_mode():
        assert 0.001 < distance(law, joint(model, 4)) < 1


# --- rows, calls, caches --------------------------------------------------------------------------

ROUTERS = {
    "score": lambda: ScoreRouter("entropy", "static", 1.0, 1.0, 0.6),
    "never": NeverRouter,
    "ucb": lambda: UcbRouter(0.5),
}


def generated(rows, router, limit=14, confidence=0.4, wrap=lambda drafter: drafter):
    model = network(vocab=8)
    guided, rule, stats = target(model, rows, limit), RoutedRule(router(), confidence), SpecStats()
    coins = ProductionCoins([*rows], torch.device("cpu"))
    drafter = wrap(own_chain(guided, 4, "drawn", rule))
    parts = TokenTarget(guided), drafter, rule, ConstantLength(4)
    with torch.inference_mode():
        context = run(Engine(*parts, coins), len(rows), limit, stats)
    return context.tokens[:, :limit].tolist(), stats, guided


@pytest.mark.parametrize("name", ROUTERS)
def test_rows_are_alike_alone_and_in_a_batch(name):
    together, _, _ = generated((0, 1, 2), ROUTERS[name])
    for row in range(3):
        alone, _, _ = generated((row,), ROUTERS[name])
        assert alone[0] == together[row]


def test_the_target_is_not_called_where_nobody_asks():
    """But for the last token: four blocks for 14, and a call that reads the last of them, too."""
    _, stats, _ = generated((0,), NeverRouter, 15, 0.0)
    assert (stats.scored, stats.alone) == (1, 1)
    assert stats.calls == [4 + 1]
    assert stats.emitted == [15]
    _, always_asked, _ = generated((0,), VerifyRouter)
    assert always_asked.scored > 1
    assert always_asked.calls[0] <= 2 * always_asked.scored


def test_the_cache_keeps_tokens_alone():
    """After rounds with and without a judge its entries are those of a plain reading."""
    tokens, _, guided = generated((0,), ROUTERS["score"])
    plain = target(network(vocab=8), limit=14)
    with torch.inference_mode():
        plain.start(1)
        plain.extend(torch.tensor([[0, *tokens[0][:13]]]), [-1])
    known = guided.offset + 10  # the last block may be unread
    ours, own = (cache.data[..., :known, :] for cache in (guided.cache, plain.cache))
    assert torch.allclose(ours, own, atol=1e-10)


class Noting(VerifyRouter):
    """Verifies every third time; notes what it is shown and told, and where the row stood."""

    def __init__(self):
        self.asked, self.told, self.drafter = [], [], None

    def verifies(self, row, view):
        state = self.drafter._rows[row]
        self.asked.append((state.base, [*state.places], view))
        return len(self.asked) % 3 == 0

    def learn(self, row, decoded):
        self.told.append((len(self.asked), decoded))


def noted(spoil=lambda laws, filled: laws, confidence=0.6):
    """A generation of a row, and what its router was shown and told."""
    router = Noting()

    def wrap(drafter):
        router.drafter = drafter
        read = drafter.model.read

        def spoiled(text, ends, known, filled, left):
            return spoil(read(text, ends, known, filled, left), filled)

        drafter.model.read = spoiled
        return drafter

    tokens, _, _ = generated((0,), lambda: router, 15, confidence, wrap)
    return tokens[0], router


def test_what_a_router_is_shown():
    """Entropies, leads and counts of the block as it stands, by a pass without a cache."""
    tokens, router = noted()
    model, runs = network(vocab=8), set()
    for base, places, view in router.asked:
        with torch.inference_mode():
            laws = block_laws(model, tokens[:base], places, PROMPT)
        run = len([*itertools.takewhile(lambda token: token < 0, places)])
        runs.add(run)
        best = [sorted(law)[::-1] for law in laws[:run]]
        assert view.margins == pytest.approx([law[0] - law[1] for law in best])
        entropies = [-sum(x * math.log(x) for x in law) / math.log(8) for law in laws[:run]]
        assert view.entropies == pytest.approx(entropies)
        masked = sum(token < 0 for token in places)
        assert (view.filled, view.size) == (4 - masked, 4)
        assert 0 <= view.confident <= masked
    assert len(runs) > 1


def test_a_router_learns_every_decision_once():
    """The places that it hears of are all that were filled or judged: those of the output."""
    tokens, router = noted()
    assert [number for number, _ in router.told] == [*range(1, len(router.asked) + 1)]
    assert len(router.asked) > 4
    assert sum(decoded for _, decoded in router.told) == len(tokens)


def test_what_no_router_decided_is_not_learned():
    """A pass without laws is judged, and what was decided before it is not learned again."""
    spoiled = []

    def spoil(laws, filled):
        if not bool((filled >= 0).any()):
            return laws
        spoiled.append(filled)
        return torch.full_like(laws, torch.nan)

    _, router = noted(spoil, confidence=1.0)
    numbers = [number for number, _ in router.told]
    assert spoiled
    assert numbers == sorted({*numbers})
