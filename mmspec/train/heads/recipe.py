"""Recipe of draft heads over a frozen language model, one for all methods and kinds of models.

The model answers prompts as training goes on, and heads learn the laws and hidden states of its own
answers, by the losses of `head_losses` and a curriculum each. What is written are the published
layouts.
"""

from __future__ import annotations

import copy
import inspect
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...draft.feature.chains import chain_of
from ...draft.feature.head_model import head_model
from ...engine.stats import SpecStats
from ...engine.warp import Warp
from ...errors import InputError
from ...files import atomic_folder
from ...models.guided import GuidedDecoder
from ...models.heads.columns import Images
from ...models.heads.formats.new import MAKERS
from ...models.heads.formats.new_head import NewHead
from ...models.heads.loading import load_head
from ...models.heads.published.base_decoder import check_layers
from ...models.heads.published.head import FIT, PublishedHead
from ...models.heads.published.longspec import LongSpecNetwork
from ...models.heads.published.specvlm import SpecVlmNetwork
from ...models.loading import cast, load_strict
from ..base import BaseRecipe, hybrid_optimizers
from ..card import write_card
from ..reference import kept_reference
from ..settings import settings_of
from ..trainer import Loss, TrainConfig
from .curricula import CURRICULA, drawn_branch
from .head_batch import HeadBatch
from .head_losses import check_learns, head_loss
from .objectives import RANDOM, objective_of
from .pool import LessonPool, told_of
from .teacher import Teacher, acceptance_figures
from .tempered import temper, untempered

RATE = 3e-3  # learning rate at width 256; it falls as width grows
DRAFTED = 7  # tokens a round of an evaluation


class HeadRecipe(BaseRecipe):
    """Trains `heads/METHOD` on the model of a pipeline folder.

    Args:
        config: see `BaseRecipe`; a batch is of prompts.
        pipeline: folder of a model in transformers' layout.
        teacher: its model.
        method: the head's name.
        init: head of the folder whose weights to start from; None: from nothing.
        settings: arguments of the head's maker in `models/heads/formats/new.py`, as text.
        rate: learning rate; None: `RATE` at a width of 256, in inverse proportion at others.
        objective: the loss on laws, one of `OBJECTIVES`; None: the method's own.
        reference: head of the folder of the same method, beside which places are chosen that can be
            learned, see `head_loss`; "random": as many are drawn; None: all count.
        counts: see `NewHead`.

    Attributes:
        limits: of the card: what the head is not good for.

    Raises:
        InputError: a setting is wrong, or a head of the folder is missing or of another kind.
    """

    limits: ClassVar[str] = (
        "any other target, or this one trained further: it reads that one's hidden states; prompts "
        "of another kind: there it is accepted less often"
    )

    def __init__(
        self,
        config: TrainConfig,
        pipeline: Path,
        teacher: Teacher,
        method: str,
        init: str | None,
        settings: Mapping[str, str] | None,
        rate: float | None,
        objective: str | None,
        reference: str | None,
        counts: Callable[[], Tensor] | None = None,
    ) -> None:
        super().__init__(config, pipeline, 0.0)
        check_layers(teacher.decoder)
        self.method, self.teacher = method, teacher
        teacher.model.requires_grad_(False)
        self.model = new_head(method, teacher.model, settings or {}, counts)
        if isinstance(self.model.network, LongSpecNetwork):
            _ = teacher.last.rotary  # told before a lesson is written
        # a trained head goes on with the second half of its curriculum
        self.first = 0.5 if self.start(init and f"heads/{init}") else 0.0
        layers = teacher.model.config.get_text_config().num_hidden_layers
        teacher.reads = self.model.taken_of(layers)
        self.rate = rate or RATE * 256 / self.model.target_size
        self.curriculum = CURRICULA[method]
        self.objective = None if objective is None else objective_of(objective)
        self.reference: PublishedHead | str | None = reference
        if reference not in (None, RANDOM):
            kept = kept_reference(config.out, pipeline / f"heads/{reference}")
            self.reference = self._head(kept).eval()
        self.pool = LessonPool(self.lessons, config.device)
        self.draw = self.pool.draw

    def ready(self) -> None:
        """Make the layers ready to learn, once lessons can be drawn: the last of what makes it."""
        temper(self.model.network, lambda: self.teacher.on_device(self.pool.batch(0)))

    @property
    @abstractmethod
    def asked(self) -> str:
        """Origin of the prompts in a few words, for the card."""

    @abstractmethod
    def lessons(self, number: int, seen: bool) -> list[HeadBatch]:
        """`pool.TOGETHER` batches from number `number` on; `seen`: their pictures are shown."""

    @abstractmethod
    def held_out(self, warp: Warp, scratch: int) -> tuple[GuidedDecoder, Images | None, int]:
        """The model in front of its answers to prompts that training never asks.

        Beside it: where their pictures are, and how many there are.
        """

    def start(self, init: str | None, model: nn.Module | None = None) -> bool:
        """Take the first weights from another head of the folder."""
        if init is None:
            return False
        self.origin = self.pipeline / init
        before = self._head(self.pipeline / init)
        load_strict(self.model, before.state_dict(), self.origin)
        self.model.vocabulary = before.vocabulary
        return True

    def _head(self, folder: Path) -> PublishedHead:
        """A head of a folder, of the same method."""
        head = load_head(folder, kind=None)
        if head.method != self.method:
            raise InputError(f"{folder} is no head of {self.method!r}")
        size, own = head.block_size, self.model.block_size
        if size != own:
            raise InputError(
                f"{folder} drafts blocks of {size}, and the head that is to learn blocks of {own}; "
                f"give --set block={size}"
            )
        check_learns(head, self.teacher.model.get_input_embeddings().weight)
        if head.borrows:
            head.borrow(self.teacher.model)
        return head.to(self.config.device)

    def optimizers(self) -> Sequence[torch.optim.Optimizer]:
        """Muon for the matrices inside, AdamW for output layers and vectors."""
        own = self.model.vocabulary
        sizes = {self.model.vocab_size, None if own is None else len(own.ids)}

        def inside(name: str, weight: Tensor) -> bool:
            return weight.ndim == 2 and not sizes & {*weight.shape}

        return hybrid_optimizers(self.model, self.rate, self.config.precision, inside)

    def loss(self, batch: int, rng: np.random.Generator, step: int) -> Loss:
        seen, how = self.curriculum(self.first + (1 - self.first) * self.done, rng)
        example = self.teacher.on_device(self.pool.batch(batch, seen))
        network = self.model.network
        if isinstance(network, SpecVlmNetwork) and network.saved == "gate":
            network.choose = drawn_branch(rng)
        how |= {"objective": self.objective, "reference": self.reference}
        return head_loss(self.model, example, **how)

    @torch.no_grad()
    def evaluate(self, model: Any) -> dict[str, float]:
        """Acceptance lengths, the bonus token included, of chains drafted for held-out prompts.

        They are real generations, greedy and at temperature 1; at every depth, how often a drafted
        token stood if those before it did.
        """
        return acceptance_figures(lambda temperature: self.accepted(model, temperature))

    def accepted(self, model: PublishedHead, temperature: float) -> SpecStats:
        """Statistics of the head's chains of at most `DRAFTED` tokens, on held-out prompts."""
        teacher = self.teacher
        head = copy.deepcopy(model)
        untempered(head)
        head = cast(head, teacher.model.dtype)
        with torch.inference_mode():
            target, images, rows = self.held_out(Warp(temperature), 1 + DRAFTED + head.block_size)
            drafts = head_model(head, target, images)
            return teacher.answer(target, chain_of(drafts), DRAFTED, [*range(rows)])[1]

    def export(self, model: nn.Module, record: dict[str, Any]) -> None:
        assert isinstance(model, PublishedHead)
        folder = self.pipeline / "heads" / self.method
        untempered(model)
        with atomic_folder(folder) as part:
            model.half().save_pretrained(part)
        heat = ", ".join(f"{temperature:g}" for temperature in self.teacher.temperatures)
        write_card(
            folder,
            title=f"Draft head ({self.method}) over a {model.config[FIT]['model_type']} model",
            purpose="drafts answers for its target from that one's hidden states, with its "
            "embeddings and output layer",
            limits=self.limits,
            record={"component": self.method, **record},
            data=f"{told_of(record)}, in turn at the temperatures {heat}; {self.asked}",
            held_out="prompts that training never asks",
        )


def new_head(
    method: str,
    target: PreTrainedModel,
    settings: Mapping[str, str],
    counts: Callable[[], Tensor] | None = None,
) -> PublishedHead:
    """A head with first weights.

    Args:
        settings: other arguments of its maker, as text.
        counts: see `NewHead`.

    Raises:
        InputError: there is no such setting, or no such value.
    """
    make = MAKERS[method]
    known = dict(inspect.signature(make).parameters)
    own = {name: p.default for name, p in known.items() if name != "new"}
    given = settings_of(settings, own, method)
    for name, value in given.items():  # a usual 0 is for what the target has
        if isinstance(own[name], int) and own[name] > 0 and not value:
            raise InputError(f"{name} of {method} must be 1 or more, not {value}")
    try:
        return make(NewHead(target, counts), **given)
    except (RuntimeError, ValueError) as error:
        raise InputError(f"{method} can't be made: {error}") from error


def dtype_of(config: TrainConfig) -> torch.dtype:
    """Precision in which a model answers: that of the training, where it makes answers quicker.

    Processors without units for tiles of bfloat16 answer in float32.
    """
    tiles = torch.cpu.get_capabilities().get("amx_bf16", False)
    quicker = tiles or torch.device(config.device).type != "cpu"
    return torch.bfloat16 if quicker and config.precision == "bfloat16" else torch.float32
