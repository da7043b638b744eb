"""The page of what `--json` prints: its keys are those that the commands print, all of them."""

from __future__ import annotations

import argparse
import io
import itertools
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import folders
import numpy as np
import pytest
import texts
from mars import captioned_pipeline
from PIL import Image
from wans import tiny_pipeline

import mmspec
from mmspec.cli.main import build_parser
from mmspec.pipelines.model_folders import locate
from mmspec.worlds.shapes.render import render
from mmspec.worlds.shapes.scene import sample

HOME = Path(__file__).resolve().parents[2]
PAGE, REPORT = HOME / "docs" / "json.md", HOME / "assets" / "reports" / "image"
ROW = re.compile(r"^\| `([^`]+)`(, not always)? \| (.+) \|$")
WILD = re.compile(r"[A-Z]+")  # a key of a documented path that stands for any
Way = tuple[str, ...]
"""Keys on the way to a value; "[]" is any number of a list."""


def anchor(title: str) -> str:
    return re.sub(r"[^a-z -]", "", title.lower()).replace(" ", "-")


def _sections() -> dict[str, str]:
    parts = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]
    return {title: text for title, _, text in (part.partition("\n") for part in parts)}


def with_json(parser: argparse.ArgumentParser, name: str = "") -> Iterator[str]:
    """Words of the commands that print JSON if they are asked."""
    groups = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not groups and "--json" in parser._option_string_actions:
        yield name
    for group in groups:
        for word, choice in group.choices.items():
            yield from with_json(choice, f"{name} {word}".strip())


SECTIONS = _sections()
BY_ANCHOR = {anchor(title): title for title in SECTIONS}
COMMANDS = [title for title in SECTIONS if title.startswith("mmspec ")]


def split(key: str) -> Way:
    return tuple(key.replace("[]", ".[]").strip(".").split("."))


def inner(text: str) -> dict[Way, bool]:
    """Keys that a line points at: a table of the page, or a class whose fields they are."""
    found: dict[Way, bool] = {}
    for shared in re.findall(r"\]\(#([a-z-]+)\)", text):
        found |= keys_of(BY_ANCHOR[shared])
    for module, name in re.findall(r"ields of `([\w.]+)\.(\w+)`", text):
        told = fields(getattr(import_module(module), name))
        found |= {(field.name,): True for field in told}
    return found


def keys_of(title: str) -> dict[Way, bool]:
    """Documented keys, and whether each is always there."""
    found: dict[Way, bool] = {}
    for line in SECTIONS[title].splitlines():
        row = ROW.match(line)
        if row is None and not line.startswith(("Beside them", "Fields of")):
            continue
        key, optional, text = row.groups() if row else ("", None, line)
        at = split(key) if key else ()
        found |= {(*at, *more): must and not optional for more, must in inner(text).items()}
        if at:
            found[at] = not optional
    return found


def paths(value: Any, at: Way = ()) -> Iterator[Way]:
    """The keys of all that is in a value."""
    pairs = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list):
        pairs = [("[]", one) for one in value]
    for name, one in pairs:
        yield (*at, name)
        yield from paths(one, (*at, name))


def fits(told: Way, found: Way) -> bool:
    """True if a documented path is this one, or begins it."""
    pairs = zip(told, found, strict=False)
    return len(told) <= len(found) and all(a == b or WILD.fullmatch(a) for a, b in pairs)


@pytest.fixture(scope="module")
def homes(tmp_path_factory, tiny_folder) -> dict[str, Path]:
    """Tiny models by kind, and a picture."""
    words, home = texts.tokenizer(), tmp_path_factory.mktemp("homes")
    model = texts.model(words).float()
    mmspec.TextPipeline(model, words).save_pretrained(home / "text")
    tiny_pipeline().save_pretrained(home / "video")
    captioned_pipeline().save_pretrained(home / "continuous")
    picture = Image.fromarray(render(sample(np.random.default_rng(3), "two_object")[1], 64))
    picture.save(home / "scene.png")
    made = "text", "video", "continuous", "scene.png"
    return {"image": tiny_folder, **{name: home / name for name in made}}


@pytest.fixture
def told(run, homes, tmp_path, monkeypatch):
    """What a command prints, as values: a line each, or one."""

    def call(*words: object, said: str = "", lines: bool = False) -> list[Any]:
        monkeypatch.setattr("sys.stdin", io.StringIO(said))
        code, out, err = run(*words, "--json")
        assert code in (0, 1), err  # 1: a doctor has found something
        return [json.loads(line) for line in out.splitlines()] if lines else [json.loads(out)]

    return call


SOURCES = {  # words of the code that tells what was measured
    word
    for folder in ("mmspec/engine", "pipelines", "eval")
    for file in (HOME / folder).rglob("*.py")
    for word in re.findall(r"\w+", file.read_text())
}
SHORT = ("--max-new-tokens", 4)


def _generate(told, homes, out):
    words = ("generate", "a red circle", "--model", homes["image"], "-o", out)
    return told(*words, "--method", "mulo-sd", "--compare", "-n", 2)


def _continuous(told, homes, out):
    words = ("generate", "a red circle", "--model", homes["continuous"], "-o", out)
    return told(*words, "--pipeline", "continuous", "--diffusion-steps", 4, "--compare")


def _ask(told, homes, out):
    words = ("ask", homes["scene.png"], "How many stars?", *SHORT)
    return told(*words, "--method", "eagle", "--compare")


def _verdict(told, homes, out):
    return told("ask", homes["scene.png"], "How many stars?", *SHORT, "--method", "verdict")


def _chat(told, homes, out):
    return told("chat", "the cat", "--model", homes["text"], *SHORT)


def _turns(told, homes, out):
    return told("chat", "--model", homes["text"], *SHORT, said="the cat\n", lines=True)


def _video(told, homes, out):
    words = ("video", "a red circle", "--model", homes["video"], "-o", out, "--steps", 1)
    return told(*words, "--tau", 20, "--blocks", 2, "--compare")


def _ls(what: str):
    return lambda told, homes, out: told("ls", what)


def _show(told, homes, out):
    return told("heads", "show", folders.speculators_eagle3(out / "head")[0])


def _convert(told, homes, out):
    made = folders.speculators_eagle3(out / "head")[0]
    return told("heads", "convert", made, out / "made", "--format", "eagle3")


def _doctor(told, homes, out):
    head = locate(None, "vlm") / "heads" / "eagle"
    words = ("doctor", "--head", head, "--image", homes["scene.png"], "--prompt", "Stars?")
    return told(*words, "--max-new-tokens", 6)


def _export(told, homes, out):
    kinds = [("custom-generate",), ("comfyui",), ("diffusers", "image")]
    return [v for words in kinds for v in told("export", *words, out / words[0])]


def _run(told, homes, out, more=()):
    words = ("--suite", "speed", "--model", homes["image"], "--methods", "sjd", "--size", 16)
    return told("eval", "run", *words, "-o", out, "--limit", 1, *more)


def _score(told, homes, out):
    (out / "q.jsonl").write_text('{"question_id": "a", "question": "?", "answers": ["100"]}\n')
    (out / "p.json").write_text('[{"question_id": "a", "answer": "104"}]')
    files = ("--questions", out / "q.jsonl", "--predictions", out / "p.json")
    return told("eval", "run", "--suite", "chartqa", *files, "-o", out / "scores")


def _report(told, homes, out):
    _run(told, homes, out)
    sheet = ("eval", "sheet", out, "-o", out / "sheet.png")
    return told("eval", "report", out) + (told(*sheet) if (out / "pictures").is_dir() else [])


def _compare(told, homes, out):
    _run(told, homes, out)
    return told("eval", "compare", out, out)


def _tables(told, homes, out):
    return [v for name in ("table", "matrix", "systems") for v in told("eval", name, REPORT)]


def _eval_ls(*what: str):
    return lambda told, homes, out: [v for name in what for v in told("eval", "ls", name)]


def _validate(told, homes, out):
    return told("eval", "validate", "speed")


SAME = {"mmspec chat PROMPT": "mmspec ask", "mmspec heads convert": "mmspec heads show"}
RUNS = {
    "mmspec generate": _generate,
    "mmspec generate --pipeline continuous": _continuous,
    "mmspec ask": _ask,
    "mmspec ask --method verdict": _verdict,
    "mmspec chat PROMPT": _chat,
    "mmspec chat": _turns,
    "mmspec video": _video,
    **{f"mmspec ls {what}": _ls(what) for what in ("methods", "models", "parts", "options")},
    "mmspec heads show": _show,
    "mmspec heads convert": _convert,
    "mmspec doctor": _doctor,
    "mmspec export": _export,
    "mmspec eval run": _run,
    "mmspec eval run, of files": _score,
    "mmspec eval report": _report,
    "mmspec eval compare": _compare,
    "mmspec eval table": _tables,
    "mmspec eval ls": _eval_ls("suites", "judges", "weights"),
    "mmspec eval ls metrics": _eval_ls("metrics"),
    "mmspec eval validate": _validate,
}


def known(documented: Iterable[Way], path: Way) -> bool:
    """True if a path is documented, on the way to one that is, or below one without more."""
    if any(len(told) >= len(path) and fits(told[: len(path)], path) for told in documented):
        return True
    above = max((told for told in documented if fits(told, path)), key=len, default=None)
    return above is not None and not any(
        len(told) > len(above) and fits(above, told) for told in documented
    )


@pytest.mark.parametrize("title", RUNS)
def test_the_page_tells_what_is_printed(title, told, homes, tmp_path):
    documented = keys_of(SAME.get(title, title))
    values = RUNS[title](told, homes, tmp_path)
    printed = [{*paths(value)} for value in values]
    untold = {path for one in printed for path in one if not known(documented, path)}
    assert not untold
    every = {*itertools.chain(*printed)}
    for path, always in documented.items():
        found = any(len(one) == len(path) and fits(path, one) for one in every)
        assert found or (not always and path[-1] in SOURCES), path


def test_every_section_is_compared():
    assert {SAME.get(title, title) for title in RUNS} == {*COMMANDS}


def test_every_command_has_its_keys_told():
    text = PAGE.read_text()
    for name in with_json(build_parser()):
        title = any(
            f"{title},".startswith((f"mmspec {name} ", f"mmspec {name},")) for title in COMMANDS
        )
        assert title or f"`mmspec {name}`" in text, name


def test_a_key_that_is_not_told_is_noticed():
    documented = {("a",): True, ("a", "NAME", "b"): True, ("c",): False}
    for path in [("a",), ("a", "x"), ("a", "x", "b"), ("c", "d"), ("a", "x", "b", "e")]:
        assert known(documented, path), path
    for path in [("b",), ("a", "x", "d")]:
        assert not known(documented, path), path
