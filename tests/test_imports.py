"""`import mmspec` and `mmspec --help` stay light; public and registered names resolve on use."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import mmspec
from mmspec.errors import InputError
from mmspec.registry import Registry, resolve

ROOT = Path(__file__).resolve().parent.parent
HEAVY = {"torch", "diffusers", "transformers", "PIL"}
HELP = """
import runpy, sys
sys.argv = ["mmspec", "--help"]
try:
    runpy.run_module("{module}", run_name="__main__")
except SystemExit as stop:
    assert not stop.code, stop.code
"""


def run(code: str) -> tuple[str, set[str]]:
    """What `code` prints, and the heavy libraries that are loaded after it."""
    code += "\nimport sys; print(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, HEAVY & set(done.stderr.split())


def test_a_heavy_import_is_noticed():
    assert run("import PIL") == ("", {"PIL"})


@pytest.mark.parametrize(
    "code", ["import mmspec", "from mmspec import InputError, SpecConfig as Of; Of()"]
)
def test_light_imports(code):
    assert run(code) == ("", set())


@pytest.mark.parametrize("module", ["mmspec", "mmspec.cli.main"])
def test_help_is_light(module):
    text, heavy = run(HELP.format(module=module))
    assert "usage: mmspec" in text.lower()
    assert not heavy


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("ImagePipeline", "mmspec.pipelines.image.pipeline"),
        ("InputError", "mmspec.errors"),
        ("SpecConfig", "mmspec.methods.config"),
    ],
)
def test_public_names_resolve(name, module):
    assert name in mmspec.__all__
    assert name in dir(mmspec)
    assert getattr(mmspec, name) is getattr(importlib.import_module(module), name)


def test_every_public_name_exists():
    for name in mmspec.__all__:
        assert getattr(mmspec, name) is not None


def test_an_unknown_attribute_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'mmspec' has no attribute 'ImagePipe'"):
        mmspec.ImagePipe  # noqa: B018


def test_registry_imports_only_what_is_used():
    registry = Registry("rule", {"join": "posixpath:join", "absent": "no_such_module:Rule"})
    assert registry.names() == ["join", "absent"]
    assert registry.get("join") is resolve("posixpath:join")
    with pytest.raises(ModuleNotFoundError):
        registry.get("absent")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sdj", "unknown method 'sdj'; did you mean 'sjd'? (known: plain, draft, sjd)"),
        ("eagle", "unknown method 'eagle' (known: plain, draft, sjd)"),
        ("", "unknown method '' (known: plain, draft, sjd)"),
    ],
)
def test_registry_suggests_near_names(name, message):
    registry = Registry("method", dict.fromkeys(["plain", "draft", "sjd"], "posixpath:join"))
    with pytest.raises(InputError) as error:
        registry.get(name)
    assert str(error.value) == message
