"""Long descriptions of scenes, all of them true, each in words of its own."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from . import facts
from .scene import Background, Item, Scene
from .vocabulary import COLORS, NUMBERS, PLURALS, SHAPES, Split, held_out_relation
from .wording import SCENES as PHRASES
from .wording import Wording, pieces

SHORTEST = 60  # pieces of a description; the longest have 200


def describe(rng: np.random.Generator, scene: Scene, split: Split = "train") -> tuple[str, float]:
    """A description of 60 to 200 pieces, and the nats of the choices that led to it.

    Every object is named with its colour, most with size and place, then how they stand to each
    other and what else is true; a training description states no relation that is held out.
    """
    words = Wording(rng, PHRASES)
    text = " ".join(_Description(words, scene, split).sentences())
    return text, words.nats


class _Description:
    """The sentences of one description."""

    def __init__(self, words: Wording, scene: Scene, split: Split) -> None:
        self.words, self.scene, self.split = words, scene, split
        self.shapes = Counter(item.shape for item in scene.items)
        self.colors = Counter(item.color for item in scene.items)
        self.kinds = Counter((item.shape, item.color) for item in scene.items)

    def sentences(self) -> list[str]:
        """List all sentences in order; as many of what else is true as a random length takes."""
        words, items = self.words, self.scene.items
        count = NUMBERS[len(items)] + (" {objects}" if len(items) > 1 else " {object}")
        said = [
            words.sentence("{opening}" if len(items) > 1 else "{opening_one}", {"count": count})
        ]
        behind = _background(words, self.scene.background)
        early = words.chance(0.3)
        said += behind if early else []
        drawn = list(words.order(sorted(items, key=lambda item: item.x)))
        said += [self._object(item, first=item is drawn[0]) for item in drawn]
        said += [] if early else behind
        enough = int(words.rng.integers(SHORTEST + 5, 2 * SHORTEST))
        for say in self._more():
            if sum(len(pieces(sentence)) for sentence in said) >= enough:
                break
            said += say()
        return said + ([words.sentence("{ending}", {})] if words.chance(0.3) else [])

    def _object(self, item: Item, first: bool) -> str:
        """A sentence that introduces an item."""
        column, row = facts.place(item)
        known = {"thing": self._thing(item), "lead": "{first}" if first else "{next}"}
        key = f"{column or ''}_{row or ''}"
        if key not in PHRASES or not self.words.chance(0.9):
            return self.words.sentence("{unplaced}", known)
        return self.words.sentence("{placed}", {**known, "place": "{" + key + "}"})

    def _thing(self, item: Item) -> str:
        """An item with its colour and, where it is clear, its size; for its first mention."""
        size = facts.said(item.size, facts.SIZES)
        adjective = "{" + size + "} " if size and self.words.chance(0.7) else ""
        noun = "{" + item.shape + "}"
        if self.words.chance(0.15):
            return f"a {adjective}{noun} in {item.color}"
        return f"a {adjective}{item.color} {noun}"

    def _the(self, item: Item) -> str:
        """An item by what tells it from all others."""
        noun = "{" + item.shape + "}"
        if self.shapes[item.shape] == 1 and self.words.chance(0.3):
            return f"the {noun}"
        return f"the {item.color} {noun}"

    def _more(self) -> Iterator[Callable[[], list[str]]]:
        """Further true sentences, in a random order; what is absent comes last."""
        single = [i for i in self.scene.items if self.kinds[i.shape, i.color] == 1]
        say: list[Callable[[], list[str]]] = []
        for item in single:
            say += [partial(self._size, item), partial(self._half, item)]
        if len(single) == len(self.scene.items) > 1:
            say += [partial(self._row, 0), partial(self._row, 1)]
        for a, b in itertools.combinations(single, 2):
            say += [partial(self._relation, a, b), partial(self._comparison, a, b)]
        say += [partial(self._superlative, word) for word in ("largest", "smallest")]
        counts = [(PLURALS[shape], n) for shape, n in self.shapes.items()]
        for value, n in [*self.colors.items(), *counts]:
            if 1 < n < len(self.scene.items):
                say.append(partial(self._say, "{alike}", number=NUMBERS[n], value=value))
        yield from self.words.order(say, 0.85)
        colors = [f"{color} {{object}}" for color in COLORS if color not in self.colors]
        absent = ["{" + shape + "}" for shape in SHAPES if shape not in self.shapes] + colors
        for value in self.words.order(absent):
            yield partial(self._say, "{absent}", value=value)

    def _size(self, item: Item) -> list[str]:
        size, one = facts.said(item.size, facts.SIZES), self._the(item)
        return self._say("{sized}", one=one, size="{" + size + "}") if size else []

    def _half(self, item: Item) -> list[str]:
        sides = [side for side in facts.place(item) if side in facts.SIDES]
        if not sides:
            return []
        return self._say("{half}", one=self._the(item), side=_HALVES[self.words.pick(sides)])

    def _row(self, axis: int) -> list[str]:
        """Sentence with all items along an axis, if no two of them are about level."""
        items = sorted(self.scene.items, key=lambda item: (item.x, item.y)[axis])
        places = [(item.x, item.y)[axis] for item in items]
        name = ("left of", "above")[axis]
        unseen = any(
            held_out_relation(a.shape, name, b.shape) for a, b in itertools.combinations(items, 2)
        )
        if min(np.diff(places)) < _LEVEL or (unseen and self.split == "train"):
            return []
        start, end = ("left", "right") if axis == 0 else ("top", "bottom")
        if self.words.chance(0.3):
            items, start, end = items[::-1], end, start
        named = [self._the(item) for item in items]
        listed = ", ".join(named[:-1]) + f" and {named[-1]}"
        return self._say("{row}", start=start, end=end, list=listed)

    def _relation(self, a: Item, b: Item) -> list[str]:
        name = facts.relation(a, b)
        unseen = name and held_out_relation(a.shape, name, b.shape)
        if name is None or (unseen and self.split == "train"):
            return []
        if self.words.chance(0.5):
            a, b, name = b, a, facts.OPPOSITE[name]
        relation = "{" + name.replace(" ", "_") + "}"
        return self._say("{relating}", one=self._the(a), other=self._the(b), relation=relation)

    def _comparison(self, a: Item, b: Item) -> list[str]:
        larger = facts.larger(a, b)
        if larger is None:
            return []
        comparison = "{larger}" if larger else "{smaller}"
        return self._say("{comparing}", one=self._the(a), other=self._the(b), comparison=comparison)

    def _superlative(self, word: str) -> list[str]:
        item = facts.extreme(self.scene.items, word)
        if item is None or self.kinds[item.shape, item.color] > 1:
            return []
        return self._say("{superlative}", one=self._the(item), extreme="{" + word + "}")

    def _say(self, template: str, **known: str) -> list[str]:
        return [self.words.sentence(template, known)]


def _background(words: Wording, background: Background) -> list[str]:
    """A sentence about tone and texture, and maybe one about the gradient."""
    tone = facts.said(facts.cast(background), facts.TONES) or "unnamed"
    known = {"tone": "{" + tone + "}", "texture": "{" + background.texture + "_adjective}"}
    said = [words.sentence("{behind}", known)]
    side = facts.lighter_side(background)
    if side and words.chance(0.7):
        shade = "{lighter}"
        if words.chance(0.4):
            side, shade = facts.ACROSS[side], "darker"
        said.append(words.sentence("{graded}", {"side": side, "shade": shade}))
    return said


_HALVES = {"left": "left", "right": "right", "top": "upper", "bottom": "lower"}
_LEVEL = 0.06  # sides

WORDS = {*COLORS, *NUMBERS.values(), *PLURALS.values(), *facts.SIDES, "darker", "in", "a", "the"}
