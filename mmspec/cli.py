"""The command line. Heavy imports happen inside the commands, so that help answers at once."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from . import __version__
from .config import JACOBI_INITS, METHODS, SIBLINGS, SpecConfig
from .errors import InputError
from .registry import check_name


class Parser(argparse.ArgumentParser):
    """Errors as one line, exit code 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    args = build_parser().parse_args(argv)
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
    _add_model(generate)
    generate.add_argument(
        "--method", default="draft", help=f"{', '.join(METHODS)} (default: draft)"
    )
    generate.add_argument("--compare", action="store_true", help="also draw plainly, in pairs")
    generate.add_argument("-n", "--num-images", type=int, help="default: 1, with --compare 4")
    generate.add_argument("--size", type=int, help="side in pixels (default: the model's own)")
    _add_sampling(generate)
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
    generate.add_argument("--tree-widths", type=_widths, help="such as 3,2,1: children by level")
    generate.add_argument("--siblings", help=", ".join(SIBLINGS))
    generate.add_argument("--merge", type=_names, help="drafters of a merged tree: a,b")
    generate.add_argument(
        "-o", "--out", type=Path, default=Path("out"), help="folder (default: out)"
    )
    generate.add_argument("--json", action="store_true", help="print stats.json, not a table")

    evaluate = commands.add_parser("eval", help="measure methods over a suite")
    actions = evaluate.add_subparsers(required=True, metavar="ACTION")
    run = actions.add_parser("run", help="run a suite and write report.json")
    run.set_defaults(run=_eval_run)
    run.add_argument("--suite", required=True)
    run.add_argument("--pipeline", default="image")
    _add_model(run)
    run.add_argument("--methods", default=",".join(METHODS), help="comma-separated")
    run.add_argument("--limit", type=int, help="most prompts")
    run.add_argument("--size", type=int, help="side in pixels (default: the model's own)")
    run.add_argument("--seed", type=_seed, default=0)
    run.add_argument("-o", "--out", type=Path, required=True)
    run.add_argument("--json", action="store_true", help="print the report, not a table")
    bench = actions.add_parser("bench", help="benchmark the plain loop, verification and start-up")
    bench.set_defaults(run=_eval_bench)
    _add_model(bench)
    bench.add_argument("--samples", type=int, default=10)
    bench.add_argument("--only", type=_names, help="some of the benchmarks: a,b")
    listing = actions.add_parser("ls", help="list the suites")
    listing.set_defaults(run=_eval_ls)
    listing.add_argument("--json", action="store_true")

    train = commands.add_parser("train", help="train an embedded model")
    train.set_defaults(run=_train)
    train.add_argument("recipe", help="image-tokenizer, image-target or image-drafter")
    train.add_argument("--pipeline", type=Path, default=Path("runs/image"), help="pipeline folder")
    train.add_argument("--stage", help="run only this stage: sibling or transformer")
    train.add_argument("--init", help="component to start from; the stage's own trains it further")
    for option, kind in (
        ("--steps", int),
        ("--batch-size", int),
        ("--max-minutes", float),
        ("--workers", int),
        ("--seed", _seed),
    ):
        train.add_argument(option, type=kind)
    train.add_argument("--device", default="cpu", help="cpu or cuda")
    train.add_argument("--precision", choices=("float32", "bfloat16"), help="of the arithmetic")

    names = commands.add_parser("ls", help="list models or methods")
    names.set_defaults(run=_ls)
    names.add_argument("what", choices=("models", "methods"))
    names.add_argument("--json", action="store_true")
    return parser


def _seed(text: str) -> int:
    if text.isascii() and text.isdigit() and int(text) < 2**63:
        return int(text)
    raise argparse.ArgumentTypeError(f"must be an integer from 0 to 2**63 - 1, not {text!r}")


def _widths(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(width) for width in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be integers such as 3,2,1, not {text!r}") from None


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", help="pipeline folder or hub id (default: the embedded model)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=_seed, default=0)
    parser.add_argument("--guidance", type=float, default=2.0, help="guidance scale")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-k", type=int, default=100)
    parser.add_argument("--top-p", type=float, default=1.0)


def _spec_config(args: argparse.Namespace) -> SpecConfig:
    knobs = ["num_draft_tokens", "max_draft_tokens", "window"]
    knobs += ["drafter", "rule", "length", "jacobi_init", "tree_widths", "siblings", "merge"]
    knobs += ["tree_depth", "tree_width", "tree_beam", "tree_nodes"]
    given = {k: getattr(args, k) for k in knobs if getattr(args, k) is not None}
    return SpecConfig(method=args.method, **given)


def _pipeline(args: argparse.Namespace) -> Any:
    """The image pipeline that the arguments name, on its device, without progress bars."""
    from transformers.utils import logging

    from .pipelines.image import ImagePipeline

    logging.disable_progress_bar()
    _check_device(args.device)
    pipe = ImagePipeline.from_pretrained(args.model).to(args.device)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def _check_device(device: str) -> None:
    import torch

    try:
        if torch.empty(0, device=device).is_meta:
            raise RuntimeError("it holds no numbers")
    except (RuntimeError, AssertionError) as error:
        first = str(error).splitlines()[0]
        raise InputError(f"device {device!r} can't be used: {first}") from error


def _generate(args: argparse.Namespace) -> int:
    from .eval.compare import compare, print_table

    config = _spec_config(args)
    if not args.prompt.strip():
        raise InputError("the prompt is empty; say what to draw")
    count = args.num_images if args.num_images is not None else (4 if args.compare else 1)
    if not 1 <= count <= 1000:
        raise InputError(f"--num-images must be from 1 to 1000, not {count}")
    out = _folder(args.out)
    call = {
        "guidance_scale": args.guidance,
        "temperature": args.temperature,
        "top_k": args.top_k,
        "top_p": args.top_p,
        "height": args.size,
    }
    methods = {"plain": SpecConfig(method="plain")} if args.compare else {}
    methods[args.method] = config
    record = compare(_pipeline(args), methods, args.prompt, count, args.seed, call, out)
    if args.json:
        print(json.dumps(record, indent=2))
    else:
        print_table(record["methods"])
        print(f"pictures and stats.json are in {out}/")
    return 0


def _eval_run(args: argparse.Namespace) -> int:
    from dataclasses import asdict

    from tqdm.auto import tqdm

    from .eval.compare import print_table
    from .eval.runner import PIPELINES, load_suite, parse_methods, run_suite

    check_name("pipeline", args.pipeline, PIPELINES)
    suite, methods = load_suite(args.suite), parse_methods(args.methods)
    if args.limit is not None and args.limit < 1:
        raise InputError(f"--limit must be at least 1, not {args.limit}")
    out, pipe = _folder(args.out), _pipeline(args)
    call = {"height": args.size} if args.size is not None else {}
    # the delay: bad input is one line on stderr, without a bar above it
    with tqdm(desc=suite.name, unit="sample", delay=1) as bar:

        def progress(done: int) -> None:
            bar.update(done - bar.n)

        report = run_suite(
            suite,
            pipe,
            methods,
            args.limit,
            out,
            args.seed,
            call,
            args.model or "embedded",
            progress,
        )
    rows = asdict(report)
    if args.json:
        print(json.dumps(rows, indent=2))
    else:
        print_table(rows["methods"])
        print(f"report.json and samples.jsonl are in {out}/")
    return 0


def _eval_bench(args: argparse.Namespace) -> int:
    from .eval.benchmarks import run_benchmarks

    if args.samples < 1:
        raise InputError(f"--samples must be at least 1, not {args.samples}")
    print(json.dumps(run_benchmarks(_pipeline(args), args.samples, args.only), indent=2))
    return 0


def _eval_ls(args: argparse.Namespace) -> int:
    from .eval.runner import SUITES, load_suite

    suites = [load_suite(path.stem) for path in sorted(SUITES.glob("*.yaml"))]
    return _print_names({suite.name: suite.summary for suite in suites}, args.json)


def _train(args: argparse.Namespace) -> int:
    from .train.recipes import train

    _check_device(args.device)
    if args.workers is not None and args.workers < 0:
        raise InputError(f"--workers must be 0 or more, not {args.workers}")
    for option in ("steps", "batch_size", "max_minutes"):
        value = getattr(args, option)
        if value is not None and not 0 < value < float("inf"):
            raise InputError(f"--{option.replace('_', '-')} must be above 0, not {value}")
    records = train(
        args.recipe,
        _folder(args.pipeline),
        stage=args.stage,
        init=args.init,
        steps=args.steps,
        batch_size=args.batch_size,
        max_minutes=args.max_minutes,
        workers=args.workers,
        seed=args.seed,
        device=args.device,
        precision=args.precision,
    )
    print(json.dumps(records, indent=2))
    return 0


def _ls(args: argparse.Namespace) -> int:
    if args.what == "methods":
        rows = {
            name: f"{m.summary} ({m.drafter}, {m.rule}, {m.length})" for name, m in METHODS.items()
        }
        return _print_names(rows, args.json)
    folder = Path(__file__).resolve().parent / "assets" / "models"
    models = {p.parent.name: str(p.parent) for p in sorted(folder.glob("*/model_index.json"))}
    return _print_names(models, args.json)


def _print_names(rows: dict[str, str], as_json: bool) -> int:
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        width = max(map(len, rows), default=0)
        for name, text in rows.items():
            print(f"{name:<{width}}  {text}")
    return 0


def _folder(path: Path) -> Path:
    """The path of a folder that can be written to: tried before any long work, leaving no trace."""
    made: list[Path] = []
    try:
        made = [folder for folder in (path, *path.parents) if not folder.exists()]
        path.mkdir(parents=True, exist_ok=True)
        probe = path / ".mmspec-write-test"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(f"can't write to {path}: {error.strerror}") from error
    finally:
        for folder in made:
            with suppress(OSError):
                folder.rmdir()
    return path


if __name__ == "__main__":
    sys.exit(main())
