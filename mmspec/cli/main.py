"""The command line. Heavy imports happen inside the commands, so that help answers at once."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from .. import __version__
from ..devices import check_device
from ..errors import InputError, absent, reason
from ..files import to_json
from ..methods import PIPELINES, Modality, serving
from ..models.truncation import gathered
from ..progress import hide_library_bars, no_bars, showing
from . import ask as cli_ask
from . import chat as cli_chat
from . import completion as cli_completion
from . import demo as cli_demo
from . import doctor as cli_doctor
from . import eval as cli_eval
from . import export as cli_export
from . import heads as cli_heads
from . import ls as cli_ls
from . import options
from . import serve as cli_serve
from . import video as cli_video

DRAWN: tuple[Modality, ...] = ("image", "continuous")  # what `generate` draws
_VECTORS = {  # options of a call for vectors, and their names there
    "guidance": "guidance_scale",
    "guidance_schedule": "guidance_schedule",
    "iterations": "num_iterations",
}
_PAIRS = 4  # pictures by each method, with --compare
_TRAINED: tuple[tuple[str, Callable[[str], Any], str], ...] = (
    ("--steps", int, "updates of the weights (default: the recipe's)"),
    ("--batch-size", int, "samples a step (default: the recipe's)"),
    ("--max-minutes", float, "stop after so long, to be resumed (default: never)"),
    ("--workers", int, "processes that make data (default: the recipe's)"),
    ("--repeat", int, "steps after which the same data come again (default: never)"),
    ("--seed", options.seed, "of weights and data (default: the recipe's)"),
    ("--rate", float, "learning rate (default: the recipe's)"),
    ("--keep", float, "share of older weights in the exported average (default: the recipe's)"),
    ("--max-new-tokens", int, "of answers to learn from (default: the recipe's)"),
)


class Help(argparse.HelpFormatter):
    """Help texts that show an option's default where the text itself does not."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text, default = action.help or "", action.default
        none = "default" in text or isinstance(default, bool) or default == argparse.SUPPRESS
        shown = not none and isinstance(default, str | int | float | Path)
        return f"{text} (default: %(default)s)" if shown else text


class Parser(argparse.ArgumentParser):
    """Parser whose errors are one line with exit code 2, and whose help shows defaults."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": Help, **options})

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    cli_completion.answer(build_parser)
    code = execute(build_parser(), sys.argv[1:] if argv is None else argv)
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # nobody reads on; what is left can't be told when Python ends either
        with suppress(OSError, ValueError):  # no file of the system
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def execute(parser: argparse.ArgumentParser, argv: Sequence[str]) -> int:
    """Run the command that a parser reads; returns the exit code."""
    words, name = list(argv), parser.prog
    args = parser.parse_args(words, argparse.Namespace(words=words))
    try:
        with showing("starting", getattr(args, "quiet", False)):
            code: int = args.run(args)
    except InputError as error:
        print(f"{name}: error: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:  # of an extra, or the installation is broken
        if (error.name or "mmspec").split(".")[0] == "mmspec":
            raise
        what = f"this needs the Python module {error.name}, which is not installed"
        print(f"{name}: error: {absent(what, 'eval,train,demo,serve')}", file=sys.stderr)
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
    """Parser of the commands and their options."""
    parser = Parser(
        prog="mmspec",
        description="Speculative decoding of vision-language models and of image and video "
        "generators: fewer calls of the large model, and a report of what that gained and cost.",
        epilog="Begin with: mmspec generate 'a photo of a purple triangle' --compare",
    )
    options.add_quiet(parser)
    parser.add_argument("--version", action="version", version=f"mmspec {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    generate = options.add_command(commands, "generate", _generate, "draw a picture from a prompt")
    generate.add_argument(
        "prompt",
        help="what to draw, such as 'a photo of a purple triangle'; for a model that is told "
        "classes, the number of one",
    )
    options.add_model(generate)
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
    options.add_runs(generate, "draw", "image", paired=_PAIRS)
    generate.add_argument("--size", type=int, help="side in pixels (default: the model's own)")
    generate.add_argument(
        "--guidance", type=float, help="guidance scale (default: the model's own)"
    )
    generate.add_argument(
        "--temperature",
        type=float,
        help="0: greedy (default: 1, or of --pipeline continuous the model's own)",
    )
    generate.add_argument(
        "--top-k", type=int, help="draw from so many tokens; 0: all (default: the model's own)"
    )
    options.add_top_p(generate)
    options.add_settings(generate, *DRAWN)
    group = generate.add_argument_group("of --pipeline continuous")
    group.add_argument(
        "--iterations", type=int, metavar="N", help="calls of the backbone (default: one a token)"
    )
    group.add_argument(
        "--diffusion-steps",
        type=options.widths,
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
    generate.add_argument(
        "-o", "--out", type=Path, default=Path("out"), help="folder that is written"
    )

    cli_ask.add_parser(commands)
    cli_chat.add_parser(commands)
    cli_video.add_parser(commands)
    cli_eval.add_commands(commands)
    cli_heads.add_commands(commands)
    cli_export.add_commands(commands)
    cli_doctor.add_parser(commands)
    cli_demo.add_parser(commands)
    cli_serve.add_parser(commands)

    text = "train a drafter, a draft head or an embedded model"
    train = options.add_command(commands, "train", _train, text)
    train.add_argument(
        "recipe",
        help="image-tokenizer, image-target, image-drafter, image-rows, image-upsampler, "
        "image-spatial, image-head, image-judge, kl-autoencoder, mar, video-autoencoder, video, "
        "clip, vlm, vlm-adapter, vlm-judge, vlm-router, vlm-head, text-head, text-drafter, "
        "text-masked or text-masked-drafter",
    )
    train.add_argument(
        "--pipeline", type=Path, default=Path("runs/image"), help="folder of the pipeline"
    )
    train.add_argument(
        "--stage",
        "--method",
        help="run only this stage, such as sibling; of vlm-head and text-head: the draft head's",
    )
    train.add_argument("--init", help="component to start from; the stage's own trains it further")
    train.add_argument("--size", type=int, help="side of the pictures in pixels (default: its own)")
    for option, kind, text in _TRAINED:
        train.add_argument(option, type=kind, help=text)
    train.add_argument(
        "--data",
        type=Path,
        help='lines {"image": path, "question": text} for vlm-head, {"prompt": text} for text-head '
        'and the stage align of text-drafter, {"text": text} for its stage pretrain',
    )
    train.add_argument(
        "--language", help="for vlm-adapter: folder of a language model, or a name (smollm2)"
    )
    train.add_argument("--objective", help="loss on laws, such as log-acceptance")
    train.add_argument(
        "--reference",
        help="trained head or drafter of the folder, by which places to learn from are chosen, or "
        "random",
    )
    options.add_pairs(
        train,
        "--set",
        "NAME=VALUE",
        "size of a draft head or a drafter, or what a judge learns from; repeatable",
    )
    train.add_argument("--device", default="cpu", help="cpu or cuda")
    train.add_argument("--precision", choices=("float32", "bfloat16"), help="of the arithmetic")

    cli_ls.add_parser(commands)
    cli_completion.add_parser(commands)
    return parser


@gathered()
def _generate(args: argparse.Namespace) -> int:
    from ..eval.showcase import Showcase, compare, print_table

    if args.pipeline is None:
        args.pipeline = options.draws(args.model)
    if args.method is None:
        args.method = PIPELINES[args.pipeline].first[0]
    _, config = options.configured(args)
    if not args.prompt.strip():
        raise InputError("the prompt is empty; say what to draw")
    options.check_range(args, 1, 1000, "num_images")
    count = args.num_images or (_PAIRS if args.compare else 1)
    out = options.folder(args.out)
    pipe, call = (_of_vectors if args.pipeline == "continuous" else _of_ids)(args)
    call |= {"height": args.size}
    methods = options.methods_of(args, args.method, config)
    pipe.set_progress_bar_config(disable=no_bars(), leave=False)
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
    pipe = options.open_pipeline(args)
    family = pipe.image_model(pipe.network(args.size, None)[0])
    return pipe, {
        "guidance_scale": family.guidance_scale if args.guidance is None else args.guidance,
        "top_k": family.top_k if args.top_k is None else args.top_k,
        "top_p": args.top_p,
        "temperature": 1.0 if args.temperature is None else args.temperature,
    }


def _of_vectors(args: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """The pipeline of continuous tokens, and its own options of a call."""
    if args.top_k is not None or args.top_p != 1:
        raise InputError("--top-k and --top-p choose among token ids, and these are vectors")
    given = {name: getattr(args, option) for option, name in _VECTORS.items()}
    call = {name: value for name, value in given.items() if value is not None}
    call["learned_variance"] = not args.least_variance
    if args.temperature is not None:
        call["temperature"] = args.temperature
    if args.diffusion_steps is not None:
        steps = args.diffusion_steps
        call["diffusion_steps"] = steps[0] if len(steps) == 1 else steps
    return options.open_pipeline(args, "continuous"), call


def trained(args: argparse.Namespace) -> dict[str, Any]:
    """Options of a training that are given, as `train.recipes.train` takes them.

    Raises:
        InputError: one is out of range, or its recipe does not take it.
    """
    from ..models.packaged import PACKAGED
    from ..train.recipes import chosen

    options.check_range(args, 0, None, "workers")
    above = "size", "steps", "batch_size", "max_minutes", "rate", "max_new_tokens", "repeat"
    for option in above:
        value = getattr(args, option)
        if value is not None and not 0 < value < float("inf"):
            raise InputError(f"--{option.replace('_', '-')} must be above 0, not {value}")
    names = {option.removeprefix("--").replace("-", "_") for option, *_ in _TRAINED}
    names |= {"init", "size", "device", "precision", "data", "language", "objective", "reference"}
    values = {name: getattr(args, name) for name in names} | {"settings": dict(args.set) or None}
    given = {name: value for name, value in values.items() if value is not None}
    if args.language is not None and args.language not in PACKAGED:
        given["language"] = Path(args.language)
    chosen(args.recipe, args.stage, given)
    return given


def _train(args: argparse.Namespace) -> int:
    from ..train.recipes import train

    check_device(args.device)
    given = trained(args)
    hide_library_bars()
    records = train(args.recipe, options.folder(args.pipeline), stage=args.stage, **given)
    if records:  # of several processes one has them
        print(to_json(records, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
