"""Model cards: what an embedded model was trained on, for how long, and what it is not good for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write_card(
    folder: Path, *, title: str, purpose: str, limits: str, record: dict[str, Any]
) -> None:
    """Write `README.md` and `training.json` beside the weights."""
    config = record["config"]
    held_out = "\n".join(f"- {name}: {value:.4g}" for name, value in record["held_out"].items())
    text = f"""# {title}

{purpose[0].upper() + purpose[1:]}.

- data: the procedural shapes world (`mmspec.worlds.shapes`), drawn afresh for every batch, seed {config["seed"]}
- steps: {record["step"]} of {config["steps"]}, batch {config["batch_size"]}, {config["precision"]}
- time: {record["minutes"]} minutes on {record["device"]} ({record["threads"]} threads), torch {record["torch"]}
- weights: exponential moving average ({config["ema"]}), stored in half precision

Held-out figures (combinations that training never shows):
{held_out}

Not good for: {limits}.
"""
    folder.joinpath("README.md").write_text(text)
    folder.joinpath("training.json").write_text(json.dumps(record, indent=2) + "\n")
