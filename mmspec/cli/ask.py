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

_CALL = ("max_new_tokens", "temperature", "top_k", "top_p", "stop")


def add_parser(commands: Any) -> None:
    ask = options.add_command(commands, "ask", _ask, "ask a question about pictures")
    ask.add_argument("image", nargs="+", help="a picture's file, or several")
    ask.add_argument("question", help="what to answer")
    options.add_model(ask)
    add_answers(ask)
    ask.add_argument(
        "--expert",
        action="append",
        metavar="FOLDER",
        help="of method verdict: a model that answers first; repeatable (default: those in the "
        "model's folder)",
    )
    options.add_background(ask)


def add_answers(parser: argparse.ArgumentParser) -> None:
    """The options of how a question is answered."""
    parser.add_argument(
        "--method",
        help=f"{', '.join(serving('vlm'))}; with settings: 'draft[num_draft_tokens=5]' (default: "
        f"the first of {', '.join(PIPELINES['vlm'].first)} that the model has the parts for)",
    )
    options.add_runs(parser, "answer", "answer")
    parser.add_argument("--max-new-tokens", type=int, default=128, help="of an answer, at most")
    parser.add_argument("--temperature", type=float, default=0.0, help="0: greedy")
    parser.add_argument("--top-k", type=int, default=0, help="draw from so many tokens; 0: all")
    options.add_top_p(parser)
    parser.add_argument("--stop", action="append", help="a string that ends the answer; repeatable")
    parser.add_argument("--stream", action="store_true", help="print the answer as it is accepted")
    options.add_settings(parser, "vlm")


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
    if args.stream:
        check_streamed(args)
    pipe = options.open_pipeline(args, "vlm")
    call = {"image": list(args.image), "background": args.background}
    if not args.stream:
        return measured(args, config, pipe, args.question, call)
    pipe.enable_speculation(config)
    say("answering")
    pipe(args.question, **call, **streamed(args, pipe.processor.tokenizer))
    return 0


def measured(
    args: argparse.Namespace, config: SpecConfig, pipe: Any, question: Any, call: dict[str, Any]
) -> int:
    """Print answers by the methods that the arguments name, and with --compare a table."""
    from ..eval.showcase import Showcase, ask, print_table

    methods = options.methods_of(args, args.method, config)
    call |= {name: getattr(args, name) for name in _CALL}
    record = ask(Showcase(pipe, methods, question, args.num_answers, args.seed, call))
    if args.json:
        print(to_json(record, indent=2))
        return 0
    for name, answers in record["answers"].items():
        for answer in answers:
            print(f"{name}: {answer}" if args.compare else answer)
    if args.compare:
        print_table(record["methods"])
    return 0


def check_streamed(args: argparse.Namespace) -> None:
    """Raise an `InputError` for options that an answer which is printed as it comes can't have."""
    refuse(args, "--stream prints one answer as it comes", "json", "compare", "num_answers")


def streamed(args: argparse.Namespace, tokenizer: Any) -> dict[str, Any]:
    """Arguments of a call that prints its answer as it comes."""
    import torch
    from transformers import TextStreamer

    return {
        "generator": torch.Generator().manual_seed(args.seed),
        "streamer": TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True),
        **{name: getattr(args, name) for name in _CALL},
    }


def _verdict(args: argparse.Namespace) -> int:
    """Speculative Verdict: the experts answer and reason, the model gives the verdict."""
    refuse(args, "a verdict is one answer", "compare", "num_answers", "stream", "stop")
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


def refuse(args: argparse.Namespace, why: str, *options: str) -> None:
    """Raise an `InputError` if one of the options is given, which can't be because of `why`."""
    for name in options:
        given = args.num_answers > 1 if name == "num_answers" else getattr(args, name)
        if given:
            raise InputError(f"{why}; leave --{name.replace('_', '-')} out")
