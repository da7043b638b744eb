"""A draft model learns from the answers that it drafts for, between them, in its own words.

OmniDraft (Ramakrishnan et al. 2025): where the target's token is one of the draft model's too, the
loss is on laws; where it is a run of the draft model's tokens, on the likelihood of that run.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...errors import InputError
from ...models.transformers.probe import probed
from ...models.transformers.prompted import EncodedPrompt
from ...models.transformers.vlm import VisualPrompt
from ...models.transformers.vocabulary_map import vocabulary_map
from ..heads.answer_learner import AnswerLearner
from ..heads.head_batch import HeadBatch
from ..heads.objectives import Places, acceptance, objective_of

RATE = 1e-4
RUNS = 0.2  # weight of the likelihood of runs, as published


class DrafterLearner(AnswerLearner[PreTrainedModel]):
    """Learns a draft model, while it is in use, at the tokens where its drafts fell.

    It is used as `OnlineLearner` is, for draft models in place of heads, and texts alone. The law
    of the output is the target's whatever the draft model has learned.

    Args:
        model: the target, a language model of transformers.
        drafter: its draft model. It is changed in place, in its own type.
        tokenizer, drafter_tokenizer: theirs; the same one if they share it.
        rate: learning rate; None: 1e-4.
        objective: the loss on laws over the tokens that both have, one of `OBJECTIVES`.
        kept: answers that are kept, each with its embeddings and hidden states at all tokens.
        fallen: learn at the places alone where a draft fell; False: everywhere.

    Attributes:
        heard: answers so far.

    Raises:
        InputError: nothing is known of a tokenizer's words, or the two have none in common.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        drafter: PreTrainedModel,
        tokenizer: Any,
        drafter_tokenizer: Any,
        rate: float | None = None,
        objective: str = "reverse-kl",
        kept: int = 64,
        fallen: bool = True,
    ) -> None:
        self.objective = objective_of(objective)
        sizes = probed(model).vocab_size, probed(drafter).vocab_size
        self.words = vocabulary_map(tokenizer, drafter_tokenizer, *sizes)
        self._theirs, self._ours = (ids.cpu() for ids in self.words.shared)
        self._number = {token: n for n, token in enumerate(self._ours.tolist())}
        super().__init__(model, drafter, rate or RATE, kept, fallen)
        self._own.eval()  # it drafts without dropout
        self.room = int(getattr(drafter.config, "max_position_embeddings", 2**31))

    def begin(self, prompt: EncodedPrompt, rows: int) -> None:
        if isinstance(prompt, VisualPrompt):
            raise InputError("a draft model learns from texts alone; leave the listener out")
        super().begin(prompt, rows)

    def loss(self, batch: HeadBatch, only: Tensor | None) -> tuple[Tensor, dict[str, float]]:
        assert batch.tokens is not None
        at, drafted = batch.ahead(1)
        counts = drafted if only is None else drafted & only
        columns = batch.answer[0].nonzero()[:, 0].tolist()
        said = batch.tokens[0].tolist()
        asked = batch.tokens[:, : columns[0]]
        own = self.words.retold(asked, batch.mask[:, : columns[0]])["input_ids"][0].tolist()
        places, behind, runs = [], [], []
        for column in columns:
            spelled = self.words.spelled(said[column])
            first, numbers = len(own) - 1, [self._number.get(each) for each in spelled]
            own += spelled
            if len(own) > self.room:
                own = own[: first + 1]
                break
            if not counts[0, column - 1] or None in numbers:
                continue
            if len(spelled) == 1:
                places.append(int(at[0, column - 1]))
                behind.append(first)
            elif self.words.run(said[column]):
                runs.append((first, numbers))
        device = batch.answer.device
        logits = self._own(input_ids=torch.tensor([own], device=device)).logits[0]
        logits = logits[:, self._ours.to(device)].float()
        losses, figures = [], dict[str, float]()
        if places:
            found = self._of_both(batch, torch.tensor(places, device=device), logits[behind])
            losses.append(self.objective(found))
            figures["acceptance_1"] = float(acceptance(found).mean().detach())
        for first, numbers in runs:
            law = logits[first : first + len(numbers)].log_softmax(-1)
            losses.append(-RUNS * law[range(len(numbers)), numbers].sum()[None])
        return torch.cat(losses).mean() if losses else torch.zeros(()), figures

    def _of_both(self, batch: HeadBatch, at: Tensor, logits: Tensor) -> Places:
        """Places of tokens of both, with laws over all tokens of both."""
        theirs = self._theirs.to(at.device)
        law = batch.law_at(at)[:, theirs]
        return Places(logits, batch.features_at(at), logits, law, batch.said_at(at, theirs), at)
