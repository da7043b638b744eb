"""Training-free compressors of visual tokens."""

from __future__ import annotations

from ..part import Compressor

PARTS = (
    Compressor(
        "fastv",
        ".fastv:fastv",
        "the tokens that the last text token attends to",
        needs=("attention",),
        through="model",
        paper="Chen et al. 2024",
    ),
    Compressor(
        "draft-attention",
        ".draft_attention:draft_attention",
        "the tokens that the question attends to in a draft model, and their neighbours",
        needs=("attention",),
        takes=("grid",),
        through="drafter",
        paper="Galim et al. 2025",
    ),
    Compressor(
        "visionzip",
        ".visionzip:visionzip",
        "the tokens that the tower looks at, and a summary of the rest",
        needs=("attention", "keys"),
        paper="Yang et al. 2024",
    ),
    Compressor(
        "divprune",
        ".divprune:divprune",
        "tokens as unlike each other as can be",
        paper="Alvar et al. 2025",
    ),
    Compressor(
        "tome",
        ".tome:tome",
        "similar tokens are merged",
        takes=("keys",),
        paper="Bolya et al. 2023",
    ),
    Compressor(
        "prumerge",
        ".prumerge:prumerge",
        "outliers of the class token's attention, with their neighbours merged in",
        needs=("attention", "keys"),
        layer=-1,
        mean_keys=False,
        adaptive=True,
        paper="Shang et al. 2024",
    ),
    Compressor("pool", ".pool:pool", "average pooling on the grid", takes=("grid",)),
)
