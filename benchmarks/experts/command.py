"""`python -m benchmarks experts`: sparse experts that a call touches, and what that costs."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mmspec.cli.options import add_command, add_json, add_model, check_range, folder, prepare
from mmspec.eval.files import write_measured
from mmspec.files import locked, to_json

PROMPT = "Write a short story about a fox who learns to read."


def add_experts(commands: Any) -> None:
    """Add the command and its options."""
    text = "experts that a call touches, and MoESD's prediction of what it costs"
    experts = add_command(commands, "experts", _experts, text)
    add_model(experts, several=True)
    experts.add_argument("--samples", type=int, default=10, help="of each size of call")
    experts.add_argument("-o", "--out", type=Path, help="folder that is written")
    add_json(experts)


def _experts(args: argparse.Namespace) -> int:
    import torch

    from mmspec.eval.environment import environment
    from mmspec.models.transformers.text_inputs import process_texts
    from mmspec.pipelines.text.pipeline import TextPipeline

    from .measure import PROMPT as WORDS
    from .measure import SMALL, ExpertsFound, measure_experts
    from .page import experts_figure, experts_markdown, experts_table

    check_range(args, 1, None, "samples")
    out = None if args.out is None else folder(args.out)
    prepare(args)
    records = []
    for name in args.model or ():
        pipe: Any = TextPipeline.from_pretrained(name).to(args.device)
        given = process_texts(pipe.tokenizer, [PROMPT], pipe.model.device)["input_ids"]
        records.append(measure_experts(name, "its own", pipe.model, given, args.samples))
    for name, build in () if args.model else SMALL.items():
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = build().eval().to(args.device)
            given = torch.arange(1, WORDS + 1, device=args.device)[None]
            records.append(measure_experts(name, "random", model, given, args.samples))
    found = ExpertsFound(environment(torch.device(args.device)), records)
    if out is not None:
        with locked(out):
            page, drawn = experts_markdown(found), experts_figure(found)
            write_measured(out, "experts", found, page, drawn)
    if args.json:
        print(to_json(asdict(found), indent=2))
        return 0
    print("\n\n".join(experts_table(record).aligned() for record in records))
    return 0
