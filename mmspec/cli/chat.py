"""`mmspec chat`: talk to a language model, one answer or turn by turn."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from ..errors import InputError, reason
from ..files import to_json
from ..methods import SpecConfig
from ..progress import say
from . import options
from .ask import add_answers, check_streamed, measured, refuse, streamed

_MODEL = "smollm2"


def add_parser(commands: Any) -> None:
    chat = options.add_command(commands, "chat", _chat, "talk to a language model")
    chat.add_argument(
        "prompt", nargs="?", help="what to answer (default: the lines of the input, turn by turn)"
    )
    options.add_model(chat, usual=_MODEL)
    chat.add_argument("--system", help="what stands in front (default: what the model was taught)")
    add_answers(chat)


def _chat(args: argparse.Namespace) -> int:
    options.check_range(args, 1, 1000, "num_answers")
    from ..pipelines.model_folders import first_method, locate
    from ..pipelines.text.pipeline import TextPipeline

    if args.stream:
        check_streamed(args)
    if args.prompt is None:
        refuse(args, "a conversation is answered once, turn by turn", "compare", "num_answers")
    options.prepare(args)
    folder = locate(args.model, TextPipeline.embedded)
    if args.method is None:
        args.method = first_method(folder, "vlm")
    _, config = options.configured(args)
    pipe = TextPipeline.from_pretrained(folder).to(args.device)
    pipe.set_progress_bar_config(disable=True)
    if args.prompt is None:
        return _talk(args, config, pipe)
    prompt: Any = args.prompt
    if args.system is not None:
        told = ("system", args.system), ("user", args.prompt)
        prompt = [{"role": role, "content": text} for role, text in told]
    if not args.stream:
        return measured(args, config, pipe, prompt, {})
    pipe.enable_speculation(config)
    say("answering")
    pipe(prompt, **streamed(args, pipe.tokenizer))
    return 0


def _lines() -> Iterator[str]:
    """Lines of the input up to the first empty one."""
    try:
        for line in sys.stdin:
            if not line.strip():
                return
            yield line
    except UnicodeDecodeError as error:
        raise InputError(f"can't read the input: {reason(error)}") from error


def _talk(args: argparse.Namespace, config: SpecConfig, pipe: Any) -> int:
    """Answer every line of the input as the next turn of one conversation."""
    from ..pipelines.text.chat import Chat

    pipe.enable_speculation(config)
    chat, call = Chat(pipe, args.system), streamed(args, pipe.tokenizer)
    if args.json:
        del call["streamer"]
    if sys.stdin.isatty():
        print("Say something; an empty line or Ctrl-D ends the conversation.", file=sys.stderr)
    for line in _lines():
        out = chat.say(line.strip(), **call)
        if args.json:
            record = {"text": out.text[0], "reused_tokens": chat.memory.reused}
            print(to_json({**record, **out.stats.as_dict()}), flush=True)  # somebody may wait
    return 0
