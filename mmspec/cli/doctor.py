"""`mmspec doctor`: why a draft head is not accepted."""

from __future__ import annotations

import argparse
from typing import Any

from ..files import to_json
from . import options

DTYPES = ("float32", "bfloat16", "float16", "float64")


def add_parser(commands: Any) -> None:
    text = "say why a draft head is not accepted"
    doctor = options.add_command(commands, "doctor", _doctor, text)
    doctor.add_argument(
        "--target",
        help="folder or hub id of the model that it drafts for, or vlm (default: that one)",
    )
    doctor.add_argument("--head", required=True, help="folder or hub id of the head")
    doctor.add_argument("--kind", help="msd, for a head of MSD: its files look like EAGLE-1's")
    doctor.add_argument(
        "--prompt", action="append", default=[], help="to try it on; repeatable (default: a few)"
    )
    doctor.add_argument(
        "--image", action="append", default=[], help="a picture to try it on; repeatable"
    )
    doctor.add_argument("--max-new-tokens", type=int, default=48, help="of an answer, at most")
    doctor.add_argument("--dtype", choices=DTYPES, default="float32", help="in which both run")
    doctor.add_argument("--device", default="cpu", help="such as cpu or cuda")
    options.add_json(doctor, "lines")


def _doctor(args: argparse.Namespace) -> int:
    options.prepare(args)
    options.check_range(args, 2, 2**20, "max_new_tokens")
    import torch

    from ..doctor.examination import examine
    from ..doctor.target import Target

    target = Target.load(args.target, getattr(torch, args.dtype), args.device)
    found = examine(target, args.head, args.prompt, args.image, args.max_new_tokens, args.kind)
    print(to_json(found.as_dict(), indent=2) if args.json else "\n".join(found.lines()))
    return 1 if found.faults else 0
