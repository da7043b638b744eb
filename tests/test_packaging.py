"""Wheel, sdist and editable install hold everything: code, suites, embedded models, prompts."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from fresh import ROOT, copy_project
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import mmspec

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LINKED = {"mmspec.assets": "assets", "mmspec.eval": "eval", "mmspec.pipelines": "pipelines"}
# planted in the copy that is built, so that each pattern has something to find
PROBES = [
    "assets/models/probe/transformer/weights-00001-of-00002.safetensors",
    "assets/models/probe.json",
    "assets/prompts/probe/prompts.jsonl",
    "eval/suites/probe.yaml",
]
UNWANTED = ["assets/models/probe/checkpoint.pt", "mmspec/__pycache__/probe.pyc"]
MEGABYTE = 10**6
# what stands in `hidden` is as good as not installed
HIDE = """
import sys
from importlib.machinery import PathFinder

class Rest(PathFinder):
    @classmethod
    def find_spec(cls, name, *more):
        return None if name.partition(".")[0] in hidden else super().find_spec(name, *more)

sys.meta_path[sys.meta_path.index(PathFinder)] = Rest
"""
DEMO = """
import json

from mmspec.app import model_cache, reports, request_guard, server, tabs
from mmspec.app.page import Folders, Limits, Page

page = Page(model_cache.ModelCache({}), Folders(), Limits())
page.build()
for tab in tabs.TABS:
    tabs.resolve(f"mmspec.app.views:{tab.view}")
for name, path in reports.shipped_reports().items():
    rows = json.loads(path.read_text())["methods"].values()
    drawn = 'class="mm-plot"' in page.reports.report("shipped", name, None)
    assert drawn == any(row["quality"] and row["speedup_ci95"] for row in rows)
page.jobs.close()
"""


QUICK_START = """
from mmspec.cli.main import main

assert main(["generate", "a photo of a red circle", "-n", "1", "--compare"]) == 0
assert main(["ask", "out/scd-0.png", "What is it?", "--compare"]) == 0
vectors = ["--pipeline", "continuous", "-n", "1", "-o", "out/continuous"]
short = ["--iterations", "4", "--diffusion-steps", "8"]  # all of them take minutes on one core
assert main(["generate", "a photo of a red circle", *vectors, *short]) == 0
assert main(["video", "a red circle moves right", "--blocks", "2", "--compare", "-o", "out"]) == 0
assert main(["ls", "methods"]) == 0
suite = ["--suite", "geneval-shapes", "--methods", "plain", "--limit", "1", "-o", "report"]
assert main(["eval", "run", *suite]) == 2
"""


@dataclass
class Built:
    """A copy of the project, its wheel, and the files in wheel and sdist with their sizes."""

    copy: Path
    wheel: Path
    in_wheel: dict[str, int]
    in_sdist: dict[str, int]


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Built:
    """The sdist of a copy, and the wheel that is built from that sdist alone."""
    folder = tmp_path_factory.mktemp("packaging")
    copy = copy_project(folder / "copy")
    for probe in PROBES + UNWANTED:
        path = copy / probe
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("probe")
    call("-m", "build", "--no-isolation", "--outdir", folder / "dist", copy, cwd=folder)
    (wheel,) = (folder / "dist").glob("*.whl")
    (sdist,) = (folder / "dist").glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = {info.filename: info.file_size for info in archive.infolist()}
    with tarfile.open(sdist) as archive:
        members = [m for m in archive.getmembers() if not m.isdir()]
        in_sdist = {m.name.partition("/")[2]: m.size for m in members}
    return Built(copy, wheel, in_wheel, in_sdist)


def call(*command: object, cwd: Path, **env: str) -> str:
    """The output of a Python command that succeeds."""
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=cwd,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def install(wheel: Path, target: Path) -> None:
    """Unpack a wheel's code into a folder, with no network."""
    options = ["--quiet", "--no-deps", "--no-index", "--no-compile", "--target", target]
    call("-m", "pip", "install", *options, wheel, cwd=target.parent)


def brought(*extras: str) -> set[str]:
    """The distributions that the project and some of its extras bring along."""
    optional = PROJECT["project"]["optional-dependencies"]
    texts = [*PROJECT["project"]["dependencies"], *(t for e in extras for t in optional[e])]
    todo, seen = [Requirement(text) for text in texts], set()
    while todo:
        wanted = todo.pop()
        found = canonicalize_name(wanted.name), frozenset(wanted.extras)
        if found in seen:
            continue
        seen.add(found)
        try:
            lines = requires(wanted.name) or []
        except PackageNotFoundError:  # of another platform
            continue
        for line in map(Requirement, lines):
            told = ({"extra": extra} for extra in ("", *wanted.extras))
            if line.marker is None or any(map(line.marker.evaluate, told)):
                todo.append(line)
    return {name for name, _ in seen}


def folders(holds: str) -> set[str]:
    """Packages on disk whose folder has a file that fits the pattern `holds`."""
    found = set()
    for package in ["mmspec", *LINKED]:
        top = ROOT / LINKED.get(package, package)
        for folder, _, _ in os.walk(top):  # does not follow the links
            if any(Path(folder).glob(holds)):
                found.add(".".join([package, *Path(folder).relative_to(top).parts]))
    return found


def data(copy: Path) -> set[str]:
    """The data files that must ship, as paths in the repository."""
    paths = [p for top in ("models", "prompts") for p in (copy / "assets" / top).rglob("*")]
    paths += (copy / "eval" / "suites").glob("*.yaml")
    paths += (copy / "eval" / "report").glob("page.*")
    paths += [copy / "mmspec" / "py.typed", copy / "mmspec" / "app" / "page.css"]
    names = {p.relative_to(copy).as_posix() for p in paths if p.is_file() and p.name[0] != "."}
    return names - set(UNWANTED)


def in_package(path: str) -> str:
    """Where a file of the repository lies in the wheel."""
    return path if path.startswith("mmspec/") else f"mmspec/{path}"


def test_packages_are_the_folders_on_disk():
    packages = PROJECT["tool"]["setuptools"]["packages"]
    assert len(packages) == len(set(packages))
    assert set(packages) == folders("__init__.py")


def test_every_folder_with_code_is_a_package():
    assert folders("*.py") == folders("__init__.py")


def test_mapping_and_links_agree():
    mapping = {"mmspec": "mmspec", **LINKED}
    assert PROJECT["tool"]["setuptools"]["package-dir"] == mapping
    for package, folder in LINKED.items():
        link = ROOT / package.replace(".", "/")
        assert link.is_symlink()
        assert os.readlink(link) == f"../{folder}"
        assert link.resolve() == ROOT / folder


def test_wheel_and_sdist_hold_all_data(built):
    expected = data(built.copy)
    assert expected >= set(PROBES)
    assert expected <= set(built.in_sdist)
    assert {in_package(name) for name in expected} <= set(built.in_wheel)


def test_wheel_and_sdist_hold_all_code(built):
    tops = ["mmspec", *LINKED.values()]
    code = {
        (Path(folder) / name).relative_to(built.copy).as_posix()
        for top in tops
        for folder, _, names in os.walk(built.copy / top)
        for name in names
        if name.endswith(".py")
    }
    assert "eval/__init__.py" in code
    assert code <= set(built.in_sdist)
    assert {in_package(name) for name in code} <= set(built.in_wheel)


def test_wheel_holds_nothing_else_at_the_top(built):
    tops = {name.partition("/")[0] for name in built.in_wheel}
    assert tops == {"mmspec", f"mmspec-{mmspec.__version__}.dist-info"}


def test_sdist_holds_the_rest_of_the_project(built):
    rest = ["README.md", "LICENSE", "CONTRIBUTING.md", "Makefile", "pyproject.toml", ".ci/run"]
    rest += [".gitignore", ".pre-commit-config.yaml", "tests/test_packaging.py", "mkdocs.yml"]
    rest += ["CHANGELOG.md", "docs/hooks.py", "docs/methods.md", "CITATION.cff", "SECURITY.md"]
    rest += ["Containerfile", ".containerignore", "examples/quickstart.ipynb"]
    rest += [path.relative_to(ROOT).as_posix() for path in ROOT.glob("benchmarks/*.py")]
    assert set(rest) <= set(built.in_sdist)


def test_nothing_is_shipped_twice_or_by_mistake(built):
    links = tuple(f"{package.replace('.', '/')}/" for package in LINKED)
    assert not [name for name in built.in_sdist if name.startswith(links)]
    shipped = [*built.in_sdist, *built.in_wheel]
    assert not [name for name in shipped if name.endswith(("checkpoint.pt", ".pyc"))]


def test_sizes(built):
    assert max(built.in_sdist.values()) <= 16 * MEGABYTE
    models = [n for name, n in built.in_sdist.items() if name.startswith("assets/models/")]
    assert sum(models) < 95 * MEGABYTE
    assert built.wheel.stat().st_size < 100 * MEGABYTE


def test_the_wheel_works_installed(built, tmp_path):
    target = tmp_path / "installed"
    install(built.wheel, target)
    code = "import mmspec, mmspec.eval, mmspec.assets; print(mmspec.__file__, mmspec.__version__)"
    printed = call("-c", code, cwd=tmp_path, PYTHONPATH=str(target))
    assert printed.split() == [str(target / "mmspec" / "__init__.py"), mmspec.__version__]
    for probe in PROBES:
        assert (target / in_package(probe)).is_file()
    assert (target / "bin" / "mmspec").is_file()


def test_the_editable_install_works(built, tmp_path):
    make = "import sys; from setuptools import build_meta; build_meta.build_editable(sys.argv[1])"
    call("-c", make, tmp_path, cwd=built.copy)
    (wheel,) = tmp_path.glob("*.whl")
    target = tmp_path / "installed"
    install(wheel, target)
    # -S: no site-packages, where an editable install of this very project would come first;
    # -I: no PYTHONPATH, which would, too
    code = f"""
import site
site.addsitedir({str(target)!r})
from importlib.util import find_spec
for package in {["mmspec", *LINKED]}:
    print(find_spec(package).submodule_search_locations[0])
"""
    found = call("-I", "-S", "-c", code, cwd=tmp_path).split()
    expected = [built.copy / LINKED.get(package, package) for package in ["mmspec", *LINKED]]
    assert [Path(path).resolve() for path in found] == [path.resolve() for path in expected]


def all_but(*extras: str) -> set[str]:
    """The modules that the project and these extras do without."""
    there = brought(*extras)
    return {
        module
        for module, owners in packages_distributions().items()
        if not there & set(map(canonicalize_name, owners)) and module != "mmspec"
    }


@pytest.mark.slow
def test_the_demo_needs_its_extra_alone():
    """It opens, and draws every report of the project, where nothing else is installed."""
    hidden = all_but("demo")
    assert {"open_clip", "pyarrow", "torch_fidelity"} <= hidden
    call("-c", f"hidden = {hidden}\n{HIDE}{DEMO}", cwd=ROOT)


@pytest.mark.slow
def test_the_quick_start_needs_no_extra(tmp_path):
    """`make picture` installs none; what README has typed after it then runs."""
    hidden = all_but()
    assert {"matplotlib", "scipy", "torchvision"} <= hidden
    told = call("-c", f"hidden = {hidden}\n{HIDE}{QUICK_START}", cwd=tmp_path, PYTHONPATH=str(ROOT))
    assert "pip install -e '.[eval" in told  # what has an extra of its own says so
