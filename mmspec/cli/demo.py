"""`mmspec demo`: the Gradio app."""

from __future__ import annotations

import argparse
import signal
import threading
from pathlib import Path
from typing import Any, NoReturn

from ..devices import check_device
from ..errors import InputError
from ..methods import MODALITIES, Modality
from ..registry import check_name
from .options import add_command, add_pairs, check_range


def add_parser(commands: Any) -> None:
    demo = add_command(commands, "demo", _demo, "try every modality in a browser")
    demo.add_argument("--host", default="127.0.0.1", help="address to serve at (default: local)")
    demo.add_argument("--port", type=int, default=7860, help="port to serve at")
    text = f"a checkpoint to offer, of {', '.join(MODALITIES)}; may be given again"
    add_pairs(demo, "--model", "MODALITY=FOLDER", text)
    demo.add_argument(
        "--models-root",
        type=Path,
        metavar="FOLDER",
        help="visitors may name checkpoints and reports inside this folder (default: any path "
        "from this machine, none from elsewhere)",
    )
    demo.add_argument("--device", default="cpu", help="cpu or cuda")


def _demo(args: argparse.Namespace) -> int:
    models: dict[Modality, list[Path]] = {modality: [] for modality in MODALITIES}
    for modality, folder in args.model:
        check_name("modality", modality, MODALITIES)
        if not Path(folder).is_dir():
            raise InputError(f"no model folder at {folder}")
        models[modality].append(Path(folder))
    check_range(args, 1, 65535, "port")
    if args.models_root is not None and not args.models_root.is_dir():
        raise InputError(f"--models-root {args.models_root} is no folder")

    from ..app.server import served

    check_device(args.device)
    before = signal.signal(signal.SIGTERM, end_of_signal)
    try:
        with served(models, args.host, args.port, args.models_root, args.device) as address:
            print(f"The demo is at {address} (Ctrl-C ends it)", flush=True)
            threading.Event().wait()
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def end_of_signal(number: int, frame: object) -> NoReturn:
    """End as Ctrl-C does, uploads removed; the exit code is the one that shells give a signal."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what is asked for twice is done once
    raise SystemExit(128 + number)
