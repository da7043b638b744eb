"""Options that commands share: no command can forget them, and what --json prints is one value."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from mmspec.cli.main import build_parser
from mmspec.eval.suite import suite_names

REPORT = Path(__file__).resolve().parents[2] / "assets" / "reports" / "image"
# what else they do than to tell something: they serve, print shell code, or print JSON always
WITHOUT_JSON = {"demo", "serve", "completion", "train"}


def commands(parser: argparse.ArgumentParser, name: str = "") -> dict[str, argparse.ArgumentParser]:
    """Commands of the real parser by their words."""
    groups = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not groups:
        return {name: parser}
    return {
        words: found
        for word, inner in groups[0].choices.items()
        for words, found in commands(inner, f"{name} {word}".strip()).items()
    }


COMMANDS = commands(build_parser())


def test_commands_that_are_left_out_are_there():
    assert COMMANDS.keys() > WITHOUT_JSON


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_the_options_of_all(name):
    options = COMMANDS[name]._option_string_actions
    assert "--quiet" in options
    assert ("--json" in options) is (name not in WITHOUT_JSON)


def test_suites_that_are_valid(run):
    code, out, _ = run("eval", "validate", "--json")
    assert code == 0
    assert json.loads(out) == {"valid": list(suite_names())}
    assert run("eval", "validate", "speed")[1] == "speed: valid\n"


def test_reports_and_sheets_name_their_files(evaluate, run, tmp_path):
    assert evaluate("--methods", "sjd", "--limit", 1, "--size", 16)[0] == 0
    code, out, _ = run("eval", "report", tmp_path / "out", "--json")
    assert code == 0
    written = json.loads(out)["written"]
    assert written[:2] == [str(tmp_path / "out" / f"report.{kind}") for kind in ("md", "html")]
    assert run("eval", "report", tmp_path / "out")[1].splitlines() == written


@pytest.mark.parametrize("name", ["table", "matrix", "systems"])
def test_a_table_is_told_as_json(run, tmp_path, name):
    words = "eval", name, REPORT
    assert json.loads(run(*words, "--json")[1]) == {"markdown": run(*words)[1], "into": None}
    page = tmp_path / "page.md"
    page.write_text(f"<!-- mmspec eval {name} … -->\n\n<!-- end -->\n")
    told = json.loads(run(*words, "--json", "--into", page)[1])
    assert told["into"] == str(page)
    assert told["markdown"] in page.read_text()


@pytest.mark.parametrize("words", [("custom-generate",), ("comfyui",), ("diffusers", "image")])
def test_an_export_says_how_it_is_used(run, tmp_path, words):
    folder = tmp_path / "made"
    code, out, _ = run("export", *words, folder, "--json")
    assert code == 0
    told = json.loads(out)
    assert told["folder"] == str(folder)
    assert set(told) == {"folder", "use"}
    assert folder.is_dir()


@pytest.mark.parametrize("words", [("custom-generate",), ("comfyui",), ("diffusers", "image")])
def test_an_export_goes_into_a_new_folder_alone(run, refused, tmp_path, words):
    (tmp_path / "file").write_text("mine")
    refused(run("export", *words, tmp_path), "holds files already; name another folder")
    refused(run("export", *words, tmp_path / "file"), "can't write to", "file")
    refused(run("export", *words, tmp_path / "file" / "inner"), "can't write to", "inner")
    assert (tmp_path / "file").read_text() == "mine"
