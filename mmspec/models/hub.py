"""Repositories of the Hugging Face hub, downloaded into its own cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import InputError, reason
from ..progress import no_bars, say


def downloaded(repository: str, only: list[str] | None = None, **how: Any) -> Path:
    """The folder of a repository.

    Args:
        repository: id, such as "owner/name".
        only: patterns of the files that are needed; None: all.
        how: of `snapshot_download`, such as `revision` and `token`.

    Raises:
        InputError: the hub does not give it.
    """
    import huggingface_hub
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    say(f"downloading {repository}")
    hide = bool(no_bars()) and not are_progress_bars_disabled()
    if hide:
        disable_progress_bars()
    try:
        return Path(huggingface_hub.snapshot_download(repository, allow_patterns=only, **how))
    except Exception as error:  # the library raises what its parts raise
        raise InputError(
            f"no folder {repository} here, and the hub did not give it: {reason(error)}"
        ) from error
    finally:
        if hide:
            enable_progress_bars()
