"""`python -m benchmarks lengths`: length policies on recorded acceptances."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mmspec.cli.options import (
    add_command,
    add_json,
    add_model,
    check_range,
    folder,
    names,
    open_pipeline,
    seed,
    widths,
)
from mmspec.errors import InputError
from mmspec.eval.files import write_measured
from mmspec.files import locked, to_json, write_atomic
from mmspec.methods import Modality
from mmspec.progress import bar

BATCHES = (1, 2, 4, 8, 16, 32)
_MEASURED = "measured"
_FILE = "acceptances.json"


def add_lengths(commands: Any) -> None:
    """Add the command and its options."""
    text = "draft lengths compared: goodput over plain by batch size, on recorded acceptances"
    parser = add_command(commands, "lengths", _lengths, text)
    add_model(parser)
    parser.add_argument("--suite", default="vlm", help="whose prompts (default: vlm)")
    parser.add_argument("--samples", type=int, default=16, help="prompts that are recorded")
    parser.add_argument("--temperature", type=float, default=1.0, help="of outputs (default: 1)")
    parser.add_argument(
        "--recorded", type=Path, help=f"{_FILE} of an earlier run, in place of a model"
    )
    parser.add_argument(
        "--costs",
        type=names,
        help="of rounds: idle, middle, busy, or measured (default: the first three)",
    )
    parser.add_argument("--batches", type=widths, help="sizes (default: 1,2,4,8,16,32)")
    parser.add_argument("--calls", type=int, default=16, help="of every policy and size")
    parser.add_argument("--noise", type=float, default=0.05, help="of a round's seconds")
    parser.add_argument("--seed", type=seed, default=0, help="of the first output, and of coins")
    parser.add_argument("-o", "--out", type=Path, required=True, help="folder that is written")
    add_json(parser)


def _lengths(args: argparse.Namespace) -> int:
    from .page import LengthsRecord, lengths_figure, lengths_markdown, lengths_tables
    from .play import SYNTHETIC, compare, ways

    check_range(args, 1, None, "samples", "calls")
    kinds, batches = args.costs or list(SYNTHETIC), args.batches or BATCHES
    for kind in kinds:
        if kind not in (*SYNTHETIC, _MEASURED):
            raise InputError(f"unknown costs {kind!r}; use {', '.join(SYNTHETIC)} or {_MEASURED}")
    if args.recorded is not None and _MEASURED in kinds:
        raise InputError("costs are measured on a model; leave --recorded out, or 'measured'")
    if args.recorded is not None and args.model is not None:
        raise InputError("--recorded takes the place of --model; leave one of them out")
    if min(batches) < 1 or not 0 <= args.noise < 1:
        raise InputError("--batches must be at least 1, and --noise from 0 to below 1")
    out, costs = folder(args.out), {k: SYNTHETIC[k] for k in kinds if k in SYNTHETIC}
    with locked(out):
        if args.recorded is not None:
            texts = read_acceptances(args.recorded)
        else:
            texts, measured = _recorded(args, _MEASURED in kinds)
            costs |= measured
            told = to_json([asdict(one) for one in texts])
            write_atomic(out / _FILE, told + "\n")
        found = {}
        with bar("lengths", "way", len(costs) * len(batches) * len(ways()), delay=1) as shown:
            for kind, cost in costs.items():
                how = args.calls, args.noise, args.seed
                found[kind] = compare(texts, cost, batches, *how, shown.update)
        chances = [chance for one in texts for chance in one.stands]
        mean = sum(chances) / len(chances)
        record = LengthsRecord(len(texts), args.calls, args.noise, mean, costs, found)
        write_measured(out, "lengths", record, lengths_markdown(record), lengths_figure(record))
    if args.json:
        print(to_json(asdict(record), indent=2))
        return 0
    for table in lengths_tables(record):
        print(f"{table.caption}\n\n{table.aligned()}\n")
    print(f"lengths.json, lengths.md and lengths.svg are in {args.out}/")
    return 0


def read_acceptances(path: Path) -> list[Any]:
    """Recorded acceptances of a file.

    Raises:
        InputError: it can't be read, or holds something else.
    """
    from .play import Recorded

    try:
        texts = [Recorded(**one) for one in json.loads(path.read_text())]
        sound = texts and all(
            one.stands and len(one.stands) == len(one.laws) and all(one.laws) for one in texts
        )
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"can't read {path} as recorded acceptances: {error}") from None
    if not sound:
        raise InputError(f"{path} holds no recorded acceptances; give {_FILE} of an earlier run")
    return texts


def _recorded(args: argparse.Namespace, measured: bool) -> tuple[list[Any], dict[str, Any]]:
    """Acceptances of a model's drafts, and what its rounds cost if that is asked for."""
    from mmspec.eval.modalities.base import MODALITIES, modality
    from mmspec.eval.run.job import Job
    from mmspec.eval.suite import load_suite

    from .measure import configs, fitted, record, steps, timed_rounds

    suite = load_suite(args.suite)
    kinds: tuple[Modality, ...] = ("vlm", "image")
    if (kind := next((k for k in kinds if k == suite.pipeline), None)) is None:
        raise InputError(f"suite {suite.name} is of {suite.pipeline}: choose one of vlm or image")
    pipe = open_pipeline(args, kind)
    call = {**suite.call, "temperature": args.temperature}
    prompts = MODALITIES[suite.pipeline].items(suite, None)
    job = Job(suite, prompts, configs(), call, seed=args.seed)
    bench = modality(suite.pipeline).bench(job, pipe)
    with bar("record", "call", args.samples + steps() * measured, delay=1) as shown:
        texts = []
        for number in range(args.samples):
            texts.append(record(bench, number))
            shown.update()
        rounds = timed_rounds(bench, shown.update) if measured else []
    return texts, {_MEASURED: fitted(rounds)} if measured else {}
