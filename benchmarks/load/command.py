"""`python -m benchmarks load`: length "auto" against plain decoding, by batch size."""

from __future__ import annotations

import argparse
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
from mmspec.files import locked, to_json
from mmspec.methods import Modality
from mmspec.progress import bar

SUITES: dict[Modality, str] = {
    "image": "speed",
    "vlm": "vlm",
    "continuous": "continuous",
    "video": "sdvg",
}
_UNITS: dict[str, str] = {"ids": "tokens", "vectors": "denoising steps", "blocks": "blocks"}


def add_load(commands: Any) -> None:
    """Add the command and its options."""
    text = "length auto against plain decoding by batch size: is it ever slower?"
    parser = add_command(commands, "load", _load, text)
    add_model(parser)
    parser.add_argument(
        "--modality", type=names, help="some of image, vlm, continuous, video (default: all)"
    )
    parser.add_argument("--method", help="of one modality (default: its own, with length auto)")
    parser.add_argument("--suite", help="whose prompts, of one modality (default: its own)")
    parser.add_argument("--batches", type=widths, help="sizes (default: 1,2,4,8,16,32)")
    parser.add_argument("--turns", type=int, default=8, help="calls of either, of each size")
    parser.add_argument("--seed", type=seed, default=0, help="of the first sample")
    parser.add_argument("-o", "--out", type=Path, required=True, help="folder that is written")
    add_json(parser)


def _load(args: argparse.Namespace) -> int:
    from mmspec.eval.environment import environment
    from mmspec.eval.modalities.base import MODALITIES, modality
    from mmspec.eval.run.job import Job
    from mmspec.eval.suite import load_suite
    from mmspec.methods import PIPELINES, parse_method
    from mmspec.pipelines.load_switch import AUTO

    from .measure import BATCHES, LoadRecord, configs_of, measure_load, steps, with_usual
    from .page import load_figure, load_markdown, load_notes, load_table

    check_range(args, 1, None, "turns")
    asked, batches = args.modality or [*SUITES], args.batches or BATCHES
    for name in asked:
        if name not in SUITES:
            raise InputError(f"unknown modality {name!r}; use {', '.join(SUITES)}")
    kinds = [kind for kind in SUITES if kind in asked]
    if len(kinds) > 1 and (args.model or args.method or args.suite):
        raise InputError("--model, --method and --suite are of one modality; name it by --modality")
    if min(batches) < 1:
        raise InputError(f"--batches must be at least 1, not {min(batches)}")
    out, record = folder(args.out), None
    with locked(out):
        for kind in kinds:
            suite = load_suite(args.suite or SUITES[kind])
            if suite.pipeline != kind:
                raise InputError(f"suite {suite.name} is of {suite.pipeline}, not of {kind}")
            pipe = open_pipeline(args, kind)
            configs = configs_of(pipe, kind)
            if args.method:
                configs = with_usual(parse_method(args.method)[1].replace(length=AUTO))
            for config in configs.values():
                pipe.check_call(config, **suite.call)
            prompts = MODALITIES[kind].items(suite, None)
            job = Job(suite, prompts, configs, suite.call, seed=args.seed)
            bench, unit = modality(kind).bench(job, pipe), _UNITS[PIPELINES[kind].tokens]
            record = record or LoadRecord(environment(pipe.device), args.turns, args.seed)
            with bar(kind, "call", steps(batches, args.turns), delay=1) as shown:
                how = batches, args.turns, unit, shown.update
                record.modalities[kind] = measure_load(bench, configs[AUTO], *how)
            del pipe, bench
            write_measured(out, "load", record, load_markdown(record), load_figure(record))
    assert record is not None
    if args.json:
        print(to_json(asdict(record), indent=2))
        return 0
    print(load_table(record).aligned())
    for note in load_notes(record):
        print(f"note: {note}")
    print(f"load.json, load.md and load.svg are in {args.out}/")
    return 0
