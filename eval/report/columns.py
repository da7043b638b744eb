"""Columns of a report's rows: heading, figure, meaning and when it is shown, each said once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..schema import MethodResult, Report
from . import format as f
from .summary import calls_saved, counted
from .table import Cell
from .wording import wording


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        heading: names its modality's words in braces, `{outputs}` and `{units}`.
        cell: its figure of a row.
        meaning: what the heading doesn't say itself.
        term: what the meaning is of, where it isn't the heading's alone.
        seldom: shown only where a row has something in it.
        when: of which reports it is one at all.
    """

    heading: str
    cell: Callable[[MethodResult], Cell]
    meaning: str = ""
    term: str = ""
    seldom: bool = False
    when: Callable[[Report], bool] = lambda report: True

    @property
    def defines(self) -> str:
        """The term that the meaning is of."""
        return self.term or self.heading[0].upper() + self.heading[1:]

    def title(self, report: Report) -> str:
        """The heading in a report."""
        words = wording(report)
        return self.heading.format(outputs=words.outputs, units=words.units)

    def shown(self, report: Report) -> bool:
        """True if a report has the column."""
        filled = any(self.cell(row).text != f.MISSING for row in report.methods.values())
        return self.when(report) and (filled or not self.seldom)


def figure(
    field: str, digits: int | None = 1, *, unit: str = "", ci95: str = ""
) -> Callable[[MethodResult], Cell]:
    """A cell of one field of a row.

    Args:
        digits: decimals; None: three significant figures.
        ci95: the field of its interval.
    """

    def cell(row: MethodResult) -> Cell:
        value = getattr(row, field)
        text = f.significant(value) if digits is None else f.fixed(value, digits, unit=unit)
        return Cell(text, f.interval(getattr(row, ci95), digits or 0) if ci95 else "")

    return cell


def speedup(row: MethodResult) -> Cell:
    """Speed-up of the token loop, of video that of all clips together, with its interval."""
    return Cell(f.fixed(row.speedup, 2, unit="×"), f.interval(row.speedup_interval, 2))


def tokens_per_call(row: MethodResult) -> Cell:
    """The mean acceptance length; nothing where the target is not asked."""
    length = row.mean_acceptance_length if row.nfe_per_sample else None
    return Cell(f.fixed(length, 2), f.interval(row.mean_acceptance_length_ci95, 2))


def fewer_calls(report: Report, row: MethodResult, digits: int = 1) -> Cell:
    """Times fewer calls of the target, and beside it with a sibling's, which may cost as much.

    Of continuous tokens the calls of a drafter's head stand beside it: how large it is, and what a
    call of it costs, no count tells.
    """
    alone = f.fixed(calls_saved(report, row), digits, unit="×")
    if row.drafter_head_calls_per_sample:  # one after the other, and not the target's
        drafted = f.fixed(row.drafter_head_calls_per_sample, 0)
        if alone == f.MISSING:
            return Cell(alone, notes=(f"the drafter's {drafted} head calls alone",))
        return Cell(alone, notes=(f"and {drafted} head calls of the drafter",))
    if not f.known(row.sibling_calls_per_sample):
        return Cell(alone)
    both = f.fixed(calls_saved(report, row, sibling=True), digits, unit="×")
    calls = f.fixed(row.sibling_calls_per_sample, 1)
    if alone == f.MISSING:
        return Cell(both, notes=(f"the sibling's {calls} calls alone",))
    return Cell(alone, notes=(f"{both} with the sibling's {calls} calls",))


def _variation(row: MethodResult) -> Cell:
    if row.tv_per_step is None:
        return Cell()
    mean, most = map(f.tiny, row.tv_per_step)
    return Cell(mean, notes=(f"max {most}",))


def _samples(row: MethodResult) -> Cell:
    both = row.n_speed and row.quality
    return Cell(f"{row.n:,}", notes=(f"{row.n_speed:,} timed",) if both else ())


def _uncounted(report: Report) -> bool:
    return not counted(report)


SPEEDUP = Column(
    "speed-up",
    speedup,
    "Plain's seconds in the token loop over the method's, for the same prompt and seed in "
    "one process at batch 1, methods in turn; the median over prompts. Prefill, captions "
    "and pixels are left out; end to end has them. Answers that differ in length are compared "
    "token for token.",
)
END_TO_END = Column(
    "speed-up end to end",
    figure("speedup_end_to_end_median", 2, unit="×", ci95="speedup_end_to_end_ci95"),
    when=lambda report: not wording(report).whole_calls,
)
TOKENS_PER_CALL = Column(
    "tokens per call",
    tokens_per_call,
    "The mean acceptance length: tokens emitted per call of the target, the recovered or "
    "bonus token included. Plain decoding has 1.",
    when=_uncounted,
)
DRAFTED = Column(
    "drafted",
    lambda r: Cell(f.share(r.drafted_share)),
    "The share of all blocks that are the drafter's, the forced first ones included.",
    seldom=True,
)
REUSED = Column(
    "reused",
    lambda r: Cell(f.share(r.reused_share)),
    "The share of the target's layers, over all of its calls, that did not run: they added what "
    "they had added to the block before.",
    seldom=True,
)
_MEDIAN = figure("speedup_median", 2, unit="×", ci95="speedup_ci95")
_IDEAL = (
    "The ideal is the speed-up if the bare forward passes that the method needed were all that "
    "took time. Efficiency is measured over ideal; the rest is the engine's own cost."
)
_PER_SECOND = (
    "Outputs over the seconds of whole calls, and output tokens over those of the token loop, at "
    "batch 1."
)


def _over_transformers(row: MethodResult) -> Cell:
    found = row.over_transformers
    if found is None:
        return Cell()
    return Cell(f.fixed(found.value, 2, unit="×"), f.interval(found.ci95, 2))


# of every report: what a method promises, and how fast it is; its quality goes beside them
PROMISED = (
    Column(
        "contract",
        lambda r: Cell(r.contract),
        "What a method promises about its output. Exact: the same law as plain decoding of the "
        "target. Exact-greedy: the same tokens when decoding greedily. Bounded: away from that "
        "law by no more than a set amount. Lossy: no promise, only what was measured.",
    ),
    SPEEDUP,
    Column(
        "over transformers",
        _over_transformers,
        "Seconds of the token loop a token of transformers' own generate, plain, over the row's, "
        "for the same prompts in one process; the median over prompts. Of plain it says what this "
        "loop gains before anything is drafted.",
        seldom=True,
    ),
    Column(
        "of the median clip",
        # where that of all together is the one to quote
        lambda r: Cell() if r.speedup_of_all is None else _MEDIAN(r),
        "The same clip by clip, and the median over prompts: drafts may stand in most clips and "
        "fall in others, so that it says less of a long run, and does not go with a mean quality.",
        seldom=True,
    ),
)
# and what that costs
COSTS = (
    Column(
        "same output",
        lambda r: Cell(f.share(r.same_output)),
        "How many of a row's greedy answers are, to the letter, those of plain decoding. Sums in "
        "another order may round two equally likely tokens the other way.",
        seldom=True,
    ),
    Column(
        "total variation",
        _variation,
        "The most by which the probability of any event differs between the next token as the "
        "rule emits it and the target's own; 0 is the same law. Mean over the steps of real "
        "rounds, and the largest.",
        seldom=True,
    ),
    Column("n", _samples),
    DRAFTED,
    REUSED,
    Column(
        "NFE",
        figure("nfe_per_sample"),
        "Calls of the target that generate a sample, the prefill of the prompt not counted. It "
        "carries over to other machines; seconds do not.",
        when=_uncounted,
    ),
    Column(
        "sibling's calls",
        figure("sibling_calls_per_sample"),
        "Calls of a model of the target's kind that draws a small picture first, which is then "
        "scaled up. NFE leaves them out, and a call of a sibling as large as the target takes as "
        "long as one of the target.",
        seldom=True,
        when=_uncounted,
    ),
    TOKENS_PER_CALL,
    Column(
        "head calls",
        figure("head_calls_per_sample"),
        "Calls of the target's diffusion head one after the other, for a picture that is drawn "
        "alone: what its reader waits for. Tokens that are denoised together share them. Rows are "
        "what those calls computed, a token at one step each, twice under guidance: drafts that "
        "are judged together take fewer calls and not fewer rows. They carry over to other "
        "machines; seconds do not. Those of a drafter's head come on top: it denoises step by "
        "step, too.",
        when=counted,
    ),
    Column(
        "drafter's head calls",
        lambda r: Cell(f.fixed(r.drafter_head_calls_per_sample or None, 1)),
        seldom=True,
        when=counted,
    ),
    Column("head rows", figure("head_rows_per_sample", 0), when=counted),
    Column(
        "backbone calls",
        figure("backbone_calls_per_sample"),
        "The same of the network that tells the head about a token's neighbours.",
        when=counted,
    ),
    Column(
        "steps per call",
        tokens_per_call,
        "The mean acceptance length: denoising steps of a token per call of the head it took part "
        "in, the recovered or bonus step included. Plain sampling has 1.",
        when=counted,
    ),
    Column("seconds", figure("seconds_median", None)),
    Column(
        "ideal", figure("ideal_speedup", 2, unit="×"), _IDEAL, "Ideal and efficiency", seldom=True
    ),
    Column(
        "efficiency",
        lambda r: Cell(f.share(r.engine_efficiency)),
        _IDEAL,
        "Ideal and efficiency",
        seldom=True,
    ),
    Column(
        "target efficiency",
        lambda r: Cell(f.share(r.target_efficiency)),
        "Seconds of a call of plain's target over those of a call that judges drafts, rounds "
        "without one among them: near 100 % drafts are read for nothing. Of sparse experts it "
        "falls as drafts touch more of them.",
        seldom=True,
    ),
    Column(
        "experts per call",
        figure("experts_per_call", 2),
        "Of a target with sparse experts, how many of a layer's a call of the target touches, the "
        "mean over calls and layers: more the more tokens it reads. And how many all calls touch "
        "that draft for a round, where the target's own weights draft.",
        "Sparse experts",
        seldom=True,
    ),
    Column("experts per draft", figure("experts_per_draft", 2), seldom=True),
    Column(
        "entries kept",
        figure("cache_entries_per_sample"),
        "Entries of a prompt that stay in the target's cache, the mean over samples; in the draft "
        "model's; and how many tokens a draft model wrote ahead, from which they were chosen.",
        "Compressed caches",
        seldom=True,
    ),
    Column("entries kept to draft", figure("draft_cache_entries_per_sample"), seldom=True),
    Column("written ahead", figure("lookahead_tokens_per_sample"), seldom=True),
    Column(
        "peak memory",
        lambda r: Cell(f.memory(r.peak_memory_bytes)),
        "Most memory in use during the row's calls by all that the run has loaded, and so by "
        "models and copies of weights that other rows read, too; on a processor by the process.",
    ),
)
FURTHER = tuple(  # what the headline has no room for, where a row has something in it
    replace(column, seldom=True)
    for column in (
        Column("target tokens", figure("target_tokens_per_sample"), when=_uncounted),
        Column(
            "steps that the head read, a token",
            figure("target_tokens_per_sample"),
            when=counted,
        ),
        Column("latency p50, s", figure("seconds_median", None)),
        Column(
            "latency p95, s",
            figure("seconds_p95", None),
            "Seconds of a whole call at batch 1: p50 is the middle one, p95 that which one call in "
            "twenty exceeds, told from 20 calls on.",
            "Latency",
        ),
        Column(
            "{outputs} per second",
            figure("outputs_per_second", None),
            _PER_SECOND,
            "Per second",
        ),
        Column("{units} per second", figure("tokens_per_second", None), _PER_SECOND, "Per second"),
        Column(
            "seconds of the token loop",
            figure("decode_seconds_median", None),
            when=END_TO_END.when,
        ),
        END_TO_END,
        Column("energy, J", figure("energy_joules_per_sample", None)),
        Column("entropy, nats per token", figure("target_entropy", 2)),
        Column("drafter's head calls", figure("drafter_head_calls_per_sample")),
        Column("drafter's backbone calls", figure("drafter_backbone_calls_per_sample")),
    )
)
