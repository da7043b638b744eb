"""What the commands share: is a folder one that can be written to?"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mmspec.cli.options import folder
from mmspec.errors import InputError


def test_trying_a_folder_leaves_no_trace(tmp_path: Path):
    assert folder(tmp_path / "new" / "one") == tmp_path / "new" / "one"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["file", "file/in", "x" * 300])
def test_what_is_no_folder_is_refused_in_one_line(tmp_path: Path, name: str):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"can't write to .*: [A-Z]"):
        folder(tmp_path / name)


def test_processes_may_try_a_folder_at_once(tmp_path: Path):
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: folder(tmp_path / "new"), range(400)))
    assert found == [tmp_path / "new"] * 400
