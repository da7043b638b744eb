"""`python -m benchmarks`: single costs, calls by grid size, long clips, losses, simulations."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mmspec.cli.main import Parser, execute
from mmspec.cli.options import (
    add_command,
    add_model,
    check_range,
    folder,
    names,
    open_pipeline,
    seed,
    widths,
)
from mmspec.errors import InputError, absent
from mmspec.eval.files import write_measured
from mmspec.eval.sweeps import parse_methods, split_methods
from mmspec.files import locked, to_json, write_atomic
from mmspec.methods import serving
from mmspec.progress import bar

from .experts.command import add_experts
from .lengths.command import add_lengths
from .load.command import add_load
from .objectives.command import add_objectives
from .online.command import add_online
from .plain.command import add_plain
from .weights.command import add_weights

WINDOW, SINK = 6, 1  # of a video model whose own window does not roll


def main(argv: Sequence[str] | None = None) -> int:
    """Run a benchmark; returns the exit code."""
    return execute(build_parser(), sys.argv[1:] if argv is None else argv)


def build_parser() -> argparse.ArgumentParser:
    """The parser of all benchmarks and their options."""
    parser = Parser(prog="python -m benchmarks", description="Benchmarks of mmspec itself.")
    commands = parser.add_subparsers(required=True, metavar="BENCHMARK")

    micro = add_command(
        commands, "micro", _micro, "cost of the plain loop, verification and start-up"
    )
    add_model(micro)
    micro.add_argument("--samples", type=int, default=10, help="of each measurement")
    micro.add_argument("--only", type=names, help="some of the measurements: a,b")

    add_plain(commands)
    add_experts(commands)
    add_objectives(commands)
    add_online(commands)
    add_lengths(commands)
    add_load(commands)

    add_weights(commands)

    codebook = add_command(
        commands, "codebook", _codebook, "codes that an image model draws most: are some enough?"
    )
    add_model(codebook)
    codebook.add_argument("--samples", type=int, default=96, help="pictures, half of them choose")
    codebook.add_argument("--seed", type=seed, default=0, help="of the first sample")
    codebook.add_argument("--json", action="store_true", help="print JSON, not a table")

    serve = add_command(
        commands, "serve", _serve, "load on the server, against a plain one in turn"
    )
    serve.add_argument("--clients", type=int, default=64, help="that ask without a pause")
    serve.add_argument("--seconds", type=float, default=120.0, help="of load on each server")
    serve.add_argument("--turns", type=int, default=6, help="in which the servers are loaded")

    growth = add_command(
        commands,
        "growth",
        _growth,
        "target calls at several sides of the grid: do they grow with its area?",
    )
    add_model(growth, several=True)
    growth.add_argument(
        "--methods",
        type=split_methods,
        default=tuple(name for name, m in serving("image").items() if m.role != "sceptic"),
        help="as of `mmspec eval run` (default: all but the sceptic's rows)",
    )
    growth.add_argument("--sides", type=widths, help="in tokens (default: 8,16,32)")
    growth.add_argument("--samples", type=int, default=24, help="pictures by each method and side")
    growth.add_argument("--suite", default="speed", help="whose prompts and call arguments")
    growth.add_argument("--prompts", type=Path, help="in place of the suite's")
    _add_output(growth, "growth")

    stream = add_command(
        commands, "stream", _stream, "a long clip with a rolling window: does its memory grow?"
    )
    add_model(stream)
    stream.add_argument(
        "--methods",
        type=split_methods,
        default=("sdvg",),
        help="as of `mmspec eval run` (default: sdvg)",
    )
    stream.add_argument("--prompt", default="a red circle moves right", help="what to show")
    stream.add_argument(
        "--times", type=int, default=10, help="of the model's own length (default: 10)"
    )
    own = "default: the model's own; of one that reads all blocks"
    stream.add_argument("--window", type=int, help=f"blocks that are read ({own}: {WINDOW})")
    stream.add_argument("--sink", type=int, help=f"first blocks that stay ({own}: {SINK})")
    stream.add_argument(
        "--steps", type=int, help="from noise to a block (default: the model's own)"
    )
    _add_output(stream, "stream")
    simulate = add_command(
        commands,
        "simulate",
        _simulate,
        "systems that need other devices: acceptance recorded, costs measured, time simulated",
    )
    add_model(simulate)
    simulate.add_argument("--suite", default="vlm", help="whose prompts (default: vlm)")
    simulate.add_argument("--samples", type=int, default=24, help="prompts, an even number")
    simulate.add_argument(
        "--temperature", type=float, default=1.0, help="of the texts (default: 1)"
    )
    simulate.add_argument("--layer", type=int, help="that tells ahead (default: the middle one)")
    _add_output(simulate, "simulation")
    return parser


def _add_output(parser: argparse.ArgumentParser, name: str) -> None:
    parser.add_argument("--seed", type=seed, default=0, help="of the first sample")
    parser.add_argument("-o", "--out", type=Path, required=True, help="folder that is written")
    parser.add_argument("--json", action="store_true", help=f"print {name}.json, not a table")


def _micro(args: argparse.Namespace) -> int:
    from .micro import run_micro

    check_range(args, 1, None, "samples")
    print(to_json(run_micro(open_pipeline(args), args.samples, args.only), indent=2))
    return 0


def _codebook(args: argparse.Namespace) -> int:
    from mmspec.eval.data.prompts import load_prompts
    from mmspec.eval.suite import load_suite

    from .codebook import codebook_table, measure_codebook

    check_range(args, 2, None, "samples")
    prompts, pipe = load_prompts(load_suite("speed"), None), open_pipeline(args, "image")
    texts = [prompts[i % len(prompts)].prompt for i in range(args.samples)]
    with bar("codebook", "sample", len(texts), delay=1) as shown:
        record = measure_codebook(pipe, texts, args.seed, shown.update)
    print(to_json(asdict(record), indent=2) if args.json else codebook_table(record).aligned())
    return 0


def _serve(args: argparse.Namespace) -> int:
    from .serving import measure_serving

    check_range(args, 1, 1000, "clients")
    check_range(args, 1, 1000, "turns")
    print(to_json(measure_serving(args.clients, args.seconds, args.turns), indent=2))
    return 0


def _growth(args: argparse.Namespace) -> int:
    from mmspec.eval.data.prompts import load_prompts
    from mmspec.eval.suite import load_suite

    from .growth import SIDES, measure_growth
    from .growth_page import growth_figure, growth_markdown, growth_table

    suite, sides = load_suite(args.suite), sorted(set(args.sides or SIDES))
    methods = parse_methods(args.methods)
    check_range(args, 1, None, "samples")
    if sides[0] < 1:
        raise InputError(f"--sides must be at least 1, not {sides[0]}")
    prompts = load_prompts(suite, args.prompts)
    texts = [prompts[i % len(prompts)].prompt for i in range(args.samples)]
    out, models = folder(args.out), args.model or [None]
    pipes = [open_pipeline(argparse.Namespace(**{**vars(args), "model": one})) for one in models]
    total = len(texts) * len(methods) * len(sides)
    with locked(out), bar("growth", "sample", total, delay=1) as shown:
        record = measure_growth(pipes, methods, texts, args.seed, suite.call, sides, shown.update)
        page = growth_markdown(record)
        write_measured(out, "growth", record, page, growth_figure(record))
    return _show(args, record, growth_table(record), "growth")


def _stream(args: argparse.Namespace) -> int:
    from mmspec.models.wan.window import ContextWindow
    from mmspec.pipelines.video.components import VideoSizes

    from .streaming import measure_streams
    from .streaming_page import stream_figure, stream_markdown, stream_table

    check_range(args, 2, None, "times")
    if not args.prompt.strip():
        raise InputError("the prompt is empty; say what to show")
    methods = parse_methods(args.methods)
    out, pipe = folder(args.out), open_pipeline(args, "video")
    own = pipe.transformer.window
    blocks, sink = (WINDOW, SINK) if own.blocks is None else (own.blocks, own.sink)
    window = ContextWindow(
        blocks if args.window is None else args.window, sink if args.sink is None else args.sink
    )
    call = {"num_inference_steps": args.steps}
    for config in methods.values():
        pipe.check_call(config, **call)
    short = VideoSizes(pipe.transformer, pipe.vae).blocks(None)
    total = len(methods) * ((1 + args.times) * short + 3)
    with locked(out), bar("stream", "block", total, delay=1) as shown:
        record = measure_streams(
            pipe, methods, args.prompt, args.times, window, args.seed, call, shown.update
        )
        page = stream_markdown(record)
        write_measured(out, "stream", record, page, stream_figure(record))
    return _show(args, record, stream_table(record), "stream")


def _simulate(args: argparse.Namespace) -> int:
    from mmspec.eval.modalities.base import MODALITIES
    from mmspec.eval.run.job import Job
    from mmspec.eval.suite import load_suite

    try:
        from .simulation.measure import PIPELINES, measure, steps
        from .simulation.page import markdown, notes, tables
        from .simulation.subject import layers_of, methods_of
    except ModuleNotFoundError as error:
        raise absent("simulations need SimPy", "dev") from error

    check_range(args, 4, None, "samples")
    if args.samples % 2:
        raise InputError(f"--samples must be even, not {args.samples}")
    suite, out = load_suite(args.suite), folder(args.out)
    if (kind := next((k for k in PIPELINES if k == suite.pipeline), None)) is None:
        raise InputError(f"suite {suite.name} is of {suite.pipeline}: choose one of vlm or image")
    pipe = open_pipeline(args, kind)
    if args.temperature <= 0:
        raise InputError(
            f"--temperature must be above 0, not {args.temperature:g}: at 0 a middle layer tells "
            "one token alone"
        )
    layers = layers_of(pipe)
    layer = layers // 2 if args.layer is None else args.layer
    if not 0 < layer < layers:
        raise InputError(f"--layer must be from 1 to {layers - 1}, not {layer}")
    able = sys.platform == "linux" and len(os.sched_getaffinity(0)) > 1
    if pipe.device.type != "cpu" or not able:
        raise InputError("PEARL's clock needs Linux and two cores of a processor")
    methods = parse_methods(methods_of(layer, pipe))
    call = {**suite.call, "temperature": args.temperature}
    for config in methods.values():
        pipe.check_call(config, **call)
    prompts = MODALITIES[suite.pipeline].items(suite, None)
    job = Job(suite, prompts, methods, call, seed=args.seed)
    with locked(out), bar("simulate", "step", steps(args.samples), delay=1) as shown:
        record, turns = measure(job, pipe, args.samples, layer, shown.update)
        write_atomic(out / "turns.json", to_json([asdict(turn) for turn in turns]) + "\n")
        write_atomic(out / "simulation.json", to_json(asdict(record), indent=2) + "\n")
        write_atomic(out / "simulation.md", markdown(record))
    if args.json:
        print(to_json(asdict(record), indent=2))
        return 0
    print("\n\n".join(table.aligned() for table in tables(record)))
    for note in notes(record):
        print(f"note: {note}")
    return 0


def _show(args: argparse.Namespace, record: Any, table: Any, name: str) -> int:
    if args.json:
        print(to_json(asdict(record), indent=2))
        return 0
    print(table.aligned())
    for note in getattr(record, "notes", ()):
        print(f"note: {note}")
    print(f"{name}.json, {name}.md and {name}.svg are in {args.out}/")
    return 0


if __name__ == "__main__":
    sys.exit(main())
