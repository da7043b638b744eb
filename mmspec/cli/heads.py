"""`mmspec heads`: published draft heads, shown and written in another layout."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..files import to_json
from .options import add_command, add_json, add_quiet, folder

if TYPE_CHECKING:
    from ..models.heads.published.head import PublishedHead


# tensors that some heads of a format store and others leave out, by the first part of their names
OPTIONAL = (
    *("embed_tokens", "lm_head", "fc_norm", "input_norm"),
    *("markov_head", "confidence_head", "prefix_gru", "embed_proj"),
)


def add_commands(commands: Any) -> None:
    heads = commands.add_parser("heads", help="read published draft heads, and convert them")
    add_quiet(heads)
    actions = heads.add_subparsers(dest="action", metavar="action", required=True)
    show = add_command(actions, "show", _show, "format, sizes and layers of a draft head")
    convert = add_command(actions, "convert", _convert, "write a draft head in another layout")
    for parser in (show, convert):
        parser.add_argument("head", help="folder or hub id of the head")
        parser.add_argument("--kind", help="msd, for a head of MSD: its files look like EAGLE-1's")
        add_json(parser)
    show.add_argument(
        "--vllm", action="store_true", help="print the JSON of vLLM's --speculative-config"
    )
    convert.add_argument("out", type=Path, help="folder that is made")
    convert.add_argument("--format", help="such as speculators or eagle3 (default: its own kind's)")
    convert.add_argument("--target", help="the target's name or path, which vLLM reads")
    convert.add_argument(
        "--architecture", action="append", default=[], help="the target's class, for speculators"
    )


# by method here: what vLLM calls it, and what else it has to be told
VLLM: dict[str, dict[str, Any]] = {
    "dflash": {"method": "dflash"},
    "dspark": {"method": "dspark"},
    "eagle": {"method": "eagle"},
    "eagle3": {"method": "eagle3"},
    "medusa": {"method": "medusa"},
    "peagle": {"method": "eagle3", "parallel_drafting": True},
}


def _show(args: argparse.Namespace) -> int:
    head = _load(args)
    if args.vllm:
        print(to_json(vllm_config(head, args.head)))
        return 0
    return _print(facts(head), args.json)


def vllm_config(head: PublishedHead, name: str) -> dict[str, Any]:
    """Value of vLLM's option `--speculative-config` for a head of this name.

    As many tokens are drafted as the files say, or else as the method drafts here.

    Raises:
        InputError: vLLM has no method for such a head.
    """
    from ..methods import SpecConfig

    if head.borrows:
        raise InputError(
            "vLLM has no draft heads that take rows of their target's output layer; train one with "
            "an output layer of its own (--set output=own)"
        )
    if head.method not in VLLM:
        known = ", ".join(VLLM)
        raise InputError(f"vLLM has no method for {head.method} heads; it has for {known}")
    tokens = head.length or SpecConfig(head.method).resolve("vlm").options["num_draft_tokens"]
    return {"model": name, **VLLM[head.method], "num_speculative_tokens": tokens}


def _convert(args: argparse.Namespace) -> int:
    head = _load(args)
    if args.out.exists():
        raise InputError(f"{args.out} is there already; name another folder")
    folder(args.out)
    head.save_pretrained(
        args.out, args.format, name_or_path=args.target, architectures=args.architecture
    )
    return _print(facts(_load(argparse.Namespace(head=args.out, kind=args.kind))), args.json)


def _load(args: argparse.Namespace) -> PublishedHead:
    from ..models.heads.loading import load_head

    return load_head(args.head, kind=args.kind)


def facts(head: PublishedHead) -> dict[str, Any]:
    """Facts of a head by name, as JSON values."""
    from ..models.heads.formats.write import formats_of

    own = head.vocabulary
    parts = [*dict.fromkeys(name.split(".")[0] for name in head.network.state_dict())]
    optional = [name for name in parts if name in OPTIONAL]
    if own is not None:
        optional += ["d2t", "t2d"]
    return {
        "format": head.format,
        "method": head.method,
        "hidden size of the target": head.target_size,
        "hidden states that it reads": None if head.reads is None else list(head.reads),
        "vocabulary": head.vocab_size,
        "tokens that it drafts": head.vocab_size if own is None else len(own.ids),
        "tokens a draft": head.length,
        "optional tensors that it stores": optional or ["none"],
        "weights": sum(weight.numel() for weight in head.parameters()),
        "can be written as": list(formats_of(head)),
    }


def _print(found: dict[str, Any], as_json: bool) -> int:
    if as_json:
        print(to_json(found, indent=2))
        return 0
    width = max(map(len, found))
    for name, value in found.items():
        if isinstance(value, list):
            value = ", ".join(map(str, value)) or "the last one"
        print(f"{name:<{width}}  {'not said' if value is None else value}")
    return 0
