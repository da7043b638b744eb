"""`mmspec eval`: suites, reports and comparisons on the command line."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..devices import check_device
from ..errors import InputError
from ..eval.sweeps import parse_methods, split_methods
from ..files import locked, to_json
from ..models.truncation import gathered
from ..progress import bar, say
from ..registry import check_name
from . import options
from .tables import add_tables

if TYPE_CHECKING:
    from ..eval.suite import Suite


def add_commands(commands: Any) -> None:
    """The parsers of `mmspec eval`."""
    evaluate = commands.add_parser("eval", help="measure methods over a suite")
    options.add_quiet(evaluate)
    actions = evaluate.add_subparsers(required=True, metavar="ACTION")
    _add_run(actions)

    text = "draw report.md and report.html of a run again"
    report = options.add_command(actions, "report", _report, text)
    report.add_argument("folder", type=Path, help="of the run")
    options.add_json(report, "lines")

    text = "two runs against each other, with significance"
    compare = options.add_command(actions, "compare", _compare, text)
    compare.add_argument("a", type=Path, help="folder of a run")
    compare.add_argument("b", type=Path, help="folder of the other run")
    compare.add_argument("--methods", help="x of A against y of B: x:y,z (default: all of both)")
    options.add_json(compare)

    text = "random outputs of a run on one picture, each with its prompt and verdict"
    sheet = options.add_command(actions, "sheet", _sheet, text)
    sheet.add_argument("folder", type=Path, help="of the run")
    sheet.add_argument("--method", default="plain", help="whose outputs (default: plain)")
    sheet.add_argument("--count", type=int, default=24, help="of outputs (default: 24)")
    sheet.add_argument("--seed", type=options.seed, default=0, help="of the choice (default: 0)")
    sheet.add_argument("-o", "--out", type=Path, required=True, help="file: .png, .webp or .jpg")
    options.add_json(sheet, "a line")

    add_tables(actions)

    listing = options.add_command(
        actions, "ls", _ls, "list suites, metrics, judges, or networks' weights"
    )
    listing.add_argument(
        "what",
        nargs="?",
        choices=("suites", "metrics", "judges", "weights"),
        default="suites",
        help="what to list; weights: the names that --weights takes (default: suites)",
    )
    options.add_json(listing)

    text = "check suites, of the package or your own"
    validate = options.add_command(actions, "validate", _validate, text)
    validate.add_argument("suite", nargs="*", help="names or YAML files (default: all)")
    options.add_json(validate, "lines")


def _add_run(actions: Any) -> None:
    run = options.add_command(actions, "run", _run, "run a suite and write a report")
    run.add_argument("--suite", required=True, help="a name, see `mmspec eval ls`, or a YAML file")
    run.add_argument(
        "--pipeline", help="image, vlm, text, continuous or video (default: the suite's)"
    )
    options.add_model(run)
    run.add_argument(
        "--methods",
        type=split_methods,
        help="'a,b[window=8]', with settings of theirs in brackets (default: all that can run)",
    )
    run.add_argument(
        "--sweep",
        type=split_methods,
        default=(),
        help="a,b: these too, at every value of their knob; all: each of --methods that has one",
    )
    run.add_argument("--limit", type=int, help="most prompts and samples; not for reporting")
    run.add_argument(
        "--max-samples", type=int, help="samples up to which an undecided comparison may go on"
    )
    run.add_argument("--batch-sizes", type=options.widths, help="speed of batches too: 1,2,4,8")
    text = "leave out the rows of other programs, of suites that have some"
    run.add_argument("--no-peers", action="store_true", help=text)
    run.add_argument("--size", type=int, help="side in pixels (default: the model's own)")
    run.add_argument("--seed", type=options.seed, default=0, help="of the first sample")
    run.add_argument("--executor", default="local", help="local or ray")
    run.add_argument("--address", help="of a Ray cluster (default: one on this machine)")
    run.add_argument("--workers", type=int, help="Ray actors (default: one per GPU, or two)")
    run.add_argument("--device-map", help="of accelerate, for targets larger than one GPU: auto")
    given = run.add_argument_group("your own data")
    given.add_argument(
        "--prompts",
        type=Path,
        help="in GenEval's format, JSON lines or text; for vlm "
        'lines {"image": path, "question": text, "answer": text}, for text {"turns": [text]}',
    )
    given.add_argument("--images", type=Path, help="folder of pictures to be judged")
    given.add_argument("--reference", type=Path, help="folder of real pictures")
    options.add_background(given)
    given.add_argument("--captions", type=Path, help="COCO captions, JSON lines, or a folder")
    given.add_argument("--questions", type=Path, help="file of questions with their answers")
    given.add_argument("--annotations", type=Path, help="VQAv2's file of answers")
    given.add_argument("--predictions", type=Path, help="file of a model's answers")
    given.add_argument("--partial", action="store_true", help="score the answered questions only")
    given.add_argument("--videos", type=Path, help="folder of videos and prompts")
    given.add_argument("--metrics", type=options.names, help="some of the suite's metrics: a,b")
    options.add_pairs(given, "--weights", "NAME=PATH", "weights of a judge or reward")
    text = "of Speculative Verdict (default: those in the model's folder)"
    options.add_pairs(given, "--expert", "NAME=FOLDER", text)
    run.add_argument("-o", "--out", type=Path, required=True, help="folder of the report")
    options.add_json(run)


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


# options of suites whose outputs a pipeline makes, and of those that score files
_OF_RUNS = (
    *("methods", "sweep", "limit", "max_samples", "batch_sizes", "size", "seed", "executor"),
    *("address", "workers", "device_map", "expert", "model"),
)
_OF_FILES = ("questions", "annotations", "predictions", "captions", "videos", "partial")
_UNSET: tuple[Any, ...] = (None, (), [], 0, False, "local")


def _refuse(args: argparse.Namespace, names: Sequence[str], why: str) -> None:
    """Raise an `InputError` if one of the options is given, which would do nothing."""
    for name in names:
        if getattr(args, name) not in _UNSET:
            raise InputError(f"--{name.replace('_', '-')} is for {why}; leave it out")


def _run_pipeline(args: argparse.Namespace, suite: Suite, out: Path) -> int:
    import torch

    from ..eval.modalities.base import MODALITIES, modality
    from ..eval.run.job import Job, plan
    from ..eval.run.runner import run_suite
    from ..eval.showcase import print_table
    from ..picture import BACKGROUND, check_background

    _refuse(args, _OF_FILES, f"files that are scored, and suite {suite.name} has its outputs made")
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

    _refuse(args, _OF_RUNS, "outputs that a pipeline makes, and here files are scored")
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


def _report(args: argparse.Namespace) -> int:
    from ..eval.report.pages import write_reports

    if not args.folder.is_dir():
        raise InputError(f"no folder {args.folder}; name the one that `mmspec eval run -o` wrote")
    say("drawing the report")
    with locked(args.folder):
        written = write_reports(args.folder)
    return options.print_list("written", map(str, written), args.json)


def _sheet(args: argparse.Namespace) -> int:
    from ..eval.report.sheet import sample_sheet, write_sheet

    options.check_range(args, 1, None, "count")
    sheet = sample_sheet(args.folder, args.method, args.count, args.seed)
    return options.print_list("written", [str(write_sheet(sheet, args.out))], args.json)


def _compare(args: argparse.Namespace) -> int:
    say("comparing")
    from ..eval.measure.significance import compare_command

    return compare_command(args.a, args.b, args.json, args.methods)


def _ls(args: argparse.Namespace) -> int:
    from ..eval.judges.base import JUDGES
    from ..eval.metrics.registry import METRICS
    from ..eval.suite import load_suite, suite_names
    from ..rewards.registry import FEATURES, REWARDS

    if args.what == "metrics":
        return _ls_metrics(args.json)
    if args.what == "suites":
        found = {name: load_suite(name).summary for name in suite_names()}
    elif args.what == "judges":
        found = {
            judge.name: f"finds {len(judge.classes)} kinds of objects; "
            + (f"needs --weights {', '.join(judge.weights)}" if judge.weights else "needs nothing")
            for judge in JUDGES.all()
        }
    else:
        parts = (*REWARDS.all(), *FEATURES.all())
        found = {part.name: part.weights for part in parts if part.weights}
        declared: tuple[Any, ...] = (*METRICS.all(), *JUDGES.all())
        for each in declared:
            found |= each.weights
    return options.print_names(found, args.json)


def _ls_metrics(as_json: bool) -> int:
    from ..eval.metrics.registry import all_metrics
    from ..eval.modalities.base import MODALITIES
    from ..eval.report.table import Cell, Row, Table

    found: list[dict[str, Any]] = [
        {
            "name": metric.name,
            "pipelines": [n for n, of in MODALITIES.items() if isinstance(metric, of.metrics)],
            "files": list(metric.sources),
            "needs": list(metric.needs),
            "larger_is_better": metric.larger_is_better,
            "bounds": [end if math.isfinite(end) else None for end in metric.bounds],
            "summary": metric.summary,
        }
        for metric in all_metrics()
    ]
    if as_json:
        print(to_json(found, indent=2))
        return 0
    rows, lists = [], ("pipelines", "files", "needs")
    for one in found:
        low, high = ("" if end is None else f"{end:g}" for end in one["bounds"])
        better = "larger" if one["larger_is_better"] else "smaller"
        told = (*(", ".join(one[what]) for what in lists), f"{low} to {high}", better)
        rows.append(Row(one["name"], tuple(map(Cell, (*told, one["summary"])))))
    columns = ("metric", *lists, "values", "better", "what it says")
    print(Table("", columns, tuple(rows)).aligned())
    return 0


def _validate(args: argparse.Namespace) -> int:
    from ..eval.modalities.base import MODALITIES
    from ..eval.suite import load_suite, suite_names

    valid = []
    for name in args.suite or suite_names():
        suite = load_suite(name)
        if suite.prompts:
            MODALITIES[suite.pipeline].items(suite, None)
        valid.append(suite.name)
    return options.print_list("valid", valid, args.json, "{}: valid")
