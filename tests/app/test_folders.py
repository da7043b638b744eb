"""Which paths a visitor may name: inside the root alone, or anywhere on one's own machine."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from mmspec.app.folders import Folders
from mmspec.errors import InputError
from mmspec.hosts import is_loopback


def visitor(host: str = "127.0.0.1", **headers: str) -> SimpleNamespace:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return SimpleNamespace(client=SimpleNamespace(host=host), headers=names)


@pytest.fixture
def root(tmp_path):
    home = tmp_path / "root"
    (home / "model").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    (tmp_path / "root-of-another").mkdir()
    (home / "out").symlink_to(tmp_path / "secret")
    (home / "in").symlink_to(home / "model")
    (home / "loop").symlink_to(home / "loop")
    return home


def test_inside_the_root(root):
    folders = Folders(root)
    for text in ("model", "./model", str(root / "model"), "in"):
        assert folders.find(text, visitor("203.0.113.5")) == root / "model"
    assert folders.offered


@pytest.mark.parametrize(
    "text",
    [
        "..",
        "../secret",
        "/etc",
        "out",
        "loop",
        "../root-of-another",
        "missing",
        "~",
        "a\0b",
        "x" * 999,
    ],
)
def test_outside_of_the_root(root, text):
    """What is there and what is not get one answer."""
    with pytest.raises(InputError, match="in the folder that this demo may read"):
        Folders(root, anywhere=True).find(text, visitor())


def test_anywhere_is_for_visitors_of_this_machine(tmp_path):
    folders = Folders(anywhere=True)
    assert folders.find(str(tmp_path), visitor()) == tmp_path
    assert folders.find(str(tmp_path), visitor("::1")) == tmp_path
    with pytest.raises(InputError, match="on this machine"):
        folders.find(str(tmp_path / "missing"), visitor())
    for other in (
        visitor("203.0.113.5"),
        visitor(x_forwarded_for="203.0.113.5"),
        visitor(forwarded="for=203.0.113.5"),
        SimpleNamespace(client=None, headers={}),
    ):
        with pytest.raises(InputError, match="opens no paths"):
            folders.find(str(tmp_path), other)


def test_nowhere(tmp_path):
    assert not Folders().offered
    with pytest.raises(InputError, match="opens no paths"):
        Folders().find(str(tmp_path), visitor())


def test_loopback():
    assert all(map(is_loopback, ("127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.0.1", "example.org", "")))
