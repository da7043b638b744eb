"""`python -m benchmarks weights`: what do rounded weights save, and how far do laws move?"""

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
    open_pipeline,
    prepare,
)
from mmspec.eval.files import write_measured
from mmspec.files import locked, to_json

KINDS = ("text", "image", "vlm", "continuous", "video")


def add_weights(commands: Any) -> None:
    """Add the command and its options."""
    text = "rounded weights: what a call costs, and how far laws move"
    weights = add_command(commands, "weights", _weights, text)
    add_model(weights)
    weights.add_argument("--pipeline", choices=KINDS, default="text")
    weights.add_argument("--samples", type=int, default=8, help="prompts")
    weights.add_argument("-o", "--out", type=Path, help="folder that is written")
    add_json(weights)


def _weights(args: argparse.Namespace) -> int:
    from .measure import measure_weights
    from .page import weights_figure, weights_markdown, weights_table
    from .subject import subject_of

    check_range(args, 1, None, "samples")
    out = None if args.out is None else folder(args.out)
    if args.pipeline == "text":
        from mmspec.pipelines.text.pipeline import TextPipeline

        prepare(args)
        args.model = args.model or "smollm2"
        pipe: Any = TextPipeline.from_pretrained(args.model).to(args.device)
    else:
        pipe = open_pipeline(args, args.pipeline)
    named = "embedded" if args.model is None else Path(args.model).name
    record = measure_weights(subject_of(pipe), args.samples, named, args.pipeline)
    if out is not None:
        with locked(out):
            page, drawn = weights_markdown(record), weights_figure(record)
            write_measured(out, "weights", record, page, drawn)
    print(to_json(asdict(record), indent=2) if args.json else weights_table(record).aligned())
    return 0
