"""`python -m benchmarks plain`: the plain loop against transformers' `generate`."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from mmspec.cli.options import add_command, add_json, check_range, names, prepare, widths
from mmspec.errors import InputError
from mmspec.files import to_json
from mmspec.progress import bar
from mmspec.registry import check_name


def add_plain(commands: Any) -> None:
    """Add the command and its options."""
    plain = add_command(
        commands, "plain", _plain, "the plain loop against transformers' generate, by model"
    )
    plain.add_argument(
        "--models",
        type=names,
        help="a,b of llamagen, janus, janus-7b, emu3, glm-image (published sizes, a part of the "
        "depth, random weights: time only), embedded-image and embedded-vlm (default: all but "
        "janus-7b)",
    )
    plain.add_argument("--rows", type=widths, default=(1, 4), help="of batches (default: 1,4)")
    plain.add_argument("--samples", type=int, default=10, help="pairs of each")
    plain.add_argument(
        "--side", type=int, default=16, help="of pictures by published sizes, in codes"
    )
    plain.add_argument(
        "--memory",
        type=float,
        default=6.0,
        help="GiB that the weights of a model may take, their packed copies not counted: decides "
        "on 1/4 or 1/8 of the depth, float32 or bfloat16 (default: 6)",
    )
    plain.add_argument("--device", default="cpu", help="such as cpu or cuda")
    add_json(plain)


def _plain(args: argparse.Namespace) -> int:
    from .embedded import EMBEDDED
    from .measure import CACHES, DEFAULT, form_of, measure_plain, plain_notes, plain_table
    from .sizes import MODELS

    check_range(args, 1, None, "samples")
    check_range(args, 2, 64, "side")
    chosen = args.models or DEFAULT
    for name in chosen:
        check_name("model", name, [*MODELS, *EMBEDDED])
    if min(args.rows) < 1:
        raise InputError(f"--rows must be at least 1, not {min(args.rows)}")
    prepare(args)
    for name in chosen:
        if name in MODELS:
            form_of(name, args.side, args.memory)  # before anything runs
    total = len(chosen) * len(args.rows) * (args.samples + 1) * (1 + len(CACHES))
    with bar("plain", "call", total, delay=1) as shown:
        record = measure_plain(
            chosen, args.rows, args.samples, args.side, args.memory, args.device, shown.update
        )
    if args.json:
        print(to_json(asdict(record), indent=2))
        return 0
    print(plain_table(record).aligned())
    for note in plain_notes(record):
        print(f"note: {note}")
    return 0
