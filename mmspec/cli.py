"""The command line. Heavy imports happen inside the commands, so that help answers at once."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from . import __version__, cli_ask, cli_eval, cli_video
from .cli_options import (
    add_model,
    folder,
    names,
    open_continuous,
    open_pipeline,
    print_names,
    seed,
    widths,
)
from .config import SpecConfig
from .devices import check_device
from .errors import InputError
from .eval.methods import parse_method
from .methods import JACOBI_INITS, METHODS, SIBLINGS, serving

DRAWN = {"image": "draft", "continuous": "gamma-maximal"}  # the default method by modality
_PIPELINES = ("model_index.json", "config.json")  # what folders of pipelines hold


class Parser(argparse.ArgumentParser):
    """Errors as one line, exit code 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    args = build_parser().parse_args(words, argparse.Namespace(words=words))
    try:
        code: int = args.run(args)
    except InputError as error:
        print(f"mmspec: error: {error}", file=sys.stderr)
        return 2
    except FloatingPointError as error:  # a model without numbers: no fault of the input's form
        print(f"mmspec: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("mmspec: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0
    return code


def build_parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    parser = Parser(prog="mmspec", description="Speculative decoding with an honest report.")
    parser.add_argument("--version", action="version", version=f"mmspec {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    generate = commands.add_parser("generate", help="draw a picture from a prompt")
    generate.set_defaults(run=_generate)
    generate.add_argument("prompt")
    add_model(generate)
    generate.add_argument(
        "--pipeline",
        choices=tuple(DRAWN),
        default="image",
        help="image: tokens are ids (the default); continuous: they are vectors",
    )
    generate.add_argument(
        "--method",
        help=f"{', '.join(serving('image'))}; with settings: 'gsd[group_size=30]' (default: draft);"
        f" of --pipeline continuous: {', '.join(serving('continuous'))} (default: gamma-maximal)",
    )
    generate.add_argument("--compare", action="store_true", help="also draw plainly, in pairs")
    generate.add_argument("-n", "--num-images", type=int, help="default: 1, with --compare 4")
    generate.add_argument("--size", type=int, help="side in pixels (default: the model's own)")
    _add_sampling(generate)
    generate.add_argument(
        "--iterations", type=int, help="of --pipeline continuous: backbone calls (default: a token)"
    )
    generate.add_argument(
        "--diffusion-steps", type=int, help="of --pipeline continuous: steps a token (default: 100)"
    )
    generate.add_argument(
        "--least-variance",
        action="store_true",
        help="of --pipeline continuous: steps add the least noise, not what the head says",
    )
    for knob, text in (
        ("--num-draft-tokens", "tokens a draft model proposes per round"),
        ("--max-draft-tokens", "most that a length policy may ask for"),
        ("--window", "positions of a Jacobi window"),
        ("--tree-depth", "levels of a dynamic tree"),
        ("--tree-width", "children of a node of a dynamic tree"),
        ("--tree-beam", "nodes of a level of a dynamic tree that get children"),
        ("--tree-nodes", "most nodes of a pruned or merged tree"),
    ):
        generate.add_argument(knob, type=int, help=text)
    generate.add_argument("--drafter", help="in place of the method's own")
    generate.add_argument("--rule", help="in place of the method's own")
    generate.add_argument("--length", help="in place of the method's own")
    generate.add_argument("--jacobi-init", help=", ".join(JACOBI_INITS))
    generate.add_argument("--tree-widths", type=widths, help="such as 3,2,1: children by level")
    generate.add_argument("--siblings", help=", ".join(SIBLINGS))
    generate.add_argument("--merge", type=names, help="drafters of a merged tree: a,b")
    generate.add_argument(
        "-o", "--out", type=Path, default=Path("out"), help="folder (default: out)"
    )
    generate.add_argument("--json", action="store_true", help="print stats.json, not a table")

    cli_ask.add_command(commands)
    cli_video.add_command(commands)
    cli_eval.add_commands(commands)

    train = commands.add_parser("train", help="train an embedded model")
    train.set_defaults(run=_train)
    train.add_argument(
        "recipe",
        help="image-tokenizer, image-target, image-drafter, image-upsampler, image-spatial, "
        "image-head, kl-autoencoder, mar, video-autoencoder, video, clip, vlm or vlm-head",
    )
    train.add_argument("--pipeline", type=Path, default=Path("runs/image"), help="pipeline folder")
    train.add_argument(
        "--stage",
        "--method",
        help="run only this stage, such as sibling; of vlm-head: the method of the draft head",
    )
    train.add_argument("--init", help="component to start from; the stage's own trains it further")
    train.add_argument("--size", type=int, help="side of the pictures in pixels (default: its own)")
    for option, kind in (
        ("--steps", int),
        ("--batch-size", int),
        ("--max-minutes", float),
        ("--workers", int),
        ("--seed", seed),
        ("--rate", float),
        ("--keep", float),
        ("--max-new-tokens", int),
    ):
        train.add_argument(option, type=kind)
    train.add_argument(
        "--data", type=Path, help='questions for vlm-head: lines {"image": path, "question": text}'
    )
    train.add_argument(
        "--set", action="append", metavar="NAME=VALUE", help="of vlm-head's head; repeatable"
    )
    train.add_argument("--device", default="cpu", help="cpu or cuda")
    train.add_argument("--precision", choices=("float32", "bfloat16"), help="of the arithmetic")

    listing = commands.add_parser("ls", help="list models or methods")
    listing.set_defaults(run=_ls)
    listing.add_argument("what", choices=("models", "methods"))
    listing.add_argument("--json", action="store_true")
    return parser


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=seed, default=0)
    parser.add_argument("--guidance", type=float, help="guidance scale (default: the model's own)")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-k", type=int, help="0: all (default: the model's own)")
    parser.add_argument("--top-p", type=float, default=1.0)


def _spec_config(args: argparse.Namespace) -> SpecConfig:
    knobs = ["num_draft_tokens", "max_draft_tokens", "window"]
    knobs += ["drafter", "rule", "length", "jacobi_init", "tree_widths", "siblings", "merge"]
    knobs += ["tree_depth", "tree_width", "tree_beam", "tree_nodes"]
    given = {k: getattr(args, k) for k in knobs if getattr(args, k) is not None}
    return replace(parse_method(args.method)[1], **given)


def _generate(args: argparse.Namespace) -> int:
    from .eval.showcase import compare, print_table

    if args.method is None:
        args.method = DRAWN[args.pipeline]
    config = _spec_config(args)
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
    record = compare(pipe, methods, args.prompt, count, args.seed, call, out)
    if args.json:
        print(json.dumps(record, indent=2))
    else:
        print_table(record["methods"])
        print(f"pictures and stats.json are in {out}/")
    return 0


def _of_ids(args: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """The image pipeline, and its own options of a call."""
    if args.iterations is not None or args.diffusion_steps is not None or args.least_variance:
        raise InputError(
            "--iterations, --diffusion-steps and --least-variance are of --pipeline continuous"
        )
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
        ("num_iterations", args.iterations),
        ("diffusion_steps", args.diffusion_steps),
    ):
        if value is not None:
            call[name] = value
    return open_continuous(args), call


def _train(args: argparse.Namespace) -> int:
    from .train.recipes import train

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
        print(json.dumps(records, indent=2))
    return 0


def _settings(given: list[str] | None) -> dict[str, str] | None:
    """Values by name, of `NAME=VALUE`s."""
    for text in given or ():
        if not all(text.partition("=")):
            raise InputError(f"--set takes NAME=VALUE, not {text!r}")
    return dict(text.split("=", 1) for text in given) if given else None


def _ls(args: argparse.Namespace) -> int:
    if args.what == "methods":
        rows = {}
        for name, m in METHODS.items():
            knob = f"; knob {m.knob}" if m.knob else ""
            serves = " and ".join(m.serves)
            rows[name] = f"{m.summary} ({serves}: {m.drafter}, {m.rule}, {m.length}{knob})"
        return print_names(rows, args.json)
    folders = sorted((Path(__file__).resolve().parent / "assets" / "models").iterdir())
    models = {f.name: str(f) for f in folders if any((f / name).exists() for name in _PIPELINES)}
    return print_names(models, args.json)


if __name__ == "__main__":
    sys.exit(main())
