"""Reads the claims of a scene's description back, and tells which are true."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

from . import facts
from .scene import Item, Scene
from .vocabulary import COLORS, NUMBERS, PLURALS, SHAPES
from .wording import SCENES as PHRASES

_SHAPE_WORDS = {option.split()[0]: shape for shape in SHAPES for option in PHRASES[shape]}
_PLURAL_WORDS = {plural: shape for shape, plural in PLURALS.items()}
_NUMBER_WORDS = {word: n for n, word in NUMBERS.items()}
_SIZE_WORDS = {option.split("-")[0]: size for size in facts.SIZES for option in PHRASES[size]}
_RELATIONS = ("left_of", "right_of", "above", "below", "larger", "smaller")
_TONE_WORDS = {"bluish": "cool", "cool": "cool", "sandy": "warm", "beige": "warm", "warm": "warm"}
_TONE_WORDS |= {"neutral": "neutral", "pure": "neutral"}
_TEXTURE_WORDS = {
    word: texture
    for texture in ("plain", "stripes", "checks", "dots", "clouds")
    for word in PHRASES[f"{texture}_adjective"]
}
_PLACES = [f"{column}_{row}" for column in ("", *facts.COLUMNS) for row in ("", *facts.ROWS)]
_MARKED = [key for key in (*_PLACES, *_RELATIONS) if key in PHRASES]
# phrases of place and relation, the longest first, since "left of" is in "to the left of"
_MARKS = sorted(((o, key) for key in _MARKED for o in PHRASES[key]), key=lambda m: -len(m[0]))
_HALF = re.compile(r"\b(left|right|upper|lower) half\b")
_HALVES = {"left": "left_", "right": "right_", "upper": "_top", "lower": "_bottom"}
_FILLERS = {*PHRASES["ending"], *(f"The rest of the {p} is empty" for p in PHRASES["picture"])}


@dataclass(frozen=True)
class Mention:
    """An object as it is named: what is not said of it is None."""

    shape: str
    color: str | None = None
    size: str | None = None
    new: bool = False  # "a star", not "the star"

    def names(self, item: Item) -> bool:
        """Test whether it can be a name of the item, whatever its size."""
        return item.shape == self.shape and self.color in (None, item.color)

    def fits(self, item: Item) -> bool:
        """Test whether everything that it says is true of the item."""
        return self.names(item) and (self.size is None or facts.size_holds(item, self.size))


@dataclass(frozen=True)
class Introduction:
    """An object that a sentence brings in, with the sizes and the places that it gives it."""

    mention: Mention
    sizes: list[str]
    places: list[str]

    def verdicts(self, item: Item) -> list[bool]:
        """Judge that an item is there, and its sizes and places."""
        sizes = [facts.size_holds(item, size) for size in self.sizes]
        return [True, *sizes, *(facts.place_holds(item, word) for word in self.places)]


@dataclass(frozen=True)
class DescriptionScore:
    """Truthfulness and coverage of a description.

    Attributes:
        claims, true: numbers of claims, and of those that hold; a sentence without any that the
            reader understands counts as one that does not.
        coverage: share of the scene's objects that are introduced with their colour.
    """

    claims: int
    true: int
    coverage: float

    @property
    def truthfulness(self) -> float:
        """Share of the claims that hold; 0 for a text without claims."""
        return self.true / self.claims if self.claims else 0.0


def score_description(text: str, scene: Scene) -> DescriptionScore:
    """Reads every sentence; an object that is introduced twice is true once."""
    reader = _Reader(scene)
    verdicts = [verdict for sentence in sentences(text) for verdict in reader.read(sentence)]
    introduced, covered = reader.introductions()
    verdicts += introduced
    return DescriptionScore(len(verdicts), sum(verdicts), covered / len(scene.items))


def sentences(text: str) -> list[str]:
    """The sentences of a description."""
    return [part.strip() for part in re.split(r"[.;!?]", text) if part.strip()]


class _Reader:
    """State of a reader of a scene's description."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.items = scene, scene.items
        self.introduced: list[Introduction] = []

    def read(self, sentence: str) -> list[bool]:
        """Judge each claim of a sentence; what it introduces is judged at the end."""
        if sentence in _FILLERS:
            return []
        words = _words(sentence)
        before = len(self.introduced)
        verdicts = self._about(words, _mentions(words))
        return verdicts if verdicts or len(self.introduced) > before else [False]

    def introductions(self) -> tuple[list[bool], int]:
        """Judge whether what was introduced is there, as it was said, and count the objects.

        Of several objects of one kind each is introduced once, in the order that makes most true.
        """
        verdicts: list[bool] = []
        covered = 0
        for kind in dict.fromkeys((i.mention.shape, i.mention.color) for i in self.introduced):
            said = [i for i in self.introduced if (i.mention.shape, i.mention.color) == kind]
            items = [item for item in self.items if (item.shape, item.color) == kind]
            best = max(
                (
                    [i.verdicts(item) for i, item in zip(said, turn, strict=False)]
                    for turn in itertools.permutations(items)
                ),
                key=lambda rows: sum(map(sum, rows)),
            )
            covered += len(best)
            surplus = said[len(items) :]
            verdicts += [v for row in best for v in row]
            verdicts += [False for i in surplus for _ in range(1 + len(i.sizes) + len(i.places))]
        return verdicts, covered

    def _about(self, words: list[str], mentions: list[tuple[int, Mention]]) -> list[bool]:
        """Claims by what the sentence is about."""
        named = [mention for _, mention in mentions]
        if "no" in words:
            return self._absent(words, named)
        if {*PHRASES["lighter"], "darker"} & {*words}:
            return self._graded(words)
        if not mentions and {*_TEXTURE_WORDS, *_TONE_WORDS} & {*words}:
            return self._background(words)
        numbers = [_NUMBER_WORDS[word] for word in words if word in _NUMBER_WORDS]
        if numbers and not mentions:
            return [self._count(words, numbers[0])]
        if "from" in words and len(mentions) > 1:
            return self._row(words, named)
        for word in ("largest", "smallest"):
            if {*PHRASES[word]} & {*words} and mentions:
                extreme = facts.extreme(self.items, word)
                return [extreme is not None and named[0].fits(extreme)]
        signs = [(at, word.lower()) for at, word in enumerate(words) if word in _SIGNS]
        if signs and len(mentions) > 1:
            return [self._compared(*signs[0], mentions)]
        return [verdict for mention in named for verdict in self._placed(words, mention)]

    def _absent(self, words: list[str], named: list[Mention]) -> list[bool]:
        if named:
            return [not any(mention.fits(item) for item in self.items) for mention in named]
        colors = [word for word in words if word in COLORS]
        return [not any(item.color == color for item in self.items) for color in colors]

    def _graded(self, words: list[str]) -> list[bool]:
        sides = [word.split("_")[0].lower() for word in words]
        sides = [side for side in sides if side in facts.SIDES]
        if "darker" in words:
            sides = [facts.ACROSS[side] for side in sides]
        return [facts.lighter_holds(self.scene.background, side) for side in sides]

    def _background(self, words: list[str]) -> list[bool]:
        ground = self.scene.background
        textures = [
            _TEXTURE_WORDS[word] == ground.texture for word in words if word in _TEXTURE_WORDS
        ]
        tones = [facts.TONES[_TONE_WORDS[word]] for word in words if word in _TONE_WORDS]
        return textures + [facts.holds(facts.cast(ground), tone) for tone in tones]

    def _count(self, words: list[str], number: int) -> bool:
        for word in words:
            if word in COLORS:
                return sum(item.color == word for item in self.items) == number
            if word in _PLURAL_WORDS:
                return sum(item.shape == _PLURAL_WORDS[word] for item in self.items) == number
        return len(self.items) == number

    def _row(self, words: list[str], named: list[Mention]) -> list[bool]:
        start = words[words.index("from") + 1]
        axis = 0 if start in ("left", "right") else 1
        items = sorted(self.items, key=lambda item: (item.x, item.y)[axis])
        if start in ("right", "bottom"):
            items.reverse()
        if len(items) != len(named):
            return [False] * len(named)
        return [mention.fits(item) for mention, item in zip(named, items, strict=True)]

    def _compared(self, place: int, sign: str, mentions: list[tuple[int, Mention]]) -> bool:
        """Test whether some object of the one name stands so to some of the other."""
        before = [mention for at, mention in mentions if at < place]
        after = [mention for at, mention in mentions if at > place]
        if not after:
            return False
        one, other = (before[-1], after[0]) if before else (after[1], after[0])
        pairs = itertools.permutations(self.items, 2)
        return any(one.fits(a) and other.fits(b) and _compares(a, sign, b) for a, b in pairs)

    def _placed(self, words: list[str], mention: Mention) -> list[bool]:
        """Judge what is said of an object's size and place; what is new is kept for later."""
        sizes = [mention.size] if mention.size else []
        sizes += [_SIZE_WORDS[words[-1]]] if words[-1] in _SIZE_WORDS else []
        marks = [word.lower().split("_") for word in words if word.lower() in _PLACES]
        places = [part for mark in marks for part in mark if part]
        said = Introduction(mention, sizes, places)
        if mention.new:
            self.introduced.append(said)
            return []
        rows = [said.verdicts(item)[1:] for item in self.items if mention.names(item)]
        return max(rows, key=sum, default=[False] * (1 + len(sizes) + len(places)))


def _compares(a: Item, sign: str, b: Item) -> bool:
    if sign in ("larger", "smaller"):
        return a.size > b.size if sign == "larger" else a.size < b.size
    return facts.relation_holds(a, sign.replace("_", " "), b)


def _words(sentence: str) -> list[str]:
    """The words of a sentence, phrases of place and relation as one in capitals."""
    text = _HALF.sub(lambda half: _HALVES[half[1]].upper(), sentence.lower())
    for phrase, key in _MARKS:
        text = re.sub(rf"\b{phrase}\b", key.upper(), text)
    return re.findall(r"\w+", text.replace("-sized", ""))


def _mentions(words: list[str]) -> list[tuple[int, Mention]]:
    """The objects that a sentence names, with the places of their nouns."""
    found = []
    for at, word in enumerate(words):
        if word not in _SHAPE_WORDS:
            continue
        before, after = words[:at], words[at + 1 :]
        color = before.pop() if before and before[-1] in COLORS else None
        size = _SIZE_WORDS[before.pop()] if before and before[-1] in _SIZE_WORDS else None
        after = after[1:] if after and after[0] in ("shape", "sign", "moon") else after
        if len(after) > 1 and after[0] == "in" and after[1] in COLORS:
            color = after[1]
        new = bool(before) and before[-1] in ("a", "an")
        found.append((at, Mention(_SHAPE_WORDS[word], color, size, new)))
    return found


_SIGNS = {key.upper() for key in _RELATIONS}
