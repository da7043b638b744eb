"""The sentences of a report: what ran, what came of it, and what its figures mean."""

from __future__ import annotations

from collections.abc import Iterable

from ..schema import MethodResult, Report
from .format import decimals, fixed, interval, known

MARKS = {
    "baseline": "baseline",
    "sceptic": "the sceptic's row",
    "peer": "a peer",
    "ablation": "shown grey",
    "again": "other seeds",
}

DEFINITIONS = {
    "Contract": (
        "What a method promises about its output. Exact: the same law as plain decoding of the "
        "target. Exact-greedy: the same tokens when decoding greedily. Bounded: away from that "
        "law by no more than a set amount. Lossy: no promise, only what was measured."
    ),
    "Total variation": (
        "The most by which the probability of any event differs between the next token as the "
        "rule emits it and the target's own; 0 is the same law. Mean over the steps of real "
        "rounds, and the largest."
    ),
    "NFE": (
        "Calls of the target that generate a sample, the prefill of the prompt not counted. It "
        "carries over to other machines; seconds do not."
    ),
    "Tokens per call": (
        "The mean acceptance length: tokens emitted per call of the target, the recovered or "
        "bonus token included. Plain decoding has 1."
    ),
    "Acceptance by position": (
        "How often the drafted token at a position stood, given that all before it did."
    ),
    "Speed-up": (
        "Plain's seconds in the token loop over the method's, for the same prompt and seed in "
        "one process at batch 1, methods in turn; the median over prompts. Prefill, captions "
        "and pixels are left out; end to end has them. Answers that differ in length are compared "
        "token for token."
    ),
    "Ideal and efficiency": (
        "The ideal is the speed-up if the bare forward passes that the method needed were all "
        "that took time. Efficiency is measured over ideal; the rest is the engine's own cost."
    ),
    "Interval": (
        "95 %, by resampling the prompts, each with all of its samples. Differences to plain are "
        "paired: same prompt, same seed. None where there are too few prompts for one."
    ),
    "Verdict": (
        "What the interval of the loss against plain allows to say. No loss: all of it is at or "
        "below 0. Within M: all of it is at or below the margin M. Worse: all of it is above "
        "the margin. Undecided: none of these; more samples would tell."
    ),
    "Knob": (
        "The one setting of a method that trades its speed for quality. Rows that differ in it "
        "alone are one method at several of its values, from safe to fast."
    ),
    "The sceptic's row": (
        "The cheap way to be fast, such as fewer steps or the drafter alone: what a method has "
        "to beat."
    ),
}


TEXT_DEFINITIONS = {
    "Same output": (
        "How many of a row's greedy answers are, to the letter, those of plain decoding. Sums in "
        "another order may round two equally likely tokens the other way."
    ),
    "A peer": (
        "transformers' own generate on the same models, in the same process and by the same clock, "
        "against our plain decoding. A hook counts its calls of the target; the first reads the "
        "prompt and emits already, and its seconds are left out of the token loop, to the peer's "
        "advantage. Its assistant is shown no picture."
    ),
    "Shown grey": (
        "The same method while its drafter is shown a grey picture, and the target the true one. "
        "The ratio of both acceptance lengths is what the drafter gains by looking."
    ),
    "Truthfulness and coverage": (
        "Of a description: the share of its claims that hold in the scene, and the share of the "
        "scene's objects that it introduces with their colour."
    ),
    "Speculative Verdict": (
        "Experts answer, those that the others agree with most give their reasons, and the model "
        "answers with these before it. Not the model's own answer: judged by accuracy, against "
        "each expert alone and the model alone (plain)."
    ),
}

CONTINUOUS_DEFINITIONS = {
    "Head calls": (
        "Calls of the target's diffusion head one after the other, for a picture that is drawn "
        "alone: what its reader waits for. Tokens that are denoised together share them. Rows are "
        "what those calls computed, a token at one step each, twice under guidance: drafts that "
        "are judged together take fewer calls and not fewer rows. They carry over to other "
        "machines; seconds do not."
    ),
    "Backbone calls": "The same of the network that tells the head about a token's neighbours.",
    "Steps per call": (
        "The mean acceptance length: denoising steps of a token per call of the head it took part "
        "in, the recovered or bonus step included. Plain sampling has 1."
    ),
}
AGAIN_DEFINITIONS = {
    "Other seeds": (
        "Plain once more, with other seeds: how far every figure moves by chance alone. A distance "
        "that ends in to_plain is to these pictures; plain's own is the noise floor, and a method "
        "of the same law is not surely above it."
    ),
}


def definitions(report: Report) -> dict[str, str]:
    """What a report's words mean."""
    found = dict(DEFINITIONS)
    if counted(report):
        found = {n: text for n, text in found.items() if n not in ("NFE", "Tokens per call")}
        found |= CONTINUOUS_DEFINITIONS
    if any(row.role == "again" for row in report.methods.values()):
        found |= AGAIN_DEFINITIONS
    return found | (TEXT_DEFINITIONS if report.pipeline == "vlm" else {})


def counted(report: Report) -> bool:
    """Whether head and backbone are counted apart: continuous tokens, and timed."""
    return any(known(row.head_calls_per_sample) for row in report.methods.values())


def title(report: Report) -> str:
    """The suite, and what was measured."""
    rows = report.methods.values()
    timed = any(row.n_speed or known(row.speedup_median) for row in rows)
    judged = any(row.quality for row in rows)
    what = [name for name, is_so in (("speed", timed), ("quality", judged)) if is_so]
    return f"{report.suite}: {' and '.join(what) or 'target calls'}"


def what_ran(report: Report) -> list[tuple[str, str]]:
    """The run in a few facts, by name."""
    facts = [
        ("pipeline", report.pipeline),
        ("model", report.model),
        ("methods", str(len(report.methods))),
    ]
    judged = max((row.n for row in report.methods.values() if row.quality), default=0)
    timed = max((row.n_speed for row in report.methods.values()), default=0)
    facts += [("judged", f"{judged:,} samples a method")] if judged else []
    facts += [("timed", f"{timed:,} prompts")] if timed else []
    if known(report.target_entropy):
        facts.append(("target's entropy", f"{fixed(report.target_entropy, 2)} nats per token"))
    return facts


def warnings(report: Report) -> list[str]:
    """What must be read before a figure is quoted; a heading first, or nothing at all."""
    if report.for_reporting:
        return ["Read this before quoting a figure", *report.notes] if report.notes else []
    return ["Not for reporting: this run was cut short", *report.notes]


def baseline(report: Report) -> str | None:
    """The name of the row that the others are measured against."""
    return next((n for n, row in report.methods.items() if row.role == "baseline"), None)


def first_metric(report: Report) -> str | None:
    """The suite's own metric: the first that any method has."""
    return next((name for row in report.methods.values() for name in row.quality), None)


def calls_saved(report: Report, row: MethodResult) -> float | None:
    """How many times fewer calls of the target than plain decoding; None where that means nothing.

    The calls of a drafter that draws alone are not the target's: there is one for every token.
    Of continuous tokens they are those of the head.
    """
    plain = baseline(report)
    if plain is None or not _calls(row) > 0:
        return None
    saved = _calls(report.methods[plain]) / _calls(row)
    return saved if row.role != "sceptic" or saved > 1 else None


def _calls(row: MethodResult) -> float:
    """Calls of the target one after the other."""
    heads = row.head_calls_per_sample
    return heads if known(heads) else row.nfe_per_sample


def lede(report: Report) -> str:
    """The outcome in a few sentences that claim no more than the intervals allow."""
    rows = {n: row for n, row in report.methods.items() if row.role == "method"}
    timed = {n: row for n, row in rows.items() if known(row.speedup_median)}
    if not timed:
        return _fewest_calls(report, rows)
    exact = {n: row for n, row in timed.items() if row.contract.startswith("exact")}
    held = {n: row for n, row in timed.items() if n not in exact and _held(report, row)}
    leaders = dict.fromkeys(_fastest(group) for group in (exact, held, timed) if group)
    sentences = [_sentence(report, name) for name in leaders]
    for name, row in report.methods.items():
        if row.role == "sceptic" and known(row.speedup_median):
            sentences.append(_sentence(report, name))
    return " ".join(sentences)


def _fastest(rows: dict[str, MethodResult]) -> str:
    return max(rows, key=lambda name: rows[name].speedup_median or 0.0)


def _held(report: Report, row: MethodResult) -> bool:
    """Whether its quality is shown not to be worse."""
    found = row.quality.get(first_metric(report) or "")
    return found is not None and found.verdict.startswith(("no loss", "within"))


def _sentence(report: Report, name: str) -> str:
    """`scd (exact) is 1.96 times as fast as plain decoding (1.76–2.07), at geneval …`."""
    row = report.methods[name]
    who = f"{name} ({MARKS.get(row.role, row.contract)})"
    spread = interval(row.speedup_ci95, 2)
    times = f"{fixed(row.speedup_median, 2)} times as fast as plain decoding"
    times += f" (95 %: {spread})" if spread else ""
    sure = row.speedup_ci95 is not None and row.speedup_ci95[0] > 1
    start = f"{who} is {times}" if sure else f"{who} is not surely faster: {times}"
    quality = _quality(report, row)
    return start + (f", at {quality}." if quality else ".")


def _fewest_calls(report: Report, rows: dict[str, MethodResult]) -> str:
    saved = {name: calls_saved(report, row) or 0.0 for name, row in rows.items()}
    if not any(saved.values()):
        return ""
    name = max(saved, key=lambda n: saved[n])
    quality = _quality(report, rows[name])
    at = f", at {quality}" if quality else ""
    return (
        f"{name} ({rows[name].contract}) makes {fixed(saved[name], 2)} times fewer calls of the "
        f"target than plain decoding{at}. Speed-ups were not measured."
    )


def _quality(report: Report, row: MethodResult) -> str:
    metric = first_metric(report)
    if metric is None or metric not in row.quality:
        return ""
    mine, plain = row.quality[metric], baseline(report)
    theirs = report.methods[plain].quality.get(metric) if plain is not None else None
    digits = decimals(_values(report.methods.values(), metric))
    text = f"{metric} {fixed(mine.value, digits)}"
    if theirs is not None:
        text += f" against {fixed(theirs.value, digits)}"
    return text + (f" ({mine.verdict})" if mine.verdict else "")


def _values(rows: Iterable[MethodResult], metric: str) -> list[float]:
    return [row.quality[metric].value for row in rows if metric in row.quality]
