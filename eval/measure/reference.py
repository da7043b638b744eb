"""The real pictures that generated ones are compared with as a set."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from ...errors import InputError
from ...worlds.shapes import render, sample_scene
from ..data.folders import read_images
from ..run.job import Job

BATCH = 64


def reference_pictures(job: Job, count: int) -> Iterator[list[Image.Image]]:
    """Batches of real pictures: the user's folder, or scenes of the samples' own prompts.

    Raises:
        InputError: the suite has no reference and the user gave none.
    """
    if "reference" in job.files:
        for _, pictures in read_images(Path(job.files["reference"])).batches(BATCH):
            yield pictures
    elif job.suite.reference == "shapes":
        for first in range(0, count, BATCH):
            yield [_scene(job, i) for i in range(first, min(count, first + BATCH))]
    else:
        raise InputError("distances of sets need real pictures: --reference FOLDER")


def _scene(job: Job, index: int) -> Image.Image:
    """A scene of which a sample's prompt is true; its chance is its own."""
    rng = np.random.default_rng([job.seed, index, 40_000])
    return Image.fromarray(render(sample_scene(rng, job.prompt(index), "held_out")))
