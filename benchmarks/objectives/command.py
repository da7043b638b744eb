"""`python -m benchmarks objectives`: which loss gives the head that is accepted most?"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mmspec.cli.options import (
    add_command,
    add_json,
    add_pairs,
    check_range,
    folder,
    names,
    prepare,
    seed,
)
from mmspec.eval.files import write_measured
from mmspec.files import locked, to_json
from mmspec.registry import check_name


def add_objectives(commands: Any) -> None:
    """Add the command and its options."""
    text = "losses of draft heads: equal steps, the same lessons; acceptance decides"
    objectives = add_command(commands, "objectives", _objectives, text)
    objectives.add_argument(
        "--pipeline",
        type=Path,
        help="folder of a language model, some see pictures (default: the embedded one)",
    )
    objectives.add_argument(
        "--method", default="eagle3", help="kind of head, or drafter (default: eagle3)"
    )
    objectives.add_argument("--objectives", type=names, help="a,b (default: all)")
    objectives.add_argument("--steps", type=int, default=500, help="of each training")
    objectives.add_argument("--batch-size", type=int, help="answers a step (default: the recipe's)")
    objectives.add_argument(
        "--max-new-tokens", type=int, help="of an answer (default: the recipe's)"
    )
    objectives.add_argument(
        "--data", type=Path, help="prompts, as of mmspec train (default: the recipe's)"
    )
    objectives.add_argument(
        "--corpus", type=Path, help='of --method drafter, lines {"text": …} to learn first'
    )
    add_pairs(objectives, "--set", "NAME=VALUE", "size of the heads; repeatable")
    objectives.add_argument("--device", default="cpu", help="cpu or cuda")
    objectives.add_argument(
        "--precision",
        choices=("float32", "bfloat16"),
        help="of the trainings (default: the recipe's); drafts are judged in float32",
    )
    objectives.add_argument("--seed", type=seed, default=0, help="of first weights and lessons")
    objectives.add_argument(
        "-o",
        "--out",
        type=Path,
        required=True,
        help="folder that is written; a run that is stopped goes on in it",
    )
    add_json(objectives)


def _objectives(args: argparse.Namespace) -> int:
    from mmspec.models.embedded import embedded_folder
    from mmspec.train.heads.objectives import OBJECTIVES

    from .measure import Comparison
    from .page import objectives_figure, objectives_markdown, objectives_table

    check_range(args, 1, None, "steps", "batch_size", "max_new_tokens")
    chosen = args.objectives or tuple(OBJECTIVES)
    for name in chosen:
        check_name("objective", name, OBJECTIVES)
    prepare(args)
    given = {
        "batch_size": args.batch_size,
        "max_new_tokens": args.max_new_tokens,
        "data": args.data and args.data.resolve(),
        "settings": dict(args.set) or None,
        "device": args.device,
        "precision": args.precision,
        "seed": args.seed,
    }
    given = {name: value for name, value in given.items() if value is not None}
    out, pipeline = folder(args.out), args.pipeline or embedded_folder("vlm")
    corpus = args.corpus and args.corpus.resolve()
    comparison = Comparison(pipeline, out, args.method, args.steps, given, corpus)
    with locked(out):
        record = comparison.run(chosen)
        page = objectives_markdown(record)
        write_measured(out, "objectives", record, page, objectives_figure(record))
    if args.json:
        print(to_json(asdict(record), indent=2))
        return 0
    print(objectives_table(record).aligned())
    print(f"objectives.json, .md and .svg are in {out}/, and the heads in {out}/trained/")
    return 0
