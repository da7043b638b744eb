"""Does the units of a text run: every row's answers, and how near a tie those that differ were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....methods import SpecConfig
from ....pipelines.text.pipeline import TextPipeline
from ....pipelines.vlm.chat import Message
from ...data.conversations import Conversation
from ...measure.timing import Sample
from ...run.job import Job, Outcome
from ...run.samples import Line
from ...variants import PLAIN, Variant
from ..bench import Bench, Judged
from ..vlm.answers import Answers, most_tokens
from ..vlm.bare import BareAnswers
from ..vlm.entropy import logits, mean_entropy
from ..vlm.peers import PEER, peers
from . import llama_cpp
from .talk import inputs_of, of_method, of_peer


class TextBench(Bench):
    """Bench of conversations; answers are kept, and nobody judges them."""

    judges_timed = True

    def __init__(self, job: Job, pipe: TextPipeline) -> None:
        super().__init__(job, pipe)
        self.limit = most_tokens(job)
        self._bare = BareAnswers(pipe, self.limit)

    def make_variant(self, name: str) -> Variant:
        if name.startswith(llama_cpp.PEER):
            own = llama_cpp.peers_of(self.job)[name]
            return own.talk(self.pipe, self.pipe.model.config.max_position_embeddings)
        if name.startswith(PEER):
            return of_peer(peers(self.job.configs)[name], self.pipe)
        return of_method(self.job.configs[name], self.pipe)

    def inputs(self, indices: range) -> list[Conversation]:
        return [self.job.prompt(index) for index in indices]

    def judged(self, items: Sequence[Conversation], out: Answers) -> list[Judged]:
        return [({}, "") for _ in items]

    def shown(self, outcome: Outcome, name: str, row: int, inputs: Any, out: Answers) -> Line:
        item = (outcome.unit.first + row) % len(self.job.prompts)
        told = inputs_of(self.pipe, [{"role": "user", "content": inputs[row].prompt}])
        length = told["input_ids"].shape[1]
        shown = {"item": item, "prompt_tokens": length, "text": out.text[row]}
        return {**shown, "turns": out.turns[row]}

    def speed(self, outcome: Outcome) -> None:
        """Time a sample; where a greedy answer leaves plain's, look how near a tie that was."""
        super().speed(outcome)
        if outcome.unit.count > 1:
            return
        answers = {x["method"]: x for x in outcome.lines if x["kind"] == "quality"}
        for group, call in zip(self.job.groups.values(), self.job.calls.values(), strict=True):
            plain = answers[group[0]]
            for name in group if not call.get("temperature", 0.0) else ():
                if name.startswith(llama_cpp.PEER):
                    continue  # of other arithmetic
                if name in answers and answers[name]["turns"] != plain["turns"]:
                    parted = plain["turns"], answers[name]["turns"]
                    answers[name]["gap"] = self._gap(outcome.unit.first, *parted)

    def bare(self, name: str, sample: Sample) -> Line:
        return self._bare.line(self.job.configs.get(name.partition("@")[0]), sample)

    def _gap(self, index: int, mine: list[list[int]], theirs: list[list[int]]) -> float | None:
        """Difference of the target's logits of the two tokens at which two conversations part.

        None if an answer goes on where the other's ends.
        """
        turn = next(n for n, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b)
        pairs = enumerate(zip(mine[turn], theirs[turn], strict=False))
        place = next((n for n, (a, b) in pairs if a != b), None)
        if place is None:
            return None
        told: list[Message] = []
        for said, answer in zip(self.job.prompt(index).turns, [*mine[:turn], None], strict=False):
            told.append({"role": "user", "content": said})
            if answer is not None:
                text = self.pipe.tokenizer.decode(answer, skip_special_tokens=True)
                told.append({"role": "assistant", "content": text})
        last = logits(self.pipe.model, inputs_of(self.pipe, told), mine[turn][:place])[-1]
        return float((last[mine[turn][place]] - last[theirs[turn][place]]).abs())

    def entropy(self, indices: range) -> float:
        """Mean entropy, in nats a token, of the target's laws on its own answers to first turns."""
        plain, call = of_method(SpecConfig(PLAIN), self.pipe), {"temperature": 1.0}
        told: list[list[Message]] = [
            [{"role": "user", "content": one.prompt}] for one in self.inputs(indices)
        ]
        seeds = [self.job.seed + index for index in indices]
        drawn = [
            plain.answer([messages], [seed], {**call, "max_new_tokens": self.limit}).tokens[0]
            for messages, seed in zip(told, seeds, strict=True)
        ]
        prompts = (inputs_of(self.pipe, messages) for messages in told)
        return mean_entropy(self.pipe.model, prompts, drawn)
