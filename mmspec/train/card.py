"""Trained components as they are shipped: weights, a card, an entry in the index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import atomic_folder, read_object, write_atomic, write_json


def ship(pipeline: Path, name: str, component: Any, kind: str = "ImagePipeline") -> Path:
    """Save a component into a pipeline folder and its `model_index.json`; returns its folder.

    `kind` is the pipeline's class.
    """
    folder, path = pipeline / name, pipeline / "model_index.json"
    index: dict[str, Any] = read_object(path) if path.exists() else {"_class_name": kind}
    with atomic_folder(folder) as part:
        component.save_pretrained(part)
    index[name] = [type(component).__module__, type(component).__name__]
    write_json(path, dict(sorted(index.items())))
    return folder


def check_pipeline(pipeline: Path, kind: str) -> None:
    """Raise an `InputError` if the folder is that of another class of pipeline than `kind`."""
    path = pipeline / "model_index.json"
    held = read_object(path).get("_class_name") if path.exists() else kind
    if held != kind:
        raise InputError(f"{pipeline} holds a {held}, not a {kind}; give another --pipeline")


def write_card(
    folder: Path,
    *,
    title: str,
    purpose: str,
    limits: str,
    record: dict[str, Any],
    data: str = "the procedural shapes world, drawn afresh for every batch",
    held_out: str = "combinations that training never shows",
) -> None:
    """Write `README.md` and `training.json` beside the weights.

    `record` is the trainer's; a run that started from trained weights has theirs under `before`.
    """
    record = {"component": folder.name, **record}
    figures = "\n".join(f"- {name}: {value:.4g}" for name, value in record["held_out"].items())
    text = f"""# {title}

{purpose[0].upper() + purpose[1:]}.

- data: {data}
{_runs(record)}
- weights: exponential moving average ({record["config"]["ema"]})

Held-out figures ({held_out}):
{figures}

Not good for: {limits}.
"""
    write_atomic(folder / "README.md", text)
    write_json(folder / "training.json", record)


def read_record(folder: Path) -> dict[str, Any] | None:
    """The record that `write_card` left beside a component; None: there is none."""
    path = folder / "training.json"
    if not path.exists():
        return None
    return {"component": folder.name, **read_object(path)}


def _runs(record: dict[str, Any] | None) -> str:
    """A line for every run that led to these weights, the first one first."""
    lines: list[str] = []
    while record:
        config, processes = record["config"], record.get("processes", 1)
        hands = f"{record['threads']} threads"
        if processes > 1:  # each with a batch of its own
            hands = f"{processes} processes of {hands}"
        lines.append(
            f"- trained as `{record['component']}`: {record['step']} of {config['steps']} steps, "
            f"batch {config['batch_size']}, {config['precision']}, seed {config['seed']}, "
            f"{record['minutes']} minutes on {record['device']} ({hands}), "
            f"torch {record['torch']}"
        )
        record = record.get("before")
    return "\n".join(reversed(lines))
