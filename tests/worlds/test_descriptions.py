"""Long descriptions: true, varied, of a stated entropy; and the reader that grades them."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

from mmspec.worlds.shapes import Background, Item, Scene
from mmspec.worlds.shapes.claims import score_description
from mmspec.worlds.shapes.descriptions import SHORTEST, describe
from mmspec.worlds.shapes.detector import detect
from mmspec.worlds.shapes.exchanges import (
    LONG_KINDS,
    held_out_descriptions,
    lexicon,
    sample_exchange,
)
from mmspec.worlds.shapes.render import render
from mmspec.worlds.shapes.scene import sample_mixed
from mmspec.worlds.shapes.vocabulary import COLORS, SHAPES
from mmspec.worlds.shapes.wording import Wording, pieces

ANY = "|".join(COLORS)
GROUND = Background((120, 140, 156), (150, 170, 186), 0.0, "stripes", 8.0, 0.2, 0.0, 0)


def item(shape, color, x, y, size):
    return Item(shape, color, x, y, size, 0.0, COLORS[color])


SCENE = Scene(
    (
        item("circle", "red", 0.25, 0.25, 0.42),
        item("star", "blue", 0.75, 0.3, 0.25),
        item("cross", "pink", 0.7, 0.78, 0.33),
    ),
    GROUND,
)


@pytest.fixture(scope="module")
def described():
    rng = np.random.default_rng(4)
    scenes = [sample_mixed(rng, ("train", "held_out")[n % 2], n % 4 + 1) for n in range(200)]
    return [(s, *describe(rng, s, ("train", "held_out")[n % 2])) for n, s in enumerate(scenes)]


def test_truth_scores_one(described):
    for scene, text, _ in described:
        score = score_description(text, scene)
        assert (score.truthfulness, score.coverage) == (1.0, 1.0), text
        assert score.claims >= 4 + len(scene.items)


def test_lengths(described):
    lengths = [len(pieces(text)) for _, text, _ in described]
    assert min(lengths) >= SHORTEST
    assert max(lengths) <= 200


def test_the_detector_sees_what_is_described(described):
    """Every "a … colour shape" of a text is an object that the detector finds, each once."""
    nouns = {"disc": "circle", "box": "square", "plus": "cross", "hoop": "ring"}
    things = "|".join([*SHAPES, *nouns])
    agree = 0
    for scene, text, _ in described[:80]:
        seen = Counter((hit.color, hit.shape) for hit in detect(render(scene)))
        said = Counter()
        for color, noun in re.findall(rf"\ban? (?:[\w-]+ )?({ANY}) (\w+)", text.lower()):
            said[color, nouns.get(noun, noun)] += 1
        for noun, color in re.findall(
            rf"\ba (?:[\w-]+ )?({things})(?: \w+)? in ({ANY})", text.lower()
        ):
            said[color, nouns.get(noun, noun)] += 1
        agree += said == seen
    assert agree >= 79


@pytest.mark.parametrize(
    ("text", "claims", "true"),
    [
        ("There is a large red circle in the top left corner.", 4, 4),
        ("There is a large red circle in the top right corner.", 4, 3),
        ("There is a small red circle in the bottom right corner.", 4, 1),
        ("There is a green circle in the top left corner.", 3, 0),
        ("We see a small star shape in blue at the upper right.", 4, 4),
        ("A blue star is there. A blue star is there.", 2, 1),
        ("The picture shows three objects.", 1, 1),
        ("The picture shows four objects.", 1, 0),
        ("The star is to the right of the red disc.", 1, 1),
        ("The star is to the left of the red disc.", 1, 0),
        ("Below the blue star stands the plus sign.", 1, 1),
        ("Above the blue star stands the plus sign.", 1, 0),
        ("The red circle is bigger than the star.", 1, 1),
        ("The red circle is not as large as the star.", 1, 0),
        ("The largest of the things is the red circle.", 1, 1),
        ("The pink cross is the smallest of the objects.", 1, 0),
        ("From left to right we see the red circle, the pink cross and the blue star.", 3, 3),
        ("From right to left we see the red circle, the pink cross and the blue star.", 3, 1),
        ("There is no heart here.", 1, 1),
        ("No star can be seen anywhere.", 1, 0),
        ("The picture has no red thing.", 1, 0),
        ("The background is bluish grey and striped.", 2, 2),
        ("The background is beige and dotted.", 2, 0),
        ("It grows lighter towards the right.", 1, 1),
        ("Towards the right the ground gets darker.", 1, 0),
        ("The red circle is in the left half.", 1, 1),
        ("The red circle is in the lower half.", 1, 0),
        ("The star looks tiny.", 1, 1),
        ("The star looks huge.", 1, 0),
        ("That is all.", 0, 0),
        ("Colourless ideas sleep.", 1, 0),
        ("Two of them are red.", 1, 0),
        ("", 0, 0),
    ],
)
def test_claims_by_hand(text, claims, true):
    score = score_description(text, SCENE)
    assert (score.claims, score.true) == (claims, true)


def test_coverage_by_hand():
    assert score_description("A red circle is there. A pink cross is there.", SCENE).coverage == (
        pytest.approx(2 / 3)
    )
    assert score_description("A red circle. A red circle. A red circle.", SCENE).coverage == (
        pytest.approx(1 / 3)
    )
    assert score_description("", SCENE).truthfulness == 0


def test_objects_of_one_kind_are_told_apart_in_the_best_way():
    """The first "red circle" might be either; the second says which it is."""
    scene = Scene(
        (item("circle", "red", 0.2, 0.2, 0.25), item("circle", "red", 0.8, 0.8, 0.42)), GROUND
    )
    for texts in (("A red circle is there. ", "A small red circle is at the top left corner. "),):
        for order in (texts, texts[::-1]):
            score = score_description("".join(order), scene)
            assert (score.truthfulness, score.coverage) == (1.0, 1.0)
    twice = "A small red circle is there. A small red circle is there."
    assert score_description(twice, scene).true == 3


def spoilt(rng, text):
    """The text with the colour of a thing that it brings in replaced by another."""
    places = list(re.finditer(rf"\b[Aa]n? (?:[\w-]+ )?({ANY})\b", text))
    place = places[int(rng.integers(len(places)))]
    other = [color for color in COLORS if color != place[1]]
    return text[: place.start(1)] + other[int(rng.integers(len(other)))] + text[place.end(1) :]


def test_spoilt_texts_score_less(described):
    """A colour changed is noticed always, sides nearly always (edges are soft)."""
    rng = np.random.default_rng(0)
    lower = turned = 0
    for scene, text, _ in described:
        if re.search(rf"\b[Aa]n? (?:[\w-]+ )?({ANY})\b", text):
            assert score_description(spoilt(rng, text), scene).truthfulness < 1
        if "left" in text or "right" in text:
            moved = text.replace("left", "\0").replace("right", "left").replace("\0", "right")
            lower += score_description(moved, scene).truthfulness < 1
            turned += 1
    assert lower >= 0.95 * turned > 100


def test_a_left_out_object_is_missed(described):
    for scene, text, _ in described:
        sentences = text.split(". ")
        thing = re.compile(rf"\ban? .*\b({ANY})\b")
        first = next(n for n, s in enumerate(sentences) if thing.search(s.lower()))
        rest = ". ".join(sentences[:first] + sentences[first + 1 :])
        assert score_description(rest, scene).coverage < 1


def test_another_scene_s_text_is_false(described):
    scores = [
        score_description(text, scene)
        for (_, text, _), (scene, _, _) in zip(described, described[4:], strict=False)
    ]
    assert np.mean([score.truthfulness for score in scores]) < 0.35
    assert np.mean([score.coverage for score in scores]) < 0.15


# --- entropy ----------------------------------------------------------------------------------


def test_nats_are_the_entropy_of_the_text():
    """On a grammar whose texts differ whenever a choice does: against counted texts."""
    phrases = {"one": ("a", "b{two}", "c"), "two": ("x", "y"), "three": ("u", "v{two}")}
    rng = np.random.default_rng(0)
    texts, nats = Counter(), []
    for _ in range(20000):
        words = Wording(rng, phrases)
        text = words.say("{one}{three}", {}) + "".join(words.order("pqr", 0.3))
        text += "!" if words.chance(0.2) else ""
        texts[text] += 1
        nats.append(words.nats)
    shares = np.array(list(texts.values())) / 20000
    assert np.mean(nats) == pytest.approx(-(shares * np.log(shares)).sum(), abs=0.02)


def test_held_out_answers_have_real_entropy():
    """Half a nat a token, and as much as the description of charts allows."""
    made = [
        sample_exchange(np.random.default_rng(line.seed), line.kind, "held_out")[1]
        for line in held_out_descriptions(100)
    ]
    lengths = [len(pieces(exchange.answer)) for exchange in made]
    assert sum(exchange.nats for exchange in made) / sum(lengths) >= 0.5
    assert min(lengths) >= 60
    assert max(lengths) <= 200


def test_one_scene_is_told_in_many_ways():
    texts = {describe(np.random.default_rng(seed), SCENE)[0] for seed in range(300)}
    assert len(texts) == 300


# --- words ------------------------------------------------------------------------------------


def test_lexicon_holds_every_piece():
    known = set(lexicon())
    assert len(known) == len(lexicon())
    rng = np.random.default_rng(6)
    for number in range(400):
        _, exchange = sample_exchange(
            rng, LONG_KINDS[number % 2], ("train", "held_out")[number % 2]
        )
        for text in (exchange.question, exchange.answer):
            assert "".join(pieces(text)) == text
            assert set(pieces(text)) <= known
