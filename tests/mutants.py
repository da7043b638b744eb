"""Whether the tests beside the code notice small faults in it: `make mutants`.

From every file of `TESTS` mutants are drawn by lot (see `mutation`), the same ones every time: a
line that changes has others drawn, and leaves those of the rest as they are. Each runs the tests of
its file, up to the first that fails, in a process of its own, which reads the faulty source in
place of the file: nothing is written into the checkout. One that takes four times as long as the
sound code, and a minute at least, hangs: that is noticed too.

Exits with 1 if fewer than 95 % are killed. Mutants of `EQUIVALENT` change nothing, and do not run.

    python tests/mutants.py                      # all that are drawn
    python tests/mutants.py engine/warp draft    # of files with one of these in their names
    python tests/mutants.py --share 3            # three times as many
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from multiprocessing import get_context
from multiprocessing.connection import wait
from pathlib import Path
from types import CodeType

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from mutants_equivalent import EQUIVALENT  # noqa: E402
from mutation import Mutant, mutants, sample  # noqa: E402

SEED = "mmspec"
OUTCOMES = {None: "hangs", 0: "survived"}  # by exit status; any other: "killed"
ENOUGH = 0.95
LEAST_SECONDS, TIMES = 60.0, 4.0  # how long a mutant may take
# what most tests import: once, before processes are forked
SHARED = ("pytest", "hypothesis", "torch", "transformers.generation.logits_process", "diffusers")

# by file of mmspec/: the tests beside it (the quickest first), and how many mutants are drawn
_NORMAL = "engine/accept/gaussian"
_GAUSSIAN = f"{_NORMAL}/parts {_NORMAL}/rules {_NORMAL}/unequal_deviations"
TESTS: dict[str, tuple[str, int]] = {
    "engine/accept/block": ("engine/accept/block", 4),
    "engine/accept/chain": ("engine/accept/token engine/accept/block", 4),
    "engine/accept/cool": ("engine/accept/cool", 3),
    "engine/accept/gaussian/excess": (f"engine/accept/gaussian/excess {_GAUSSIAN}", 6),
    "engine/accept/gaussian/gamma_maximal": (_GAUSSIAN, 2),
    "engine/accept/gaussian/base": (_GAUSSIAN, 3),
    "engine/accept/gaussian/block": (_GAUSSIAN, 3),
    "engine/accept/greedy": ("engine/accept/greedy", 1),
    "engine/accept/grouped": ("engine/accept/grouped", 4),
    "engine/accept/guess": ("draft/ahead", 4),
    "engine/accept/in_turn": ("engine/accept/recursive", 3),
    "engine/accept/gaussian/independent": ("engine/accept/gaussian/parts", 1),
    "engine/accept/judge": ("engine/accept/judge", 4),
    "engine/accept/routed": ("engine/accept/routed draft/routed_blocks", 3),
    "engine/accept/verify_router": ("engine/accept/routed", 4),
    "engine/accept/kseq": ("engine/accept/kseq", 4),
    "engine/accept/lantern/lantern": ("engine/accept/lantern/lantern", 6),
    "engine/accept/lantern/released": ("engine/accept/lantern/released", 2),
    "engine/accept/local": ("engine/advance engine/accept/local", 5),
    "engine/accept/recursive": ("engine/accept/recursive", 1),
    "engine/accept/gaussian/reflection": ("engine/accept/gaussian/reflection", 5),
    "engine/accept/restricted": ("engine/accept/restricted", 3),
    "engine/accept/routing": ("engine/accept/routing", 7),
    "methods/tree_sizes": ("methods/tree_sizes", 3),
    "models/prefill": ("models/prefill", 3),
    "models/step_target": ("models/step_target", 4),
    "engine/accept/token": ("engine/accept/token", 2),
    "engine/accept/tree": ("engine/accept/recursive engine/accept/kseq", 4),
    "engine/cache": ("engine/cache", 4),
    "engine/coins": ("engine/coins_twin engine/coins", 8),
    "engine/loop": ("engine/advance engine/loop engine/length/stopping", 8),
    "engine/draft": ("engine/draft engine/advance", 5),
    "engine/warp": ("engine/warp", 5),
    "draft/ahead": ("draft/ahead", 4),
    "draft/beside": ("draft/beside", 2),
    "draft/jacobi/coupled": ("draft/jacobi/jacobi", 4),
    "draft/tree/dynamic_tree": ("draft/tree/dynamic_tree", 5),
    "draft/image/grid": ("draft/image/grid", 2),
    "draft/steps": ("draft/steps models/step_target", 4),
    "draft/guarded": ("draft/sound_laws engine/faults", 4),
    "draft/jacobi/gumbel": ("draft/jacobi/gumbel", 3),
    "draft/jacobi/jacobi": ("draft/jacobi/jacobi", 4),
    "draft/prompt_lookup": ("draft/training_free", 3),
    "draft/tree/merged": ("draft/tree/merged draft/tree/fusion", 6),
    "draft/draft_model": ("draft/sound_laws engine/loop", 3),
    "draft/tree/siblings": ("draft/tree/dynamic_tree", 3),
    "draft/sound_laws": ("draft/sound_laws", 3),
    "draft/masked": ("draft/masked draft/own_masked pipelines/text/masked_drafter", 4),
    "draft/tree/fixed_tree": ("engine/accept/recursive draft/tree/dynamic_tree", 3),
}


@dataclass
class Run:
    """One process: the tests of a file, over a mutant or over the sound code.

    Attributes:
        seconds: how long it took, or has been running.
        outcome: "killed", "hangs", "survived"; of the sound code the last means that all is well.
    """

    file: str
    tests: list[str]
    mutant: Mutant | None = None
    limit: float = float("inf")
    seconds: float = 0.0
    outcome: str = ""


def drawn(wanted: list[str], share: float = 1.0) -> Iterator[Run]:
    """The runs of the files whose names contain one of `wanted`; of all without any."""
    for name, (tests, count) in TESTS.items():
        if wanted and not any(part in name for part in wanted):
            continue
        file = f"mmspec/{name}.py"
        every = mutants(file, (ROOT / file).read_text(encoding="utf-8"))
        every = [mutant for mutant in every if mutant.key not in EQUIVALENT]
        for mutant in sample(every, round(count * share), SEED):
            yield Run(file, [_test(test) for test in tests.split()], mutant)


def _test(name: str) -> str:
    room, _, file = name.rpartition("/")
    return f"tests/{room}/test_{file}.py"


def read_as(file: Path, text: str) -> None:
    """From now on this process imports `file` as if it held `text`; the file stays as it is."""
    sound = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, name: str) -> CodeType | None:
        if os.path.realpath(loader.path) == os.path.realpath(file):
            return compile(text, loader.path, "exec")
        return sound(loader, name)

    SourceFileLoader.get_code = get_code


def _work(run: Run) -> None:
    """In a process of its own: exits as pytest does, 0 if nothing was noticed."""
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    os.chdir(ROOT)
    if run.mutant is not None:
        file = ROOT / run.file
        read_as(file, run.mutant.source(file.read_text(encoding="utf-8")))
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = scratch
        options = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
        pytest = importlib.import_module("pytest")
        code = int(pytest.main([*options, f"--basetemp={scratch}/tests", *run.tests]))
    os._exit(code)


def perform(runs: list[Run], jobs: int, work: Callable[[Run], None] = _work) -> Iterator[Run]:
    """Do them side by side; each comes when it is done. Ctrl-C ends all of them."""
    waiting, busy, fork = list(reversed(runs)), {}, get_context("fork")
    try:
        while waiting or busy:
            while waiting and len(busy) < jobs:
                run = waiting.pop()
                process = fork.Process(target=work, args=(run,))
                process.start()
                busy[process.sentinel] = run, process, time.monotonic()
            wait(list(busy), timeout=0.5)
            for sentinel, (run, process, started) in list(busy.items()):
                run.seconds = time.monotonic() - started
                if process.exitcode is None and run.seconds < run.limit:
                    continue
                run.outcome = OUTCOMES.get(process.exitcode, "killed")
                process.kill()
                process.join()
                del busy[sentinel]
                yield run
    finally:
        for _, process, _ in busy.values():
            process.kill()


def main(arguments: list[str] | None = None) -> int:
    """Run what is asked for; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("files", nargs="*", help="parts of file names; none: all files")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--share", type=float, default=1.0, help="how many of those in TESTS")
    parser.add_argument("--list", action="store_true", help="name the mutants and run none")
    options = parser.parse_args(arguments)
    runs = list(drawn(options.files, options.share))
    if options.list:
        for run in runs:
            print(run.mutant.key if run.mutant else run.file)
        return 0
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    sys.dont_write_bytecode = True
    for module in SHARED:
        importlib.import_module(module)
    sound = list({tuple(run.tests): Run(run.file, run.tests) for run in runs}.values())
    files = len({run.file for run in runs})
    print(f"{len(runs)} mutants of {files} files; first their tests without any ...", flush=True)
    limits = {}
    for run in perform(sound, options.jobs):
        limits[tuple(run.tests)] = max(LEAST_SECONDS, TIMES * run.seconds)
        print(f"{run.seconds:4.0f} s  {' '.join(run.tests)}", flush=True)
        if run.outcome != "survived":
            print("they fail without a mutant")
            return 2
    for run in runs:
        run.limit = limits[tuple(run.tests)]
    for done, run in enumerate(perform(runs, options.jobs), 1):
        assert run.mutant is not None
        where = f"{run.file}:{run.mutant.line}"
        print(f"[{done}/{len(runs)}] {run.outcome:8} {run.seconds:4.0f} s  {where}", flush=True)
        if run.outcome == "survived":
            print(f"    {run.mutant.before}\n    {run.mutant.after}", flush=True)
    return report(runs)


def report(runs: list[Run]) -> int:
    """Print the table by file; 1 if too many survived."""
    print(f"\n{'file':40} mutants killed")
    for file in dict.fromkeys(run.file for run in runs):
        own = [run for run in runs if run.file == file]
        print(f"{file:40} {len(own):7} {sum(run.outcome != 'survived' for run in own):6}")
    killed = sum(run.outcome != "survived" for run in runs)
    share = killed / max(1, len(runs))
    print(f"\n{killed} of {len(runs)} killed, {share:.1%}; {ENOUGH:.0%} are asked for")
    print(f"{len(EQUIVALENT)} more are known to change nothing: tests/mutants_equivalent.py")
    return int(share < ENOUGH)


if __name__ == "__main__":
    sys.exit(main())
