"""Drafters that are shown nothing: a grey picture in the place of each.

A draft model is given what its processor makes of the grey pictures. A draft head reads inputs and
hidden states of the target; at the pictures' columns it is given those of the target while that is
shown the grey ones. The target itself sees the true pictures.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from ....methods import SpecConfig
from ....models.heads.columns import Columns
from ....models.heads.loading import DraftHeads, network_class
from ....models.heads.published.eagle1 import EagleNetwork
from ....models.heads.published.eagle3 import Eagle3Network
from ....models.heads.published.head import PublishedHead
from ....models.transformers.prompt_inputs import process_questions
from ....models.transformers.prompted import prompted
from ....pipelines.vlm.pipeline import VlmPipeline

GREY = (128, 128, 128)


def looks(config: SpecConfig) -> bool:
    """True if a method drafts with a network that reads the pictures, and could be denied them."""
    parts = config.resolve("vlm")
    if parts.head is not None:
        # with fewer columns than the pictures have, the target's of grey ones would not fit
        kinds = EagleNetwork, Eagle3Network
        return issubclass(network_class(parts.head.name), kinds) and not config.target_compressor
    return parts.model_drafts and not parts.drafter_only


class Blank:
    """Denies the drafter of a pipeline every picture.

    Args:
        pipe: whose parts are nobody else's to read; some are replaced.
        config: the method; one that `looks`.
    """

    def __init__(self, pipe: VlmPipeline, config: SpecConfig) -> None:
        self.pipe = pipe
        name = config.resolve("vlm").parts["head"]
        self._head = None if name is None else GreyHead(pipe.heads[name])
        if self._head is None:
            pipe.drafter_processor = GreyProcessor(pipe.drafter_processor or pipe.processor)
        else:
            pipe.heads = DraftHeads({str(name): self._head.network})

    def show(self, pictures: Sequence[Image.Image], questions: Sequence[str]) -> None:
        """Get ready for these questions."""
        if self._head is not None:
            seen = [[grey(picture)] for picture in pictures]
            self._head.see(self.pipe, seen, questions)


class GreyProcessor:
    """A processor that lays prompts out as another does, with grey pictures of the same sizes."""

    def __init__(self, processor: Any) -> None:
        self.processor = processor

    def __getattr__(self, name: str) -> Any:
        """The other's."""
        return getattr(self.processor, name)

    def __call__(
        self, *, images: Sequence[Sequence[Image.Image]] | None = None, **given: Any
    ) -> Any:
        """Process texts and, in place of `images`, grey ones, with the other processor."""
        if images is not None:
            given["images"] = [[grey(picture) for picture in seen] for seen in images]
        return self.processor(**given)


class GreyHead:
    """A head that reads other columns in the place of the pictures'.

    Attributes:
        network: the head, with the weights of the one that it was made of.
        embedded, before: what it reads there, `[R, T, D]` each, see `Columns`.
    """

    def __init__(self, head: PublishedHead) -> None:
        self.network = copy.copy(head)
        self.network.shown = self.columns
        self.embedded = self.before = torch.zeros(0)

    @torch.inference_mode()
    def see(
        self,
        pipe: VlmPipeline,
        pictures: Sequence[Sequence[Image.Image]],
        questions: Sequence[str],
    ) -> None:
        """Read off what the target makes of these pictures."""
        network = self.network.network
        assert isinstance(network, EagleNetwork | Eagle3Network)
        reads = self.network.reads_of(pipe.model.config.get_text_config().num_hidden_layers)
        self.embedded, before = target_columns(pipe, pictures, questions, reads)
        self.before = network.fuse(before)

    def columns(self, columns: Columns) -> Columns:
        """The columns with the pictures' replaced."""
        if columns.images is None:
            return columns
        visual = columns.images.visual(columns.mask)[..., None]
        return replace(
            columns,
            embedded=torch.where(visual, self.embedded, columns.embedded),
            before=torch.where(visual, self.before, columns.before),
        )


def grey(picture: Image.Image) -> Image.Image:
    """A picture of the same size without anything to see."""
    return Image.new("RGB", picture.size, GREY)


@torch.inference_mode()
def target_columns(
    pipe: VlmPipeline,
    pictures: Sequence[Sequence[Image.Image]],
    questions: Sequence[str],
    reads: tuple[int, ...] = (),
) -> tuple[Tensor, Tensor]:
    """The target's inputs at a prompt's columns, and its hidden states in front of them.

    They are `[R, T, D]` and `[R, T, A · D]`; hidden states are those of `reads`, or else those
    behind its last norm, 0 in front of a prompt.
    """
    model = pipe.model
    given = process_questions(pipe.processor, pictures, questions, model)
    out = model.base_model(**given, use_cache=False, output_hidden_states=True)
    hidden = torch.cat([out.hidden_states[n] for n in reads or (-1,)], dim=-1)
    ids, mask = given.pop("input_ids"), given.pop("attention_mask").bool()
    embedded = prompted(model).prompt(ids, mask, 0, **given).embedded
    return embedded, F.pad((hidden * mask[..., None])[:, :-1], (0, 0, 1, 0))
