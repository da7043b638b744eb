"""A frozen language model as the teacher of draft heads: it answers, and shows its states.

The answers are its own, and what it makes of them is read off as it writes them (online
distillation, Huang et al. 2025, section 3.3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

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
from ...engine.protocols import AcceptanceRule, Drafter, Engine
from ...engine.stats import SpecStats
from ...engine.warp import Warp
from ...models.guided import GuidedDecoder
from ...models.heads.columns import Images
from ...models.prefill import WHOLE
from ...models.setting import Setting
from ...models.target import TokenTarget
from ...models.transformers.prompted import EncodedPrompt, PromptedDecoder, prompted
from .head_batch import HeadBatch
from .last_layer import LastLayerReader

Spans = Sequence[Sequence[tuple[int, int]]]


class Teacher:
    """Answers prompts with the engine's own loop.

    Args:
        model: a language model of transformers, in evaluation mode; some see pictures.
        limit: tokens of an answer at most.
        reads: hidden states that examples hold beside the last ones, see `PublishedHead.reads`.
        decoder: the model over a cache; None: as its configuration states.

    Attributes:
        ends: tokens that end an answer.
        temperatures: those of answers, in turn.
        last: reads texts for what the last layer stores.
    """

    temperatures: tuple[float, ...] = (0.0, 1.0)

    def __init__(
        self,
        model: PreTrainedModel,
        limit: int,
        reads: tuple[int, ...] = (),
        decoder: PromptedDecoder | None = None,
    ) -> None:
        self.reads = reads
        self.model, self.limit = model, limit
        self.decoder = decoder or prompted(model)
        self.last = LastLayerReader(self.decoder)
        ends = model.generation_config.eos_token_id
        self.ends = tuple(ends) if isinstance(ends, list | tuple) else (ends,)
        if None in self.ends:
            self.ends = ()

    def placed(
        self, prompt: EncodedPrompt, warp: Callable[[Tensor], Tensor], scratch: int = 1
    ) -> GuidedDecoder:
        """The model in front of its answers.

        Args:
            warp: makes laws of logits.
            scratch: tokens that a call may add beyond the output.
        """
        self.decoder.place(prompt)
        prefix = prompt.embedded, prompt.mask
        limit = prompt.positions.shape[-1] - prompt.mask.shape[1]
        how = Setting(*prefix, None, warp, limit, 0, scratch, both_ways=prompt.both_ways)
        return GuidedDecoder(self.decoder, how)

    def answer(
        self,
        target: GuidedDecoder,
        drafter: Drafter,
        length: int,
        seeds: list[int],
        ends: tuple[int, ...] | None = None,
        rule: AcceptanceRule | None = None,
    ) -> tuple[Context, SpecStats]:
        """Answers of a prompted target, of which a drafter drafts up to `length` tokens a round.

        Args:
            seeds: one a prompt.
            ends: tokens that end an answer; None: the model's own.
            rule: judges the drafts; None: the token rule.
        """
        device, stats = target.prefix.device, SpecStats()
        coins = ProductionCoins(seeds, device)
        judged = rule or TokenRule()
        target_of = TokenTarget(target), drafter, judged, ConstantLength(length), coins
        engine = Engine(*target_of, (self.ends if ends is None else ends) or None)
        with self.decoder.repacked():
            return run(engine, len(seeds), target.limit, stats, device=device), stats

    def warp(self, seeds: list[int]) -> Callable[[Tensor], Tensor]:
        """Laws of rows: each at one of the `temperatures`, by its seed."""
        kinds = [Warp(temperature) for temperature in self.temperatures]
        chosen = torch.tensor([seed % len(kinds) for seed in seeds], device=self.model.device)
        rows = [(chosen == number).nonzero()[:, 0] for number in range(len(kinds))]
        place = torch.cat(rows).argsort()

        def laws(logits: Tensor) -> Tensor:
            made = [kind(logits[own]) for kind, own in zip(kinds, rows, strict=True)]
            return torch.cat(made)[place]

        return laws

    def lessons(
        self, prompt: EncodedPrompt, images: Spans, seeds: list[int], size: int
    ) -> list[HeadBatch]:
        """Answers to prompts, and hidden states at them, in batches of `size`.

        Batches lie in the host's memory. Many answers at once cost little more than a few.

        Args:
            images: where the prompts' pictures are, none in most texts.
            seeds: one a prompt; they choose its temperature, too.
        """
        with torch.inference_mode():
            whole = self._answered(prompt, seeds)
        first = range(0, len(seeds), size)
        return [_rows(whole, images, slice(n, n + size)) for n in first]

    def _answered(self, prompt: EncodedPrompt, seeds: list[int]) -> HeadBatch:
        """Answers to all prompts, as one batch that does not say where pictures are."""
        target = self._watched(prompt, self.warp(seeds))
        noted = _States(target)
        context, _ = self.answer(target, noted, 0, seeds)
        tokens = context.tokens[:, : max(context.base)]
        # nobody drafts behind the end
        states = F.pad(torch.cat(noted.seen, dim=1), (0, 0, 0, 1))
        return self._batch(prompt, tokens, context.lengths, states)

    def read(
        self, prompt: EncodedPrompt, images: Spans, tokens: Tensor, lengths: Tensor
    ) -> list[HeadBatch]:
        """Answers that were given already, and hidden states at them, a batch each.

        Args:
            images: where the prompts' pictures are.
            tokens: the answers `[R, K]`, of which row r has `lengths[r]`.
        """
        with torch.inference_mode():
            target = self._watched(prompt, partial(torch.softmax, dim=-1))
            with self.decoder.repacked():
                target.start(len(tokens))
                seen = [] if target.hidden is None else [target.hidden]
                inputs = F.pad(tokens, (1, 0))  # in front: the prompt's last column
                target.extend(inputs, [-1] * len(tokens))
            assert target.hidden is not None
            whole = self._batch(prompt, tokens, lengths, torch.cat([*seen, target.hidden], dim=1))
        return [_rows(whole, images, slice(row, row + 1)) for row in range(len(tokens))]

    def _watched(self, prompt: EncodedPrompt, warp: Callable[[Tensor], Tensor]) -> GuidedDecoder:
        """The model in front of its answers; calls leave what heads read behind."""
        target = self.placed(prompt, warp)
        last = self.model.config.get_text_config().num_hidden_layers
        target.watch((*self.reads, last) if self.reads else (), prefix=WHOLE)
        return target

    def _batch(
        self, prompt: EncodedPrompt, tokens: Tensor, lengths: Tensor, states: Tensor
    ) -> HeadBatch:
        """A batch of answers, of the hidden states `[R, T + K, D]` at all columns."""
        width, before = tokens.shape[1], prompt.mask.shape[1]
        answer = torch.arange(width, device=tokens.device) < lengths[:, None]
        read = states.shape[-1] - self.decoder.embeddings.shape[1]
        states, features = states.split([read, states.shape[-1] - read], dim=-1)
        asked = tokens.new_zeros(len(tokens), before)
        if prompt.text is not None:
            asked = prompt.text.clamp_min(0)
        groups = prompt.both_ways  # answers are in none
        groups = None if groups is None else F.pad(groups, (0, width), value=-1)
        return HeadBatch(
            torch.cat([prompt.embedded, self.decoder.embed(tokens)], dim=1),
            features,
            states if read else features,
            torch.cat([prompt.mask, answer], dim=1),
            F.pad(answer, (before, 0)),
            None,
            self.decoder.logits,
            self.decoder.embed,
            torch.cat([asked, tokens], dim=1),
            self.model.get_output_embeddings(),
            groups=groups,
            last=self.last,
        )

    def on_device(self, example: HeadBatch) -> HeadBatch:
        """The batch on the device of the model, in float32."""
        device, images = self.model.device, example.images
        if images is not None:
            moved = {n: getattr(images, n).to(device) for n in ("row", "place", "ends")}
            images = replace(images, **moved)
        numbers = example.embedded, example.features, example.states
        embedded, features, states = (x.to(device, torch.float32) for x in numbers)

        def logits(hidden: Tensor) -> Tensor:
            return self.decoder.logits(hidden.to(self.model.dtype)).float()

        return replace(
            example,
            embedded=embedded,
            features=features,
            states=states,
            mask=example.mask.to(device),
            answer=example.answer.to(device),
            tokens=None if example.tokens is None else example.tokens.to(device),
            images=images,
            groups=None if example.groups is None else example.groups.to(device),
            output=logits,
        )


def acceptance_figures(accepted: Callable[[float], SpecStats]) -> dict[str, float]:
    """Figures of a card: acceptance lengths greedy and at temperature 1, and rates by depth.

    Args:
        accepted: gives the statistics of held-out answers at a temperature.
    """
    figures = {}
    for name, temperature in (("greedy", 0.0), ("sampled", 1.0)):
        stats = accepted(temperature)
        figures[f"held_out_acceptance_length_{name}"] = stats.mean_acceptance_length
        for depth, rate in enumerate(stats.acceptance_by_position, start=1):
            figures[f"held_out_acceptance_{name}_at_depth_{depth}"] = rate
    return figures


def _rows(whole: HeadBatch, images: Spans, rows: slice) -> HeadBatch:
    """Some rows, without the columns that are padding in all of them."""
    real = whole.mask[rows].any(0).nonzero()[:, 0].tolist()
    columns = slice(real[0], real[-1] + 1)
    # copies: what inference mode made can't be learned from
    named = ["embedded", "features", "states", "mask", "answer", "tokens"]
    named += [] if whole.groups is None else ["groups"]
    own = {name: getattr(whole, name)[rows, columns].to("cpu", copy=True) for name in named}
    spans = [[(first - real[0], count) for first, count in row] for row in images[rows]]
    return replace(whole, **own, images=Images.of(spans), kept={})


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
