"""Environment of a run: versions, commit, machine, and how busy it was."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch


def environment(device: torch.device) -> dict[str, Any]:
    """Versions, and the machine whose `device` does the work."""
    import diffusers
    import transformers

    from .. import __version__

    return {
        "mmspec": __version__,
        "commit": commit(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "diffusers": diffusers.__version__,
        "python": platform.python_version(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
    }


def dtype_name(dtype: torch.dtype) -> str:
    """`float32`, without its library."""
    return str(dtype).removeprefix("torch.")


def commit() -> str | None:
    """The commit of the checkout that runs, marked if files differ from it; None: no checkout."""
    root = Path(__file__).resolve().parents[1]
    # a checkout may belong to somebody else, as in a container
    command = ["git", "-c", f"safe.directory={root}", "-C", str(root)]
    command += ["describe", "--always", "--dirty", "--abbrev=12", "--match="]
    if not (root / ".git").exists():
        return None
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def processor() -> str:
    """The processor's name, as far as the system tells."""
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":")[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
