"""Recipes of a small language model that drafts for a large one, in FastDraft's two stages.

It is trained on plain text first (`pretrain`), best on several kinds of it one after the other, and
then on the target's own answers (`align`); FastDraft (Zafrir et al. 2024, section 3). Perplexity
goes on falling where acceptance no longer rises, so both stages are judged by acceptance.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...draft.draft_model import ModelDrafter
from ...engine.stats import SpecStats
from ...engine.warp import Warp
from ...errors import InputError
from ...files import atomic_folder
from ...models.loading import cast, load_component, load_strict
from ...models.transformers.causal import CausalDecoder
from ...models.transformers.exits import EXITS
from ...registry import check_name
from ..base import BaseRecipe, hybrid_optimizers
from ..card import write_card
from ..heads import objectives
from ..heads.objectives import Places
from ..heads.pool import LessonPool, told_of
from ..heads.teacher import acceptance_figures
from ..reference import kept_reference
from ..settings import settings_of
from ..trainer import Draw, Loss, TrainConfig
from .corpus import Corpus
from .lessons import TextLessons
from .smaller import SIZES, smaller
from .teacher import TextTeacher

DRAFTED = 7  # tokens a round of an evaluation
DRAFTER = "drafter"
CONFIG = "config.json"


class TextDrafterRecipe(BaseRecipe):
    """Base of both stages: a model of the target's family, with fewer layers and maybe narrower.

    It learns the target's answers, unless a stage has other data.

    With `exits` it learns to speak behind some of its layers, too, through one last norm and one
    output layer (sorted fine-tuning, Kavehzadeh et al. 2023): its loss is the mean of theirs.

    At the target's width it begins with the target's embeddings and some of its layers, spread
    evenly (DistilBERT, Sanh et al. 2019, section 3), else with random weights.

    Args:
        config, rate: see `BaseRecipe`.
        pipeline: folder of the target and its tokenizer; it receives the drafter.
        init: drafter of the folder to go on with, such as `drafter` itself; None: see above.
        data: file of prompts that the target answers, see `FilePrompts`; None: its own.
        settings: `layers`, `width` and `exits` as text; exits are spread evenly, the last one
            behind the last layer.
        max_new_tokens: of an answer.

    Raises:
        InputError: the folder holds no language model, or no drafter to go on with, or of another
            size; a setting or a line of the data is wrong.
    """

    purpose: ClassVar[str] = "drafts for its target, token by token"
    limits: ClassVar[str] = (
        "any other target; prompts of another kind: there it is accepted less often; texts of its "
        "own are poor"
    )

    def __init__(
        self,
        config: TrainConfig,
        pipeline: Path,
        init: str | None,
        data: Path | None,
        settings: Mapping[str, str] | None,
        rate: float,
        max_new_tokens: int,
    ) -> None:
        super().__init__(config, pipeline, rate)
        self.lessons = TextLessons(config, pipeline, data, max_new_tokens)
        self.lessons.joins = False
        self.teacher = self.lessons.teacher
        self.teacher.model.requires_grad_(False)
        self.model = self.first(settings or {})
        init = self.usual(pipeline) if init is None else init
        if init is not None:
            before = self.known(init, "component to start from")
            self.origin = pipeline / init
            load_strict(self.model, before.state_dict(), self.origin)
            if "exits" not in (settings or {}) and hasattr(before.config, EXITS):
                setattr(self.model.config, EXITS, getattr(before.config, EXITS))
        self.model.float()
        self.decoder = CausalDecoder(self.model)
        self.decoder.cache(1, 1)  # which learns how its layers give their outputs

    def first(self, settings: Mapping[str, str]) -> PreTrainedModel:
        """The model with first weights, of these settings."""
        return smaller(self.teacher.model, settings_of(settings, SIZES, "a drafter"))

    def known(self, name: str, what: str, kept: Path | None = None) -> PreTrainedModel:
        """A drafter of the folder by its name.

        Args:
            what: it is, for an error.
            kept: folder to read it from; None: the one of its name.
        """
        found = {path.parent.name for path in self.pipeline.glob(f"*/{CONFIG}")}
        check_name(what, name, {DRAFTER: None, **dict.fromkeys(sorted(found))})
        folder = self.pipeline / name if kept is None else kept
        drafter = load_component(type(self.model), folder, torch.float32)
        assert isinstance(drafter, PreTrainedModel)
        own, other = (model.config.vocab_size for model in (self.model, drafter))
        if other != own:
            raise InputError(
                f"{self.pipeline / name} has a vocabulary of {other}, and what is to learn {own}; "
                f"name another {what}"
            )
        return drafter

    def usual(self, pipeline: Path) -> str | None:
        """The component that it starts from where none is named; None: from nothing."""
        return None

    @cached_property
    def pool(self) -> LessonPool:
        """The target's answers, which are written as training comes to them."""
        return LessonPool(lambda number, seen: self.lessons.batches(number), self.config.device)

    @property
    def draw(self) -> Draw:
        return self.pool.draw

    def learned(self, record: Mapping[str, Any]) -> str:
        """Data of a training, of which this is the trainer's record, for the card."""
        return f"{told_of(record)}; {self.lessons.prompts.described}"

    def optimizers(self) -> Any:
        """Muon for the matrices inside, AdamW for embeddings, output layer and vectors."""
        vocab_size = self.model.config.vocab_size

        def inside(name: str, weight: Tensor) -> bool:
            return weight.ndim == 2 and vocab_size not in weight.shape

        return hybrid_optimizers(self.model, self.rate, self.config.precision, inside)

    def by_exit(self, tokens: Tensor, mask: Tensor) -> list[Tensor]:
        """Logits `[B, S, V]` of each exit, see `logits_of`; the whole model's are the last."""
        found = []
        for layers in getattr(self.model.config, EXITS, ()):
            with self.decoder.running([n < layers for n in self.decoder.layers]):
                found.append(logits_of(self.model, tokens, mask))
        return found or [logits_of(self.model, tokens, mask)]

    @torch.no_grad()
    def evaluate(self, model: Any) -> dict[str, float]:
        """Acceptance lengths, the bonus token included, of drafts for held-out prompts.

        They are real generations, greedy and at temperature 1; at every depth, how often a drafted
        token stood if those before it did.
        """
        return acceptance_figures(partial(self.accepted, self.drafting(model)))

    def drafting(self, model: PreTrainedModel) -> TextTeacher:
        """A copy of a drafter, of the target's dtype, that can draft."""
        student = cast(copy.deepcopy(model), self.teacher.model.dtype)
        return TextTeacher(student, self.teacher.tokenizer, self.teacher.limit)

    @torch.inference_mode()
    def accepted(self, drafting: TextTeacher, temperature: float) -> SpecStats:
        """Statistics of drafts of at most `DRAFTED` tokens, on held-out prompts."""
        prompts, warp = self.lessons.prompts.held_out(), Warp(temperature)
        target, drafter = (
            one.placed(one.encoded(prompts), warp, 1 + DRAFTED) for one in (self.teacher, drafting)
        )
        with drafting.decoder.repacked():
            seeds = [*range(len(prompts))]
            return self.teacher.answer(target, ModelDrafter(drafter), DRAFTED, seeds)[1]

    def export(self, model: nn.Module, record: dict[str, Any]) -> None:
        assert isinstance(model, PreTrainedModel)
        folder = self.pipeline / DRAFTER
        with atomic_folder(folder) as part:
            model.half().save_pretrained(part)
        write_card(
            folder,
            title=f"Draft model over a {model.config.model_type} model",
            purpose=self.purpose,
            limits=self.limits,
            record={**record, "component": DRAFTER},
            data=self.learned(record),
            held_out="prompts that training never asks",
        )


class TextPretrainRecipe(TextDrafterRecipe):
    """Learns to go on with plain text: next-token prediction.

    Args:
        config, pipeline, init, settings, rate, max_new_tokens: see `TextDrafterRecipe`.
        data: the text, see `Corpus`.

    Raises:
        InputError: see `TextDrafterRecipe`; or there is no text.
    """

    def __init__(
        self,
        config: TrainConfig,
        pipeline: Path,
        init: str | None = None,
        data: Path | None = None,
        settings: Mapping[str, str] | None = None,
        rate: float = 1e-3,
        max_new_tokens: int = 128,
    ) -> None:
        if data is None:
            raise InputError(
                'a drafter is pretrained on text: give --data FILE of lines {"text": …}, or go '
                "on to --stage align"
            )
        super().__init__(config, pipeline, init, None, settings, rate, max_new_tokens)
        try:
            self.teacher.turn()
        except InputError as error:
            told = str(error).partition(";")[0]
            raise InputError(
                f"drafters are judged on prompts that the target writes itself, and {told}"
            ) from error
        self.corpus = Corpus(data, self.teacher.tokenizer)

    @property
    def draw(self) -> Draw:
        return partial(self.corpus.draw, self.config.batch_size)

    def learned(self, record: Mapping[str, Any]) -> str:
        return self.corpus.described

    def loss(self, batch: tuple[Tensor, Tensor], rng: np.random.Generator, step: int) -> Loss:
        tokens, mask = (part.to(self.config.device) for part in batch)
        follows = mask[:, 1:]
        said = tokens[:, 1:][follows]
        each = [
            F.cross_entropy(logits[:, :-1][follows].float(), said)
            for logits in self.by_exit(tokens, mask)
        ]
        return torch.stack(each).mean(), {}


class TextAlignRecipe(TextDrafterRecipe):
    """Learns what the target says: its answers to prompts, at temperatures from 0 to 1.

    Args:
        config, pipeline, data, settings, rate, max_new_tokens: see `TextDrafterRecipe`.
        init: the same; None: without a reference the drafter of the folder, if there is one.
        objective: the loss, one of `OBJECTIVES`; None: on the target's tokens alone, as FastDraft
            has it: others added nothing clear there.
        reference: drafter of the folder that was trained so before, from the same start. The places
            count alone at which it is ahead the most, see `learnable` (AdaSPEC, Hu et al. 2025);
            "random": as many count, drawn; None: all count.

    Raises:
        InputError: see `TextDrafterRecipe`; or there is no such reference.
    """

    def __init__(
        self,
        config: TrainConfig,
        pipeline: Path,
        init: str | None = None,
        data: Path | None = None,
        settings: Mapping[str, str] | None = None,
        rate: float = 1e-3,
        max_new_tokens: int = 128,
        objective: str | None = None,
        reference: str | None = None,
    ) -> None:
        self.objective = objectives.objective_of(objective or "tokens")
        if init is None and reference is None and (pipeline / DRAFTER / CONFIG).exists():
            init = DRAFTER
        super().__init__(config, pipeline, init, data, settings, rate, max_new_tokens)
        self.reference, self.drawn = None, reference == objectives.RANDOM
        if reference is not None and not self.drawn:
            kept = kept_reference(config.out, pipeline / reference)
            self.reference = self.known(reference, "reference", kept).eval()
            self.reference.to(config.device).requires_grad_(False)

    def loss(self, batch: int, rng: np.random.Generator, step: int) -> Loss:
        lesson = self.teacher.on_device(self.pool.batch(batch))
        assert lesson.tokens is not None
        at, drafted = lesson.ahead(1)
        places = at[drafted]
        law, said, features = (
            of(places) for of in (lesson.law_at, lesson.said_at, lesson.features_at)
        )

        def told(logits: Tensor) -> Places:
            drawn = logits[drafted].float()[:, : law.shape[1]]
            return Places(drawn, features, drawn, law, said, places)

        better = None
        if self.reference is not None:
            with torch.no_grad():
                better = told(logits_of(self.reference, lesson.tokens, lesson.mask))
        each = []
        for logits in self.by_exit(lesson.tokens, lesson.mask):
            found = told(logits)
            loss = self.objective(found)
            if better is not None:
                loss = loss[objectives.learnable(found, better)]
            elif self.drawn:
                loss = loss[objectives.drawn(found)]
            each.append(loss.mean())
        accepted = objectives.acceptance(found).mean()
        return torch.stack(each).mean(), {"acceptance": float(accepted.detach())}


def logits_of(model: PreTrainedModel, tokens: Tensor, mask: Tensor) -> Tensor:
    """Logits `[B, S, V]` that a model gives texts `[B, S]`, padded where `mask` is False."""
    places = (mask.long().cumsum(1) - 1).clamp_min(0)
    out = model(input_ids=tokens, attention_mask=mask.long(), position_ids=places, use_cache=False)
    logits: Tensor = out.logits
    return logits
