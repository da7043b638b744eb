"""A frozen vision-language model as the teacher of draft heads: it answers, and shows its states.

The answers are its own, half of them greedy and half drawn at temperature 1, and what it makes of
them is read off as it writes them: nothing is stored on disk (online distillation, Huang et al.
2025, section 3.3).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from ...draft.null import NullDrafter
from ...engine.accept.token import TokenRule
from ...engine.coins import ProductionCoins
from ...engine.draft import Context, Draft, Scores, Verdict
from ...engine.length.constant import ConstantLength
from ...engine.loop import run
from ...engine.protocols import Drafter, Engine
from ...engine.stats import SpecStats
from ...engine.warp import Warp
from ...models.guided import GuidedDecoder
from ...models.heads.columns import Images
from ...models.target import TokenTarget
from ...models.transformers.prompt_inputs import process_questions
from ...models.transformers.prompted import prompted
from ...models.transformers.vlm import Spans, VisualPrompt
from .head_batch import HeadBatch
from .prompts import Questions

_GREEDY, _SAMPLED = Warp(0.0), Warp()


class Teacher:
    """Answers questions with the engine's own loop.

    Args:
        model: a vision-language model of transformers, in evaluation mode.
        processor: its own.
        limit: tokens of an answer at most.
        reads: hidden states that examples hold beside the last ones, see `PublishedHead.reads`.
    """

    def __init__(
        self, model: PreTrainedModel, processor: Any, limit: int, reads: tuple[int, ...] = ()
    ) -> None:
        self.reads = reads
        self.model, self.processor, self.limit = model.requires_grad_(False), processor, limit
        self.decoder = prompted(model)
        ends = model.generation_config.eos_token_id
        self.ends = tuple(ends) if isinstance(ends, list | tuple) else (ends,)
        if None in self.ends:
            self.ends = ()

    def prompt(
        self,
        questions: Questions,
        warp: Callable[[Tensor], Tensor],
        scratch: int = 1,
        seen: bool = True,
    ) -> tuple[GuidedDecoder, VisualPrompt]:
        """The model in front of its answers; `warp` makes laws of logits.

        Args:
            scratch: tokens that a call may add beyond the output.
            seen: whether it is shown the pictures.
        """
        pictures = [[picture] if seen else [] for picture in questions.pictures]
        inputs: dict[str, Any] = process_questions(
            self.processor, pictures, questions.texts, self.model
        )
        inputs.pop("token_type_ids", None)
        ids, mask = inputs.pop("input_ids"), inputs.pop("attention_mask").bool()
        prompt = self.decoder.prompt(ids, mask, self.limit, **inputs)
        assert isinstance(prompt, VisualPrompt)
        self.decoder.place(prompt)
        prefix = prompt.embedded, prompt.mask
        target = GuidedDecoder(self.decoder, *prefix, None, warp, self.limit, 0, scratch)
        return target, prompt

    def answer(
        self, target: GuidedDecoder, drafter: Drafter, length: int, seeds: list[int]
    ) -> tuple[Context, SpecStats]:
        """Answers of a prompted target, of which a drafter drafts up to `length` tokens a round."""
        device, stats = target.prefix.device, SpecStats()
        coins = ProductionCoins(seeds, device)
        target_of = TokenTarget(target), drafter, TokenRule(), ConstantLength(length), coins
        engine = Engine(*target_of, self.ends or None)
        return run(engine, len(seeds), self.limit, stats, device=device), stats

    def examples(
        self, questions: Questions, seeds: list[int], size: int, seen: bool = True
    ) -> list[HeadBatch]:
        """Answers to questions, and hidden states at them, in batches of `size`.

        Batches lie in the host's memory. Many answers at once cost little more than a few.

        Args:
            seeds: one a question; answers of even ones are greedy.
            seen: whether the pictures are shown.
        """
        with torch.inference_mode():
            greedy = torch.tensor([seed % 2 == 0 for seed in seeds], device=self.model.device)

            def warp(logits: Tensor) -> Tensor:
                return torch.where(greedy[:, None, None], _GREEDY(logits), _SAMPLED(logits))

            target, prompt = self.prompt(questions, warp, seen=seen)
            target.watched = True
            if self.reads:
                last = self.model.config.get_text_config().num_hidden_layers
                self.decoder.reads = (*self.reads, last)
            noted = _States(target)
            context, _ = self.answer(target, noted, 0, seeds)
            width = max(context.base)
            tokens = context.tokens[:, :width]
            answer = torch.arange(width, device=tokens.device) < context.lengths[:, None]
            embedded = self.decoder.embed(tokens)
            # nobody drafts behind the end
            states = F.pad(torch.cat(noted.seen, dim=1), (0, 0, 0, 1))
            read = states.shape[-1] - prompt.embedded.shape[-1]
            states, features = states.split([read, states.shape[-1] - read], dim=-1)
            parts = (
                torch.cat([prompt.embedded, embedded], dim=1),
                features,
                states if read else features,
                torch.cat([prompt.mask, answer], dim=1),
                F.pad(answer, (prompt.mask.shape[1], 0)),
            )
        first = range(0, len(seeds), size)
        return [self._part(*parts, prompt.images, slice(n, n + size)) for n in first]

    def _part(
        self,
        embedded: Tensor,
        features: Tensor,
        states: Tensor,
        mask: Tensor,
        answer: Tensor,
        images: Spans,
        rows: slice,
    ) -> HeadBatch:
        """Some rows, without the columns that are padding in all of them."""
        real = mask[rows].any(0).nonzero()[:, 0].tolist()
        columns = slice(real[0], real[-1] + 1)
        # copies: what inference mode made can't be learned from
        parts = embedded, features, states, mask, answer
        own = (t[rows, columns].to("cpu", copy=True) for t in parts)
        x, last, read, kept, answered = own
        spans = [[(first - real[0], count) for first, count in row] for row in images[rows]]
        shown, decoder = Images.of(spans), self.decoder
        return HeadBatch(x, last, read, kept, answered, shown, decoder.logits, decoder.embed)

    def on_device(self, example: HeadBatch) -> HeadBatch:
        """The batch on the device of the model, in float32."""
        device, images = self.model.device, example.images
        if images is not None:
            moved = {n: getattr(images, n).to(device) for n in ("row", "place", "ends")}
            images = replace(images, **moved)
        numbers = example.embedded, example.features, example.states
        embedded, features, states = (x.to(device, torch.float32) for x in numbers)
        mask, answer = example.mask.to(device), example.answer.to(device)

        def logits(hidden: Tensor) -> Tensor:
            return self.decoder.logits(hidden.to(self.model.dtype)).float()

        embed = self.decoder.embed
        return HeadBatch(embedded, features, states, mask, answer, images, logits, embed)


class _States(NullDrafter):
    """Drafts nothing, and notes the hidden states of every call of the target.

    Attributes:
        seen: those of the prompt but its last column, then of a column a call, `[R, n, D]` each.
    """

    def __init__(self, target: GuidedDecoder) -> None:
        self.target = target
        self.seen: list[Tensor] = []

    def start(self, context: Context) -> None:
        super().start(context)
        self.seen = [] if self.target.hidden is None else [self.target.hidden]

    def observe(self, context: Context, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        assert scores.hidden is not None
        self.seen.append(scores.hidden)
