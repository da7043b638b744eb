"""What a command shows on a terminal while it works, and that it shows nothing elsewhere."""

from __future__ import annotations

import io
import os
import sys
import threading
from argparse import ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch

from benchmarks import __main__ as benchmarks
from mmspec import progress
from mmspec.cli import main as cli
from mmspec.models.hub import downloaded


class Terminal(io.StringIO):
    """Knows when it is written to, and what one would see."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn = threading.Semaphore(0)

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        done = super().write(text)
        self.drawn.release()
        return done

    @property
    def screen(self) -> str:
        """Its lines, after what was written over; spaces at ends are not seen."""
        lines = []
        for line in self.getvalue().split("\n"):
            seen = ""
            for text in line.split("\r"):
                seen = text + seen[len(text) :]
            lines.append(seen.rstrip())
        return "\n".join(lines)


def terminal_of(monkeypatch) -> Terminal:
    """Standard output and error are one; set in the test itself, since pytest puts its own back."""
    made = Terminal()
    monkeypatch.setattr(progress, "time", Namespace(monotonic=lambda: 0.0))  # no machine is slow
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setattr(sys, "stdout", made)
    return made


def test_line_is_there_at_once_and_goes_before_output(monkeypatch):
    terminal = terminal_of(monkeypatch)
    with progress.showing("starting"):
        assert terminal.screen == "starting ... 0 s"
        progress.say("loading")
        assert terminal.screen == "loading ... 0 s"
        sys.stdout.write("an answer\n")
        assert terminal.screen == "an answer\n"
        progress.say("writing")
        assert terminal.screen == "an answer\nwriting ... 0 s"
        sys.stderr.write("a warning\n")
        assert terminal.screen == "an answer\na warning\n"
    assert sys.stderr is sys.stdout is terminal
    progress.say("nobody hears this")
    assert terminal.screen == "an answer\na warning\n"


def test_line_counts_seconds(monkeypatch):
    """By a thread, which a command that is busy does not stop."""
    terminal = terminal_of(monkeypatch)
    now = iter([0.0, 0.0, *(float(n) for n in range(60, 10**6))])
    monkeypatch.setattr(progress, "time", Namespace(monotonic=lambda: next(now)))
    monkeypatch.setattr(progress, "EVERY", 0.001)
    with progress.showing("loading"):
        for _ in range(7):
            assert terminal.drawn.acquire(timeout=60)
        assert "loading ... 60 s" in terminal.getvalue()
    assert terminal.screen == ""
    assert not [t for t in threading.enumerate() if t.name == "mmspec-progress"]


def test_line_goes_with_an_error(monkeypatch):
    terminal = terminal_of(monkeypatch)
    with pytest.raises(ValueError, match="bad"), progress.showing("loading"):
        raise ValueError("bad")
    assert terminal.screen == ""


@pytest.mark.parametrize("total", [3, None])
def test_bar(monkeypatch, total):
    terminal = terminal_of(monkeypatch)
    with progress.showing("starting"):
        with progress.bar("pictures", "picture", total) as shown:
            shown.update(2)
            shown.refresh()
            assert "2/3" in terminal.screen if total else "2picture" in terminal.screen
        assert terminal.screen.endswith("finishing ... 0 s")


def test_nothing_where_there_is_no_terminal(capsys):
    with progress.showing("starting"):
        progress.say("loading")
        with progress.bar("pictures", "picture", 2) as shown:
            shown.update()
    assert capsys.readouterr() == ("", "")


def test_quiet_shows_nothing_on_a_terminal(monkeypatch):
    terminal = terminal_of(monkeypatch)
    with progress.showing("starting", quiet=True):
        progress.say("loading")
        with progress.bar("pictures", "picture", 2) as shown:
            shown.update()
        assert progress.no_bars() is True
    assert terminal.screen == ""
    assert progress.no_bars() is None


def leaves(parser: ArgumentParser) -> Iterator[ArgumentParser]:
    """The parsers of the commands that do something."""
    below = [a for a in parser._actions if isinstance(a, _SubParsersAction)]
    if not below:
        yield parser
    for action in below:
        for child in action.choices.values():
            yield from leaves(child)


@pytest.mark.parametrize("build", [cli.build_parser, benchmarks.build_parser])
def test_every_command_can_be_quiet(build):
    found = list(leaves(build()))
    assert len(found) > 4
    assert [p.prog for p in found if "--quiet" not in p._option_string_actions] == []


@pytest.mark.parametrize(
    "words", ["--quiet ls methods", "ls --quiet methods", "ls methods --quiet"]
)
def test_quiet_may_stand_anywhere(words):
    assert cli.build_parser().parse_args(words.split()).quiet is True
    loud = words.replace("--quiet", "").split()
    assert not hasattr(cli.build_parser().parse_args(loud), "quiet")


def test_quiet_groups():
    for words in ("export --quiet comfyui x", "eval --quiet causal", "heads --quiet show x"):
        assert cli.build_parser().parse_args(words.split()).quiet is True


def test_every_command_begins_with_a_line(monkeypatch):
    """`main` shows it, before it runs anything."""
    terminal = terminal_of(monkeypatch)
    seen = []

    def command(args: Namespace) -> int:
        seen.append(terminal.screen)
        return 0

    class Parser:
        prog = "mmspec"

        def parse_args(self, words: list[str], args: Namespace) -> Namespace:
            return Namespace(run=command)

    monkeypatch.setattr(cli, "build_parser", Parser)
    assert cli.main([]) == 0
    assert seen == ["starting ... 0 s"]
    assert terminal.screen == ""


def load_by_server() -> None:
    from mmspec.serve.loading import Offered
    from mmspec.serve.metrics import RunMetrics
    from mmspec.serve.requests import ServeLimits

    Offered("vlm", "embedded-vlm").load(RunMetrics(), ServeLimits())


def load_by_demo() -> None:
    from mmspec.app.model_cache import ModelCache

    ModelCache({}).load("vlm", None)


def load_by_doctor() -> None:
    from mmspec import embedded_folder

    head = str(embedded_folder("vlm") / "heads" / "eagle")
    words = ["doctor", "--head", head, "--prompt", "What is it?", "--max-new-tokens", "2"]
    assert cli.main([*words, "--quiet"]) == 0


@pytest.mark.parametrize("load", [load_by_server, load_by_demo, load_by_doctor])
def test_no_library_shows_bars_of_its_own(load, capfd):
    """Those of transformers are shown on what is no terminal, too."""
    from transformers.utils import logging

    logging.enable_progress_bar()  # as in a new process
    capfd.readouterr()
    load()
    assert capfd.readouterr().err == ""


def test_training_shows_no_bars_of_libraries(monkeypatch, tmp_path):
    from transformers.utils import logging

    seen = []

    def train(*_, **__):
        seen.append(logging.is_progress_bar_enabled())
        return []

    monkeypatch.setattr("mmspec.train.recipes.train", train)
    logging.enable_progress_bar()
    assert cli.main(["train", "vlm", "--pipeline", str(tmp_path)]) == 0
    assert seen == [False]


def said(monkeypatch) -> list[str]:
    """What is said from now on."""
    found: list[str] = []

    class Ear:
        say = found.append

    monkeypatch.setattr(progress, "_line", Ear)
    return found


def test_models_say_that_they_are_loaded_and_unpacked(monkeypatch, tmp_path):
    from mmspec.cli import options as cli_options
    from mmspec.cli import video as cli_video
    from mmspec.errors import InputError
    from mmspec.models import embedded

    heard = said(monkeypatch)
    nowhere = Namespace(model="/nowhere", device="cpu", device_map=None, weights=None)
    for opened in (
        lambda: cli_options.open_pipeline(nowhere),
        lambda: cli_options.open_pipeline(nowhere, "continuous"),
        lambda: cli_options.open_pipeline(nowhere, "vlm"),
        lambda: cli_video._open(nowhere, "router"),
    ):
        with pytest.raises(InputError):
            opened()
    assert heard == ["loading the model"] * 4
    heard.clear()
    (tmp_path / "models" / "image").mkdir(parents=True)
    monkeypatch.setenv("MMSPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(embedded, "MODELS", tmp_path / "models")
    monkeypatch.setattr(embedded, "is_packed", lambda folder: True)
    monkeypatch.setattr(embedded, "unpack_folder", lambda folder: None)
    for _ in range(2):
        embedded.embedded_folder("image")
    assert heard == ["unpacking the model image, this once"]


def test_unpacking_tells_its_share(monkeypatch, tmp_path):
    import torch
    from safetensors.torch import save_file

    from mmspec.models import eight_bit

    told, totals = [], []

    @contextmanager
    def bar(text, unit, total):
        totals.append(total)
        yield Namespace(update=told.append)

    monkeypatch.setattr(eight_bit, "bar", bar)
    (tmp_path / "model").mkdir()
    for name in ("one", "two"):
        weights = {"layer.weight": torch.randn(256, 256), "layer.bias": torch.randn(256)}
        save_file(weights, tmp_path / "model" / f"{name}.safetensors")
    eight_bit.pack_folder(tmp_path / "model", tmp_path / "packed")
    size = sum(file.stat().st_size for file in (tmp_path / "packed").iterdir())
    eight_bit.unpack_folder(tmp_path / "packed")
    assert totals == [size]
    assert 0.98 * size < sum(told) <= size  # all but the files' headers
    assert len(told) > 2


@pytest.mark.parametrize("quiet", [False, True])
def test_downloads_are_told(monkeypatch, quiet):
    heard, hidden = said(monkeypatch), []
    theirs = import_module("huggingface_hub.utils.tqdm")  # a class hides it from dotted names

    def download(*args, **kwargs):
        hidden.append(theirs.are_progress_bars_disabled())
        return "there"

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    monkeypatch.setattr(theirs, "progress_bar_states", {})
    monkeypatch.setattr(progress, "_quiet", quiet)
    assert str(downloaded("someone/something")) == "there"
    assert heard == ["downloading someone/something"]
    assert hidden == [quiet]
    assert not theirs.are_progress_bars_disabled()


def test_pairs_are_counted(monkeypatch, tiny_folder):
    """A call each, those of the warm-up too."""
    terminal = terminal_of(monkeypatch)
    from mmspec import ImagePipeline, SpecConfig
    from mmspec.eval.showcase import Showcase

    pipe = ImagePipeline.from_pretrained(tiny_folder)
    pipe.set_progress_bar_config(disable=True)
    methods = {name: SpecConfig(name) for name in ("plain", "sjd")}
    Showcase(pipe, methods, "a red circle", 1, 0, {}).run("picture")
    assert "pictures by plain and sjd, and a warm-up" in terminal.screen
    assert "4/4" in terminal.screen


def test_benchmarks_say_their_names(monkeypatch):
    from benchmarks import micro

    heard = said(monkeypatch)
    monkeypatch.setattr(micro, "SECTIONS", {"a": lambda *_: 1, "b": lambda *_: 2})
    found = micro.run_micro(SimpleNamespace(device=torch.device("cpu")))
    assert (found["a"], found["b"], heard) == (1, 2, ["benchmark a", "benchmark b"])


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="there are no pseudo-terminals here")
def test_generate_on_a_pseudo_terminal(tiny_folder, tmp_path, monkeypatch, capsys):
    """A line from the first moment on, bars of pictures and of tokens, and a clean table."""
    import fcntl
    import struct
    import termios

    main, side = os.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("4H", 24, 100, 0, 0))
    told: list[bytes] = []

    def read() -> None:
        while True:
            try:
                told.append(os.read(main, 4096))
            except OSError:  # the other end was closed
                return

    reader = threading.Thread(target=read)
    with open(side, "w", buffering=1) as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        reader.start()
        given = ["--model", str(tiny_folder), "--method", "sjd", "--compare", "-n", "1"]
        assert cli.main(["generate", "a red circle", *given, "-o", str(tmp_path)]) == 0
        monkeypatch.undo()
    reader.join(60)
    os.close(main)
    shown = b"".join(told).decode()
    places = [
        shown.index(part)
        for part in ("starting ... 0 s", "loading the model ... 0 s", "pictures by plain and sjd")
    ]
    assert places == sorted(places)
    assert "4/4" in shown
    assert "/16 [" in shown  # tokens of a picture
    assert capsys.readouterr().out.splitlines()[0].startswith("method")
