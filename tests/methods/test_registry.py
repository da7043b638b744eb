"""Parts of other packages: found by their entry points, and of use as the library's own are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mmspec import ImagePipeline, SpecConfig, declarations
from mmspec.cli.main import build_parser
from mmspec.errors import InputError
from mmspec.methods import parse_method, parts, presets
from mmspec.methods.config import all_options, options_of_modality
from mmspec.registry import LEFT_OUT

PACKAGE = Path(__file__).resolve().parents[2] / "examples" / "own_parts"


def install(folder: Path, points: str, name: str = "theirs") -> None:
    """Metadata such as pip leaves it."""
    home = folder / f"{name}-0.1.dist-info"
    home.mkdir()
    (home / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n")
    (home / "entry_points.txt").write_text(f"[mmspec.parts]\n{points}\n")


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Adds packages to this process, and takes them out again."""

    def forget() -> None:
        cached = (
            *(declarations.collect, declarations._of_others, presets),
            *(all_options, options_of_modality),
        )
        for function in cached:
            function.cache_clear()
        LEFT_OUT.clear()

    def add(points: str, name: str = "theirs") -> None:
        install(tmp_path, points, name)
        monkeypatch.syspath_prepend(tmp_path)
        forget()

    yield add
    monkeypatch.undo()
    forget()


def test_a_package_adds_a_rule_and_a_method(installed, monkeypatch, tiny_folder):
    monkeypatch.syspath_prepend(PACKAGE)
    installed("typical = typical_acceptance:PARTS")
    name, config = parse_method("typical[typical_delta=0.9,num_draft_tokens=3]")
    assert name == "typical[typical_delta=0.9,num_draft_tokens=3]"
    assert config.resolve("image").contract == "lossy"
    with pytest.raises(InputError, match="typical_delta must be from 0 to 1, not 2"):
        SpecConfig("typical", typical_delta=2)
    pipe = ImagePipeline.from_pretrained(tiny_folder)
    pipe.set_progress_bar_config(disable=True)
    accepted = {}
    for delta in (0.0, 1.0):  # all that the target can emit stands, or hardly any of it
        pipe.enable_speculation(SpecConfig("typical", typical_delta=delta, typical_epsilon=1.0))
        out = pipe("a red circle", generator=torch.Generator().manual_seed(0))
        assert (out.stats.method, out.stats.contract) == ("typical", "lossy")
        accepted[delta] = sum(out.stats.accepted)
    assert accepted[0.0] > accepted[1.0]


def test_the_command_line_knows_it(tmp_path):
    """In a process of its own, as after `pip install`."""
    install(tmp_path, "typical = typical_acceptance:PARTS")
    path = os.pathsep.join([str(tmp_path), str(PACKAGE), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-m", "mmspec", "ls", "methods", "--json"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)["typical"]
    assert found["contracts"] == {"image": "lossy", "vlm": "lossy"}
    assert (found["knob"], found["sweep"]) == ("typical_delta", [0.9, 0.3, 0.1])


@pytest.mark.parametrize(
    ("points", "said"),
    [
        ("a = no_such_module:PARTS", "No module named 'no_such_module'"),
        ("a = mmspec:SpecConfig", "mmspec:SpecConfig is no declaration, or tuple of them"),
    ],
)
def test_a_package_that_is_broken_is_left_out(installed, points, said):
    """The others stay, so that help does; whoever asks for its names is told why they are not."""
    installed(points)
    with pytest.warns(UserWarning, match=f"^package theirs is left out: {said}$") as told:
        build_parser()
    assert len(told) == 1
    assert "token" in parts("rule")
    assert "scd" in presets()
    for ask in (lambda: SpecConfig("typical"), lambda: SpecConfig(rule="typical")):
        with pytest.raises(InputError, match=f"unknown .* 'typical'.*; package theirs .*{said}"):
            ask()


def test_a_name_that_is_taken(installed, tmp_path):
    code = "from mmspec.methods.part import Rule\nMINE = Rule('token', 'theirs:Mine', 'mine')\n"
    (tmp_path / "theirs.py").write_text(code)
    installed("a = theirs:MINE")
    with pytest.raises(InputError, match="two packages declare rule 'token': mmspec and theirs;"):
        parts("rule")


def test_heads_and_compressors_declare_whom_they_serve(installed, tmp_path):
    (tmp_path / "served.py").write_text(
        "from mmspec.methods.options import Options, option\n"
        "from mmspec.methods.part import Compressor, Head\n"
        "class Own(Options):\n    own_width: int = option(1, 'width', 1)\n"
        "HEAD = Head('own', 'served:Own', 'mine', Own, serves=('image',))\n"
        "MINE = (HEAD, Compressor('own', 'served:own', 'mine', serves=('image',)))\n"
    )
    installed("a = served:MINE")
    assert {"own_width", "target_keep"} <= set(options_of_modality("image"))
    assert "own_width" not in options_of_modality("vlm")
    assert "target_keep" not in options_of_modality("video")
    assert SpecConfig("draft", target_compressor="own").resolve("image").contract == "lossy"
    with pytest.raises(InputError, match="shorten pictures that a model sees"):
        SpecConfig("draft", target_compressor="fastv").resolve("image")
