"""A draft head learns from the answers that it drafts for, between them (OSD, Liu et al. 2024)."""

from __future__ import annotations

from torch import Tensor
from transformers import PreTrainedModel

from ...errors import InputError
from ...models.heads.published.head import PublishedHead
from .answer_learner import AnswerLearner
from .curricula import CURRICULA
from .head_batch import HeadBatch
from .head_losses import check_learns, head_loss
from .objectives import objective_of
from .recipe import RATE

# of the rate of a training from nothing: at a tenth a head that knows its domain lost acceptance,
# and one that did not know it won no more (`python -m benchmarks online --rate`)
GENTLE = 0.01


class OnlineLearner(AnswerLearner[PublishedHead]):
    """Learns a head, while it is in use, from the answers that it drafted for.

    It listens to generations, `mmspec.enable_speculation(model, head=head, listener=learner)` or
    `pipe.listener = learner`, and keeps their latest answers. `learn` reads them with the target,
    in one call, and takes steps; do that when nobody waits. The output's law is the target's
    whatever the head has learned. What a seed draws does depend on it: freeze a head, by not
    calling `learn`, where samples are to be repeated.

    A draft fell where the target put another token in its place: of `ml-specqd`, whose drafts are
    a rounded copy's, that says little of the head.

    Args:
        model: the target, a language model of transformers.
        head: its head, in a published layout. It is changed in place, in its own type.
        rate: learning rate; None: a hundredth of that of a training.
        objective: the loss on laws, one of `OBJECTIVES`.
        kept: answers that are kept, each with its embeddings and hidden states at all tokens.
        fallen: learn at the places alone where a draft fell, as OSD does: what stood is then
            forgotten sooner. False: everywhere.

    Attributes:
        heard: answers so far.

    Raises:
        InputError: there is no recipe for such heads.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        head: PublishedHead,
        rate: float | None = None,
        objective: str = "kl",
        kept: int = 64,
        fallen: bool = False,
    ) -> None:
        method = getattr(head, "method", type(head).__name__)
        if method not in CURRICULA:
            raise InputError(f"{method!r} is no kind of head that can be trained, so none learns")
        check_learns(head, model.get_input_embeddings().weight)
        head.meet(model)
        self.objective, self.curriculum = objective_of(objective), CURRICULA[method]
        super().__init__(model, head, rate or GENTLE * RATE * 256 / head.target_size, kept, fallen)
        layers = model.config.get_text_config().num_hidden_layers
        self.teacher.reads = head.taken_of(layers)

    def loss(self, batch: HeadBatch, only: Tensor | None) -> tuple[Tensor, dict[str, float]]:
        _, how = self.curriculum(1.0, self._rng)
        return head_loss(self._own, batch, objective=self.objective, only=only, **how)
