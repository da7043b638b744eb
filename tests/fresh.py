"""Environments as users make them, outside the clone: a wheel, and what its commands install.

The packages of another environment may stand in for a download: those of the one that runs the
tests, or of one into which nothing but the wheel was installed. mmspec itself is never among them.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OF_THE_CLONE = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "MMSPEC_API_KEY", "PORT", "WHEEL")
PROOF = """
wait  # for what was started and told to end
echo "command: $(command -v mmspec)"
python -c 'import mmspec.assets, mmspec.eval; print("package:", mmspec.__file__)'
"""
LOCAL = shutil.ignore_patterns(
    ".git", ".venv*", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis",
    "out", "runs", "site", "checkpoint.*",
)  # fmt: skip


def copy_project(folder: Path) -> Path:
    """Copy the project as it is released: without what commands leave behind."""
    return shutil.copytree(ROOT, folder, symlinks=True, ignore=LOCAL)


@dataclass(frozen=True)
class Base:
    """What environments are made from.

    Attributes:
        wheel: of mmspec.
        packages: a folder of packages that need no download; mmspec is not among them.
        cache: a folder for models that are unpacked and for code that libraries copy.
    """

    wheel: Path
    packages: Path
    cache: Path


def site_packages(python: str | Path) -> Path:
    """The folder that a Python installs packages into."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(subprocess.check_output([python, "-I", "-c", code], text=True).strip())


def lend(packages: Path, folder: Path) -> Path:
    """Make a folder of links to all packages but mmspec, and but pip, which acts where it lies."""
    folder.mkdir()
    for path in packages.iterdir():
        name = path.name.lower()
        if "mmspec" not in name and name != "pip" and not name.startswith("pip-"):
            (folder / path.name).symlink_to(path)
    return folder


def borrow(base: Base) -> str:
    """The command by which an environment that is active sees the packages of the base."""
    place = "$(python -c 'import sysconfig; print(sysconfig.get_path(\"purelib\"))')"
    return f'echo "{base.packages}" > "{place}/base.pth"\n'


def run(script: str, folder: Path, base: Base, shell: str = "bash", **more: str) -> str:
    """What a script prints that succeeds; what it started and left running is ended.

    `python3` is the Python of the tests.
    """
    theirs = {name: value for name, value in os.environ.items() if name not in OF_THE_CLONE}
    own = Path(sys.executable).parent
    theirs["PATH"] = f"{own}{os.pathsep}{theirs['PATH']}"
    theirs |= {"MMSPEC_CACHE": str(base.cache / "mmspec"), "HF_HOME": str(base.cache / "hf")}
    theirs |= {"PIP_QUIET": "1"}  # errors alone
    printed = folder / "printed.txt"
    with printed.open("w") as file:
        started = subprocess.Popen(
            [shell, "-e", "-c", script],
            cwd=folder,
            env=theirs | more,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = started.wait(timeout=1200)
        finally:
            with suppress(ProcessLookupError):  # nothing was left
                os.killpg(started.pid, signal.SIGKILL)
    text = printed.read_text()
    assert code == 0, text
    return text


def check_wheels_own(printed: str, folder: Path) -> None:
    """The command and the package, which `PROOF` names, are those of the environment."""
    assert f"command: {folder / 'env/bin/mmspec'}" in printed.splitlines()
    (package,) = re.findall(r"^package: (.*)$", printed, re.MULTILINE)
    assert Path(package).is_relative_to(folder / "env/lib")
