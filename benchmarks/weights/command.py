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
    prepare,
)
from mmspec.eval.files import write_measured
from mmspec.files import locked, to_json
from mmspec.methods import PIPELINES

KINDS = ("text", *PIPELINES)


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
    from mmspec.eval.modalities.base import modality

    from .measure import measure_weights
    from .page import weights_figure, weights_markdown, weights_table
    from .subject import subject_of

    check_range(args, 1, None, "samples")
    out = None if args.out is None else folder(args.out)
    kind = modality(args.pipeline)
    model = kind.model if args.model is None else args.model
    prepare(args)
    pipe, named = kind.open(model, args.device, None), "embedded" if model is None else model
    record = measure_weights(subject_of(pipe), args.samples, Path(named).name, args.pipeline)
    if out is not None:
        with locked(out):
            page, drawn = weights_markdown(record), weights_figure(record)
            write_measured(out, "weights", record, page, drawn)
    print(to_json(asdict(record), indent=2) if args.json else weights_table(record).aligned())
    return 0
