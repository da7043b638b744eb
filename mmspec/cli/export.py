"""`mmspec export`: what other tools load."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..files import to_json
from .options import add_command, add_json, add_quiet, folder


def add_commands(commands: Any) -> None:
    export = commands.add_parser("export", help="write what other tools load")
    add_quiet(export)
    actions = export.add_subparsers(dest="action", metavar="action", required=True)
    text = "a repository for transformers' generate(custom_generate=FOLDER)"
    generate = add_command(actions, "custom-generate", _custom_generate, text)
    generate.add_argument("folder", type=Path, help="folder that is made")
    text = "nodes for ComfyUI: FOLDER lies in its custom_nodes"
    nodes = add_command(actions, "comfyui", _comfyui, text)
    nodes.add_argument("folder", type=Path, help="folder that is made")
    text = "a block for diffusers' ModularPipeline.from_pretrained(FOLDER)"
    block = add_command(actions, "diffusers", _diffusers, text)
    text = "image, continuous or glm-image, whose tokens GlmImagePipeline takes"
    block.add_argument("block", metavar="BLOCK", help=text)
    block.add_argument("folder", type=Path, help="folder that is made")
    for parser in (generate, nodes, block):
        add_json(parser, "a line")


def _custom_generate(args: argparse.Namespace) -> int:
    from ..integrations.custom_generate import write_custom_generate

    write_custom_generate(folder(args.folder))
    name = str(args.folder)
    use = f"model.generate(**inputs, custom_generate={name!r}, trust_remote_code=True)"
    return _tell(args, use)


def _comfyui(args: argparse.Namespace) -> int:
    from ..integrations.comfyui_folder import write_comfyui

    write_comfyui(folder(args.folder))
    return _tell(args, f"start ComfyUI again; workflows are in {args.folder / 'workflows'}")


def _diffusers(args: argparse.Namespace) -> int:
    from ..integrations.diffusers_blocks import write_block

    write_block(args.block, folder(args.folder))
    use = f"ModularPipeline.from_pretrained({str(args.folder)!r}, trust_remote_code=True)"
    return _tell(args, use)


def _tell(args: argparse.Namespace, use: str) -> int:
    """Tell how a folder is used that was made; returns the exit code."""
    print(to_json({"folder": str(args.folder), "use": use}, indent=2) if args.json else use)
    return 0
