"""`python -m benchmarks online`: does a head that learns in use follow a change of domain?"""

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
    seed,
)
from mmspec.errors import InputError
from mmspec.eval.files import write_measured
from mmspec.files import locked, to_json
from mmspec.methods import parse_method
from mmspec.progress import bar


def add_online(commands: Any) -> None:
    """Add the command and its options."""
    text = "a head that learns in use: acceptance over answers as the domain changes"
    online = add_command(commands, "online", _online, text)
    add_model(online)
    online.add_argument("--method", default="eagle", help="with a head (default: eagle)")
    online.add_argument(
        "--domain",
        type=Path,
        action="append",
        help='file of lines {"prompt": text} for a language model; given again, the next domain '
        "(default: descriptions of scenes, then of charts, for one that sees)",
    )
    online.add_argument("--answers", type=int, default=80, help="of each domain")
    online.add_argument("--max-new-tokens", type=int, default=96, help="of an answer")
    online.add_argument("--temperature", type=float, default=0.0, help="0: greedy")
    online.add_argument("--every", type=int, default=4, help="answers after which it learns")
    online.add_argument("--steps", type=int, default=2, help="that it then takes")
    online.add_argument("--rate", type=float, help="learning rate (default: the learner's)")
    online.add_argument("--objective", default="kl", help="loss on laws (default: kl)")
    text = "learn where drafts fell alone, as the paper does (default: everywhere)"
    online.add_argument("--fallen", action="store_true", help=text)
    online.add_argument("--seed", type=seed, default=0, help="of the first answer")
    online.add_argument("-o", "--out", type=Path, required=True, help="folder that is written")
    add_json(online)


def _online(args: argparse.Namespace) -> int:
    from mmspec.train.heads.objectives import objective_of

    from .domains import of_files, of_shapes
    from .measure import Lessons, measure_online
    from .page import online_figure, online_markdown, online_notes, online_table

    check_range(args, 1, None, "answers", "every", "steps", "max_new_tokens")
    if args.rate is not None and args.rate <= 0:
        raise InputError(f"--rate must be above 0, not {args.rate:g}")
    objective_of(args.objective)
    _, config = parse_method(args.method)
    out = folder(args.out)
    if args.domain:
        from mmspec.pipelines.text.pipeline import TextPipeline

        domains = of_files(args.domain, args.answers)
        prepare(args)
        pipe: Any = TextPipeline.from_pretrained(args.model or "smollm2").to(args.device)
        pipe.set_progress_bar_config(disable=True)
    else:
        pipe = open_pipeline(args, "vlm")
        domains = of_shapes(pipe.model, args.answers, args.seed)
    call = {"max_new_tokens": args.max_new_tokens, "temperature": args.temperature}
    lessons = Lessons(args.every, args.steps, args.rate, args.objective, args.fallen)
    total = 3 * sum(len(domain.asked) for domain in domains)
    with locked(out), bar("online", "answer", total, delay=1) as shown:
        record = measure_online(pipe, config, domains, call, args.seed, lessons, shown.update)
        page = online_markdown(record)
        write_measured(out, "online", record, page, online_figure(record))
    if args.json:
        print(to_json(asdict(record), indent=2))
        return 0
    print(online_table(record).aligned())
    for note in online_notes(record):
        print(f"note: {note}")
    print(f"online.json, online.md and online.svg are in {out}/")
    return 0
