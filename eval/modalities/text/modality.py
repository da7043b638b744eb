"""Measurement of language models on conversations."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ....errors import InputError
from ....methods import SpecConfig
from ....models.transformers.prompted import most_positions
from ....pipelines.text.pipeline import TextPipeline
from ...data.conversations import Conversation
from ...measure.categories import categories
from ...run.job import Job, Plan
from ...run.run_folder import RunFolder
from ..base import Rows
from ..modality import Modality
from ..vlm.answers import most_tokens
from ..vlm.peers import peers
from ..vlm.rows import complete_rows
from . import llama_cpp
from .bench import TextBench
from .talk import inputs_of

LENGTHS = 64, 256, 1024  # tokens of prompts up to which they are of one class
TIE = 1e-4  # logits that differ by less are equal up to rounding in float32
LISTED = 8  # differences of answers that a note lists one by one


class TextModality(Modality):
    """Measurement of answers in text; see `Modality`."""

    pipeline = TextPipeline
    model = "smollm2"
    entropy_samples = 4
    bench = TextBench

    def check_call(self, pipe: Any, config: SpecConfig, call: Mapping[str, Any]) -> None:
        pipe.check_speculation(config)

    def check(self, job: Job, todo: Plan, pipe: Any) -> None:
        strange = [name for name in job.files if name != "prompts"]
        if strange:
            raise InputError(f"suite {job.suite.name} has no use for {', '.join(strange)}")
        if pipe is not None:
            for config in job.configs.values():
                pipe.check_speculation(config)
            count = min(max(todo.speed, self.entropy_samples), len(job.prompts))
            check_conversations(pipe, [job.prompt(n) for n in range(count)], most_tokens(job))

    def variants(self, job: Job) -> list[str]:
        others = [*peers(job.configs), *llama_cpp.peers_of(job)] if job.suite.peers else []
        return [*job.configs, *others]

    def complete(self, job: Job, folder: RunFolder, rows: Rows) -> list[str]:
        complete_rows(job, folder.log, rows)
        notes = []
        timed = {
            name: [line for line in _lines(folder, "speed", name) if line["batch"] == 1]
            for name in rows
        }
        first = next(iter(rows))
        plain, told = timed[first], _lines(folder, "quality", first)
        length_of = {line["index"]: input_length(line["prompt_tokens"]) for line in told}
        for name, row in rows.items():
            row.categories = categories(timed[name], plain, lambda index: job.prompt(index).tag)
            by_length = categories(timed[name], plain, lambda index: length_of[index])
            row.input_lengths = {one: by_length[one] for one in length_classes(by_length)}
            if found := _parted(name, _lines(folder, "quality", name)):
                notes.append(found)
        return notes


def length_classes(found: Collection[str]) -> list[str]:
    """The classes among `found`, the shortest prompts first."""
    every = [input_length(tokens) for tokens in (*LENGTHS, LENGTHS[-1] + 1)]
    return [name for name in every if name in found]


def input_length(tokens: int) -> str:
    """The class of prompts with so many tokens."""
    low = 1
    for most in LENGTHS:
        if tokens <= most:
            return f"{low:,} to {most:,} tokens"
        low = most + 1
    return f"{low:,} tokens and more"


def check_conversations(pipe: TextPipeline, items: Sequence[Conversation], limit: int) -> None:
    """Say early which conversation would end a run: it is longer than the model's context.

    Args:
        limit: new tokens of an answer.

    Raises:
        InputError: there is such a conversation; its number is named.
    """
    longest = most_positions(pipe.model.config.get_text_config())
    for number, item in enumerate(items, 1):
        turns = [{"role": "user", "content": turn} for turn in item.turns]
        told = [one for turn in turns for one in (turn, {"role": "assistant", "content": ""})]
        try:
            length = inputs_of(pipe, told[:-1])["input_ids"].shape[1] + limit * len(item.turns)
        except InputError as error:
            raise InputError(f"conversation {number}: {error}") from error
        if longest is not None and length > longest:
            raise InputError(
                f"conversation {number} may take {length} tokens, and the model has {longest} "
                "positions; leave it out, or allow fewer new tokens"
            )


def _lines(folder: RunFolder, kind: str, name: str) -> list[dict[str, Any]]:
    own = [line for line in folder.log.of(kind) if line["method"] == name]
    return sorted(own, key=lambda line: int(line["index"]))


def _parted(name: str, answers: Sequence[dict[str, Any]]) -> str | None:
    """Where greedy answers leave plain's, and how many of them at a tie."""
    gaps = [line["gap"] for line in answers if "gap" in line]
    if not gaps:
        return None
    ties = sum(gap is not None and gap < TIE for gap in gaps)
    told = ", ".join("an end" if gap is None else f"{gap:.1g}" for gap in gaps)
    known = [gap for gap in gaps if gap is not None]
    if known and len(gaps) > LISTED:
        told = f"from {min(known):.1g} to {max(known):.1g}"
    return (
        f"{name}: {len(gaps)} answers leave plain's, {ties} of them where two logits differ by "
        f"less than {TIE:g}, which is rounding (differences: {told})"
    )
