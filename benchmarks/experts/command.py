"""`python -m benchmarks experts`: sparse experts that a call touches, and what that costs."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from mmspec.cli.options import add_command, add_json, add_model, check_range, prepare
from mmspec.files import to_json

PROMPT = "Write a short story about a fox who learns to read."


def add_experts(commands: Any) -> None:
    """Add the command and its options."""
    text = "experts that a call touches, and MoESD's prediction of what it costs"
    experts = add_command(commands, "experts", _experts, text)
    add_model(experts, several=True)
    experts.add_argument("--samples", type=int, default=10, help="of each size of call")
    add_json(experts)


def _experts(args: argparse.Namespace) -> int:
    import torch

    from mmspec.models.transformers.text_inputs import process_texts
    from mmspec.pipelines.text.pipeline import TextPipeline

    from .measure import PROMPT as WORDS
    from .measure import SMALL, experts_table, measure_experts

    check_range(args, 1, None, "samples")
    prepare(args)
    records = []
    for folder in args.model or ():
        pipe: Any = TextPipeline.from_pretrained(folder).to(args.device)
        given = process_texts(pipe.tokenizer, [PROMPT], pipe.model.device)["input_ids"]
        records.append(measure_experts(folder, "its own", pipe.model, given, args.samples))
    for name, build in () if args.model else SMALL.items():
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = build().eval().to(args.device)
            given = torch.arange(1, WORDS + 1, device=args.device)[None]
            records.append(measure_experts(name, "random", model, given, args.samples))
    if args.json:
        print(to_json([asdict(record) for record in records], indent=2))
        return 0
    print("\n\n".join(experts_table(record).aligned() for record in records))
    return 0
