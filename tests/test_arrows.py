"""Rooms import one way, modules in no circle, and the engine nothing but torch and numpy."""

from __future__ import annotations

import subprocess
import sys
from graphlib import TopologicalSorter
from importlib.util import find_spec
from pathlib import Path

import grimp
import pytest

PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
# `InputError` is how every room refuses bad input; numpy sorts small rows in less time than torch
ENGINE = {"torch", "numpy", "mmspec.errors", *sys.stdlib_module_names}


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    """Imports at the head of modules and inside functions, but not those for types alone."""
    return grimp.build_graph(
        "mmspec", include_external_packages=True, exclude_type_checking_imports=True, cache_dir=None
    )


def test_rooms_import_one_way():
    """The contracts of `pyproject.toml`, of imports that run.

    In a process of its own: the linter's logging silences all loggers that there are.
    """
    lint = f"lint_imports({str(PROJECT)!r}, no_cache=True)"
    code = f"from importlinter.cli import lint_imports; raise SystemExit({lint})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def at_its_head(graph: grimp.ImportGraph, importer: str, imported: str) -> bool:
    """Whether a module imports another as it is loaded itself, not in a function."""
    lines = Path(find_spec(importer).origin).read_text(encoding="utf-8").splitlines()
    found = graph.get_import_details(importer=importer, imported=imported)
    return any(not lines[one["line_number"] - 1].startswith((" ", "\t")) for one in found)


def test_modules_import_in_no_circle(graph):
    """A metric and the reader of its files see each other, one of them in a function."""
    own = {name for name in graph.modules if name.split(".")[0] == "mmspec"}
    imports = {
        module: {
            other
            for other in graph.find_modules_directly_imported_by(module) & own
            if at_its_head(graph, module, other)
        }
        for module in own
    }
    assert sum(map(len, imports.values())) > 1000
    TopologicalSorter(imports).prepare()  # raises a CycleError that names the circle


def test_the_engine_imports_nothing_else_of_the_project(graph):
    engine = {module for module in graph.modules if f"{module}.".startswith("mmspec.engine.")}
    assert len(engine) > 20
    found = {name for module in engine for name in graph.find_modules_directly_imported_by(module)}
    assert found - engine <= ENGINE
