"""What the words of a report mean: of its columns, its rows, its tables and its modality."""

from __future__ import annotations

from ..schema import MethodResult, Report
from .columns import FURTHER, HEADLINE
from .wording import wording

# of tables that show a field of the rows
OF_FIELDS = {
    "acceptance_by_position": (
        "Acceptance by position",
        "How often the drafted token at a position stood, given that all before it did.",
    ),
    "accepted_lengths": (
        "Accepted lengths",
        (
            "Of how many drafts no token stood, of how many exactly one, and so on: what the mean "
            "acceptance length is a mean of, less the token that the target adds to each."
        ),
    ),
    "knob": (
        "Knob",
        (
            "The one setting of a method that trades its speed for quality. Rows that differ in it "
            "alone are one method at several of its values, from safe to fast."
        ),
    ),
    "members": (
        "Speculative Verdict",
        (
            "Experts answer, those that the others agree with most give their reasons, and the "
            "model answers with these before it. Not the model's own answer: judged by accuracy, "
            "against each expert alone and the model alone (plain)."
        ),
    ),
    "at_equal_share": (
        "At equal drafted shares",
        (
            "A method's mean less that of a mixture of two rows of another way to route, which "
            "drafts just as much: some clips as in the one, the others as in the other. Anybody "
            "could route so, and nothing is assumed of what lies between the two; where they lie "
            "far apart, a row between them would be better than the mixture, so two methods stand "
            "each against the other. A row that drafts more than all of the other way is itself "
            "mixed, with plain. Prompts are resampled and the mixture is found anew each time. "
            "Each interval is 95 % by itself, not all together."
        ),
    ),
}
OF_ROLES = {
    "sceptic": (
        "The sceptic's row",
        (
            "The cheap way to be fast, such as fewer steps or the drafter alone: what a method has "
            "to beat."
        ),
    ),
    "peer": (
        "A peer",
        (
            "transformers' own generate on the same models, in the same process and by the same "
            "clock, against our plain decoding. A hook counts its calls of the target; the first "
            "reads the prompt and emits already, and its seconds are left out of the token loop, "
            "to the peer's advantage. Its assistant is shown no picture."
        ),
    ),
    "ablation": (
        "Shown grey",
        (
            "The same method while its drafter is shown a grey picture, and the target the true "
            "one. The ratio of both acceptance lengths is what the drafter gains by looking."
        ),
    ),
    "again": (
        "Other seeds",
        (
            "Plain once more, with other seeds: how far every figure moves by chance alone. A "
            "distance that ends in to_plain is to these pictures; plain's own is the noise floor, "
            "and a method of the same law is not surely above it."
        ),
    ),
}
OF_ALL = {
    "Interval": (
        "95 %, by resampling the prompts, each with all of its samples. Differences to plain are "
        "paired: same prompt, same seed. None where there are too few prompts for one."
    ),
    "Verdict": (
        "What the interval of the loss against plain allows to say. No loss: all of it is at or "
        "below 0. Within M: all of it is at or below the margin M. Worse: all of it is above the "
        "margin. Undecided: none of these; more samples would tell."
    ),
}


def definitions(report: Report) -> dict[str, str]:
    """What a report's words mean, by term."""
    rows: list[MethodResult] = list(report.methods.values())
    shown = [column for column in (*HEADLINE, *FURTHER) if column.shown(report)]
    found = {column.defines: column.meaning for column in shown if column.meaning}
    found |= dict(of for field, of in OF_FIELDS.items() if any(getattr(r, field) for r in rows))
    found |= OF_ALL
    found |= dict(of for role, of in OF_ROLES.items() if any(row.role == role for row in rows))
    words = wording(report)
    found |= {term: words.meanings.get(term, meaning) for term, meaning in found.items()}
    return found | dict(words.definitions)
