"""Parts of a report's row, beside plain numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

from .strict import STRICT


@dataclass
class Quality:
    """Metric of a method.

    Attributes:
        value: over all samples.
        ci95: its 95 % bootstrap interval; None where none is made.
        difference_to_plain, difference_ci95: method less plain, over the same prompts and seeds.
        larger_is_better: which way is up.
        verdict: what the interval allows to say of the loss against plain: "no loss", "within M",
            "worse", "undecided"; "" without a margin and for plain itself.
        parts: the value by part, such as GenEval's tasks.
        share_of_plain, share_ci95: of video, and of GenEval's score: the value over plain's, over
            the same prompts and seeds, and its interval.
    """

    __pydantic_config__ = STRICT

    value: float
    ci95: tuple[float, float] | None = None
    difference_to_plain: float | None = None
    difference_ci95: tuple[float, float] | None = None
    larger_is_better: bool = True
    verdict: str = ""
    parts: dict[str, float] = field(default_factory=dict)
    share_of_plain: float | None = None
    share_ci95: tuple[float, float] | None = None


@dataclass
class Throughput:
    """Speed of whole batches of one size.

    Attributes:
        n: batches measured.
        tokens_per_second: output tokens of all rows over the seconds of the token loop, in a closed
            loop of the whole call; median.
        speedup_median, speedup_ci95: paired ratio of those seconds to plain's at the same size.
        first_token_seconds: in a closed loop, from when a prompt takes its row to its first token;
            median.
        tokens_per_second_each: in a closed loop, output tokens over the seconds that an answer
            takes.
        head_calls: of continuous tokens, calls of the target's head for a whole batch, one after
            the other; mean.
    """

    __pydantic_config__ = STRICT

    n: int
    tokens_per_second: float
    speedup_median: float | None = None
    speedup_ci95: tuple[float, float] | None = None
    head_calls: float | None = None
    first_token_seconds: float | None = None
    tokens_per_second_each: float | None = None


@dataclass
class Ratio:
    """A figure of a row over another row's, on the same samples, with its interval."""

    __pydantic_config__ = STRICT

    value: float
    ci95: tuple[float, float] | None = None


@dataclass
class Category:
    """Row of a method on the prompts of one category.

    Attributes:
        n: prompts.
        mean_acceptance_length, mean_acceptance_length_ci95: tokens emitted per target call.
        acceptance_by_position, acceptance_by_position_ci95: share of drafted tokens that stood,
            given those before them did; an interval is None of too few prompts.
        tokens_per_second: of the token loop.
        speedup_median, speedup_ci95: paired decode-time ratio to plain; None for plain itself.
    """

    __pydantic_config__ = STRICT

    n: int
    mean_acceptance_length: float
    acceptance_by_position: list[float]
    tokens_per_second: float
    speedup_median: float | None = None
    speedup_ci95: tuple[float, float] | None = None
    mean_acceptance_length_ci95: tuple[float, float] | None = None
    acceptance_by_position_ci95: list[tuple[float, float] | None] = field(default_factory=list)


@dataclass
class EqualShare:
    """Gain in the suite's first metric over another way to save, at the same share.

    It is the share of blocks that are drafted, or of layers that are reused.

    The other way is a mixture of two of its rows: of all clips, `weight` are the second one's. Of a
    row that drafts more than all of them a mixture with the one that drafts least is compared.

    Attributes:
        value, ci95: what is gained, and its 95 % bootstrap interval.
        rows: the two that are mixed, the one that drafts less first.
        weight: share of the second, chosen so that the mixture drafts as much.
        against: as which row, if it is the row itself that is mixed; None: the others are.
    """

    __pydantic_config__ = STRICT

    value: float
    ci95: tuple[float, float] | None
    rows: list[str]
    weight: float
    against: str | None = None


@dataclass
class Choice:
    """A branch of a compressor that chooses by the question.

    Attributes:
        n: questions that it was chosen for.
        visual, kept: tokens of the pictures, mean, and how many of them the drafter read.
        seconds: spent on choosing and compressing, mean.
    """

    __pydantic_config__ = STRICT

    n: int
    visual: float
    kept: float
    seconds: float


@dataclass
class Member:
    """Mean cost of one model among several for a question: calls, tokens, seconds."""

    __pydantic_config__ = STRICT

    calls: float
    tokens: float
    seconds: float
