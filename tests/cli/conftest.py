"""Runs of commands, as the tests of all of them need them."""

from __future__ import annotations

import pytest

from mmspec.cli.main import main

PROMPT = "a photo of a red circle left of a blue square"


@pytest.fixture
def run(capfd):
    """Runs a command: exit code, standard output, standard error (of any library too)."""

    def call(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stop:  # argparse
            code = stop.code
        return code, *capfd.readouterr()

    return call


@pytest.fixture
def generate(run, tiny_folder, tmp_path):
    """`mmspec generate` on the tiny model, into `tmp_path / "out"`."""
    options = ["--model", tiny_folder, "-o", tmp_path / "out"]
    return lambda *more: run("generate", PROMPT, *options, *more)


@pytest.fixture
def evaluate(run, tiny_folder, tmp_path):
    """`mmspec eval run` of the speed suite on the tiny model, into `tmp_path / "out"`."""
    options = ["--suite", "speed", "--model", tiny_folder, "-o", tmp_path / "out"]
    return lambda *more: run("eval", "run", *options, *more)


@pytest.fixture
def refused():
    """Asserts of a command's result: exit code 2, one line on standard error, nothing else."""

    def call(result: tuple[int, str, str], *parts: str) -> None:
        code, out, err = result
        assert code == 2
        assert out == ""
        assert err.endswith("\n")
        assert len(err.splitlines()) == 1, err
        assert err.startswith("mmspec")
        for part in parts:
            assert part in err

    return call
