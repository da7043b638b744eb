"""The version is said once, in `mmspec.__version__`; what repeats it says the same."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import yaml

import mmspec
from mmspec.cli.main import main

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent


def test_pyproject_reads_the_version_from_the_code():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "mmspec.__version__"}


def test_what_repeats_the_version_says_the_same():
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    image = re.findall(r'image\.version="([^"]*)"', (ROOT / "Containerfile").read_text())
    assert newest is not None
    assert newest[1] == mmspec.__version__
    assert cited["version"] == mmspec.__version__
    assert image == [mmspec.__version__]


@pytest.mark.parametrize("what", ["custom-generate", "comfyui", "diffusers image"])
def test_exported_folders_ask_for_this_version_or_newer(what, tmp_path):
    assert main(["export", *what.split(), str(tmp_path / "made")]) == 0
    (file,) = (tmp_path / "made").rglob("requirements.txt")
    assert file.read_text() == f"mmspec>={mmspec.__version__}\n"
    for card in (tmp_path / "made").glob("README.md"):
        assert f'pip install "mmspec>={mmspec.__version__}"' in card.read_text()


def test_the_command_line_says_it(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"mmspec {mmspec.__version__}\n"
