"""Loading as Diffusers does: dtypes, variants, subfolders, hubs, components, devices."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest
import torch
from answering import model, processor
from diffusers import DiffusionPipeline
from mars import captioned_pipeline
from wans import tiny_pipeline

from mmspec import ContinuousImagePipeline, ImagePipeline, InputError, VideoPipeline, VlmPipeline

KINDS = {
    "image": ImagePipeline,
    "continuous": ContinuousImagePipeline,
    "video": VideoPipeline,
    "vlm": VlmPipeline,
}
MAIN = {"image": "transformer", "continuous": "transformer", "video": "transformer", "vlm": "model"}


@pytest.fixture(scope="module")
def folders(tiny_folder, tmp_path_factory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("saved")
    captioned_pipeline().save_pretrained(home / "continuous")
    tiny_pipeline().save_pretrained(home / "video")
    VlmPipeline(model(2, 0), processor(), drafter=model(1, 1)).save_pretrained(home / "vlm")
    shutil.copytree(tiny_folder, home / "image")
    return {name: home / name for name in KINDS}


def dtypes(pipe) -> set[torch.dtype]:
    parts = [part for part in pipe.components.values() if isinstance(part, torch.nn.Module)]
    return {weight.dtype for part in parts for weight in part.parameters()}


@pytest.mark.parametrize("name", KINDS)
def test_dtypes_in_every_way(folders, name, caplog):
    load = KINDS[name].from_pretrained
    half = {torch.bfloat16}
    assert dtypes(load(folders[name], torch_dtype=torch.bfloat16)) == half
    assert dtypes(load(folders[name], dtype="bfloat16")) == half
    assert dtypes(load(folders[name], torch_dtype="torch.bfloat16", device_map="cpu")) == half
    logger = logging.getLogger("diffusers")
    logger.addHandler(caplog.handler)  # which does not propagate
    try:
        pipe = load(folders[name])
        assert pipe.to(torch.bfloat16) is pipe
        assert dtypes(pipe) == half
        assert dtypes(pipe.to("cpu", torch.float64)) == {torch.float64}
        assert dtypes(pipe.to(device="cpu", dtype="float32")) == {torch.float32}
    finally:
        logger.removeHandler(caplog.handler)
    assert not caplog.records


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_auto_is_the_dtype_in_which_the_target_is_stored(folders, tmp_path, name, dtype):
    load = KINDS[name].from_pretrained
    load(folders[name], dtype=dtype).save_pretrained(tmp_path / "saved")
    for how in (dict(torch_dtype="auto"), dict(dtype="auto"), dict(dtype="auto", variant=None)):
        assert dtypes(load(tmp_path / "saved", **how)) == {dtype}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (dict(dtype="auto", torch_dtype=torch.float16), "give one of them"),
        (dict(dtype="int8"), "dtype must be one of floats, .*, not 'int8'"),
        (dict(dtype="bfloat61"), "dtype must be one of floats"),
        (dict(torch_dtype={"default": torch.float16}), "torch_dtype must be a dtype, text or None"),
        (dict(dtype=torch.float16, torch_dtype=torch.bfloat16), "give one of them"),
        (dict(torch_dtyp=torch.float16), "did you mean 'torch_dtype'"),
        (dict(revision="main"), "is a folder, which has no revisions"),
        (dict(revision=3), "revision must be text or None, not 3"),
        (dict(local_files_only="yes"), "local_files_only must be True or False"),
        (dict(variant="fp16"), "fp16"),
        (dict(subfolder="nothing"), "has no subfolder 'nothing'"),
        (dict(use_safetensors=False), "safetensors alone"),
        (dict(device_map="toaster"), "device_map must be 'auto'"),
        (dict(device_map="cuda:99"), "'cuda:99' can't be used"),
        (dict(path=3), "path must be text, a Path or None, not 3"),
        (dict(drafter="folder"), "drafter must be a component that is loaded already"),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", KINDS)
def test_what_is_refused(folders, name, options, said):
    with pytest.raises(InputError, match=said) as caught:
        KINDS[name].from_pretrained(**{"path": folders[name], **options})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", KINDS)
def test_components_take_the_place_of_the_folders(folders, name):
    load = KINDS[name].from_pretrained
    small = getattr(load(folders[name]), MAIN[name])
    pipe = load(folders[name], drafter=small, use_safetensors=True, low_cpu_mem_usage=True)
    assert pipe.drafter is small
    assert getattr(pipe, MAIN[name]) is not small
    assert load(folders[name], drafter=None).drafter is None
    words = "processor" if name == "vlm" else "tokenizer"
    own = getattr(pipe, words)
    assert getattr(load(folders[name], **{words: own}), words) is own
    with pytest.raises(InputError, match=f"can't do without its {MAIN[name]}"):
        load(folders[name], **{MAIN[name]: None})
    with pytest.raises(InputError, match="unknown argument 'schedulers'"):
        load(folders[name], schedulers=None)


@pytest.mark.parametrize("name", KINDS)
def test_variants_and_subfolders(folders, name, tmp_path):
    shutil.copytree(folders[name], tmp_path / "models" / "one")
    for weights in [*tmp_path.rglob("*.safetensors")]:
        weights.rename(weights.with_suffix(".fp16.safetensors"))
    load = KINDS[name].from_pretrained
    pipe = load(tmp_path / "models", subfolder="one", variant="fp16", local_files_only=True)
    first, second = (getattr(p, MAIN[name]).state_dict() for p in (pipe, load(folders[name])))
    assert all(torch.equal(second[key], value) for key, value in first.items())
    with pytest.raises(InputError, match=r"safetensors"):
        load(tmp_path / "models", subfolder="one")


def test_sharded_variants(folders, tmp_path):
    pipe = ImagePipeline.from_pretrained(folders["image"])
    pipe.save_pretrained(tmp_path, max_shard_size="30KB")
    home = tmp_path / "transformer"
    pipe.transformer.save_pretrained(home, max_shard_size="30KB", variant="fp16")
    for plain in home.glob("*.safetensors*"):
        if "fp16" not in plain.name:
            plain.unlink()
    assert len([*home.glob("*.safetensors")]) > 1
    taken = {n: p for n, p in pipe.components.items() if n != "transformer"}
    again = ImagePipeline.from_pretrained(tmp_path, variant="fp16", **taken)
    first, second = (p.transformer.state_dict() for p in (pipe, again))
    assert all(torch.equal(second[key], value) for key, value in first.items())


@pytest.mark.parametrize("name", KINDS)
def test_a_repository_is_downloaded_as_asked(folders, name, monkeypatch):
    calls = []

    def download(repository, **how):
        calls.append((repository, how))
        return folders[name].parent if how["allow_patterns"] else folders[name]

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    how = dict(revision="v2", cache_dir="kept", token="secret", local_files_only=True)
    load = KINDS[name].from_pretrained
    load("someone/model", **how, torch_dtype=torch.bfloat16)
    load("someone/model", subfolder=name)
    assert calls == [
        ("someone/model", {"allow_patterns": None, **how}),
        ("someone/model", {"allow_patterns": [f"{name}/*"]}),
    ]


def test_a_transformers_image_folder_takes_them_too(folders, tmp_path, monkeypatch):
    """`ImagePipeline` opens it with another class, which is told all that it was told."""
    from mmspec.pipelines.image.pipeline import TransformersImagePipeline

    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "config.json").write_text("{}")
    told = []

    def load_parts(folder, loading):
        told.append((folder, loading))
        raise InputError("enough is known")

    monkeypatch.setattr(TransformersImagePipeline, "load_parts", load_parts)
    how = dict(subfolder="sub", variant="fp16", drafter=None)
    with pytest.raises(InputError, match="enough"):
        ImagePipeline.from_pretrained(tmp_path, "float16", "cpu", **how)
    ((folder, loading),) = told
    assert folder == tmp_path / "sub"
    assert (loading.dtype, loading.device) == (torch.float16, "cpu")
    assert (loading.variant, loading.parts) == ("fp16", {"drafter": None})


@pytest.mark.parametrize("name", ["image", "continuous", "video"])
def test_the_index_says_who_opens_it(folders, name):
    """Diffusers looks for its class among its own alone."""
    index = json.loads((folders[name] / "model_index.json").read_text())
    kind = KINDS[name]
    assert index["_opened_by"].startswith(f"{kind.__module__}.{kind.__name__}.from_pretrained")
    with pytest.raises(AttributeError, match=kind.__name__):
        DiffusionPipeline.from_pretrained(folders[name])
