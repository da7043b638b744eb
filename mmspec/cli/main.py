"""The command line. Heavy imports happen inside the commands, so that help answers at once."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from .. import __version__
from ..devices import check_device
from ..errors import InputError, absent, reason
from ..files import to_json
from ..methods import PIPELINES, Modality, SpecConfig, serving
from ..models.truncation import gathered
from ..progress import showing
from . import ask as cli_ask
from . import demo as cli_demo
from . import eval as cli_eval
from . import ls as cli_ls
from . import video as cli_video
from .options import (
    add_model,
    draws,
    folder,
    open_continuous,
    open_pipeline,
    seed,
    shown_on_terminal,
    widths,
)
from .settings import add_settings, configured

DRAWN: tuple[Modality, ...] = ("image", "continuous")  # what `generate` draws


class Help(argparse.HelpFormatter):
    """Says an option's default where its own text does not."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text, default = action.help or "", action.default
        none = "default" in text or isinstance(default, bool) or default == argparse.SUPPRESS
        shown = not none and isinstance(default, str | int | float | Path)
        return f"{text} (default: %(default)s)" if shown else text


class Parser(argparse.ArgumentParser):
    """Errors as one line, exit code 2; defaults in every help."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": Help, **options})

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    return execute(build_parser(), sys.argv[1:] if argv is None else argv)


def execute(parser: argparse.ArgumentParser, argv: Sequence[str]) -> int:
    """Run the command that a parser reads; returns the exit code."""
    words, name = list(argv), parser.prog
    args = parser.parse_args(words, argparse.Namespace(words=words))
    try:
        with showing("starting"):
            code: int = args.run(args)
    except InputError as error:
        print(f"{name}: error: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:  # of an extra, or the installation is broken
        if (error.name or "mmspec").split(".")[0] == "mmspec":
            raise
        what = f"this needs the Python module {error.name}, which is not installed"
        print(f"{name}: error: {absent(what, 'eval,train,demo')}", file=sys.stderr)
        return 2
    except FloatingPointError as error:  # a model without numbers: no fault of the input's form
        print(f"{name}: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0
    except OSError as error:  # of the system: a disk that is full, a file that is no one's to read
        where = "" if error.filename is None else f"{error.filename}: "
        print(f"{name}: error: {where}{reason(error)}", file=sys.stderr)
        return 1
    return code


def build_parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    parser = Parser(
        prog="mmspec",
        description="Speculative decoding of vision-language models and of image and video "
        "generators: fewer calls of the large model, and a report of what that gained and cost.",
        epilog="Begin with: mmspec generate 'a photo of a purple triangle' --compare",
    )
    parser.add_argument("--version", action="version", version=f"mmspec {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    generate = commands.add_parser("generate", help="draw a picture from a prompt")
    generate.set_defaults(run=_generate)
    generate.add_argument(
        "prompt",
        help="what to draw, such as 'a photo of a purple triangle'; for a model that is told "
        "classes, the number of one",
    )
    add_model(generate)
    generate.add_argument(
        "--pipeline",
        choices=DRAWN,
        help="image: tokens are ids; continuous: they are vectors (default: what the model's are)",
    )
    methods = "; of --pipeline continuous: ".join(
        f"{', '.join(serving(kind))} (default: {PIPELINES[kind].first[0]})" for kind in DRAWN
    )
    generate.add_argument(
        "--method",
        help=f"{methods}; with settings: 'gsd[group_size=30]'; `mmspec ls methods` tells of each",
    )
    generate.add_argument("--compare", action="store_true", help="also draw plainly, in pairs")
    generate.add_argument("-n", "--num-images", type=int, help="default: 1, with --compare 4")
    generate.add_argument("--size", type=int, help="side in pixels (default: the model's own)")
    _add_sampling(generate)
    add_settings(generate, *DRAWN)
    _add_vectors(generate.add_argument_group("of --pipeline continuous"))
    generate.add_argument(
        "-o", "--out", type=Path, default=Path("out"), help="folder that is written"
    )
    generate.add_argument("--json", action="store_true", help="print stats.json, not a table")

    cli_ask.add_command(commands)
    cli_video.add_command(commands)
    cli_eval.add_commands(commands)
    cli_demo.add_command(commands)

    train = commands.add_parser("train", help="train a drafter, a draft head or an embedded model")
    train.set_defaults(run=_train)
    train.add_argument(
        "recipe",
        help="image-tokenizer, image-target, image-drafter, image-upsampler, image-spatial, "
        "image-head, kl-autoencoder, mar, video-autoencoder, video, clip, vlm or vlm-head",
    )
    train.add_argument(
        "--pipeline", type=Path, default=Path("runs/image"), help="folder of the pipeline"
    )
    train.add_argument(
        "--stage",
        "--method",
        help="run only this stage, such as sibling; of vlm-head: the method of the draft head",
    )
    train.add_argument("--init", help="component to start from; the stage's own trains it further")
    train.add_argument("--size", type=int, help="side of the pictures in pixels (default: its own)")
    for option, kind, text in (
        ("--steps", int, "updates of the weights (default: the recipe's)"),
        ("--batch-size", int, "samples a step (default: the recipe's)"),
        ("--max-minutes", float, "stop after so long, to be resumed (default: never)"),
        ("--workers", int, "processes that make data (default: the recipe's)"),
        ("--seed", seed, "of weights and data (default: the recipe's)"),
        ("--rate", float, "learning rate (default: the recipe's)"),
        ("--keep", float, "share of older weights in the exported average (default: the recipe's)"),
        ("--max-new-tokens", int, "of answers to learn from, for vlm-head (default: the recipe's)"),
    ):
        train.add_argument(option, type=kind, help=text)
    train.add_argument(
        "--data", type=Path, help='questions for vlm-head: lines {"image": path, "question": text}'
    )
    train.add_argument(
        "--set", action="append", metavar="NAME=VALUE", help="of vlm-head's head; repeatable"
    )
    train.add_argument("--device", default="cpu", help="cpu or cuda")
    train.add_argument("--precision", choices=("float32", "bfloat16"), help="of the arithmetic")

    cli_ls.add_command(commands)
    return parser


def _add_vectors(group: Any) -> None:
    group.add_argument(
        "--iterations", type=int, metavar="N", help="calls of the backbone (default: one a token)"
    )
    group.add_argument(
        "--diffusion-steps",
        type=widths,
        metavar="N",
        help="steps a token, or of the first and the last iteration: 50,5 (default: 100)",
    )
    group.add_argument(
        "--guidance-schedule",
        help="linear: growing as tokens get known, or constant (default: linear)",
    )
    group.add_argument(
        "--least-variance",
        action="store_true",
        help="steps add the least noise, not what the head says",
    )


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seed", type=seed, default=0, help="of the first picture; each further one has the next"
    )
    parser.add_argument("--guidance", type=float, help="guidance scale (default: the model's own)")
    parser.add_argument("--temperature", type=float, default=1.0, help="0: greedy")
    parser.add_argument(
        "--top-k", type=int, help="draw from so many tokens; 0: all (default: the model's own)"
    )
    parser.add_argument(
        "--top-p", type=float, default=1.0, help="draw from the likeliest tokens of this share"
    )


@gathered()
def _generate(args: argparse.Namespace) -> int:
    from ..eval.showcase import Showcase, compare, print_table

    if args.pipeline is None:
        args.pipeline = draws(args.model)
    if args.method is None:
        args.method = PIPELINES[args.pipeline].first[0]
    _, config = configured(args)
    if not args.prompt.strip():
        raise InputError("the prompt is empty; say what to draw")
    count = args.num_images if args.num_images is not None else (4 if args.compare else 1)
    if not 1 <= count <= 1000:
        raise InputError(f"--num-images must be from 1 to 1000, not {count}")
    out = folder(args.out)
    pipe, call = (_of_vectors if args.pipeline == "continuous" else _of_ids)(args)
    call |= {"temperature": args.temperature, "height": args.size}
    methods = {"plain": SpecConfig(method="plain")} if args.compare else {}
    methods[args.method] = config
    shown_on_terminal(pipe)
    record = compare(Showcase(pipe, methods, args.prompt, count, args.seed, call), out)
    if args.json:
        print(to_json(record, indent=2))
    else:
        print_table(record["methods"])
        print(f"pictures and stats.json are in {out}/")
    return 0


def _of_ids(args: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """The image pipeline, and its own options of a call."""
    for option in ("iterations", "diffusion_steps", "guidance_schedule", "least_variance"):
        given = getattr(args, option)
        if given is not None and given is not False:  # 0 is given
            name = option.replace("_", "-")
            raise InputError(f"--{name} is of --pipeline continuous, and this model draws ids")
    pipe = open_pipeline(args)
    family = pipe.image_model(pipe.network(args.size, None)[0])
    return pipe, {
        "guidance_scale": family.guidance_scale if args.guidance is None else args.guidance,
        "top_k": family.top_k if args.top_k is None else args.top_k,
        "top_p": args.top_p,
    }


def _of_vectors(args: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """The pipeline of continuous tokens, and its own options of a call."""
    if args.top_k is not None or args.top_p != 1:
        raise InputError("--top-k and --top-p choose among token ids, and these are vectors")
    call: dict[str, Any] = {"learned_variance": not args.least_variance}
    for name, value in (
        ("guidance_scale", args.guidance),
        ("guidance_schedule", args.guidance_schedule),
        ("num_iterations", args.iterations),
    ):
        if value is not None:
            call[name] = value
    if args.diffusion_steps is not None:
        steps = args.diffusion_steps
        call["diffusion_steps"] = steps[0] if len(steps) == 1 else steps
    return open_continuous(args), call


def _train(args: argparse.Namespace) -> int:
    from ..train.recipes import train

    check_device(args.device)
    if args.workers is not None and args.workers < 0:
        raise InputError(f"--workers must be 0 or more, not {args.workers}")
    for option in ("size", "steps", "batch_size", "max_minutes", "rate", "max_new_tokens"):
        value = getattr(args, option)
        if value is not None and not 0 < value < float("inf"):
            raise InputError(f"--{option.replace('_', '-')} must be above 0, not {value}")
    records = train(
        args.recipe,
        folder(args.pipeline),
        stage=args.stage,
        init=args.init,
        size=args.size,
        steps=args.steps,
        batch_size=args.batch_size,
        max_minutes=args.max_minutes,
        workers=args.workers,
        seed=args.seed,
        device=args.device,
        precision=args.precision,
        rate=args.rate,
        keep=args.keep,
        max_new_tokens=args.max_new_tokens,
        data=args.data,
        settings=_settings(args.set),
    )
    if records:  # of several processes one has them
        print(to_json(records, indent=2))
    return 0


def _settings(given: list[str] | None) -> dict[str, str] | None:
    """Values by name, of `NAME=VALUE`s."""
    for text in given or ():
        if not all(text.partition("=")):
            raise InputError(f"--set takes NAME=VALUE, not {text!r}")
    return dict(text.split("=", 1) for text in given) if given else None


if __name__ == "__main__":
    sys.exit(main())
