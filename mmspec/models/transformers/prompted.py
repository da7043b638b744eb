"""A language model that continues prompts, as transformers' `generate` hands them over."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from ...errors import InputError
from ...methods import Modality
from ...registry import Registry
from .causal import CausalDecoder

if TYPE_CHECKING:
    from typing_extensions import Self


MASKED = ("eager", "sdpa")  # ways to compute attention that take a mask for every token


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt to continue, and its positions.

    Attributes:
        embedded: `[R, T, D]`, left-padded.
        mask: `[R, T]`, False where padded.
        positions: those of the prompt's columns and of the outputs behind them,
            `[R, T + limit]`, or `[axes, R, T + limit]`.
        text: ids that a draft may be copied from `[R, T]`, -1 where there is none; None: nothing.
        stride: output tokens in a row of the picture; 1 for text.
        both_ways: groups of its columns that read each other `[R, T]`, see `Setting`.
    """

    embedded: Tensor
    mask: Tensor
    positions: Tensor
    text: Tensor | None = None
    stride: int = 1
    both_ways: Tensor | None = None

    def joined(self, other: Self) -> Self:
        """Append the rows of a prompt that has as many outputs to come."""
        width = max(self.mask.shape[1], other.mask.shape[1])
        both = self.widened(width), other.widened(width)
        return replace(
            self,
            embedded=torch.cat([p.embedded for p in both]),
            mask=torch.cat([p.mask for p in both]),
            positions=torch.cat([p.positions for p in both], dim=-2),
            both_ways=_joined(*both),
        )

    def widened(self, width: int) -> Self:
        """The prompt with padding up to `width` columns; the text stays."""
        more = width - self.mask.shape[1]
        return replace(
            self,
            embedded=F.pad(self.embedded, (0, 0, more, 0)),
            mask=F.pad(self.mask, (more, 0)),
            positions=F.pad(self.positions, (more, 0)),
            both_ways=None
            if self.both_ways is None
            else F.pad(self.both_ways, (more, 0), value=-1),
        )

    def repeated(self, times: int) -> Self:
        """Repeat every row so many times, one copy after the other."""
        return replace(
            self,
            embedded=self.embedded.repeat_interleave(times, 0),
            mask=self.mask.repeat_interleave(times, 0),
            positions=self.positions.repeat_interleave(times, -2),
            text=None if self.text is None else self.text.repeat_interleave(times, 0),
            both_ways=None
            if self.both_ways is None
            else self.both_ways.repeat_interleave(times, 0),
        )


def _joined(*prompts: EncodedPrompt) -> Tensor | None:
    """Groups of all rows; None: there are none."""
    if all(prompt.both_ways is None for prompt in prompts):
        return None
    alone = (torch.full_like(prompt.mask, -1, dtype=torch.long) for prompt in prompts)
    pairs = zip(prompts, alone, strict=True)
    return torch.cat([none if p.both_ways is None else p.both_ways for p, none in pairs])


class PromptedDecoder(CausalDecoder):
    """A model whose next generation stands where its prompt says.

    `place` comes before `GuidedDecoder` asks for positions; nothing of it is kept on the model.

    Args:
        model: of transformers, with a head, in evaluation mode, on one device.

    Attributes:
        drafts_for: logits of the model that it drafts for, if it does.
        method: the method that suits such models when nobody chooses one.
        modality: what it writes, as methods name it: "vlm" is text.
        guidable: whether an unconditional prompt makes sense to it.
        sees: whether it looks at pictures itself: what a target has made of them is of no use to
            it as a draft model.
        reads_text: whether it continues text alone.

    Raises:
        InputError: as `CausalDecoder`; or the model can't be run over masks and a cache of ours.
    """

    method = "prompt-lookup"
    modality: Modality = "vlm"
    guidable = True
    sees = False
    reads_text = True

    def __init__(self, model: PreTrainedModel) -> None:
        name = type(model).__name__
        if model.config.is_encoder_decoder:
            raise InputError(f"{name} has an encoder of its own; speculation takes decoders only")
        head = model.get_output_embeddings()
        if head is None:
            raise InputError(f"{name} has no head; load the class that generates")
        if len(set(getattr(model, "hf_device_map", {}).values())) > 1:
            raise InputError(f"{name} is spread over devices; load it on one")
        super().__init__(model)
        self._check_attention()
        self.drafts_for: int | None = None
        self._positions = self._narrowed = torch.zeros(1, 0, dtype=torch.long)

    @property
    def vocab_size(self) -> int:
        """Logits V."""
        head: Any = self.model.get_output_embeddings()
        # weights in few bits have shapes of their own
        return int(getattr(head, "out_features", None) or len(head.weight))

    def embed(self, ids: Tensor) -> Tensor:
        """Inputs of token ids, see `CausalDecoder.embed`; ids beyond the table read as its last."""
        if self.drafts_for is not None and self.drafts_for > len(self.embeddings):
            ids = ids.clamp_max(len(self.embeddings) - 1)
        return super().embed(ids)

    def prompt(self, ids: Tensor, mask: Tensor, limit: int, **inputs: Any) -> EncodedPrompt:
        """Embed a prompt.

        Args:
            ids: `[R, T]`.
            mask: `[R, T]`, False where padded.
            limit: outputs to come.
            inputs: what else the model was given: `position_ids [1 or R, T]`, or `inputs_embeds
                [R, T, D]` in place of the ids.

        Raises:
            InputError: there is something among `inputs` that it would have to ignore.
        """
        embedded = inputs.pop("inputs_embeds", None)
        positions = self._placed(mask, inputs.pop("position_ids", None))
        kinds = inputs.get("mm_token_type_ids")
        if kinds is not None and not bool(kinds.any()):  # all of it is text
            del inputs["mm_token_type_ids"]
        if _PICTURES & inputs.keys():
            raise InputError(
                f"{type(self.model).__name__} is none of the models whose pictures speculation "
                f"knows ({', '.join(DECODERS.names())}); call mmspec.disable_speculation(model) "
                "first, or give it drafter_inputs= without pictures if it drafts"
            )
        if inputs:
            refuse(f"{', '.join(sorted(inputs))} of {type(self.model).__name__}")
        if embedded is None:
            embedded = self.embed(ids)
        elif self.by_layer is not None:
            refuse(f"inputs_embeds of {type(self.model).__name__}, whose layers look tokens up")
        text = ids.masked_fill(~mask, -1) if ids.shape == mask.shape else None
        return EncodedPrompt(embedded, mask, continued(positions, limit), text)

    def _placed(self, mask: Tensor, given: Tensor | None) -> Tensor:
        """Positions of the prompt's columns; those that were given, or else in order.

        Models whose attention counts distances by itself (ALiBi) have no use for given ones.
        """
        own = given is None or bool(self.alibi.layers)
        positions = (mask.long().cumsum(1) - 1).clamp_min(0) if own else given
        assert positions is not None
        if positions.ndim != 2:
            raise InputError(
                f"{type(self.model).__name__} takes no positions on several axes; give it "
                "drafter_inputs= of its own if it drafts"
            )
        return positions.expand(len(mask), -1)

    @contextmanager
    def generating(self, inputs: Mapping[str, Any]) -> Iterator[None]:
        """Surround a call of the model's own `generate`, which prepares `inputs`.

        What the call leaves on the model is undone here.

        Raises:
            InputError: what transformers would fail at without a clear word.
        """
        yield

    def refresh(self) -> None:
        """Look the weights up again: the model may have been moved, cast or offloaded."""
        hook = getattr(self.model, "_hf_hook", None)
        if hook is not None:  # accelerate's: brings the weights back as a call of the model would
            hook.pre_forward(self.model)
        self._check_attention()
        self.embeddings = self.model.get_input_embeddings().weight.detach()
        if self.embeddings.is_meta:
            name = type(self.model).__name__
            raise InputError(f"{name} is offloaded layer by layer; load it whole, on one device")

    def _check_attention(self) -> None:
        """Raise an `InputError` if attention runs in a way that takes no masks."""
        kind = getattr(self.config, "_attn_implementation", None) or "eager"
        if kind not in MASKED:
            raise InputError(
                f"attention {kind!r} takes no masks of ours; call "
                f"model.set_attn_implementation('sdpa') of {type(self.model).__name__}"
            )

    def place(self, prompt: EncodedPrompt) -> None:
        """Set the next generation's prompt; see `EncodedPrompt.positions`."""
        self._positions = self._narrowed = prompt.positions
        self.text, self.reads = prompt.text, ()
        self.experts.prompt = int(prompt.mask.any(0).sum())

    def narrow(self, rows: Sequence[int] | None) -> None:
        self._narrowed = self._positions if rows is None else self._positions[..., list(rows), :]

    def rotary(self, grid: int = 0) -> Tensor:
        """Columns of `positions`, up to the first with one that the model does not have."""
        most = most_positions(self.config)
        known = (self._positions < (sys.maxsize if most is None else most)).flatten(0, -2).all(0)
        return torch.arange(int(known.long().cumprod(0).sum()), device=known.device)

    def turned(self, columns: Tensor) -> Tensor:
        """Positions of columns; see `EncodedPrompt.positions`."""
        columns = columns.expand(*self._narrowed.shape[:-1], -1)
        return self._narrowed.gather(-1, columns)


def most_positions(config: Any) -> int | None:
    """Positions that a text model has, as its configuration says; None: nothing bounds them."""
    bounds = [getattr(config, "max_position_embeddings", None)]
    rope = getattr(config, "rope_parameters", None) or {}
    for one in (rope, *(kind for kind in rope.values() if isinstance(kind, dict))):
        if one.get("rope_type") in ("dynamic", "longrope"):
            # beyond this, all positions turn at another speed, and cached keys would not
            bounds.append(one.get("original_max_position_embeddings"))
    return min((most for most in bounds if most and most > 0), default=None)


def refuse(what: str) -> NoReturn:
    """Raise an `InputError` about what speculation would have to ignore."""
    raise InputError(
        f"speculation can't honour {what}; leave it out, or generate without speculation"
    )


def continued(positions: Tensor, limit: int) -> Tensor:
    """`positions [..., T]`, and the `limit` ones after each row's last."""
    steps = torch.arange(1, limit + 1, device=positions.device)
    return torch.cat([positions, positions[..., -1:] + steps], dim=-1)


# families whose positions or prompts are their own
DECODERS = Registry(
    "model type",
    {
        "gemma3": "mmspec.models.transformers.gemma3:Gemma3Decoder",
        "gemma4": "mmspec.models.transformers.gemma4:Gemma4Decoder",
        "gemma4_unified": "mmspec.models.transformers.gemma4:Gemma4Decoder",
        "glm_image": "mmspec.models.transformers.glm_image:GlmImageDecoder",
        "idefics3": "mmspec.models.transformers.vlm:VlmDecoder",
        "internvl": "mmspec.models.transformers.vlm:VlmDecoder",
        "llava": "mmspec.models.transformers.vlm:VlmDecoder",
        "llava_next": "mmspec.models.transformers.vlm:VlmDecoder",
        "llava_onevision": "mmspec.models.transformers.vlm:VlmDecoder",
        "paligemma": "mmspec.models.transformers.paligemma:PaliGemmaDecoder",
        "qwen2_5_vl": "mmspec.models.transformers.qwen_vl:QwenVlDecoder",
        "qwen2_vl": "mmspec.models.transformers.qwen_vl:QwenVlDecoder",
        "qwen3_vl": "mmspec.models.transformers.qwen_vl:QwenVlDecoder",
        "smolvlm": "mmspec.models.transformers.vlm:VlmDecoder",
    },
)
_PICTURES = {"pixel_values", "pixel_values_videos", "mm_encoder_outputs"}


def prompted(model: PreTrainedModel) -> PromptedDecoder:
    """The decoder of a transformers model, by its config's `model_type`."""
    kind = model.config.model_type
    return (DECODERS.get(kind) if kind in DECODERS.names() else PromptedDecoder)(model)
