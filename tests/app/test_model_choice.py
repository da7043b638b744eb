"""Which models and methods the page offers, and what it says of them."""

from __future__ import annotations

import shutil
from pathlib import Path

from visits import LIMITS, TAB, images, one, shown, visitor

from mmspec.app.folders import Folders
from mmspec.app.model_cache import ModelCache
from mmspec.app.page import Page
from mmspec.methods import SpecConfig
from mmspec.models.embedded import readable
from mmspec.pipelines import model_folders
from mmspec.pipelines.model_folders import embedded_name, shipped


def test_methods_are_those_that_a_model_can_run(page):
    tab = TAB["vlm"]
    methods = page.fields(tab)
    offered, first = methods.offered("vlm")  # it has a drafter, and no heads
    assert first == "draft"
    assert {"prompt-lookup", "draft", "drafter-only"} <= set(offered)
    assert not {"eagle", "hydra", "verdict", "plain"} & set(offered)
    offered, first = methods.offered("embedded-vlm")
    assert first == "eagle"
    assert {"vispec", "specvlm", "msd", "flash", "hydra", "dflash"} <= set(offered)
    assert not {"medusa", "eagle3"} & set(offered)
    page.folders = Folders(anywhere=True)
    methods = page.fields(tab)
    here = str(page.cache.folder("vlm", "vlm"))
    assert methods.offered("embedded-vlm", here, visitor())[1] == "draft"
    assert methods.offered("embedded-vlm", "no such", visitor())[1] == "eagle"
    for modality, wanted in (("image", "scd"), ("continuous", "reflection"), ("video", "sdvg")):
        assert page.fields(TAB[modality]).offered(page.cache.names(modality)[0])[1] == wanted


def test_the_contract_follows_knob_and_settings(page):
    methods = page.fields(TAB["image"])
    assert "(exact)" in methods.about("scd")
    assert "(exact)" in methods.about("scd", 2)
    moved = methods.about("scd", 2, " rule=lantern, lantern_delta=0.1 ")
    assert "(lossy)" in moved
    assert "acceptance rule lantern," in moved
    for wrong in ({"value": 9999}, {"more": "windw=3"}, {"more": "rule=antigravity:Rule"}):
        assert 'role="alert"' in methods.about("scd", **wrong)
    assert "no drafter" in methods.about(None)


def test_a_model_without_a_drafter(page, undrafted, monkeypatch):
    """What drafts is not offered; with nothing left, the page says why in a method's place."""
    tab, nothing = TAB["video"], "this model has no drafter: there is nothing to speculate with"
    page.cache = ModelCache({"video": [undrafted]})
    fields = page.fields(tab)
    assert fields.offered("video") == (["x-cache", "random-reuse"], "x-cache")
    assert "Recommended" in fields._listed(tab.methods, "sdvg")
    assert "Recommended" not in fields._listed(["x-cache", "random-reuse"], "x-cache")
    able = ModelCache.methods
    named = ("video", "video")
    monkeypatch.setattr(ModelCache, "methods", lambda *a: [] if a[1:] == named else able(*a))
    assert page.fields(tab).offered("video") == ([], None)
    blocks = page.build()
    texts = [str(getattr(block, "value", "")).lower() for block in blocks.blocks.values()]
    assert sum(nothing in text for text in texts) == 2  # the headline, and in the method's place
    assert nothing in one(page, "video", method=None)
    assert not page.jobs._jobs


def test_a_checkpoint_by_its_path(folders, tmp_path, monkeypatch):
    """It draws what it draws when it is offered; one that is offered is not loaded twice."""
    for name in ("offered", "first", "second"):
        shutil.copytree(folders["image"], tmp_path / name)
    monkeypatch.chdir(tmp_path)
    page = Page(ModelCache({"image": [Path("offered")]}), Folders(tmp_path), LIMITS)
    pictures = {}
    for path in ("", "offered", str(tmp_path / "offered"), "first", "second"):
        headline, speculative, plain = shown(page, "image", path=path)
        assert "Done" in headline, headline
        pictures[path] = images(speculative), images(plain)
        kept = [folder.name for _, folder in page.cache._kept]
        assert kept == ["offered", *([path] if path in ("first", "second") else [])]
    assert all(found == pictures[""] for found in pictures.values())
    page.jobs.close()


def test_a_path_is_told_as_it_was_typed(page, tmp_path):
    """Where the server has it is nobody's business."""
    (tmp_path / "root" / "mine").mkdir(parents=True)
    (tmp_path / "root" / "mine" / "model_index.json").write_text("[]")
    page.folders = Folders(tmp_path / "root")
    for typed in ("mine", "./mine"):
        told = one(page, path=typed)
        assert told.startswith(f"{typed}/model_index.json does not hold a JSON object"), told
    page.cache = ModelCache({"image": [tmp_path / "root" / "mine"]})
    assert str(tmp_path) not in one(page, model="mine")


def test_the_cache_is_not_named(page, tmp_path, monkeypatch):
    """Neither that of an unpacked model, nor why it can't be unpacked."""
    monkeypatch.setenv("MMSPEC_CACHE", str(tmp_path / "cache"))
    page.cache = ModelCache({})
    (tmp_path / "cache").write_text("no folder")
    told = one(page, model="embedded-image")
    assert "can't unpack" in told.replace("&#x27;", "'")
    assert "into the cache: " in told
    assert str(tmp_path) not in told
    (tmp_path / "cache").unlink()
    broken = readable(shipped()["embedded-image"]) / "transformer" / "config.json"
    broken.write_text("[]")
    told = one(page, model="embedded-image")
    assert told.startswith("embedded-image/transformer/config.json "), told


def test_folders_of_one_name_are_told_apart():
    """By no more of their paths than it takes."""
    given = [Path("a/model"), Path("/secret/b/model"), Path("c/other"), Path("d/embedded-image")]
    names = ModelCache({"image": given}).names("image")
    assert names == ["a/model", "b/model", "other", "d/embedded-image", "embedded-image"]
    given = [Path("/secret/a/model"), Path("/secret/a/b/model"), Path("/c/b/model")]
    names = ModelCache({"image": given}).names("image")
    assert names[:-1] == ["a/model", "a/b/model", "c/b/model"]
    cache = ModelCache({"image": [Path("/model"), Path("/a/model")]})
    assert cache.names("image") == ["/model", "a/model", "embedded-image"]
    assert cache.folder("image", "a/model") == Path("/a/model")


def test_what_is_offered_runs_on_the_embedded_models():
    cache = ModelCache({})
    for modality in TAB:
        pipe = cache.load(modality, None).pipe
        for method in cache.methods(modality, f"embedded-{embedded_name(modality)}"):
            if method != "verdict":
                pipe.check_speculation(SpecConfig(method))


def test_where_nothing_is_embedded_the_page_says_so(page, monkeypatch, tmp_path):
    monkeypatch.setattr(model_folders, "MODELS", tmp_path)
    assert page.cache.missing("continuous") is None  # a folder is given
    page.cache = ModelCache({})
    told = page.cache.missing("continuous")
    assert told == "no model embedded-mar ships with this version (there are none); name a folder"
    assert told in shown(page, "continuous")[0]
