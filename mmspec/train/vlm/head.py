"""Recipe of draft heads over a frozen vision-language model, one for all methods.

The model answers questions as training goes on, and heads learn the laws and hidden states of its
own long answers, by the losses of `head_losses` and a curriculum each. What is written are the
published layouts.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...draft.feature.chains import chain_of
from ...draft.feature.head_model import head_model
from ...engine.stats import SpecStats
from ...engine.warp import Warp
from ...errors import InputError
from ...files import atomic_folder
from ...models.heads.columns import Images
from ...models.heads.formats.new import MAKERS, NewHead
from ...models.heads.loading import load_head
from ...models.heads.published.head import FIT, PublishedHead
from ...models.loading import cast, load_strict
from ...models.transformers.vlm_folder import load_vlm
from ...registry import check_name
from ..base import BaseRecipe, hybrid_optimizers
from ..card import write_card
from ..image.distillation_data import recent_batch
from ..trainer import Loss, TrainConfig
from .head_batch import HeadBatch
from .head_losses import head_loss
from .prompts import FilePrompts, ShapesPrompts
from .teacher import Teacher

POOL = 32  # batches that are kept, the newest ones
USES = 4  # steps for a new one: answers take several times as long as a step
TOGETHER = 8  # batches whose answers are written at once
RATE = 3e-3  # learning rate at width 256; it falls as width grows
DRAFTED = 7  # tokens a round of an evaluation
SIDE = 336  # px of the shapes world's pictures, for models that do not say
# levels of a draft that a step trains, one of these; deep ones cost as much as all above (HASS,
# Zhang et al. 2024, section 3.2)
DEPTHS = (1, 1, 2, 3)
LAWS = 0.5  # part of a curriculum after which heads of EAGLE's kind learn laws, not states
# of a step, by the part of the run that is over: whether pictures are shown, and what else the
# head's `loss` takes
Curriculum = Callable[[float, np.random.Generator], tuple[bool, dict[str, Any]]]


def whole(done: float, rng: np.random.Generator) -> tuple[bool, dict[str, Any]]:
    """A head whose loss covers all that it drafts."""
    return True, {}


def slots(done: float, rng: np.random.Generator) -> tuple[bool, dict[str, Any]]:
    """A head of EAGLE's kind that says several tokens a call: the loss on laws after the middle."""
    return True, {"laws": done >= LAWS}


def levels(done: float, rng: np.random.Generator) -> tuple[bool, dict[str, Any]]:
    """A head that drafts from its own states: some steps go several levels deep.

    EAGLE's loss on hidden states comes first; then ViSpec's on laws, which are what is accepted.
    """
    return True, {"depth": int(rng.choice(DEPTHS)), "laws": done >= LAWS}


def vispec(done: float, rng: np.random.Generator) -> tuple[bool, dict[str, Any]]:
    """ViSpec's two stages, a half each (Kang et al. 2025, section 3.3).

    EAGLE's loss first; then that on laws, the head's own states fed back once.
    """
    return True, {"depth": 1} if done < LAWS else {"depth": 2, "laws": True}


def msd(done: float, rng: np.random.Generator) -> tuple[bool, dict[str, Any]]:
    """MSD: text alone for the first half, then ever more pictures (Lin et al. 2025, section 3.3).

    Their probability rises from 0 in the middle to 1 at the end.
    """
    return bool(rng.random() < 2 * done - 1), levels(done, rng)[1]


CURRICULA: dict[str, Curriculum] = {
    **dict.fromkeys(("eagle", "eagle3", "specvlm"), levels),
    **dict.fromkeys(("dflash", "medusa", "hydra"), whole),
    "flash": slots,
    "vispec": vispec,
    "msd": msd,
}


class VlmHeadRecipe(BaseRecipe):
    """Trains `heads/METHOD` on the model of a pipeline folder.

    Args:
        config: see `BaseRecipe`; a batch is of questions.
        pipeline: folder of a vision-language model in transformers' layout, with its processor.
        method: the head's name.
        init: head of the folder whose weights to start from; None: from nothing.
        data: file of questions, see `FilePrompts`; None: the shapes world.
        settings: arguments of the head's maker in `models/heads/formats/new.py`, as text.
        rate: learning rate; None: `RATE` at a width of 256, in inverse proportion at others.
        max_new_tokens: of an answer.

    Raises:
        InputError: the folder holds no such model, or a setting or a line of the data is wrong.
    """

    def __init__(
        self,
        config: TrainConfig,
        pipeline: Path,
        method: str,
        init: str | None = None,
        data: Path | None = None,
        settings: Mapping[str, str] | None = None,
        rate: float | None = None,
        max_new_tokens: int = 224,
    ) -> None:
        super().__init__(config, pipeline, 0.0)
        self.method = method
        # on a processor a model answers in float32, whatever a head is trained in
        small = config.precision == "bfloat16" and torch.device(config.device).type != "cpu"
        parts = load_vlm(pipeline, torch.bfloat16 if small else torch.float32)
        target = parts["model"].to(config.device)
        self.prompts = ShapesPrompts(side_of(target)) if data is None else FilePrompts(data)
        self.model = new_head(method, target, settings or {})
        # a trained head goes on with the second half of its curriculum
        self.first = 0.5 if self.start(init and f"heads/{init}") else 0.0
        reads = self.model.reads_of(target.config.get_text_config().num_hidden_layers)
        self.teacher = Teacher(target, parts["processor"], max_new_tokens, reads)
        self.rate = rate or RATE * 256 / self.model.target_size
        self.curriculum = CURRICULA[method]
        self.draw = partial(recent_batch, POOL, USES)
        self._examples: dict[tuple[int, bool], HeadBatch] = {}

    def start(self, init: str | None, model: nn.Module | None = None) -> bool:
        """Take the first weights from another head of the folder."""
        if init is None:
            return False
        self.origin = self.pipeline / init
        before = load_head(self.origin, kind=None)
        if not isinstance(before, PublishedHead) or before.method != self.method:
            raise InputError(f"{self.origin} is no head of {self.method!r} in its published layout")
        load_strict(self.model, before.state_dict(), self.origin)
        return True

    def optimizers(self) -> Sequence[torch.optim.Optimizer]:
        """Muon for the matrices inside, AdamW for output layers and vectors."""
        vocab = self.model.vocab_size

        def inside(name: str, weight: Tensor) -> bool:
            return weight.ndim == 2 and vocab not in weight.shape

        return hybrid_optimizers(self.model, self.rate, self.config.precision, inside)

    def loss(self, batch: int, rng: np.random.Generator, step: int) -> Loss:
        seen, how = self.curriculum(self.first + (1 - self.first) * self.done, rng)
        example = self.teacher.on_device(self.example(batch, seen))
        torch.manual_seed(int(rng.integers(2**63)))  # of what a head draws as it learns
        loss, metrics = head_loss(self.model, example, **how)
        # there is no acceptance where no answer goes so far
        return loss, {name: value for name, value in metrics.items() if value == value}

    def example(self, number: int, seen: bool = True) -> HeadBatch:
        """A batch of the pool; `seen` says whether its pictures are shown."""
        if (number, seen) not in self._examples:
            first, size = number - number % TOGETHER, self.config.batch_size
            rng = np.random.default_rng([self.config.seed, first])
            questions = self.prompts.draw(rng, TOGETHER * size)
            seeds = rng.integers(2**31, size=TOGETHER * size).tolist()
            device = torch.device(self.config.device).type
            with torch.autocast(device, enabled=False):  # it answers as in decoding
                made = self.teacher.examples(questions, seeds, size, seen)
            self._examples |= {(n, seen): one for n, one in enumerate(made, start=first)}
            for key in [key for key in self._examples if key[0] <= number - POOL]:
                del self._examples[key]
        return self._examples[number, seen]

    @torch.no_grad()
    def evaluate(self, model: Any) -> dict[str, float]:
        """Acceptance lengths, the bonus token included, of chains drafted for held-out questions.

        They are real generations, greedy and at temperature 1; at every depth, how often a drafted
        token stood if those before it did.
        """
        figures = {}
        for name, temperature in (("greedy", 0.0), ("sampled", 1.0)):
            stats = self.accepted(model, temperature)
            figures[f"held_out_acceptance_length_{name}"] = stats.mean_acceptance_length
            for depth, rate in enumerate(stats.acceptance_by_position, start=1):
                figures[f"held_out_acceptance_{name}_at_depth_{depth}"] = rate
        return figures

    def accepted(self, model: PublishedHead, temperature: float) -> SpecStats:
        """Statistics of the head's chains of at most `DRAFTED` tokens, on held-out questions."""
        teacher = self.teacher
        head = cast(copy.deepcopy(model), teacher.model.dtype)
        questions = self.prompts.held_out()
        with torch.inference_mode():
            warp = Warp(temperature)
            target, prompt = teacher.prompt(questions, warp, 1 + DRAFTED + head.block_size)
            drafts = head_model(head, target, Images.of(prompt.images, target.prefix.device))
            seeds = list(range(len(questions.texts)))
            return teacher.answer(target, chain_of(drafts), DRAFTED, seeds)[1]

    def export(self, model: nn.Module, record: dict[str, Any]) -> None:
        assert isinstance(model, PublishedHead)
        folder = self.pipeline / "heads" / self.method
        with atomic_folder(folder) as part:
            model.half().save_pretrained(part)
        examples = -(-record["step"] // USES) * self.config.batch_size
        write_card(
            folder,
            title=f"Draft head ({self.method}) over a {model.config[FIT]['model_type']} model",
            purpose="drafts answers for its target from that one's hidden states, with its "
            "embeddings and output layer",
            limits="any other target, or this one trained further: it reads that one's hidden "
            "states; questions of another kind: there it is accepted less often",
            record={"component": self.method, **record},
            data=f"{examples:,} answers of the target's own, half of them greedy and half at "
            f"temperature 1, about {USES} times each; questions: {self.prompts.described}",
            held_out="questions that training never asks",
        )


def new_head(method: str, target: Any, settings: Mapping[str, str]) -> PublishedHead:
    """A head with first weights; `settings` are other arguments of its maker, as text.

    Raises:
        InputError: there is no such setting, or no such value.
    """
    make = MAKERS[method]
    known = dict(inspect.signature(make).parameters)
    own = {name: p.default for name, p in known.items() if name != "new"}
    given = {}
    for name, text in settings.items():
        check_name(f"setting of {method}", name, own)
        try:
            given[name] = type(own[name])(text)
        except ValueError as error:
            raise InputError(f"{name} of {method} is a whole number, not {text!r}") from error
    try:
        return make(NewHead(target), **given)
    except (RuntimeError, ValueError) as error:
        raise InputError(f"{method} can't be made: {error}") from error


def side_of(target: Any) -> int:
    """Pixels of the pictures that a model's vision tower was made for, `SIDE` if it has any."""
    size = getattr(target.config.vision_config, "image_size", None) or SIDE
    return int(min(size)) if isinstance(size, list | tuple) else int(size)
