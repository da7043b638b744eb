"""The rule-based detector, on rendered scenes and on what lossy pictures make of them.

Measured: every object of a scene right in shape, colour and number, and nothing else above a
confidence of 0.3; 2,000 scenes of all tasks and both splits; the damages are those below.

| picture                       | 128 px   | 64 px    |
| clean                         | 100.00 % | 100.00 % |
| blurred, rescaled,            |          |          |
| stained, washed               | 100.00 % | 100.00 % |
| compressed                    | 100.00 % |  99.15 % |
| faded                         |  99.85 % |  99.85 % |
| everything (about 26 dB PSNR) | 100.00 % |  95.95 % |

About 6 ms a picture on one core. The thresholds were chosen on other scenes with the same kinds of
damage, so expect a little less of a real decoder.
"""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import pytest
from PIL import Image, ImageDraw
from scipy import ndimage

from mmspec.worlds.shapes import SHAPES, TASKS, Background, Item, Scene, render, sample
from mmspec.worlds.shapes.detector import Detection, detect
from mmspec.worlds.shapes.scoring import score_prompt

PLAIN = Background((140, 140, 140), (140, 140, 140), 0.0, "plain", 0.0, 1.0, 0.0, 0)
BLUE = (40, 80, 210)


def scenes(count: int, seed: int = 21):
    rng = np.random.default_rng(seed)
    for i in range(count):
        yield sample(rng, TASKS[i % 6], "held_out" if i // 6 % 2 else "train")


def kinds(objects) -> Counter:
    return Counter((thing.shape, thing.color) for thing in objects)


def rounded(pixels: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(pixels), 0, 255).astype(np.uint8)


def blurred(picture: np.ndarray, sigma: float) -> np.ndarray:
    """`sigma` in pixels of a 128-pixel picture."""
    sigma *= len(picture) / 128
    return rounded(ndimage.gaussian_filter(picture.astype(float), (sigma, sigma, 0)))


def compressed(picture: np.ndarray, quality: int = 30) -> np.ndarray:
    stream = io.BytesIO()
    Image.fromarray(picture).save(stream, "JPEG", quality=quality)
    return np.asarray(Image.open(stream))


def rescaled(picture: np.ndarray) -> np.ndarray:
    image = Image.fromarray(picture)
    return np.asarray(image.reduce(2).resize(image.size, Image.Resampling.BILINEAR))


def stained(picture: np.ndarray, rng: np.random.Generator, strength: float = 8.0) -> np.ndarray:
    """Smooth noise, independent per channel."""
    grain = rng.normal(0, strength, (3, 12, 12)).astype(np.float32)
    size = picture.shape[:2]
    channels = [Image.fromarray(g).resize(size, Image.Resampling.BICUBIC) for g in grain]
    return rounded(picture + np.stack(channels, -1))


def washed(picture: np.ndarray) -> np.ndarray:
    """Less chroma, less contrast."""
    grey = picture.mean(-1, keepdims=True)
    return rounded(0.9 * (grey + 0.8 * (picture - grey)) + 14)


def everything(picture: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return compressed(stained(washed(blurred(picture, 1.3)), rng, 6.0))


DAMAGES: dict[str, Callable[[np.ndarray, np.random.Generator], np.ndarray]] = {
    "blurred": lambda picture, rng: blurred(picture, 1.8),
    "compressed": lambda picture, rng: compressed(picture),
    "rescaled": lambda picture, rng: rescaled(picture),
    "stained": stained,
    "washed": lambda picture, rng: washed(picture),
    "faded": lambda picture, rng: rounded(140 + 0.65 * (picture - 140.0)),
    "everything": everything,
}


@lru_cache(1)
def rendered(count: int, side: int) -> list[tuple[Scene, np.ndarray]]:
    """Scenes, each with its picture, which nobody changes."""
    found = [(scene, render(scene, side)) for _, scene in scenes(count)]
    for _, picture in found:
        picture.setflags(write=False)
    return found


def accuracy(count: int, side: int, damage=lambda picture, rng: picture, floor=0.3) -> float:
    """Share of scenes of which every object is found, and nothing else."""
    rng = np.random.default_rng(1)
    right = 0
    for scene, picture in rendered(count, side):
        hits = detect(damage(picture, rng))
        right += kinds(hit for hit in hits if hit.confidence > floor) == kinds(scene.items)
    return right / count


@pytest.mark.slow
def test_rendered_scenes_at_128_pixels():
    assert accuracy(2000, 128) >= 0.99


@pytest.mark.slow
def test_rendered_scenes_at_64_pixels():
    assert accuracy(600, 64) >= 0.99


EACH = [pytest.param(n, marks=() if n == "everything" else pytest.mark.slow) for n in DAMAGES]


@pytest.mark.parametrize("name", EACH)
def test_damaged_pictures_at_128_pixels(name):
    assert accuracy(240, 128, DAMAGES[name]) >= 0.98


@pytest.mark.parametrize("name", EACH)
def test_damaged_pictures_at_64_pixels(name):
    assert accuracy(240, 64, DAMAGES[name]) >= (0.92 if name == "everything" else 0.97)


def test_rendered_scenes_satisfy_their_prompts():
    """End to end, boxes included, at the official thresholds."""
    for prompt, scene in scenes(300, seed=22):
        correct, reason = score_prompt(prompt.metadata(), detect(render(scene, 128)))
        assert correct, (prompt.prompt, reason)


def test_other_prompts_are_not_satisfied():
    drawn = list(scenes(120, seed=23))
    wrong = 0
    for (prompt, scene), (other, _) in zip(drawn, drawn[6:], strict=False):
        if prompt.include != other.include:
            wrong += score_prompt(other.metadata(), detect(render(scene, 128)))[0]
    assert wrong <= 4  # "a photo of a star" may be true of another star's scene by chance


@pytest.mark.parametrize("side", [64, 128, 256])
def test_boxes_are_tight(side):
    for _, scene in scenes(60, seed=24):
        empty = render(Scene((), scene.background), side).astype(float)
        hits = detect(render(scene, side))
        for item in scene.items:
            alone = render(Scene((item,), scene.background), side)
            change = np.abs(alone - empty).max(-1)
            rows, columns = np.nonzero(change > 0.5 * change.max())
            true = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
            gaps = [np.abs(np.subtract(hit.box, true)).max() for hit in hits]
            assert min(gaps) <= 2.5 * max(1, side / 128), (item, true, hits)


def test_empty_backgrounds_hold_nothing():
    rng = np.random.default_rng(2)
    for _, scene in scenes(150, seed=25):
        empty = render(Scene((), scene.background), 128)
        assert detect(empty) == []
        assert [hit for hit in detect(everything(empty, rng)) if hit.confidence > 0.3] == []


def test_most_confident_first():
    for _, scene in scenes(30, seed=26):
        confidences = [hit.confidence for hit in detect(render(scene, 128))]
        assert confidences == sorted(confidences, reverse=True)
        assert all(0 <= confidence <= 1 for confidence in confidences)


def painted(points, radius: float = 24, color=BLUE) -> np.ndarray:
    """A polygon given in a box from -1 to 1, in the middle of a plain picture."""
    mask = Image.new("L", (512, 512))
    corners = [(256 + 4 * radius * x, 256 + 4 * radius * y) for x, y in points]
    ImageDraw.Draw(mask).polygon(corners, fill=255)
    picture = Image.new("RGB", (128, 128), (140, 140, 140))
    picture.paste(color, (0, 0), mask.reduce(4))
    return np.asarray(picture)


def wheel(count: int, height: float = 1.0) -> list[tuple[float, float]]:
    turns = [2 * math.pi * k / count for k in range(count)]
    return [(math.cos(turn), height * math.sin(turn)) for turn in turns]


MALFORMED = {
    "flat ellipse": wheel(60, 0.5),
    "half disc": [(x, y) for x, y in wheel(60) if y >= -1e-9],
    "bar": [(-1, -0.3), (1, -0.3), (1, 0.3), (-1, 0.3)],
    "L": [(-1, -1), (-0.2, -1), (-0.2, 0.2), (1, 0.2), (1, 1), (-1, 1)],
    "fallen triangle": [(0, 0.95), (1, -0.85), (-1, -0.85)],
    "cross without an arm": [
        *[(-0.33, -1), (0.33, -1), (0.33, -0.33), (1, -0.33)],
        *[(1, 0.33), (-1, 0.33), (-1, -0.33), (-0.33, -0.33)],
    ],
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_objects_get_a_low_confidence(name):
    (hit,) = detect(painted(MALFORMED[name]))
    assert hit.color == "blue"
    assert hit.confidence < 0.5


def test_confidence_falls_as_a_shape_is_bent():
    confidences = [detect(painted(wheel(60, height)))[0].confidence for height in (1, 0.7, 0.5)]
    assert confidences[0] > 0.95 > 0.7 > confidences[1] > confidences[2]


def item(shape: str, color: str, x: float, y: float, tint, size: float = 0.3) -> Item:
    return Item(shape, color, x, y, size, 0.0, tint)


def test_touching_objects_of_different_colors_are_two():
    left = item("square", "blue", 0.35, 0.5, BLUE)
    right = item("circle", "red", 0.63, 0.5, (214, 40, 40))
    hits = detect(render(Scene((left, right), PLAIN), 128))
    assert kinds(hits) == kinds((left, right))


def test_touching_objects_of_one_color_are_two():
    above, below = item("heart", "blue", 0.5, 0.3, BLUE), item("triangle", "blue", 0.5, 0.6, BLUE)
    picture = render(Scene((above, below), PLAIN), 128)
    joint = picture.copy()
    joint[40:70, 63:66] = BLUE
    assert kinds(detect(picture)) == kinds(detect(joint)) == kinds((above, below))


def test_an_object_nearly_cut_by_blotches_is_one():
    ring = item("ring", "purple", 0.5, 0.5, (130, 60, 170), 0.4)
    picture = render(Scene((ring,), PLAIN), 128).copy()
    picture[36:48, 62:66] = 140  # the ring is 12 pixels thick there: 3 are left
    picture[80:92, 62:66] = 140
    assert kinds(detect(picture)) == kinds((ring,))


def test_faint_blotches_are_ignored():
    rng = np.random.default_rng(6)
    y, x = np.mgrid[:128, :128]
    for _, scene in scenes(60, seed=27):
        picture = render(scene, 128).astype(float)
        for _ in range(4):
            cx, cy, width = *rng.uniform(0, 128, 2), rng.uniform(2, 4)
            share = 0.35 * np.exp(-((x - cx) ** 2 + (y - cy) ** 2) / (2 * width**2))[..., None]
            picture += share * (np.array(BLUE) - picture)
        assert kinds(detect(rounded(picture))) == kinds(scene.items)


@pytest.mark.parametrize("shape", [(1, 1), (3, 128), (8, 200), (37, 61), (128, 128), (256, 256)])
def test_any_picture_is_read_without_an_error(shape):
    rng = np.random.default_rng(7)
    noise = rng.integers(0, 256, (*shape, 3)).astype(np.uint8)
    assert all(isinstance(hit, Detection) for hit in detect(noise))
    assert [hit for hit in detect(noise) if hit.confidence > 0.5] == []


@pytest.mark.parametrize("color", [(214, 40, 40), (20, 20, 24), (248, 248, 248), (140, 140, 140)])
def test_a_flooded_picture_holds_no_object(color):
    assert detect(np.full((128, 128, 3), color, np.uint8)) == []


def test_only_uint8_rgb_is_accepted():
    for wrong in (np.zeros((8, 8, 3)), np.zeros((8, 8), np.uint8), np.zeros((8, 8, 4), np.uint8)):
        with pytest.raises(ValueError, match="uint8"):
            detect(wrong)


def test_every_shape_is_found_at_every_size():
    for shape in SHAPES:
        for size in (0.26, 0.4, 0.54):
            thing = item(shape, "blue", 0.5, 0.5, BLUE, size)
            (hit,) = detect(render(Scene((thing,), PLAIN), 128))
            assert hit.shape == shape
            assert hit.confidence > 0.9
