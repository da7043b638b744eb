"""Commands and scripts in processes of their own, which begin soon and can be killed.

They are forked from a process that has imported what takes long, and done nothing else.
"""

from __future__ import annotations

import os
import runpy
import sys
import tempfile
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from mmspec.cli.main import main

# what a run of an evaluation imports as it goes
LONG = ("mmspec.cli.eval", "mmspec.eval.report.pages", "mmspec.eval.run.runner")
LONG += ("mmspec.pipelines.image", "transformers.conversion_mapping", "matplotlib.pyplot")
LONG += ("transformers.integrations.finegrained_fp8", "transformers.models.t5.modeling_t5")


def started(command: list[str]) -> BaseProcess:
    """A process of `mmspec`, on as many threads as this one."""
    return _begun(_run, command)


def printed(cwd: Path, run: Callable[..., Any], *args: Any) -> str:
    """What a function of a module prints in a process of its own, whose working folder is `cwd`.

    Raises:
        AssertionError: the process does not end with 0; it holds what the process says.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("out", "err")]
        process = _begun(_captured, str(cwd), [*map(str, files)], run, args)
        process.join()
        out, err = (file.read_text() for file in files)
    assert process.exitcode == 0, out + err
    return out


def script(path: str) -> None:
    """Run a file of Python as `python FILE` does."""
    sys.argv, sys.path[:0] = [path], [os.path.dirname(path)]
    runpy.run_path(path, run_name="__main__")


def command(words: list[str], *folders: str) -> int:
    """Run `mmspec`, with folders that modules are imported from."""
    sys.path[:0] = folders
    return main(words)


def _begun(run: Callable[..., None], *args: Any) -> BaseProcess:
    processes = get_context("forkserver")
    processes.set_forkserver_preload([*LONG])
    process = processes.Process(target=run, args=(*args, torch.get_num_threads()))
    process.start()
    return process


def _run(words: list[str], threads: int) -> None:
    torch.set_num_threads(threads)
    sys.exit(main(words))


def _captured(
    cwd: str, files: list[str], run: Callable[..., Any], args: tuple[Any, ...], threads: int
) -> None:
    torch.set_num_threads(threads)
    os.chdir(cwd)
    for stream, file in enumerate(files, 1):
        with open(file, "wb") as held:
            os.dup2(held.fileno(), stream)
    sys.exit(run(*args))
