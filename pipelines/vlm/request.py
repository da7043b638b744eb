"""Request of one call of transformers' `generate`, in the engine's terms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import GenerationConfig
from transformers.generation import GenerationMode

from ...engine.draft import Context
from ...engine.protocols import Stop
from ...errors import InputError
from ...models.guided import GuidedDecoder
from ...models.kept_entries import Keeping, KeptDecoder
from ...models.prefill import PREFILL_CHUNK
from ...models.setting import Setting
from ...models.transformers.cache_view import CACHE_NAMES
from ...models.transformers.emitted_scores import EmittedScores
from ...models.transformers.processed_laws import GUIDANCE, ProcessedLaw
from ...models.transformers.prompted import EncodedPrompt, PromptedDecoder, refuse
from ...models.transformers.vocabulary_map import VocabularyMap
from ..stopping import Stops, common_width

_MODES = (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE)
# these say how, not what; the last one is for training, and processors give it unasked
_OF_THE_LOOP = ("use_cache", "logits_to_keep", *CACHE_NAMES, "labels")


class Request:
    """A prompt that `generate` has prepared, for any network that is to continue it.

    `ids [B, T]` are empty for a prompt of embeddings; `processors` come in `generate`'s order.

    Attributes:
        given, own: what the target and the draft model were given, as a processor makes it; None:
            the draft model reads what transformers prepares for the target.
        at_once: rows that run at a time; None: all.
        law: by which the output is drawn.
        judged: by which drafts are judged: the same; `soft`: of a greedy output the law that the
            largest is taken of.
        drafted: the first for drafts.
        scores, logits: take what `output_scores` and `output_logits` ask for; None: nobody asks.
        prefill_chunk: most tokens of the prompt that a call reads.
        keeps: whether the cache of all rows is asked for.
        ranked: the same, and of a greedy output the law that it takes the largest of, for drafts of
            the likeliest tokens.

    Raises:
        InputError: it asks for what speculation can't give.
    """

    def __init__(
        self,
        ids: Tensor,
        processors: Sequence[Any],
        stops: Stops,
        config: GenerationConfig,
        inputs: dict[str, Any],
        device: torch.device,
        given: Mapping[str, Any],
        own: Mapping[str, Any] | None,
        at_once: int | None = None,
        soft: bool = False,
    ) -> None:
        mode = config.get_generation_mode(None)
        if mode not in _MODES:
            refuse(f"{mode.value.replace('_', ' ')}")
        self.ids, self.given, self.own, self.at_once = ids.to(device), given, own, at_once
        self.limit = max(1, stops.length - ids.shape[1])  # one is written before it is looked at
        self.greedy = not config.do_sample
        chunk = getattr(config, "prefill_chunk_size", None)
        if chunk is not None and chunk < 1:
            raise InputError(f"prefill_chunk_size must be 1 or more, not {chunk}")
        self.prefill_chunk = PREFILL_CHUNK if chunk is None else int(chunk)
        told_to = self.ids, stops.eos
        self.law = self.judged = ProcessedLaw(processors, self.greedy, *told_to)
        if self.greedy and soft:
            self.judged = ProcessedLaw(processors, False, *told_to)
        told = config.return_dict_in_generate
        self.keeps = bool(told) and config.use_cache is not False
        self.scores = EmittedScores() if told and config.output_scores else None
        self.logits = EmittedScores() if told and config.output_logits else None
        # of their own: a draft model may run beside the target
        self.drafted = ProcessedLaw(processors, self.greedy, *told_to)
        self.ranked = ProcessedLaw(processors, False, *told_to)
        self.copies = config.num_return_sequences or 1
        self.inputs = _moved(inputs, device)
        shape = self.inputs.get("inputs_embeds", self.ids).shape[:2]
        self.mask = _left_padded(self.inputs.pop("attention_mask", None), shape, device)
        self.scale: float | None = None
        guidance = [p for p in processors if type(p) is GUIDANCE]
        if guidance:
            if guidance != list(processors[:1]):
                refuse("guidance behind other logits processors")
            self.scale = guidance[0].guidance_scale
            told = guidance[0].unconditional_context
            self.negative = told["input_ids"]
            self.negative = self.ids[:, -1:] if self.negative is None else self.negative.to(device)
            self.negative_mask = _left_padded(told["attention_mask"], self.negative.shape, device)
            if len(self.negative) != len(self.ids):
                raise InputError(
                    f"{len(self.negative)} negative prompts for {len(self.ids)} rows; give one each"
                )

    def prompt(
        self,
        decoder: PromptedDecoder,
        own: Mapping[str, Any] | None = None,
        shorten: Callable[[EncodedPrompt], EncodedPrompt] = lambda prompt: prompt,
        words: VocabularyMap | None = None,
    ) -> EncodedPrompt:
        """The prompt as a network reads it; under guidance with the unconditional rows behind.

        `own` is what it reads in place of the inputs that were prepared for the target, `words` the
        target's tokens in its own, if it has others.
        """
        if words is not None and self.scale is not None:
            refuse("guidance with a drafter of other words")
        if self.scale is not None and not decoder.guidable:
            refuse(f"guidance_scale of {type(decoder.model).__name__}")
        inputs, ids, mask, copies = self.inputs, self.ids, self.mask, 1
        if own is not None:
            inputs, copies = _moved(own, self.ids.device), self.copies
            ids, mask = inputs.pop("input_ids", None), inputs.pop("attention_mask", None)
            if ids is None:
                raise InputError("the drafter's own inputs have no input_ids")
            if mask is None and torch.equal(ids, self.ids[::copies]):
                mask = self.mask[::copies]  # as transformers inferred it
            mask = _left_padded(mask, ids.shape, ids.device)
            if len(ids) * copies != len(self.ids):
                raise InputError(
                    f"{len(ids)} prompts of the drafter's own for {len(self.ids) // copies} rows; "
                    "give one each"
                )
        limit = self.limit if words is None else self._stretched
        prompt = shorten(decoder.prompt(ids, mask, limit, **inputs))
        prompt = prompt if own is None else prompt.repeated(copies)
        if self.scale is None:
            return prompt
        return prompt.joined(decoder.prompt(self.negative, self.negative_mask, self.limit))

    @property
    def _stretched(self) -> int:
        """Places for the output in other words."""
        return 3 * self.limit + 64

    def guided(
        self,
        decoder: PromptedDecoder,
        prompt: EncodedPrompt,
        scratch: int,
        law: Callable[[Tensor], Tensor],
        words: VocabularyMap | None = None,
        keeping: Keeping | None = None,
    ) -> GuidedDecoder:
        """The network under guidance and warpers, with a cache of its own.

        A call may add `scratch` tokens beyond the output; `law` makes laws of its logits. With
        `words` it reads its own tokens, and its laws are over the target's. `keeping` says which
        of the prompt's entries stay in the cache; None: all.
        """
        decoder.place(prompt)
        size, limit = decoder.drafts_for, self.limit
        if words is not None:
            law = partial(_widened, law, words)
            width, places = prompt.mask.shape[1], len(decoder.rotary())
            limit = min(self._stretched, places - width)
            if limit < 1:
                raise InputError(
                    f"the prompt is {width} tokens of the drafter's, which has {places} positions; "
                    "leave the drafter out"
                )
        elif size is not None and size != decoder.vocab_size:
            law = partial(_refitted, law, size)
        setting = Setting(
            prompt.embedded,
            prompt.mask,
            self.scale,
            law,
            limit,
            0,
            scratch,
            at_once=self.at_once,
            normalized=self.law.looks or self.scores is not None,
            both_ways=prompt.both_ways,
            prefill_chunk=self.prefill_chunk,
        )
        made = (
            GuidedDecoder(decoder, setting)
            if keeping is None
            else KeptDecoder(decoder, setting, keeping)
        )
        # a compressed prompt may be as wide as before, and padded where it was not
        made.compact |= not torch.equal(prompt.mask[: len(self.mask)], self.mask)
        return made

    def emitted(self, lengths: list[int], width: int) -> dict[str, Any]:
        """The asked of `scores` and `logits` of the tokens, a tensor a column."""
        asked = {"scores": self.scores, "logits": self.logits}
        return {name: of.columns(lengths, width) for name, of in asked.items() if of is not None}


class TokenStream:
    """Stream of the output to a streamer of transformers, which has the prompt already: a column
    as soon as every row has it, `pad` behind a row's end.
    """

    def __init__(self, streamer: Any, pad: int) -> None:
        self.streamer, self.pad, self._told = streamer, pad, 0

    def tell(self, context: Context, stop: Stop | None) -> None:
        """Tell the columns that every row has, but for those that will be `cut`."""
        going = [b for b, over in zip(context.base, context.finished, strict=True) if not over]
        ready = min(going) if going else max(context.base)
        width = common_width(stop)
        self._put(context, ready if width is None else min(ready, width))

    def end(self, context: Context, width: int) -> None:
        """Tell what is left of so many columns, and that it is all."""
        self._put(context, width)
        self.streamer.end()

    def _put(self, context: Context, width: int) -> None:
        for column in range(self._told, width):
            real = context.lengths > column
            self.streamer.put(context.tokens[:, column].where(real, self.pad).cpu())
        self._told = max(self._told, width)


@runtime_checkable
class Listener(Protocol):
    """Hears what generations make of their drafts, such as an `OnlineLearner`."""

    def begin(self, prompt: EncodedPrompt, rows: int) -> None:
        """Hear that a generation of `rows` answers begins; it may refuse, by an `InputError`."""

    def round(self, context: Context) -> None:
        """Hear what became of a round."""

    def end(
        self, prompt: EncodedPrompt, images: Sequence[Sequence[tuple[int, int]]], context: Context
    ) -> None:
        """Hear the answers to a prompt; `images`: where its pictures are, by row."""


def _widened(law: Callable[[Tensor], Tensor], words: VocabularyMap, logits: Tensor) -> Tensor:
    """The law over the target's tokens, of logits over others."""
    return law(words.widened(logits))


def _refitted(law: Callable[[Tensor], Tensor], size: int, logits: Tensor) -> Tensor:
    """The law over a vocabulary of another size: what is not in both has probability 0."""
    return law(F.pad(logits, (0, size - logits.shape[-1]), value=-torch.inf))


def _moved(inputs: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """Inputs that belong to a prompt, on the device."""
    return {
        name: value.to(device) if isinstance(value, Tensor) else value
        for name, value in inputs.items()
        if not (name in _OF_THE_LOOP or value is None or (isinstance(value, dict) and not value))
    }


def _left_padded(mask: Tensor | None, shape: torch.Size, device: torch.device) -> Tensor:
    """`mask` as booleans; None: all real."""
    if mask is None:
        return torch.ones(shape, dtype=torch.bool, device=device)
    real = mask.to(device).bool()
    if real.shape != shape:
        raise InputError(f"the attention mask is {tuple(real.shape)}, the prompt {tuple(shape)}")
    if not bool(real[:, -1:].all() & (real[:, 1:] >= real[:, :-1]).all()):
        raise InputError("prompts must be padded on the left: set padding_side='left'")
    return real
