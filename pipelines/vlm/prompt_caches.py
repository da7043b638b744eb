"""Caches that keep some entries of a prompt, and the answers written ahead that choose them."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import partial

import torch
from torch import Tensor

from ...draft.null import NullDrafter
from ...engine.accept.greedy import GreedyRule
from ...engine.coins import ProductionCoins
from ...engine.length.constant import ConstantLength
from ...engine.loop import run
from ...engine.protocols import Engine
from ...engine.stats import SpecStats
from ...errors import InputError
from ...methods import ResolvedConfig
from ...methods.chosen import SLOTS
from ...models.guided import GuidedDecoder
from ...models.kept_entries import Ahead, Keeping, KeptDecoder
from ...models.target import TokenTarget
from ...models.transformers.prompted import EncodedPrompt, PromptedDecoder
from ...models.transformers.vlm import VisualPrompt
from .request import Request


class Lookahead:
    """Greedy answers of a draft model to a request's prompts, up to their ends.

    Args:
        request: whose samples they are for.
        drafter: the draft model.
        prompt: as it reads it.
        most: tokens of one; None: as many as the answer may have.
        eos: tokens that end one.

    Attributes:
        readers: networks of the same drafter that read the same prompt afterwards: they take over
            what was read of it here, if its cache still knows that.
    """

    def __init__(
        self,
        request: Request,
        drafter: PromptedDecoder,
        prompt: EncodedPrompt,
        most: int | None,
        eos: tuple[int, ...],
    ) -> None:
        self.request, self.prompt, self.eos = request, prompt, eos
        self.drafter = copy(drafter)  # which has a generation of its own
        self.most = min(most or request.limit, request.limit)
        self.readers: list[GuidedDecoder] = []
        self._written: Ahead | None = None
        self._asked = False

    def asks(self) -> Callable[[], Ahead]:
        """Question of a network that starts; the first one's has it written anew."""
        first, self._asked = not self._asked, True
        return self.write if first else self.written

    def write(self) -> Ahead:
        """Write tokens `[N, L]` and their numbers `[N]`, anew."""
        law = partial(torch.softmax, dim=-1)
        model = self.request.guided(self.drafter, self.prompt, 1, law)
        rows, device, at_once = len(self.request.ids), model.prefix.device, self.request.at_once
        # a cache through which all samples have passed, one by one, holds the last ones alone
        readers = self.readers if at_once is None or at_once >= rows else []
        model.stays = bool(readers)
        engine = Engine(
            TokenTarget(model),
            NullDrafter(),
            GreedyRule(),
            ConstantLength(0),
            ProductionCoins([0] * rows, device),
            self.eos or None,
        )
        context = run(engine, rows, self.most, SpecStats(), device=device, at_once=at_once)
        cache = model.cache
        assert cache is not None
        if read := cache.knows(model.offset - 1):
            for reader in readers:
                reader.earlier = cache, read
        self._written = context.tokens[:, : max(context.base)], context.lengths
        return self._written

    def forget(self) -> None:
        """Let go of what was read of the prompt: all networks have begun."""
        for reader in self.readers:
            reader.earlier = None
        self.readers = []

    def written(self) -> Ahead:
        """Tokens that were written last, or are now."""
        return self.write() if self._written is None else self._written

    def counts(self) -> list[int]:
        """Tokens that were written, per sample."""
        return [] if self._written is None else self._written[1].tolist()


class PromptCaches:
    """Entries of prompts that stay in the target's cache and in the draft model's.

    Args:
        config: what is asked for.
        drafter: the draft model; None: there is none.
        translated: it has other words than the target.

    Raises:
        InputError: it is to write ahead in words that the target does not read.
    """

    def __init__(
        self, config: ResolvedConfig, drafter: PromptedDecoder | None, translated: bool
    ) -> None:
        self.config, self.drafter = config, drafter
        self.choices = {slot: config.build_cache(slot) for slot in SLOTS}
        self._ahead: Lookahead | None = None
        asks = [name for name, made in self.choices.items() if made is not None and made.ahead]
        if asks and translated:
            raise InputError(
                f"{asks[0]}_cache {getattr(config.config, f'{asks[0]}_cache')!r} has the draft "
                "model write ahead, and it has other words than the model; use 'snapkv'"
            )
        self.asked = bool(asks)

    def begin(self, request: Request, eos: tuple[int, ...]) -> None:
        """Take in a request's prompts; `eos` are tokens that end an answer."""
        self._ahead = None
        if self.asked:
            assert self.drafter is not None
            seen = request.prompt(self.drafter, request.own)
            most = self.config.options["lookahead_tokens"]
            self._ahead = Lookahead(request, self.drafter, seen, most, eos)

    def seen(self, request: Request) -> EncodedPrompt | None:
        """A request's prompt as the draft model that writes ahead reads it; None: none does."""
        ahead = self._ahead
        return None if ahead is None or ahead.request is not request else ahead.prompt

    def follow(self, model: GuidedDecoder, prompt: EncodedPrompt) -> None:
        """Let a network of the drafter's go on from what it read of the prompt as it wrote."""
        if self._ahead is not None and self._ahead.prompt is prompt:
            self._ahead.readers.append(model)

    def forget(self) -> None:
        """Let go of what nobody reads any more once a generation has begun."""
        if self._ahead is not None:
            self._ahead.forget()

    def keeping(self, slot: str, prompt: EncodedPrompt) -> Keeping | None:
        """Rule by which entries stay in the cache of a network; None: all do.

        Args:
            slot: "draft" or "target".
            prompt: as the network reads it.
        """
        made = self.choices[slot]
        if made is None:
            return None
        fixed: Tensor | None = None
        if self.config.options["evicts"] == "pictures":
            fixed = torch.ones_like(prompt.mask)
            if isinstance(prompt, VisualPrompt):
                fixed = ~prompt.visual
        asks = self._ahead.asks() if made.ahead and self._ahead is not None else None
        return Keeping(made.chooser, made.share, made.size, fixed, asks)

    @property
    def ahead(self) -> list[int]:
        """Tokens that were written ahead for the last request, per sample."""
        return [] if self._ahead is None else self._ahead.counts()


def kept_entries(model: GuidedDecoder) -> list[int]:
    """Entries of every sample's prompt that stay in a cache; none where all of them do."""
    if not isinstance(model, KeptDecoder):
        return []
    counts: list[int] = model.kept[: len(model.kept) // model.copies].tolist()
    return counts
