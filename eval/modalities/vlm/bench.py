"""Does the units of a vision-language run: answers of every row, with what is known of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from PIL import Image

from ....models.step_reward import Step
from ....picture import BACKGROUND
from ....pipelines.vlm.pipeline import VlmPipeline
from ...data.picture_questions import PictureQuestion
from ...files import png_bytes
from ...measure.timing import Sample
from ...run.job import Job, Outcome
from ...run.samples import Line
from ...variants import Variant
from ..bench import Bench, Judged
from .answers import Answers, OneByOne, Questions, most_tokens
from .bare import BareAnswers
from .entropy import answer_entropy
from .experts import Experts, expert_names
from .inputs import inputs_of, picture_side
from .peers import Peer, peers
from .variants import BLANK, VlmMethod, methods_of


class VlmBench(Bench):
    """Bench of answers; a timed answer is graded too."""

    judges_timed = True

    def __init__(self, job: Job, pipe: VlmPipeline) -> None:
        super().__init__(job, pipe)
        self.limit = most_tokens(job)
        self._experts = Experts(job, pipe)
        self._bare = BareAnswers(pipe, self.limit)

    def make_variant(self, name: str) -> Variant:
        if name in expert_names(self.job):
            return self._experts.variant(name, self.limit)
        own, methods = name.removesuffix(BLANK), methods_of(self.job)
        if own in methods:
            return VlmMethod(methods[own], self.pipe, blank=own != name)
        return OneByOne(partial(self._ask, peers(methods)[name]))

    def _ask(
        self, peer: Peer, picture: Image.Image, question: str, seed: int, call: Mapping[str, Any]
    ) -> Answers:
        inputs = partial(inputs_of, self.pipe, picture, question)
        return peer.answer_or_refuse(self.pipe, self.pipe.processor.tokenizer, inputs, seed, call)

    def inputs(self, indices: range) -> Questions:
        items: list[PictureQuestion] = [self.job.prompt(index) for index in indices]
        side, background = picture_side(self.pipe), self.job.call.get("background", BACKGROUND)
        pictures = [item.picture(side, background) for item in items]
        return Questions(pictures, [item.prompt for item in items], partial(_truth, items))

    def judged(self, items: Sequence[PictureQuestion], out: Answers) -> list[Judged]:
        wanted = self.job.suite.metrics
        pairs = zip(items, out.text, strict=True)
        return [
            ({m: x for m, x in item.scores(text).items() if m in wanted}, "")
            for item, text in pairs
        ]

    def shown(self, outcome: Outcome, name: str, row: int, inputs: Questions, out: Answers) -> Line:
        item = (outcome.unit.first + row) % len(self.job.prompts)
        place = f"pictures/{item:05d}.png"
        if place not in outcome.files:
            outcome.files[place] = png_bytes(inputs.pictures[row])
        line: Line = {"item": item, "shown": place, "text": out.text[row]}
        if out.members:
            line["members"] = {n: asdict(cost) for n, cost in out.members[row].items()}
        if out.choices:
            line["choice"] = asdict(out.choices[row])
        return line

    def bare(self, name: str, sample: Sample) -> Line:
        return self._bare.line(methods_of(self.job).get(name.partition("@")[0]), sample)

    def entropy(self, indices: range) -> float:
        seeds = [self.job.seed + index for index in indices]
        return answer_entropy(self.pipe, self.inputs(indices), seeds, self.limit)

    def resolution(self) -> str | None:
        vision = getattr(self.pipe.model.config, "vision_config", None)
        side = getattr(vision, "image_size", None)
        return f"{side}×{side} px" if isinstance(side, int) else None


def _truth(items: Sequence[PictureQuestion], steps: Sequence[Step]) -> list[float]:
    """What is known of steps of answers to some questions."""
    return [items[step.sample].score_step(step.before, step.text) for step in steps]
