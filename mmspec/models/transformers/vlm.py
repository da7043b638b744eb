"""Vision-language models as transformers has them: pictures in the place of their placeholders."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from ...errors import InputError
from .prompted import EncodedPrompt, PromptedDecoder, refuse

if TYPE_CHECKING:
    from typing_extensions import Self

Spans = list[list[tuple[int, int]]]


@dataclass(frozen=True, kw_only=True)
class VisualPrompt(EncodedPrompt):
    """A prompt with pictures in it; they have no `text`.

    Attributes:
        visual: which columns are features of pictures `[R, T]`.
        images: per row, in order, the first column of every picture and how many it has. A picture
            that its processor cuts into tiles may be several.
        deep: what else the first layers add to the hidden states of the visual columns, row by row:
            `[layers, columns, D]` (DeepStack, Meng et al. 2024); None: nothing.
    """

    visual: Tensor
    images: Spans
    deep: Tensor | None = None

    def joined(self, other: Self) -> Self:
        """Append the rows of a prompt without pictures; see `EncodedPrompt.joined`."""
        both = super().joined(other)
        width = both.mask.shape[1]
        mine, theirs = self.widened(width), other.widened(width)
        visual = torch.cat([mine.visual, theirs.visual])
        return replace(both, visual=visual, images=mine.images + theirs.images)

    def widened(self, width: int) -> Self:
        more = width - self.mask.shape[1]
        return replace(
            super().widened(width),
            visual=F.pad(self.visual, (more, 0)),
            images=[[(first + more, count) for first, count in row] for row in self.images],
        )

    def repeated(self, times: int) -> Self:
        deep = self.deep
        if deep is not None:
            rows = deep.split(self.visual.sum(1).tolist(), dim=1)
            deep = torch.cat([row for row in rows for _ in range(times)], dim=1)
        return replace(
            super().repeated(times),
            visual=self.visual.repeat_interleave(times, 0),
            images=[row for row in self.images for _ in range(times)],
            deep=deep,
        )


class VlmDecoder(PromptedDecoder):
    """A vision-language model such as `LlavaForConditionalGeneration`.

    Its vision tower and projector run once a prompt; then its language model and its head run by
    themselves, over embeddings.
    """

    sees = True

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        self.head = model.get_output_embeddings()

    def prompt(self, ids: Tensor, mask: Tensor, limit: int, **inputs: Any) -> VisualPrompt:
        """Embed a prompt and its pictures; see `PromptedDecoder.prompt`.

        Args:
            ids: `[R, T]`, with as many placeholders as the pictures have features: what the
                model's processor makes of them.
            inputs: what else the processor gives: `pixel_values` and what describes them, or in
                their place what `generate` makes of them.

        Raises:
            InputError: there are more or fewer placeholders than features, or videos.
        """
        inputs.pop("mm_token_type_ids", None)  # the placeholders say the same
        features, deep = self._features(inputs)
        plain = super().prompt(ids, mask, limit, **inputs)
        visual = ids == self.model.config.image_token_id
        if ids.shape != mask.shape:  # a prompt of embeddings
            if features:
                refuse("pictures together with inputs_embeds")
            visual = torch.zeros_like(mask)
        sizes = [len(picture) for picture in features]
        if int(visual.sum()) != sum(sizes):
            raise InputError(
                f"the prompts have {int(visual.sum())} image tokens and the pictures take "
                f"{sum(sizes)}; give every placeholder its picture, and both to the processor "
                "at once"
            )
        embedded, text = plain.embedded, plain.text
        if features:
            if features[0].shape[-1] != embedded.shape[-1]:
                raise InputError(
                    f"the pictures are encoded for a model of width {features[0].shape[-1]}, and "
                    f"{type(self.model).__name__} has {embedded.shape[-1]}"
                )
            embedded = embedded.masked_scatter(visual[..., None], torch.cat(features).to(embedded))
        return VisualPrompt(
            embedded,
            mask,
            plain.positions,
            None if text is None else text.masked_fill(visual, -1),
            visual=visual,
            images=spans(visual, sizes),
            deep=None if deep is None else deep.to(embedded),
        )

    @contextmanager
    def generating(self, inputs: Mapping[str, Any]) -> Iterator[None]:
        self._check_videos(inputs)
        yield

    def _features(self, inputs: dict[str, Any]) -> tuple[list[Tensor], Tensor | None]:
        """Features of the pictures among `inputs`, and deep ones; see `VisualPrompt`.

        What is about pictures is taken out of `inputs`.
        """
        encode = self.model.base_model.get_image_features
        about = {n: inputs.pop(n) for n in inspect.signature(encode).parameters if n in inputs}
        encoded = inputs.pop("mm_encoder_outputs", None) or {}
        self._check_videos({**inputs, **encoded})
        pictures = encoded.get("image")
        if pictures is None:
            if about.get("pixel_values") is None:
                return [], None
            pictures = self._encoded(about)
        deep = getattr(pictures, "deepstack_features", None)
        if deep is not None:
            deep = torch.stack([torch.cat(list(layer)) for layer in deep])
        return list(pictures.pooler_output), deep

    def _encoded(self, about: dict[str, Any]) -> Any:
        try:
            return self.model.base_model.get_image_features(**about, return_dict=True)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, TypeError, ValueError) as error:
            raise InputError(
                f"{type(self.model).__name__} can't read these pictures, {str(error).strip()!r}; "
                "give it what its own processor makes of them (if it drafts, as drafter_inputs=)"
            ) from error

    def _check_videos(self, inputs: Mapping[str, Any]) -> None:
        if any(inputs.get(name) is not None for name in ("pixel_values_videos", "video")):
            refuse(f"videos of {type(self.model).__name__}")


def spans(visual: Tensor, sizes: Sequence[int]) -> Spans:
    """Runs of True in the rows of `visual [R, T]`: first column and columns.

    A run ends also where a picture does; `sizes` are theirs, in order.
    """
    rows, columns = visual.nonzero(as_tuple=True)
    begins = torch.ones_like(visual)
    begins[:, 1:] = ~visual[:, :-1]
    begins = begins[rows, columns]
    ends = torch.tensor(list(accumulate(sizes)), dtype=torch.long, device=rows.device)
    begins[ends[ends < len(begins)]] = True
    first = begins.nonzero()[:, 0]
    counts = torch.diff(first, append=first.new_tensor([len(begins)]))
    out: Spans = [[] for _ in visual]
    table = torch.stack([rows[first], columns[first], counts]).T.tolist()
    for row, column, count in table:
        out[row].append((column, count))
    return out
