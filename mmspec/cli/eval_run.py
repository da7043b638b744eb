"""`mmspec eval run`: a suite's outputs are made by a pipeline, or given as files, and judged."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..devices import check_device
from ..errors import InputError
from ..eval.sweeps import parse_methods, split_methods
from ..files import to_json
from ..models.truncation import gathered
from ..progress import bar
from ..registry import check_name
from . import options

if TYPE_CHECKING:
    from ..eval.suite import Suite


def add_run(actions: Any) -> None:
    """The parser of the command."""
    run = options.add_command(actions, "run", _run, "run a suite and write a report")
    run.add_argument("--suite", required=True, help="a name, see `mmspec eval ls`, or a YAML file")
    run.add_argument(
        "--pipeline", help="image, vlm, text, continuous or video (default: the suite's)"
    )
    model = options.add_model(run)
    text = "leave out the rows of other programs, of suites that have some"
    run.add_argument("--no-peers", action="store_true", help=text)
    run.add_argument("-o", "--out", type=Path, required=True, help="folder of the report")
    options.add_json(run)
    of_runs = [model, *_of_runs(run.add_argument_group("outputs that a pipeline makes"))]
    _add_data(run.add_argument_group("your own data"))
    of_files = _of_files(run.add_argument_group("files that are scored"))
    run.set_defaults(of_runs=of_runs, of_files=of_files)


def _of_runs(made: Any) -> list[argparse.Action]:
    """Options of suites whose outputs a pipeline makes."""
    return [
        made.add_argument(
            "--methods",
            type=split_methods,
            help="'a,b[window=8]', with settings of theirs in brackets (default: all that can run)",
        ),
        made.add_argument(
            "--sweep",
            type=split_methods,
            default=(),
            help="a,b: these too, at every value of their knob; all: each of --methods that has "
            "one",
        ),
        made.add_argument("--limit", type=int, help="most prompts and samples; not for reporting"),
        made.add_argument(
            "--max-samples",
            type=int,
            help="samples up to which an undecided comparison may go on",
        ),
        made.add_argument(
            "--batch-sizes", type=options.widths, help="speed of batches too: 1,2,4,8"
        ),
        made.add_argument("--size", type=int, help="side in pixels (default: the model's own)"),
        made.add_argument("--seed", type=options.seed, default=0, help="of the first sample"),
        made.add_argument("--executor", default="local", help="local or ray"),
        made.add_argument("--address", help="of a Ray cluster (default: one on this machine)"),
        made.add_argument("--workers", type=int, help="Ray actors (default: one per GPU, or two)"),
        made.add_argument(
            "--device-map", help="of accelerate, for targets larger than one GPU: auto"
        ),
        options.add_pairs(
            made,
            "--expert",
            "NAME=FOLDER",
            "of Speculative Verdict (default: those in the model's folder)",
        ),
    ]


def _add_data(given: Any) -> None:
    """Options of data that pipelines and files are judged by."""
    given.add_argument(
        "--prompts",
        type=Path,
        help="in GenEval's format, JSON lines or text; for vlm "
        'lines {"image": path, "question": text, "answer": text}, for text {"turns": [text]}',
    )
    given.add_argument("--images", type=Path, help="folder of pictures to be judged")
    given.add_argument("--reference", type=Path, help="folder of real pictures")
    options.add_background(given)
    given.add_argument("--metrics", type=options.names, help="some of the suite's metrics: a,b")
    options.add_pairs(given, "--weights", "NAME=PATH", "weights of a judge or reward")


def _of_files(given: Any) -> list[argparse.Action]:
    """Options of suites whose outputs are given."""
    return [
        given.add_argument("--captions", type=Path, help="COCO captions, JSON lines, or a folder"),
        given.add_argument("--questions", type=Path, help="file of questions with their answers"),
        given.add_argument("--annotations", type=Path, help="VQAv2's file of answers"),
        given.add_argument("--predictions", type=Path, help="file of a model's answers"),
        given.add_argument(
            "--partial", action="store_true", help="score the answered questions only"
        ),
        given.add_argument("--videos", type=Path, help="folder of videos and prompts"),
    ]


@gathered()
def _run(args: argparse.Namespace) -> int:
    from ..eval.modalities.base import MODALITIES
    from ..eval.suite import load_suite

    if args.pipeline is not None:
        check_name("pipeline", args.pipeline, MODALITIES)
    options.check_range(args, 1, None, "limit", "max_samples", "workers")
    if not all(1 <= size <= 1024 for size in args.batch_sizes or ()):
        told = ",".join(map(str, args.batch_sizes))
        raise InputError(f"--batch-sizes must be from 1 to 1024, not {told}")
    suite = load_suite(args.suite)
    if suite.source == "prompts" and args.pipeline not in (None, suite.pipeline):
        raise InputError(f"suite {suite.name} is for --pipeline {suite.pipeline}")
    if args.metrics:
        same = args.metrics[:1] == suite.metrics[:1]
        suite = replace(suite, metrics=args.metrics, margin=suite.margin if same else None)
    if args.no_peers:
        if not suite.peers:
            raise InputError(f"suite {suite.name} has no rows of others: leave --no-peers out")
        suite = replace(suite, peers=False)
    out = options.folder(args.out)
    if suite.source == "prompts" and args.images is None:
        return _run_pipeline(args, suite, out)
    return _score(args, suite, out)


def _refuse(args: argparse.Namespace, unread: Sequence[argparse.Action], why: str) -> None:
    """Raise an `InputError` if one of the options is given, which would do nothing."""
    for option in unread:
        if getattr(args, option.dest) != option.default:
            raise InputError(f"{option.option_strings[0]} is for {why}; leave it out")


def _run_pipeline(args: argparse.Namespace, suite: Suite, out: Path) -> int:
    import torch

    from ..eval.modalities.base import MODALITIES, modality
    from ..eval.run.job import Job, plan
    from ..eval.run.runner import run_suite
    from ..eval.showcase import print_table
    from ..picture import BACKGROUND, check_background

    _refuse(
        args, args.of_files, f"files that are scored, and suite {suite.name} has its outputs made"
    )
    part, measured = MODALITIES[suite.pipeline], modality(suite.pipeline)
    model = measured.model if args.model is None else args.model
    prompts = part.items(suite, args.prompts)
    files = {**dict(args.weights), **{f"expert:{name}": path for name, path in args.expert}}
    for name in ("reference", "prompts"):
        if getattr(args, name) is not None:
            files[name] = str(getattr(args, name))
    sides = ("height", "width") if suite.pipeline == "video" else ("height",)
    size = dict.fromkeys(sides, args.size) if args.size is not None else {}
    if size.keys() - {*part.arguments}:
        raise InputError(f"--size is of pictures that are drawn: {suite.pipeline} draws none")
    # what can't run here is said before anything is written
    pipe = None
    if args.executor == "local":
        options.prepare(args)
        pipe = measured.open(model, args.device, args.device_map)
    call = {**suite.call, **size}
    if args.background != BACKGROUND:
        if "background" not in part.arguments:
            raise InputError(
                f"--background is of pictures that are given: {suite.name} draws its own"
            )
        check_background(args.background)
        call["background"] = args.background
    methods = measured.methods(pipe, call) if args.methods is None else args.methods
    job = Job(
        suite,
        prompts,
        parse_methods(methods, args.sweep),
        call,
        seed=args.seed,
        model=model,
        device=args.device,
        device_map=args.device_map,
        files=files,
        threads=torch.get_num_threads(),
    )
    sizes = suite.batches if args.batch_sizes is None else args.batch_sizes
    todo = plan(job, args.limit, args.max_samples, tuple(dict.fromkeys([1, *sizes])))
    # the delay: bad input is one line on stderr, without a bar above it
    with bar(suite.name, "sample", delay=1) as shown:

        def progress(done: int, planned: int) -> None:
            shown.total = planned
            shown.update(done - shown.n)

        report = run_suite(
            job,
            todo,
            out,
            command=["mmspec", *args.words],
            progress=progress,
            name=args.executor,
            address=args.address,
            workers=args.workers,
            pipe=pipe,
        )
    rows = asdict(report)
    if args.json:
        print(to_json(rows, indent=2))
        return 0
    print_table(rows["methods"])
    for note in report.notes:
        print(f"note: {note}")
    drawn = ["pictures"] if any(out.glob("pictures/**/*.png")) else []
    *written, last = ["report.html", "report.md", "report.json", "samples.jsonl", *drawn]
    print(f"{', '.join(written)} and {last} are in {out}/")
    return 0


def _score(args: argparse.Namespace, suite: Suite, out: Path) -> int:
    from ..eval.measure.score_files import Given, score_given

    _refuse(args, args.of_runs, "outputs that a pipeline makes, and here files are scored")
    check_device(args.device)
    named = {f.name: getattr(args, f.name) for f in fields(Given) if f.name != "weights"}
    with bar(suite.name, "picture", delay=1) as shown:

        def progress(done: int, planned: int) -> None:
            shown.total = planned
            shown.update(done - shown.n)

        given = Given(**named, weights={name: Path(path) for name, path in args.weights})
        record = score_given(suite, given, out, ["mmspec", *args.words], progress)
    if args.json:
        print(to_json(record, indent=2))
        return 0
    for name, found in record["metrics"].items():
        interval = found.get("ci95")
        spread = f"  95 % interval {interval[0]:.4g} to {interval[1]:.4g}" if interval else ""
        print(f"{name}  {found['value']:.6g}{spread}")
        for note in found.get("notes", []):
            print(f"note: {name}: {note}")
    print(f"{record['n']} samples; scores.json and samples.jsonl are in {out}/")
    return 0
