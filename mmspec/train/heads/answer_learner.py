"""Learning from the answers that a network drafts for, between them (OSD, Liu et al. 2024)."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...engine.draft import Context
from ...errors import InputError
from ...models.masked_folders import MASK
from ...models.transformers.probe import probed
from ...models.transformers.prompted import EncodedPrompt
from .head_batch import HeadBatch
from .teacher import Spans, Teacher

Network = TypeVar("Network", bound=nn.Module)


@dataclass
class _Answers:
    """Answers of one call, not read yet.

    Attributes:
        fallen: by row, the numbers of the tokens that the target put in the place of a draft.
    """

    prompt: EncodedPrompt
    images: Spans
    tokens: Tensor
    lengths: Tensor
    fallen: list[list[int]]


class AnswerLearner(ABC, Generic[Network]):
    """Base of learners that listen to generations and teach a network what the target says.

    Args:
        model: the target, a language model of transformers.
        network: learns. It is changed in place, in its own type.
        rate: learning rate.
        kept: answers that are kept, each with its embeddings and hidden states at all tokens.
        fallen: learn at the places alone where a draft fell; False: everywhere.

    Attributes:
        heard: answers so far.

    Raises:
        InputError: the target is a masked language model.
    """

    def __init__(
        self, model: PreTrainedModel, network: Network, rate: float, kept: int, fallen: bool
    ) -> None:
        if getattr(model.config.get_text_config(), MASK, None) is not None:
            raise InputError(
                f"{type(model).__name__} is a masked language model, which is no teacher: its laws "
                "stand at masked places; leave the learner out"
            )
        self.network, self.fallen, self.kept, self.heard = network, fallen, kept, 0
        # steps are small: in half precision they would be lost
        self._own = copy.deepcopy(network).to(model.device).float().train()
        if not any(weight.requires_grad for weight in self._own.parameters()):
            raise InputError(
                f"all weights of the {type(network).__name__} are frozen, so that nothing can be "
                "learned; call its requires_grad_(True) first"
            )
        self._optimizer = torch.optim.AdamW(self._own.parameters(), rate, weight_decay=0.0)
        self.teacher = Teacher(model, 1, decoder=probed(model))
        self._waiting: deque[_Answers] = deque()
        self._lessons: deque[tuple[HeadBatch, Tensor]] = deque(maxlen=kept)
        self._rng = np.random.default_rng(0)
        self._fallen: list[list[int]] = []

    @abstractmethod
    def loss(self, batch: HeadBatch, only: Tensor | None) -> tuple[Tensor, dict[str, float]]:
        """The loss of an answer, and acceptance rates.

        Args:
            only: places `[1, S]` that count; None: all.
        """

    def begin(self, prompt: EncodedPrompt, rows: int) -> None:
        """Hear that a generation of `rows` answers begins.

        Raises:
            InputError: they are given under guidance, which nothing learns.
        """
        if len(prompt.mask) != rows:
            raise InputError("nothing learns from answers under guidance; leave the listener out")
        self._fallen = [[] for _ in range(rows)]

    def round(self, context: Context) -> None:
        """Hear what became of a round."""
        drafted = context.reached, context.accepted, context.guessed
        told = zip(context.base, *drafted, context.emitted, strict=True)
        for row, (base, reached, accepted, guessed, emitted) in enumerate(told):
            if (accepted < reached or guessed < 0) and emitted > accepted:
                self._fallen[row].append(base - 1)

    def end(self, prompt: EncodedPrompt, images: Spans, context: Context) -> None:
        """Hear the answers."""
        tokens = context.tokens[:, : max(context.base)].clone()
        self._waiting.append(
            _Answers(prompt, images, tokens, context.lengths.clone(), self._fallen)
        )
        while (
            sum(len(one.fallen) for one in self._waiting) - len(self._waiting[0].fallen)
            >= self.kept
        ):
            self._waiting.popleft()
        self.heard += context.rows

    def learn(self, steps: int = 1, batch_size: int = 4) -> dict[str, float]:
        """Take steps over the latest answers; returns the mean figures of their last batch.

        These are acceptance rates at what counts, `acceptance_1` of a draft's first token and so
        on; there are none where no draft fell.

        Args:
            batch_size: answers of a step.

        Raises:
            InputError: there was no answer yet.
        """
        figures: dict[str, float] = {}
        with torch.inference_mode(False), torch.enable_grad(), torch.random.fork_rng():
            self._read()
            if not self._lessons:
                raise InputError("there is no answer yet to learn from")
            torch.manual_seed(int(self._rng.integers(2**63)))  # of what a head draws as it learns
            for _ in range(steps):
                figures = self._step(min(batch_size, len(self._lessons)))
        with torch.no_grad():
            for live, own in zip(self.network.parameters(), self._own.parameters(), strict=True):
                if own.requires_grad:  # others are the target's
                    live.copy_(own)
        return figures

    def _step(self, count: int) -> dict[str, float]:
        chosen = self._rng.choice(len(self._lessons), count, replace=False)
        own = [weight for weight in self._own.parameters() if weight.requires_grad]
        self._optimizer.zero_grad()
        found: dict[str, list[float]] = {}
        for number in chosen:
            lesson, fallen = self._lessons[number]
            batch = self.teacher.on_device(lesson)
            only = fallen.to(batch.answer.device) if self.fallen else None
            loss, metrics = self.loss(batch, only)
            if loss.requires_grad:  # of some answers no draft ever fell
                (loss / count).backward(inputs=own)
            for name, value in metrics.items():
                found.setdefault(name, []).append(value)
        torch.nn.utils.clip_grad_norm_(self._own.parameters(), 1.0)
        self._optimizer.step()
        return {name: float(np.mean(values)) for name, values in found.items()}

    def _read(self) -> None:
        """Let the target read the answers that wait."""
        self.teacher.decoder.refresh()
        while self._waiting:
            one = self._waiting.popleft()
            lessons = self.teacher.read(one.prompt, one.images, one.tokens, one.lengths)
            for lesson, fallen in zip(lessons, one.fallen, strict=True):
                if bool(lesson.answer.any()):  # an interrupted one may be empty
                    self._lessons.append((lesson, self._places(lesson, fallen)))

    @staticmethod
    def _places(lesson: HeadBatch, fallen: Sequence[int]) -> Tensor:
        """The places `[1, S]` that the tokens of those numbers were drawn from."""
        first = int(lesson.answer[0].long().argmax())
        places = torch.zeros_like(lesson.answer)
        places[0, [first + number - 1 for number in fallen]] = True
        return places
