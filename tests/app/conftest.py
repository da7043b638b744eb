"""Tiny random pipelines of every modality in folders, and the demo that serves them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from visits import LIMITS

from mmspec.app.folders import Folders
from mmspec.app.limits import Limits
from mmspec.app.model_cache import ModelCache
from mmspec.app.page import Page
from mmspec.app.server import served


@pytest.fixture(scope="session")
def folders(tiny_folder, tmp_path_factory) -> dict[str, Path]:
    """By modality."""
    from answering import model, processor
    from mars import captioned_pipeline
    from wans import tiny_pipeline

    from mmspec import VlmPipeline

    home = tmp_path_factory.mktemp("models")
    shutil.copytree(tiny_folder, home / "image")
    target, drafter = model(3, 0), model(1, 1)
    for network in (target, drafter):
        network.config.text_config.max_position_embeddings = 256
    VlmPipeline(target, processor(), drafter=drafter).save_pretrained(home / "vlm")
    captioned_pipeline().save_pretrained(home / "continuous")
    tiny_pipeline().save_pretrained(home / "video")
    return {name: home / name for name in ("image", "vlm", "continuous", "video")}


@pytest.fixture(scope="session")
def undrafted(tmp_path_factory) -> Path:
    """A video model alone, in a folder."""
    from wans import tiny_pipeline

    home = tmp_path_factory.mktemp("undrafted") / "video"
    tiny_pipeline(drafter=False).save_pretrained(home)
    return home


@pytest.fixture(scope="session")
def address(folders):
    """Where the demo of these models is served."""
    models = {modality: [folder] for modality, folder in folders.items()}
    limits = Limits(upload_bytes=200_000, prompt=200)
    with served(models, port=None, limits=limits) as url:
        yield url.rstrip("/")


@pytest.fixture
def page(folders):
    made = Page(ModelCache({m: [f] for m, f in folders.items()}), Folders(), LIMITS)
    yield made
    made.jobs.close()


@pytest.fixture
def picture_file(tmp_path):
    from answering import picture

    picture(0).save(tmp_path / "picture.png")
    return tmp_path / "picture.png"
