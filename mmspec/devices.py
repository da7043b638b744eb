"""Devices: tests of what can be computed on one, and waiting until it is done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import InputError

if TYPE_CHECKING:
    import torch


def check_device(device: str | int | torch.device) -> None:
    """Raise an `InputError` if nothing can be computed on `device`."""
    import torch

    try:
        if torch.empty(0, device=device).is_meta:
            raise RuntimeError("it holds no numbers")
    except (RuntimeError, AssertionError, TypeError) as error:
        why = str(error).splitlines()[0].split(". ")[0]  # torch says much behind it
        raise InputError(f"device {str(device)!r} can't be used: {why}; 'cpu' can") from error


def wait(device: torch.device) -> None:
    """Wait for what the current stream of `device` was asked for; other streams go on."""
    import torch

    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
