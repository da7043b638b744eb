"""The command line in processes that can be killed, and that begin soon."""

from __future__ import annotations

import sys
from multiprocessing import get_context
from multiprocessing.process import BaseProcess

import torch

from mmspec.cli.main import main

# what a run of an evaluation imports as it goes
LONG = ("mmspec.cli.eval", "mmspec.eval.report.pages", "mmspec.eval.run.runner")
LONG += ("mmspec.pipelines.image", "transformers.conversion_mapping", "matplotlib.pyplot")
LONG += ("transformers.integrations.finegrained_fp8", "transformers.models.t5.modeling_t5")


def started(command: list[str]) -> BaseProcess:
    """A process of `mmspec`, on as many threads as this one.

    It is forked from one that has imported what takes long, and done nothing else.
    """
    processes = get_context("forkserver")
    processes.set_forkserver_preload([*LONG])
    process = processes.Process(target=_run, args=(command, torch.get_num_threads()))
    process.start()
    return process


def _run(command: list[str], threads: int) -> None:
    torch.set_num_threads(threads)
    sys.exit(main(command))
