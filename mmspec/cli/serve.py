"""`mmspec serve`: OpenAI's routes over the models."""

from __future__ import annotations

import argparse
import os
import signal
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..devices import check_device
from ..errors import InputError, absent
from ..files import read_text
from ..hosts import check_address, is_loopback
from .demo import end_of_signal
from .options import add_command, add_pairs, check_range

if TYPE_CHECKING:
    from ..serve.backend import Backend
    from ..serve.loading import Offered
    from ..serve.requests import ServeLimits

KEY = "MMSPEC_API_KEY"  # the environment's name for a key
_DEFAULT = (("vlm", "embedded-vlm"), ("image", "embedded-image"))


def add_parser(commands: Any) -> None:
    serve = add_command(commands, "serve", _serve, "answer OpenAI's clients: chat, and pictures")
    text = "a model to offer: text, vlm, image or continuous, and a folder, hub id or name; may be "
    text += "given again (default: the embedded vlm and image)"
    add_pairs(serve, "--model", "KIND=MODEL", text)
    add_pairs(serve, "--method", "KIND=METHOD", "how models of a kind speculate: vlm='eagle'")
    serve.add_argument("--host", default="127.0.0.1", help="address to serve at (default: local)")
    serve.add_argument("--port", type=int, default=8000, help="port to serve at")
    serve.add_argument(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help=f"keys of clients, one a line (default: the environment's {KEY}, or none)",
    )
    serve.add_argument(
        "--no-key", action="store_true", help="serve other machines without asking for a key"
    )
    serve.add_argument(
        "--replicas",
        type=_replicas,
        metavar="N or N-M",
        help="processes that run the models, on Ray Serve (default: this process alone)",
    )
    serve.add_argument("--cluster", help="address of a Ray cluster (default: this machine)")
    serve.add_argument("--batch", type=int, default=16, help="answers that run at a time")
    serve.add_argument("--waiting", type=int, default=256, help="requests that may wait")
    serve.add_argument("--seconds", type=float, default=120.0, help="that a request may take")
    serve.add_argument("--max-tokens", type=int, default=2048, help="of an answer")
    serve.add_argument("--device", default="cpu", help="cpu or cuda")


def _serve(args: argparse.Namespace) -> int:
    check_range(args, 1, 65535, "port")
    check_range(args, 1, 4096, "batch")
    check_range(args, 1, 100_000, "waiting")
    check_range(args, 1, 2**20, "max_tokens")
    if not args.seconds > 0:
        raise InputError(f"--seconds must be above 0, not {args.seconds}")
    if args.cluster is None:  # its machines have devices of their own
        check_device(args.device)
    keys = api_keys(args.api_key_file)
    try:
        import fastapi  # noqa: F401  # the routes'
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        raise absent(f"the server needs {error.name}", "serve") from error

    from ..serve.app import build_app
    from ..serve.requests import ServeLimits
    from ..serve.web_server import run_server

    if not keys and not args.no_key and not is_loopback(args.host):
        raise InputError(
            f"other machines can reach {args.host}: give --api-key-file, or --no-key if all may ask"
        )
    check_address(args.host, args.port)
    limits = ServeLimits(
        rows=args.batch, waiting=args.waiting, seconds=args.seconds, tokens=args.max_tokens
    )
    models = offered(args.model, args.method, args.device)
    ready = f"The server is at http://{args.host}:{args.port}/v1 (Ctrl-C ends it)"
    local = not args.no_key and is_loopback(args.host)
    before = signal.signal(signal.SIGTERM, end_of_signal)
    try:
        with _backend(models, limits, args.replicas, args.cluster) as backend:
            app = build_app(backend, limits, keys, local)
            print(ready, flush=True)
            # a replica is sent the next batch ahead
            most = 1 if args.replicas is None else 2 * args.replicas[1]
            run_server(app, backend, args.host, args.port, limits, most * len(models))
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def _backend(
    models: list[Offered],
    limits: ServeLimits,
    replicas: tuple[int, int] | None,
    cluster: str | None,
) -> AbstractContextManager[Backend]:
    """The models, in this process or in replicas."""
    if replicas is not None:
        from ..serve.scale_out import scaled_out

        return scaled_out(models, limits, replicas, cluster)
    if cluster is not None:
        raise InputError("--cluster is for --replicas; give both")
    from ..serve.loading import local_backend

    return closing(local_backend(models, limits))


def _replicas(text: str) -> tuple[int, int]:
    """An option's value as the least and the most replicas."""
    least, dash, most = text.partition("-")
    both = (least, most if dash else least)
    if not all(one.isascii() and one.isdigit() for one in both):
        raise argparse.ArgumentTypeError(f"must be a number or two, such as 2 or 1-4, not {text!r}")
    low, high = map(int, both)
    if not 0 < low <= high:
        raise argparse.ArgumentTypeError(f"must be from 1 on and in order, not {text!r}")
    return low, high


def offered(
    models: list[tuple[str, str]], methods: list[tuple[str, str]], device: str
) -> list[Offered]:
    """The models of the options.

    Raises:
        InputError: a kind of model that there is not, or a method for a kind that is not offered.
    """
    from ..serve.loading import Offered

    by_kind = dict(methods)
    made = [Offered.read(*one, by_kind.get(one[0]), device) for one in models or _DEFAULT]
    idle = sorted(by_kind.keys() - {one.kind for one in made})
    if idle:
        raise InputError(f"--method {idle[0]}=… is for a kind of model that is not offered")
    return made


def api_keys(file: Path | None) -> list[str]:
    """Keys of a file, or the one of the environment.

    Raises:
        InputError: the file can't be read or holds none.
    """
    if file is None:
        return [key for key in [os.environ.get(KEY, "").strip()] if key]
    keys = [line.strip() for line in read_text(file).splitlines()]
    keys = [key for key in keys if key and not key.startswith("#")]
    if not keys:
        raise InputError(f"{file} holds no key; write one a line")
    return keys
