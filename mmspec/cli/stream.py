"""`mmspec eval stream`: does a streamed clip take more memory the longer it gets?"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..eval.methods import parse_methods, split_methods
from ..files import locked, to_json
from ..progress import bar
from .options import add_model, folder, open_modality, seed

WINDOW, SINK = 6, 1  # of a model whose own window does not roll


def add_stream(actions: Any) -> None:
    """The parser of the command."""
    stream = actions.add_parser(
        "stream", help="a long clip with a rolling window: does its memory grow?"
    )
    stream.set_defaults(run=_stream)
    add_model(stream)
    stream.add_argument(
        "--methods", type=split_methods, default=("sdvg",), help="as of `run` (default: sdvg)"
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
    stream.add_argument("--seed", type=seed, default=0, help="of the clip")
    stream.add_argument("-o", "--out", type=Path, required=True, help="folder that is written")
    stream.add_argument("--json", action="store_true", help="print stream.json, not a table")


def _stream(args: argparse.Namespace) -> int:
    from ..eval.bench.streaming import measure_streams
    from ..eval.bench.streaming_page import stream_table, write_stream
    from ..eval.modalities.base import modality
    from ..models.wan.window import ContextWindow
    from ..pipelines.video.sizes import VideoSizes

    if args.times < 2:
        raise InputError(f"--times must be at least 2, not {args.times}")
    if not args.prompt.strip():
        raise InputError("the prompt is empty; say what to show")
    methods = parse_methods(args.methods)
    args.device_map = None
    out, pipe = folder(args.out), open_modality(args, modality("video"))
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
        write_stream(record, out)
    if args.json:
        print(to_json(asdict(record), indent=2))
        return 0
    print(stream_table(record).aligned())
    print(f"stream.json, stream.md and stream.svg are in {out}/")
    return 0
