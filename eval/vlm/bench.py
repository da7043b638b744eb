"""Does the units of a vision-language run: answers, times and scores of every row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

from ...errors import InputError
from ...picture import BACKGROUND
from ...pipelines.vlm.pipeline import VlmPipeline
from ..data.picture_questions import Asked
from ..environment import dtype_name, environment
from ..files import png_bytes
from ..measure.speed import WARMUP, speed_line
from ..measure.timing import Sample, rotated, timed
from ..run.job import Job, Outcome, Unit
from ..run.samples import Line
from . import arms, experts
from .answers import Answers, Arm, Batch
from .entropy import answer_entropy
from .inputs import picture_side
from .peers import PEER, REFUSED

TOKENS = 128  # new tokens of an answer where the suite does not say


class VlmBench:
    """See `Bench`.

    Args:
        job: what is measured.
        pipe: where; its own method stays as it is.
    """

    def __init__(self, job: Job, pipe: VlmPipeline) -> None:
        self.job, self.pipe = job, pipe
        self.limit = max(int(call.get("max_new_tokens", TOKENS)) for call in job.calls.values())
        self._experts = experts.Experts(job, pipe)
        self._arms: dict[str, Arm] = {}
        self._warm = False

    def run(self, unit: Unit) -> Outcome:
        """See `Bench.run`."""
        work = {"speed": self._speed, "quality": self._quality}.get(unit.kind, self._target)
        try:
            return work(unit)
        except InputError as error:
            last = unit.first + unit.count - 1
            which = f"samples {unit.first} to {last}" if unit.count > 1 else f"sample {unit.first}"
            raise InputError(f"{which}: {error}") from error

    def _target(self, unit: Unit) -> Outcome:
        """The entropy of the target's answers, and the machine."""
        indices = range(unit.first, unit.first + unit.count)
        entropy = answer_entropy(self.pipe, self._asked(indices), self.limit)
        model = self.pipe.model
        machine = {**environment(self.pipe.device), "dtype": dtype_name(model.dtype)}
        side = getattr(getattr(model.config, "vision_config", None), "image_size", None)
        if isinstance(side, int):  # other towers take pictures of any size
            machine["resolution"] = f"{side}×{side} px"
        return Outcome(unit, [{"kind": "target", "entropy": entropy, "environment": machine}])

    def _speed(self, unit: Unit) -> Outcome:
        """One question by every arm in turn, in every way to call."""
        if not self._warm:
            for _ in range(WARMUP):
                list(self._in_turn(unit))
            self._warm = True
        outcome = Outcome(unit, [], self._shown(unit))
        for name, sample in self._in_turn(unit):
            if isinstance(sample, str):
                outcome.lines.append({"kind": "refused", "method": name, "reason": sample})
                continue
            outcome.lines.append(speed_line(unit, name, sample))
            outcome.lines += self._judged(unit, name, sample.output)
        return outcome

    def _in_turn(self, unit: Unit) -> Iterator[tuple[str, Sample | str]]:
        """What every row took for one question, or why it could not answer."""
        indices = range(unit.first, unit.first + unit.count)
        asked = self._asked(indices)
        names = arms_of(self.job)
        for call, given in self.job.calls.items():
            for name in rotated(names, unit.first):
                run = partial(self._arm(name).answer, asked, given)
                try:
                    sample: Sample | str = timed(
                        self.pipe.device, asked.questions[0], asked.seeds[0], run
                    )
                except REFUSED as error:
                    if not name.startswith(PEER):
                        raise
                    sample = " ".join(str(error).split()) or type(error).__name__
                yield row_name(name, call), sample

    def _quality(self, unit: Unit) -> Outcome:
        """Some questions by one row; those of a method of ours are one batch."""
        name, _, call = unit.method.partition("@")
        indices = range(unit.first, unit.first + unit.count)
        answers = self._arm(name).answer(self._asked(indices), self.job.calls[call])
        outcome = Outcome(unit, self._judged(unit, unit.method, answers), self._shown(unit))
        counts = {"kind": "counts", "method": unit.method, "stats": asdict(answers.stats)}
        outcome.lines.append(counts)
        return outcome

    def _judged(self, unit: Unit, method: str, answers: Answers) -> list[Line]:
        """The lines of a row's answers, with what is known of them."""
        lines, wanted = [], self.job.suite.metrics
        for row, text in enumerate(answers.text):
            index = unit.first + row
            item: Asked = self.job.prompt(index)
            line: Line = {
                "kind": "quality",
                "method": method,
                "index": index,
                "prompt": item.prompt,
                "item": index % len(self.job.prompts),
                "tag": item.tag,
                "seed": self.job.seed + index,
                "shown": picture_path(index % len(self.job.prompts)),
                "text": text,
                "scores": {m: x for m, x in item.scores(text).items() if m in wanted},
                "reason": "",
                "nfe": answers.stats.calls[row],
            }
            if answers.members:
                line["members"] = {n: asdict(cost) for n, cost in answers.members[row].items()}
            if answers.choices:
                line["choice"] = asdict(answers.choices[row])
            lines.append(line)
        return lines

    def _asked(self, indices: range) -> Batch:
        """Some samples."""
        items: list[Asked] = [self.job.prompt(index) for index in indices]
        side, background = picture_side(self.pipe), self.job.call.get("background", BACKGROUND)
        pictures = [item.picture(side, background) for item in items]
        return Batch(pictures, [i.prompt for i in items], [self.job.seed + i for i in indices])

    def _shown(self, unit: Unit) -> dict[str, bytes]:
        """The pictures that a unit asks about, by their place in the run's folder."""
        indices = range(unit.first, unit.first + unit.count)
        pictures = self._asked(indices).pictures
        places = [picture_path(index % len(self.job.prompts)) for index in indices]
        return {place: png_bytes(picture) for place, picture in zip(places, pictures, strict=True)}

    def _arm(self, name: str) -> Arm:
        if name not in self._arms:
            if name in experts.names_of(self.job):
                self._arms[name] = self._experts.arm(name, self.limit)
            else:
                self._arms[name] = arms.make_arm(name, methods_of(self.job), self.pipe)
        return self._arms[name]


def methods_of(job: Job) -> dict[str, Any]:
    """The methods that decode with the pipeline's model; a verdict is apart."""
    return {n: config for n, config in job.configs.items() if config.method != experts.VERDICT}


def arms_of(job: Job) -> list[str]:
    """The names of a job's arms, in the order of the report."""
    suite = job.suite
    return [*arms.names_of(methods_of(job), suite.peers, suite.blank), *experts.names_of(job)]


def row_name(arm: str, call: str) -> str:
    """What a report calls an arm's row in a way to call."""
    return f"{arm}@{call}" if call else arm


def picture_path(item: int) -> str:
    """Where a picture that is asked about lies in the run's folder."""
    return f"pictures/{item:05d}.png"
