"""Exact acceptance rules of token ids."""

from __future__ import annotations

from ..part import Rule

PARTS = (
    Rule(
        "token",
        ".token:TokenRule",
        "a token stands with probability p / q",
        greedy=True,
        paper="Leviathan et al. 2023",
    ),
    Rule(
        "block",
        ".block:BlockRule",
        "the draft is judged as a whole",
        greedy=True,
        joint=True,
        paper="Sun et al. 2024",
    ),
    Rule(
        "greedy",
        ".greedy:GreedyRule",
        "the target's likeliest token stands",
        contract="exact-greedy",
        paper="Leviathan et al. 2023",
    ),
    Rule(
        "recursive",
        ".recursive:RecursiveRule",
        "siblings take their turns against what is left of the target's law",
        trees=True,
        paper="Jeon et al. 2024",
    ),
    Rule(
        "k-seq",
        ".kseq:KSeqRule",
        "one of several independent siblings is selected",
        trees=True,
        one_law=True,
        paper="Sun et al. 2023",
    ),
)
