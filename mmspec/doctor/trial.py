"""Trials: greedy generations with a head under a convention, and without one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..draft.feature.chains import chain_of
from ..draft.feature.head_model import head_model
from ..draft.null import NullDrafter
from ..engine.accept.greedy import GreedyRule
from ..engine.coins import ProductionCoins, RoundCoins
from ..engine.draft import Context, Draft, Scores, Verdict
from ..engine.length.constant import ConstantLength
from ..engine.loop import run
from ..engine.protocols import Drafter, Engine
from ..engine.stats import SpecStats
from ..engine.warp import Warp
from ..models.guided import GuidedDecoder
from ..models.heads.columns import Images
from ..models.heads.published.head import PublishedHead
from ..models.loading import cast
from ..models.setting import Setting
from ..models.target import TokenTarget
from ..models.transformers.vlm import VisualPrompt
from .conventions import Convention
from .target import Prompt, Target

_TIE = {torch.float64: 1e-6, torch.float32: 1e-3}  # logits so close may change places


@dataclass
class Run:
    """A generation of all rows of a prompt.

    Attributes:
        tokens: by row.
        stats: what it took.
        pairs: first drafted token and the target's own at that place, of every draft.
    """

    tokens: list[list[int]]
    stats: SpecStats
    pairs: list[tuple[int, int]] = field(default_factory=list)


class Trial:
    """Generations of a target over the same prompts.

    Args:
        target: the model.
        length: tokens of a draft at most.
        limit: tokens of an answer.
    """

    def __init__(self, target: Target, length: int, limit: int) -> None:
        self.target, self.length, self.limit = target, length, limit

    def plain(self, prompt: Prompt) -> Run:
        """The target's answers without a draft."""
        return self._run(prompt, self._guided(prompt, 1), NullDrafter(), 0)

    def drafted(self, prompt: Prompt, head: PublishedHead, convention: Convention) -> Run:
        """Answers that the head drafts for under a convention.

        Raises:
            InputError: the head can't run so.
        """
        decoder = self.target.decoder
        weight = decoder.embeddings
        own = cast(convention.of(head).to(weight.device), weight.dtype).eval()
        with ExitStack() as changes:
            scratch = 1 + self.length + own.block_size
            guided = self._guided(prompt, scratch)
            if convention.target is not None:
                changes.enter_context(convention.target(decoder))
            images = None
            if isinstance(prompt.encoded, VisualPrompt):
                images = Images.of(prompt.encoded.images, weight.device)
            model = convention.model(own, guided, images, prompt.ids, head_model)
            noted = _Noted(chain_of(model))
            return self._run(prompt, guided, noted, self.length)

    def _guided(self, prompt: Prompt, scratch: int) -> GuidedDecoder:
        decoder, encoded = self.target.decoder, prompt.encoded
        decoder.place(encoded)
        law = Warp(0.0)
        limit = self.limit
        return GuidedDecoder(
            decoder,
            Setting(
                encoded.embedded,
                encoded.mask,
                None,
                law,
                limit,
                0,
                scratch,
                both_ways=encoded.both_ways,
            ),
        )

    def _run(self, prompt: Prompt, guided: GuidedDecoder, drafter: Drafter, length: int) -> Run:
        rows, stats = len(prompt.ids), SpecStats()
        coins = ProductionCoins([0] * rows, prompt.ids.device)
        parts = TokenTarget(guided), drafter, GreedyRule(), ConstantLength(length), coins
        engine = Engine(*parts, self.target.ends or None)
        context = run(engine, rows, self.limit, stats, device=prompt.ids.device)
        tokens = [row[:n] for row, n in zip(context.tokens.tolist(), context.base, strict=True)]
        pairs = []
        if isinstance(drafter, _Noted):
            known = [(row, at, token) for row, at, token in drafter.first if at < len(tokens[row])]
            pairs = [(token, tokens[row][at]) for row, at, token in known]
        return Run(tokens, stats, pairs)

    @torch.inference_mode()
    def gap(self, prompt: Prompt, row: int, text: Sequence[int]) -> tuple[float, bool]:
        """Distance of the two best logits behind a row's text, and whether rounding may swap them.

        Args:
            text: the row's answer so far.
        """
        guided = self._guided(prompt, 1)
        guided.warp = lambda logits: logits
        rows = len(prompt.ids)
        guided.start(rows)
        logits: Tensor = guided.extend(torch.zeros_like(prompt.ids[:, :1]), [-1] * rows)
        for place, token in enumerate(text):
            inputs = torch.full_like(prompt.ids[:, :1], token)
            logits = guided.extend(inputs, [place] * rows)
        best = logits[row, -1].float().topk(2).values
        apart = float(best[0] - best[1])
        tie = _TIE.get(self.target.decoder.embeddings.dtype, 0.02)
        return apart, apart <= tie * max(1.0, float(best[0].abs()))


class _Noted(Drafter):
    """Notes the first token of every draft: its row, its place in the output, its id."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.first: list[tuple[int, int, int]] = []

    def start(self, context: Context) -> None:
        self.drafter.start(context)

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        draft = self.drafter.propose(context, budget, coins)
        for row, length in enumerate(draft.lengths.tolist()):
            if length and not context.finished[row]:
                self.first.append((row, context.base[row], int(draft.tokens[row, 0])))
        return draft

    def observe(self, context: Context, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        self.drafter.observe(context, draft, scores, verdict)
