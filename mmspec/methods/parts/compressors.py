"""Training-free compressors of visual tokens."""

from __future__ import annotations

from ..part import Compressor

_HERE = "mmspec.compress"

PARTS = (
    # attention of the language model; `fastv.last_token_attention` makes it
    Compressor(
        "fastv",
        f"{_HERE}.fastv:fastv",
        "the tokens that the last text token attends to",
        needs_attention=True,
        paper="Chen et al. 2024",
    ),
    Compressor(
        "visionzip",
        f"{_HERE}.visionzip:visionzip",
        "the tokens that the tower looks at, and a summary of the rest",
        needs_attention=True,
        needs_keys=True,
        paper="Yang et al. 2024",
    ),
    Compressor(
        "divprune",
        f"{_HERE}.divprune:divprune",
        "tokens as unlike each other as can be",
        paper="Alvar et al. 2025",
    ),
    Compressor(
        "tome",
        f"{_HERE}.tome:tome",
        "similar tokens are merged",
        takes=("keys",),
        paper="Bolya et al. 2023",
    ),
    Compressor(
        "prumerge",
        f"{_HERE}.prumerge:prumerge",
        "outliers of the class token's attention, with their neighbours merged in",
        needs_attention=True,
        needs_keys=True,
        layer=-1,
        mean_keys=False,
        adaptive=True,
        paper="Shang et al. 2024",
    ),
    Compressor(
        "pool",
        f"{_HERE}.pool:pool",
        "average pooling on the grid",
        takes=("grid",),
    ),
)
