"""`mmspec ask`: a question about pictures, by one method or by several models together."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from ..errors import InputError
from ..files import to_json
from ..methods import PIPELINES, SpecConfig, serving
from ..progress import say
from . import options

_CALL = ("max_new_tokens", "temperature", "top_k", "top_p", "stop", "background")


def add_parser(commands: Any) -> None:
    ask = options.add_command(commands, "ask", _ask, "ask a question about pictures")
    ask.add_argument("image", nargs="+", help="a picture's file, or several")
    ask.add_argument("question", help="what to answer")
    options.add_model(ask)
    ask.add_argument(
        "--method",
        help=f"{', '.join(serving('vlm'))}; with settings: 'draft[num_draft_tokens=5]' (default: "
        f"the first of {', '.join(PIPELINES['vlm'].first)} that the model has the parts for)",
    )
    ask.add_argument(
        "--expert",
        action="append",
        metavar="FOLDER",
        help="of method verdict: a model that answers first; repeatable (default: those in the "
        "model's folder)",
    )
    options.add_runs(ask, "answer", "answer")
    ask.add_argument("--max-new-tokens", type=int, default=128, help="of an answer, at most")
    ask.add_argument("--temperature", type=float, default=0.0, help="0: greedy")
    ask.add_argument("--top-k", type=int, default=0, help="draw from so many tokens; 0: all")
    options.add_top_p(ask)
    ask.add_argument("--stop", action="append", help="a string that ends the answer; repeatable")
    options.add_background(ask)
    ask.add_argument("--stream", action="store_true", help="print the answer as it is accepted")
    options.add_settings(ask, "vlm")


def _ask(args: argparse.Namespace) -> int:
    options.check_range(args, 1, 1000, "num_answers")
    if args.method is None:
        from ..pipelines.model_folders import first_method, locate

        args.method = first_method(locate(args.model, "vlm"), "vlm")
    _, config = options.configured(args)
    if config.resolve("vlm").preset.answers == "experts":
        return _verdict(args)
    if args.expert:
        raise InputError("--expert is for --method verdict; leave it out")
    return _streamed(args, config) if args.stream else _measured(args, config)


def _measured(args: argparse.Namespace, config: SpecConfig) -> int:
    from ..eval.showcase import Showcase, ask, print_table

    methods = options.methods_of(args, args.method, config)
    call = {name: getattr(args, name) for name in _CALL}
    pipe = options.open_pipeline(args, "vlm")
    call["image"] = list(args.image)
    record = ask(Showcase(pipe, methods, args.question, args.num_answers, args.seed, call))
    if args.json:
        print(to_json(record, indent=2))
        return 0
    for name, answers in record["answers"].items():
        for answer in answers:
            print(f"{name}: {answer}" if args.compare else answer)
    if args.compare:
        print_table(record["methods"])
    return 0


def _streamed(args: argparse.Namespace, config: SpecConfig) -> int:
    _refuse(args, "--stream prints one answer as it comes", "json", "compare", "num_answers")
    import torch
    from transformers import TextStreamer

    pipe = options.open_pipeline(args, "vlm")
    pipe.enable_speculation(config)
    say("answering")
    words = TextStreamer(pipe.processor.tokenizer, skip_prompt=True, skip_special_tokens=True)
    pipe(
        args.question,
        list(args.image),
        generator=torch.Generator().manual_seed(args.seed),
        streamer=words,
        **{name: getattr(args, name) for name in _CALL},
    )
    return 0


def _verdict(args: argparse.Namespace) -> int:
    """Speculative Verdict: the experts answer and reason, the model gives the verdict."""
    _refuse(args, "a verdict is one answer", "compare", "num_answers", "stream", "stop")
    from ..picture import open_picture
    from ..pipelines.model_folders import locate
    from ..pipelines.prompts import check_sampling
    from ..pipelines.verdict.expert import TransformersExpert
    from ..pipelines.verdict.folder import experts_in, load_expert, verdict_words
    from ..pipelines.verdict.verdict import SpeculativeVerdict, VerdictError

    options.check_range(args, 1, 2**20, "max_new_tokens")
    check_sampling(args.temperature, args.top_k, args.top_p)
    if not args.question.strip():
        raise InputError("the question is empty; say what to answer")
    home = locate(args.model, "vlm")
    folders = experts_in(home)
    if args.expert:
        folders = {name: locate(name, "vlm") for name in args.expert}
    if not folders:
        raise InputError(
            "method 'verdict' needs experts, and the model's folder has none: give --expert FOLDER"
        )
    words = verdict_words(home)
    pictures = [open_picture(path, args.background) for path in args.image]
    most, sampling = args.max_new_tokens, dict[str, Any]()
    if args.temperature:
        import torch

        torch.manual_seed(args.seed)  # transformers' `generate` draws from it
        names = ("temperature", "top_k", "top_p")
        sampling = {"do_sample": True, **{name: getattr(args, name) for name in names}}
    how = {"answer_tokens": min(64, most), "reason_tokens": most, "generate": sampling}
    pipe = options.open_pipeline(args, "vlm")
    experts = [
        load_expert(pipe, home, folder, name=name, reason_prompt=words.reason, **how)
        for name, folder in folders.items()
    ]
    judge = TransformersExpert.of(pipe, name="verdict", **how)
    say(f"{len(experts)} experts answer, then the model")
    try:
        made = SpeculativeVerdict(experts, judge, prompt=words.prompt)(pictures, args.question)
    except VerdictError as error:
        raise InputError(str(error)) from error
    record = {**asdict(made), "total": asdict(made.total)}
    print(to_json(record, indent=2) if args.json else made.text)
    return 0


def _refuse(args: argparse.Namespace, why: str, *options: str) -> None:
    for name in options:
        given = args.num_answers > 1 if name == "num_answers" else getattr(args, name)
        if given:
            raise InputError(f"{why}; leave --{name.replace('_', '-')} out")
