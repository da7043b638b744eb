"""Pipelines of pictures that hold DFlash's head: plain pictures, saved folders, heads of others."""

from __future__ import annotations

import copy
import logging
import shutil

import pytest
import torch

from mmspec import ImagePipeline, SpecConfig
from mmspec.errors import InputError
from mmspec.methods.names import parse_method
from mmspec.models.llamagen.dflash_head import DFlashHead
from mmspec.models.llamagen.eagle_head import EagleHead
from mmspec.models.llamagen.spatial_heads import SpatialHeads

METHODS = (
    "dflash",
    "dflash[siblings=top]",
    "dflash[rule=block]",
    "dflash[drafter=dflash-tree,rule=recursive,tree_widths=3,2,1]",
    "scd-dflash[window=8]",
    "scd-dflash[window=3,jacobi_init=above,head_places=2]",
)


@pytest.fixture(scope="module")
def pipe(tiny_folder):
    made = ImagePipeline.from_pretrained(tiny_folder, dtype=torch.float64)
    made.set_progress_bar_config(disable=True)
    return made


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("guidance_scale", [3.0, 1.0])
def test_a_pipelines_pictures_are_those_of_plain(pipe, method, guidance_scale):
    prompt = ["a red circle", "two blue stars on a green background"]
    asked = dict(prompt=prompt, temperature=0.0, output_type="tokens")
    asked["guidance_scale"] = guidance_scale
    pipe.disable_speculation()
    plain = pipe(**asked)
    pipe.enable_speculation(parse_method(method)[1])
    ours = pipe(**asked)
    assert torch.equal(ours.images, plain.images)
    assert min(ours.stats.drafted) > 0
    assert ours.stats.fault is None


def test_heads_of_a_target_take_turns(pipe):
    """Each reads other hidden states of the same network, whatever was read before."""
    asked = dict(prompt="a red circle", output_type="tokens")

    def drawn(method):
        pipe.enable_speculation(SpecConfig(method))
        made = pipe(**asked, generator=torch.Generator().manual_seed(3))
        assert made.stats.fault is None
        return made.images, made.stats.accepted

    first = {method: drawn(method) for method in ("eagle", "spatial-sd", "dflash")}
    for method in ("eagle", "spatial-sd", "dflash"):
        images, accepted = drawn(method)
        assert torch.equal(images, first[method][0])
        assert accepted == first[method][1]


def test_saved_and_loaded(pipe, tmp_path):
    pipe.save_pretrained(tmp_path / "again")
    again = ImagePipeline.from_pretrained(tmp_path / "again", dtype=torch.float64)
    weights = again.dflash.state_dict()
    assert all(torch.equal(x, weights[name]) for name, x in pipe.dflash.state_dict().items())
    assert again.dflash.config.reads == pipe.dflash.config.reads
    again.set_progress_bar_config(disable=True)
    pictures = []
    for one in (pipe, again):
        one.enable_speculation(SpecConfig("dflash"))
        generator = torch.Generator().manual_seed(5)
        pictures.append(one("a red circle", output_type="tokens", generator=generator).images)
    assert torch.equal(*pictures)


@pytest.mark.parametrize("method", ["dflash", "scd-dflash"])
def test_a_head_without_numbers(pipe, caplog, method):
    """It is given up, but for a window, whose tokens live on: there it draws at random."""
    head = copy.deepcopy(pipe.dflash)
    with torch.no_grad():
        head.mask[0] = float("nan")
    spoiled = ImagePipeline(**{**pipe.components, "dflash": head})
    spoiled.set_progress_bar_config(disable=True)
    spoiled.enable_speculation(SpecConfig(method))
    with caplog.at_level(logging.WARNING):
        out = spoiled("a red circle", output_type="tokens")
    told = [record.message for record in caplog.records if "drafter" in record.message]
    if method == "dflash":
        assert "laws that are none" in out.stats.fault
    else:
        assert out.stats.fault is None
        assert told == ["the drafter has no laws in places; there it draws at random"]
    assert out.stats.emitted == [16]


@pytest.mark.parametrize(
    ("name", "head", "error"),
    [
        ("dflash", DFlashHead(64, 2, None, 32, 1, 5, (1,)), "dim .64. is not the target's .32."),
        ("dflash", DFlashHead(32, 2, None, 32, 1, 5, (1, 3)), "hidden states .1, 3., and the"),
        ("eagle", EagleHead(32, 4, None, 32), "n_head .4. is not the target's .2."),
        ("spatial", SpatialHeads(16, 8, 8), "hidden states of width 16, and the target's have 32"),
    ],
)
def test_a_head_of_another_target_is_refused_as_a_pipeline_takes_it(
    pipe, tiny_folder, tmp_path, name, head, error
):
    """Handed over or found in a folder: before anybody asks for its method."""
    with pytest.raises(InputError, match=error):
        ImagePipeline(**{**pipe.components, name: head.double()})
    folder = shutil.copytree(tiny_folder, tmp_path / "pipeline")
    shutil.rmtree(folder / name)
    head.save_pretrained(folder / name)
    with pytest.raises(InputError, match=error):
        ImagePipeline.from_pretrained(folder)


def test_bad_heads(pipe):
    without = ImagePipeline(**{**pipe.components, "dflash": None})
    with pytest.raises(InputError, match="dflash"):
        without.enable_speculation(SpecConfig("dflash"))
    with pytest.raises(ValueError, match="block must be 1 or more"):
        DFlashHead(32, 2, block=0)
    with pytest.raises(ValueError, match="can't tell row and column"):
        DFlashHead(4, 2)
