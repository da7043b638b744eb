"""The sentences of a report: what ran, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..schema import MethodResult, Report
from .format import decimals, duration, fixed, interval, known
from .parts import ends

EXACT = "exact", "exact-greedy"  # contracts that the model itself is kept by, not a rounded one
MARKS = {
    "baseline": "baseline",
    "sceptic": "the sceptic's row",
    "oracle": "an upper bound",
    "peer": "a peer",
    "ablation": "shown grey",
    "again": "other seeds",
}


def counted(report: Report) -> bool:
    """True if head and backbone are counted apart: continuous tokens, and timed."""
    return any(known(row.head_calls_per_sample) for row in report.methods.values())


def title(report: Report) -> str:
    """The suite, and what was measured."""
    rows = report.methods.values()
    timed = any(row.n_speed or known(row.speedup) for row in rows)
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
    if report.date is not None:
        facts.append(("date", report.date[:16].replace("T", " ") + " UTC"))
    if known(report.seconds_total):
        facts.append(("took", duration(report.seconds_total)))
    return facts


def warnings(report: Report) -> list[str]:
    """Warnings to read before a figure is quoted; a heading first, or nothing at all."""
    if report.for_reporting:
        return ["Read this before quoting a figure", *report.notes] if report.notes else []
    return ["Not for reporting: this run was cut short", *report.notes]


def baseline(report: Report) -> str | None:
    """The name of the row that the others are measured against."""
    return next((n for n, row in report.methods.items() if row.role == "baseline"), None)


def first_metric(report: Report) -> str | None:
    """The suite's own metric: the first that any method has."""
    return next((name for row in report.methods.values() for name in row.quality), None)


def calls_saved(report: Report, row: MethodResult, sibling: bool = False) -> float | None:
    """Plain's calls of the target over the row's; None where that means nothing.

    The calls of a drafter that draws alone are not the target's: there is one for every token.
    Of continuous tokens they are those of the head; of several models those of one say nothing.
    With `sibling`, those of a sibling that drew a small picture first count as well.
    """
    plain = baseline(report)
    calls = _calls(row) + ((row.sibling_calls_per_sample or 0.0) if sibling else 0.0)
    if plain is None or row.members or not calls > 0:
        return None
    saved = _calls(report.methods[plain]) / calls
    return saved if row.role != "sceptic" or saved > 1 else None


def _calls(row: MethodResult) -> float:
    """Calls of the target one after the other."""
    heads = row.head_calls_per_sample
    return heads if known(heads) else row.nfe_per_sample


def lede(report: Report) -> str:
    """The outcome in a few sentences that claim no more than the intervals allow."""
    rows = {n: row for n, row in report.methods.items() if row.role == "method"}
    timed = {n: row for n, row in rows.items() if known(row.speedup)}
    if not timed:
        return _fewest_calls(report, rows)
    fastest = leaders(report, timed, lambda name: timed[name].speedup or 0.0)
    sentences = [_sentence(report, name) for name in fastest]
    for name in ends(report):
        row = report.methods[name]
        if row.role == "sceptic" and known(row.speedup):
            sentences.append(_sentence(report, name))
    return " ".join(sentences)


def leaders(report: Report, names: Iterable[str], rank: Callable[[str], float]) -> list[str]:
    """The best exact row, the best other one whose quality held, and the best of all, once each."""
    rows = {name: report.methods[name] for name in names}
    exact = [name for name, row in rows.items() if row.contract in EXACT]
    kept = [name for name, row in rows.items() if name not in exact and held(report, row)]
    best = [max(some, key=rank) for some in (exact, kept, list(rows)) if some]
    return list(dict.fromkeys(best))


def held(report: Report, row: MethodResult) -> bool:
    """True if its quality is shown not to be worse."""
    found = row.quality.get(first_metric(report) or "")
    return found is not None and found.verdict.startswith(("no loss", "within"))


def _sentence(report: Report, name: str) -> str:
    """`scd (exact) is 1.96 times as fast as plain decoding (1.76–2.07), at geneval …`."""
    row = report.methods[name]
    who = f"{name} ({MARKS.get(row.role, row.contract)})"
    spread = interval(row.speedup_interval, 2)
    times = f"{fixed(row.speedup, 2)} times as fast as plain decoding"
    times += f" (95 %: {spread})" if spread else ""
    sure = row.speedup_interval is not None and row.speedup_interval[0] > 1
    start = f"{who} is {times}" if sure else f"{who} is not surely faster: {times}"
    quality = _quality(report, row)
    return start + (f", at {quality}." if quality else ".")


def _fewest_calls(report: Report, rows: dict[str, MethodResult]) -> str:
    saved = {name: calls_saved(report, row, sibling=True) or 0.0 for name, row in rows.items()}
    if not any(saved.values()):
        return ""
    name = max(saved, key=lambda n: saved[n])
    quality = _quality(report, rows[name])
    at = f", at {quality}" if quality else ""
    return (
        f"{name} ({rows[name].contract}) makes {fixed(saved[name], 2)} times fewer calls "
        f"than plain decoding{at}. Speed-ups were not measured."
    )


def _quality(report: Report, row: MethodResult) -> str:
    metric = first_metric(report)
    if metric is None or metric not in row.quality:
        return ""
    mine, plain = row.quality[metric], baseline(report)
    theirs = report.methods[plain].quality.get(metric) if plain is not None else None
    rows = report.methods.values()
    digits = decimals(row.quality[metric].value for row in rows if metric in row.quality)
    text = f"{metric} {fixed(mine.value, digits)}"
    if theirs is not None:
        text += f" against {fixed(theirs.value, digits)}"
    return text + (f" ({mine.verdict})" if mine.verdict else "")
