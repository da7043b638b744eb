"""A thread beside the caller's that runs a network, on a GPU with a stream of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor

Made = TypeVar("Made")


class SideThread:
    """Works one thing after the other, as the caller would: without gradients, under its autocast.

    Args:
        device: where the work is done.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._threads = ThreadPoolExecutor(1, "mmspec-side")

    def submit(self, work: Callable[[], Made]) -> Future[Made]:
        """Begin `work`; it finds done all that the caller's stream was asked for until now.

        What it makes is a tensor, a tuple of them, or None.

        The future is done, or has failed, when the device is done: any stream may read what it
        gives and what was written. Until then nobody else may.
        """
        kind, home = self._device.type, None
        if self._stream is not None:
            home = torch.cuda.current_stream(self._device)
            self._stream.wait_stream(home)
        # weights that autocast keeps are of the stream that casts them
        cast = torch.autocast(
            kind,
            dtype=torch.get_autocast_dtype(kind),
            enabled=torch.is_autocast_enabled(kind),
            cache_enabled=False,
        )

        def do() -> Made:
            stream = self._stream  # None: of no effect
            with torch.inference_mode(), cast, torch.cuda.stream(stream):
                try:
                    made = work()
                    if home is not None:
                        _keep(made, home)
                    return made
                finally:
                    if stream is not None:
                        stream.synchronize()

        return self._threads.submit(do)

    def close(self) -> None:
        """Wait for what has begun; the rest is not done."""
        self._threads.shutdown(cancel_futures=True)


def _keep(made: Any, stream: torch.cuda.Stream) -> None:
    """Keep the memory of a tensor, or of several, while a stream reads it."""
    for x in (made,) if isinstance(made, Tensor) else made or ():
        x.record_stream(stream)
