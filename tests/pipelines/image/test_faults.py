"""Networks without numbers and interrupts: what the image pipeline says, and what it still can."""

from __future__ import annotations

import logging

import pytest
import torch
from knobs import precision

from mmspec import ImagePipeline, SpecConfig
from mmspec.cli.main import main
from mmspec.engine.laws import TargetError
from mmspec.errors import InputError
from mmspec.methods import serving
from mmspec.models.llamagen.decoder import LlamaGenDecoder

METHODS = serving("image")
PROMPT = "a photo of a red circle"
SPECULATIVE = [name for name in METHODS if name != "plain"]
RESOLVED = {name: SpecConfig(name).resolve("image") for name in SPECULATIVE}
NEEDS_ONE = [n for n, c in RESOLVED.items() if c.drafts and c.needs == ("drafter",)]
# tokens live on: the window goes on without what the drafter says
CARRIED = [n for n in NEEDS_ONE if getattr(RESOLVED[n].drafter.load(), "carries", False)]
assert {"scd-refined", "sjd-pac-refined"} <= {*CARRIED}  # the guard would bias these
DRAFTED = [name for name in NEEDS_ONE if name not in CARRIED]
TARGETED = [name for name in METHODS if name not in ("drafter-only", "upsample-only")]


@pytest.fixture
def pipe(request, tiny_folder) -> ImagePipeline:
    pipe = ImagePipeline.from_pretrained(tiny_folder, dtype=precision(request, "image"))
    pipe.set_progress_bar_config(disable=True)
    return pipe


def draw(pipe: ImagePipeline, **arguments):
    generator = torch.Generator().manual_seed(0)
    return pipe(PROMPT, generator=generator, output_type="tokens", **arguments)


def spoil(network: torch.nn.Module) -> None:
    with torch.no_grad():
        network.output.weight[3] = float("nan")


def fails(pipe, caplog) -> str:
    """Draw all the same; the drafter's fault, which one warning tells."""
    with caplog.at_level(logging.WARNING):
        out = draw(pipe)
    assert [r.message for r in caplog.records if "failed" in r.message] == [
        f"the drafter failed ({out.stats.fault}); decoding goes on without it"
    ]
    assert out.stats.as_dict()["fault"] == out.stats.fault
    assert out.images.shape == (1, 16)
    assert out.stats.emitted == [16]
    return out.stats.fault


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("method", TARGETED)
def test_a_target_without_numbers(pipe, method, temperature):
    spoil(pipe.transformer)
    pipe.enable_speculation(SpecConfig(method=method))
    with pytest.raises(TargetError, match="behind token 0 of row 0 are no numbers"):
        draw(pipe, temperature=temperature)


@pytest.mark.parametrize("method", DRAFTED)
def test_a_drafter_without_numbers(pipe, caplog, method):
    spoil(pipe.drafter)
    pipe.enable_speculation(SpecConfig(method=method))
    assert "laws that are none" in fails(pipe, caplog)


@pytest.mark.parametrize("method", CARRIED)
def test_a_window_goes_on_without_the_drafter(pipe, caplog, method):
    spoil(pipe.drafter)
    pipe.enable_speculation(SpecConfig(method=method))
    with caplog.at_level(logging.WARNING):
        out = draw(pipe)
    told = [r.message for r in caplog.records if "drafter" in r.message]
    assert told == ["the drafter has no laws in places; there it draws at random"]
    assert out.stats.fault is None
    assert out.stats.emitted == [16]


def test_a_sibling_without_numbers(pipe, caplog):
    """It draws the small picture by itself, and yet the target is not to blame."""
    spoil(pipe.sibling)
    pipe.enable_speculation("mulo-sd")
    assert fails(pipe, caplog).startswith("ValueError: of the sibling: ")


def test_a_sound_drafter_has_no_fault(pipe):
    pipe.enable_speculation(SpecConfig(method="draft"))
    assert draw(pipe).stats.fault is None


@pytest.mark.parametrize("method", SPECULATIVE)
def test_interrupted_in_the_middle_of_a_round(pipe, method, monkeypatch):
    """Control-C in a forward pass: the next picture is the one that a fresh pipeline draws."""
    pipe.enable_speculation(SpecConfig(method=method))
    expected = draw(pipe).images
    forward, calls = LlamaGenDecoder.forward, []

    def interrupted(self, *arguments, **options):
        calls.append(self)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return forward(self, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(LlamaGenDecoder, "forward", interrupted)
        with pytest.raises(KeyboardInterrupt):
            draw(pipe)
    assert len(calls) == 3
    assert torch.equal(draw(pipe).images, expected)


def test_the_command_line_says_so_in_one_line(pipe, tmp_path, capfd):
    spoil(pipe.transformer)
    pipe.save_pretrained(tmp_path / "model")
    out = tmp_path / "out"
    assert main(["generate", PROMPT, "--model", str(tmp_path / "model"), "-o", str(out)]) == 1
    lines = capfd.readouterr().err.splitlines()
    assert [line for line in lines if "no numbers" in line] == [
        "mmspec: error: the target's laws behind token 0 of row 0 are no numbers"
    ]
    assert not any("Traceback" in line for line in lines)
    assert not list(out.glob("*.png"))


def test_a_full_disk_leaves_the_saved_pipeline_as_it_was(pipe, tmp_path, full_disk):
    """All of it or nothing: a half of it would load, with weights of two models."""
    pipe.save_pretrained(tmp_path / "old")
    before = {p: p.read_bytes() for p in (tmp_path / "old").rglob("*") if p.is_file()}
    for name in ("old", "new"):
        with full_disk(20_000), pytest.raises(InputError, match="can't write") as caught:
            pipe.save_pretrained(tmp_path / name)
        assert "\n" not in str(caught.value)
    assert {p: p.read_bytes() for p in (tmp_path / "old").rglob("*") if p.is_file()} == before
    assert not (tmp_path / "new").exists()
