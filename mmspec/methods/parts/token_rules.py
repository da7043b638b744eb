"""Exact acceptance rules of token ids."""

from __future__ import annotations

from ...errors import InputError
from ..options import Options, option
from ..part import Drafter, Rule


class PruneOptions(Options):
    prune_layers: int | None = option(
        None, "first layers of the target that prune drafts; none: half of them", 1
    )
    prune_probability: float = option(
        1e-4, "drafted tokens to which these layers give less are pruned", 0, 1
    )

    def check_layers(self, layers: int) -> None:
        if layers < 2:
            raise InputError("a target whose first layers prune drafts needs two layers or more")
        if self.prune_layers is not None and self.prune_layers >= layers:
            raise InputError(
                f"prune_layers must be below the target's {layers} layers, not {self.prune_layers}"
            )


def _reads_all(options: PruneOptions, drafter: Drafter) -> str | None:
    if not (drafter.window or drafter.settled):
        return None
    return (
        f"rule 'restricted' leaves pruned tokens unread, and drafter {drafter.name!r} drafts from "
        "the target's laws behind all of them; use 'token'"
    )


PARTS = (
    Rule(
        "token",
        ".token:TokenRule",
        "a token stands with probability p / q",
        greedy=True,
        paper="Leviathan et al. 2023",
    ),
    Rule(
        "restricted",
        ".restricted:RestrictedRule",
        "a token stands with probability p / q if the target's first layers let it through",
        PruneOptions,
        {"layers": "prune_layers", "least": "prune_probability"},
        early=True,
        check=_reads_all,
        paper="Chen et al. 2026",
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
