"""Short questions about scenes in GenEval's kinds, by yes and no, and of what is where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import facts
from .prompts import names_unseen
from .scene import Item, Scene
from .vocabulary import COLORS, PLURALS, RELATIONS, SHAPES, Split
from .wording import QUESTIONS as PHRASES
from .wording import Wording

WORDS = {"largest", "smallest", "two", "three", "four", "one", *COLORS}
_NUMBERS = ("no", "one", "two", "three", "four", "five")


@dataclass(frozen=True)
class Question:
    """A question about a picture, and what is true.

    Attributes:
        text: as asked.
        answer: a word, a digit or two colours; a text where the kind is a description.
        include: the objects that question and answer speak of, as in `Prompt.include`.
    """

    text: str
    answer: str
    include: list[dict[str, Any]] = field(default_factory=list)


def ask(
    rng: np.random.Generator, scene: Scene, kind: str, split: Split = "train"
) -> Question | None:
    """A question of a kind about a scene; None if it has none of that kind.

    Half of those that take yes or no are answered yes. A training question speaks of nothing that
    is held out; a held-out one does if the scene has something of the sort.
    """
    asker = _Asker(Wording(rng, PHRASES), scene)
    yes = bool(rng.random() < 0.5)
    spare = None
    for _ in range(_TRIES):
        question = SCENE_KINDS[kind](asker, yes)
        unseen = question and names_unseen(question.include)
        if question and unseen == (split == "held_out"):
            return question
        if split == "held_out":
            spare = spare or question
    return spare


_TRIES = 12


class _Asker:
    """Asks by one method a kind; it returns None where its random choice makes no question."""

    def __init__(self, words: Wording, scene: Scene) -> None:
        self.words, self.scene, self.items = words, scene, scene.items
        self.shapes = Counter(item.shape for item in self.items)
        self.colors = Counter(item.color for item in self.items)
        self.kinds = Counter((item.shape, item.color) for item in self.items)

    def single_object(self, yes: bool) -> Question | None:
        shape = self._shape(yes)
        return self._say("exists", yes_or_no(yes), [_clause(shape)], one=f"a {{{shape}}}")

    def two_object(self, yes: bool) -> Question | None:
        first, second = self._shape(True), self._shape(yes)
        if first == second or len(self.shapes) < 2:  # else one object's scenes would only know no
            return None
        one, other = (first, second) if self.words.rng.random() < 0.5 else (second, first)
        include = [_clause(one), _clause(other)]
        return self._say(
            "both", yes_or_no(yes), include, one=f"a {{{one}}}", other=f"a {{{other}}}"
        )

    def counting(self, yes: bool) -> Question | None:
        draw = self.words.rng.random()
        if draw < 0.3:
            include = [_clause(shape, n) for shape, n in self.shapes.items()]
            return self._say("how_many", str(len(self.items)), include, what="{objects}")
        if draw < 0.5:
            color = self._any(tuple(self.colors))
            n = self.colors[color]
            include = [_clause(i.shape, 1, color) for i in self.items if i.color == color]
            return self._say("how_many", str(n), include, what=f"{color} {{objects}}")
        shape = self._shape(yes=self.words.rng.random() < 0.9)
        include = [_clause(shape, self.shapes[shape])]
        return self._say("how_many", str(self.shapes[shape]), include, what=PLURALS[shape])

    def which_color(self, yes: bool) -> Question | None:
        item = self._item()
        if self.shapes[item.shape] > 1:
            return None
        include = [_clause(item.shape, 1, item.color)]
        return self._say("which_colour", item.color, include, one=f"the {{{item.shape}}}")

    def position(self, yes: bool) -> Question | None:
        found = self._standing()
        if found is None:
            return None
        a, name, b, known = found
        return self._say("where", name.split()[0], _related(a, name, b), **known)

    def color_attr(self, yes: bool) -> Question | None:
        a, b = self._pair()
        if a is b or self.shapes[a.shape] > 1 or self.shapes[b.shape] > 1:
            return None
        include = [_clause(item.shape, 1, item.color) for item in (a, b)]
        answer = f"{a.color} and {b.color}"
        one, other = f"the {{{a.shape}}}", f"the {{{b.shape}}}"
        return self._say("two_colours", answer, include, one=one, other=other)

    def shape(self, yes: bool) -> Question | None:
        item = self._item()
        include = [_clause(item.shape, 1, item.color)]
        draw = self.words.rng.random()
        if draw < 0.4:
            if self.colors[item.color] > 1:
                return None
            return self._say("which_shape", item.shape, include, what=item.color)
        if draw < 0.6:
            word = self._any(("largest", "smallest"))
            found = facts.extreme(self.items, word)
            if found is None:
                return None
            include = [_clause(found.shape, 1, found.color)]
            return self._say("which_shape", found.shape, include, what=word)
        return self._beside(item)

    def yes_no(self, yes: bool) -> Question | None:
        options = (
            self._is_colored,
            self._has_kind,
            self._is_related,
            self._is_larger,
            self._number,
        )
        return options[int(self.words.rng.integers(len(options)))](yes)

    def _beside(self, item: Item) -> Question | None:
        """Name what stands to one side of an item: only if one other does, and clearly."""
        other, name = self._the(item), self._any(RELATIONS)
        there = [i for i in self.items if i is not item and facts.relation_holds(i, name, item)]
        if other is None or len(there) != 1 or facts.relation(there[0], item) != name:
            return None
        known = {"relation": _slot(name), "other": other}
        return self._say("which_beside", there[0].shape, _related(there[0], name, item), **known)

    def _is_colored(self, yes: bool) -> Question | None:
        item = self._item()
        if self.shapes[item.shape] > 1:
            return None
        color = item.color if yes else self._foil_color(item)
        include = [_clause(item.shape, 1, color)]
        return self._say("is_so", yes_or_no(yes), include, one=f"the {{{item.shape}}}", what=color)

    def _has_kind(self, yes: bool) -> Question | None:
        item = self._item()
        color = item.color if yes else self._foil_color(item)
        if not yes and self.kinds[item.shape, color]:
            return None
        include = [_clause(item.shape, 1, color)]
        return self._say("exists", yes_or_no(yes), include, one=f"a {color} {{{item.shape}}}")

    def _is_related(self, yes: bool) -> Question | None:
        found = self._standing()
        if found is None:
            return None
        a, name, b, known = found
        name = name if yes else facts.OPPOSITE[name]
        one, what = known["one"], f"{_slot(name)} {known['other']}"
        return self._say("is_so", yes_or_no(yes), _related(a, name, b), one=one, what=what)

    def _is_larger(self, yes: bool) -> Question | None:
        a, b = self._pair()
        larger = facts.larger(a, b)
        one, other = self._the(a), self._the(b)
        if a is b or larger is None or one is None or other is None:
            return None
        include = [_clause(item.shape, 1, item.color) for item in (a, b)]
        what = ("{larger}" if larger == yes else "{smaller}") + f" {other}"
        return self._say("is_so", yes_or_no(yes), include, one=one, what=what)

    def _number(self, yes: bool) -> Question | None:
        shape, n = self._any(tuple(self.shapes.items()))
        n = n if yes else n + self._any((-1, 1))
        if n < 2:
            return None
        known = {"number": _NUMBERS[n], "what": PLURALS[shape]}
        return self._say("number_is", yes_or_no(yes), [_clause(shape, n)], **known)

    def _standing(self) -> tuple[Item, str, Item, dict[str, str]] | None:
        """Two items, where the one stands of the other, and how they are called."""
        a, b = self._pair()
        name = a is not b and facts.relation(a, b)
        one, other = self._the(a), self._the(b)
        if not name or one is None or other is None:
            return None
        return a, name, b, {"one": one, "other": other}

    def _say(self, key: str, answer: str, include: list[dict[str, Any]], **known: str) -> Question:
        text = self.words.sentence("{" + key + "}", known, end="")
        return Question(text, answer, include)

    def _any(self, options: Any) -> Any:
        return options[int(self.words.rng.integers(len(options)))]

    def _item(self) -> Item:
        return self._any(self.items)

    def _pair(self) -> tuple[Item, Item]:
        return self._item(), self._item()

    def _shape(self, yes: bool) -> str:
        """A shape that the scene has, or one that it has not."""
        return self._any([shape for shape in SHAPES if bool(self.shapes[shape]) == yes])

    def _foil_color(self, item: Item) -> str:
        """Another colour; if there is one, another object's half of the time."""
        others = [color for color in self.colors if color != item.color]
        if not others or self.words.rng.random() < 0.5:
            others = [color for color in COLORS if color != item.color]
        return self._any(others)

    def _the(self, item: Item) -> str | None:
        """An item by what tells it from all others; None if nothing does."""
        if self.kinds[item.shape, item.color] > 1:
            return None
        if self.shapes[item.shape] == 1 and self.words.rng.random() < 0.6:
            return f"the {{{item.shape}}}"
        return f"the {item.color} {{{item.shape}}}"


SCENE_KINDS: dict[str, Callable[[_Asker, bool], Question | None]] = {
    "single_object": _Asker.single_object,
    "two_object": _Asker.two_object,
    "counting": _Asker.counting,
    "colors": _Asker.which_color,
    "position": _Asker.position,
    "color_attr": _Asker.color_attr,
    "shape": _Asker.shape,
    "yes_no": _Asker.yes_no,
}


def yes_or_no(yes: bool) -> str:
    return "yes" if yes else "no"


def _slot(name: str) -> str:
    return "{" + name.replace(" ", "_") + "}"


def _clause(shape: str, count: int = 1, color: str | None = None) -> dict[str, Any]:
    return {"class": shape, "count": count, **({"color": color} if color else {})}


def _related(a: Item, name: str, b: Item) -> list[dict[str, Any]]:
    position = {"position": [name, 0]}
    return [_clause(b.shape, 1, b.color), {**_clause(a.shape, 1, a.color), **position}]
