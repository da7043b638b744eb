"""Recipes of a masked diffusion model that drafts for a language model, in DEER's two stages.

Cheng et al. 2025, "DEER: Draft with Diffusion, Verify with Autoregressive Models". Both stages go
on with the target's own answers, cut at random, behind a separator. The first (`denoise`) masks the
rest of an answer by chance, the second (`refine`) the next few tokens, all of them. The second
stage's weights and lengths are a reconstruction: no code was found.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from ...draft.feature.block import BlockDrafter
from ...draft.masked import MaskedBlocks
from ...engine.stats import SpecStats
from ...engine.warp import Warp
from ...errors import InputError
from ...models.masked_folders import MASK, SEPARATOR, is_masked
from ...models.transformers.masked import MaskedModel
from ..settings import settings_of
from ..trainer import Loss, TrainConfig
from .drafter import DRAFTER, TextDrafterRecipe
from .smaller import SIZES, smaller
from .teacher import TextTeacher

BLOCK = 8  # masked places of a draft
LEAST = 1e-3  # share of the places that is masked at least, in expectation
FALL = 1.01  # of a place's weight against the next one's


class CutText(NamedTuple):
    """Texts with a separator in them.

    Attributes:
        tokens: ids `[R, S + 1]`.
        real: `[R, S + 1]`, False where padded.
        place: number of a token behind the separator, which is -1 `[R, S + 1]`.
    """

    tokens: Tensor
    real: Tensor
    place: Tensor

    @classmethod
    def at(cls, tokens: Tensor, mask: Tensor, first: Tensor, separator: int) -> CutText:
        """Cut texts `[R, S]`, real where `mask`, in front of their columns `first [R]`."""
        place = torch.arange(tokens.shape[1] + 1, device=tokens.device) - first[:, None] - 1
        behind = place >= 0
        said = torch.where(behind, F.pad(tokens, (1, 0)), F.pad(tokens, (0, 1)))
        real = torch.where(behind, F.pad(mask, (1, 0)), F.pad(mask, (0, 1)))
        cut = place == -1
        return cls(said.masked_fill(cut, separator), real | cut, place)

    @property
    def rest(self) -> Tensor:
        """True for real tokens behind the separator `[R, S + 1]`."""
        return self.real & (self.place >= 0)

    @property
    def seen(self) -> Tensor:
        """Tokens that each one reads `[R, S + 1, S + 1]`.

        Those in front of the separator read what is in front of them, it and the rest everything.
        """
        columns = torch.arange(self.real.shape[1], device=self.real.device)
        before = columns <= columns[:, None]
        seen = self.real[:, None] & (before | (self.place >= -1)[..., None])
        return seen | (columns == columns[:, None])  # so that the softmax of padding is defined


class MaskedRecipe(TextDrafterRecipe):
    """Base of recipes of masked models, which learn from the target's answers.

    Args:
        config, pipeline, init, data, settings, rate, max_new_tokens: see `TextDrafterRecipe`.

    Raises:
        InputError: see `TextDrafterRecipe`; or the family's layers can't read both ways.
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
        super().__init__(config, pipeline, init, data, settings, rate, max_new_tokens)
        if self.decoder.alibi.layers or self.decoder.recurrent.modules:
            raise InputError(
                f"layers of {type(self.model).__name__} read a text in one direction; train a "
                "drafter of single tokens: mmspec train text-drafter"
            )

    def block_of(self, sizes: dict[str, int]) -> int:
        """The setting `block`, which is taken out of all."""
        block = sizes.pop("block")
        if not 0 < block <= 64:
            raise InputError(f"block of a drafter must be from 1 to 64, not {block}")
        return block

    def named(self, model: PreTrainedModel, *tokens: str) -> list[int]:
        """Give a model tokens behind the target's, which its configuration names; their ids."""
        words = self.teacher.decoder.vocab_size
        model.resize_token_embeddings(words + len(tokens), mean_resizing=False)
        with torch.no_grad():
            for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
                assert layer is not None
                assert isinstance(layer.weight, Tensor)
                layer.weight[words:] = layer.weight[:words].mean(0)
        ids = [words + number for number in range(len(tokens))]
        for name, token in zip(tokens, ids, strict=True):
            setattr(model.config, name, token)
        return ids


class TextMaskedRecipe(MaskedRecipe):
    """Base of both stages: a smaller model of the target's family with two tokens more.

    Behind the target's tokens stand the separator and the mask; the configuration names them.

    Args:
        config, pipeline, init, data, rate, max_new_tokens: see `TextDrafterRecipe`.
        settings: `layers`, `width`, and `block`, the masked places of a draft, as text.
    """

    purpose: ClassVar[str] = "drafts for its target, a block of masked places in one call"

    def first(self, settings: Mapping[str, str]) -> PreTrainedModel:
        known = {name: SIZES[name] for name in ("layers", "width")} | {"block": BLOCK}
        sizes = settings_of(settings, known, "a drafter")
        self.block, self.words = self.block_of(sizes), self.teacher.decoder.vocab_size
        model = smaller(self.teacher.model, sizes)
        self.separator, self.mask = self.named(model, SEPARATOR, MASK)
        return model

    @abstractmethod
    def noised(self, text: CutText, rng: np.random.Generator) -> tuple[CutText, Tensor, Tensor]:
        """The text that is learned from, its masked tokens, and all tokens' weights `[R, S + 1]`.

        Masked tokens are True; weights of a row add up to 1 in expectation.
        """

    def denoised(self, text: CutText, masked: Tensor) -> Tensor:
        """Logits `[R, S + 1, V + 2]` of a text some tokens of which are `masked`."""
        columns = torch.arange(masked.shape[1], device=masked.device)
        distance = (columns[:, None] - columns).expand(len(masked), -1, -1)
        bias = torch.zeros_like(text.seen, dtype=torch.float32).masked_fill(~text.seen, -torch.inf)
        out = self.model(
            input_ids=text.tokens.masked_fill(masked, self.mask),
            attention_mask=self.decoder.masks.of(bias[:, None], lambda: distance),
            position_ids=(text.real.long().cumsum(1) - 1).clamp_min(0),
            use_cache=False,
        )
        logits: Tensor = out.logits
        return logits

    def loss(self, batch: int, rng: np.random.Generator, step: int) -> Loss:
        lesson = self.teacher.on_device(self.pool.batch(batch))
        assert lesson.tokens is not None
        count, start = lesson.answer.sum(1), lesson.answer.long().argmax(1)
        chance = torch.from_numpy(rng.random(len(count))).to(count.device)
        first = start + (chance * count).long()  # one of the answer's own tokens follows
        cut = CutText.at(lesson.tokens, lesson.mask, first, self.separator)
        text, masked, weights = self.noised(cut, rng)
        learned = masked & (weights > 0)
        logits = self.denoised(text, masked)[learned].float()
        said = text.tokens[learned]
        each = F.cross_entropy(logits, said, reduction="none")
        right = (logits.argmax(-1) == said).float()
        metrics = {"right": float(right.mean())} if len(right) else {}
        return (weights[learned] * each).sum() / len(count), metrics

    @torch.inference_mode()
    def accepted(self, drafting: TextTeacher, temperature: float) -> SpecStats:
        """Statistics of drafts of a block, on held-out prompts."""
        prompts, warp = self.lessons.prompts.held_out(), Warp(temperature)
        law = partial(_of_words, warp, self.words)
        target = self.teacher.placed(self.teacher.encoded(prompts), warp, 1 + self.block)
        drafter = drafting.placed(drafting.encoded(prompts), law, 1 + self.block)
        with drafting.decoder.repacked():
            blocks = BlockDrafter(MaskedBlocks(MaskedModel(drafter, self.block)))
            return self.teacher.answer(target, blocks, self.block, [*range(len(prompts))])[1]


class TextDenoiseRecipe(TextMaskedRecipe):
    """Learns to continue: of the rest of an answer each token is masked with a probability t.

    Its loss is the mean over t, from 0 to 1, of 1 / t times the masked tokens' cross-entropies.
    """

    def noised(self, text: CutText, rng: np.random.Generator) -> tuple[CutText, Tensor, Tensor]:
        rows, device = len(text.tokens), text.tokens.device
        # one t from every part of the range, so that a batch knows all of it
        even = (rng.permutation(rows) + rng.random(rows)) / rows
        share = torch.from_numpy(LEAST + (1 - LEAST) * even).float().to(device)[:, None]
        chance = torch.from_numpy(rng.random(text.tokens.shape)).to(device)
        masked = text.rest & (chance < share)
        weights = text.rest / (share * text.rest.sum(1, keepdim=True))
        return text, masked, weights


class TextRefineRecipe(TextMaskedRecipe):
    """Learns to draft: the next `block` tokens are masked, and the nearest weigh most.

    Args:
        init: `drafter`, to go on with the one that is there; None: the same, if it is a masked one.
    """

    def usual(self, pipeline: Path) -> str | None:
        return DRAFTER if is_masked(pipeline / DRAFTER) else None

    def noised(self, text: CutText, rng: np.random.Generator) -> tuple[CutText, Tensor, Tensor]:
        # there are as many masks behind an answer's end, so that they don't tell where it is
        more = torch.arange(1, self.block + 1, device=text.place.device)
        place = torch.cat([text.place, text.place[:, -1:] + more], 1)
        tokens, real, rest = (
            F.pad(x, (0, self.block)) for x in (text.tokens, text.real, text.rest)
        )
        masked = (place >= 0) & (place < self.block)
        weights = (rest & masked) * FALL ** -place.clamp_min(0).float()
        seen = CutText(tokens, (real & (place < 0)) | masked, place)
        return seen, masked, weights / weights.sum(1, keepdim=True)


def _of_words(warp: Warp, words: int, logits: Tensor) -> Tensor:
    """Laws of the target's words, of logits of a drafter that has more tokens."""
    return warp(logits[..., :words])
