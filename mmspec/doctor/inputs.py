"""Draft models and targets under conventions that no configuration names: inputs of other kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..draft.feature.eagle import EagleModel
from ..draft.feature.feature_model import FeatureModel
from ..engine.draft import Context
from ..errors import InputError
from ..models.guided import GuidedDecoder
from ..models.heads.columns import Columns, Images
from ..models.heads.published.decoder import published_decoder
from ..models.heads.published.eagle_decoder import PublishedEagleDecoder
from ..models.heads.published.head import PublishedHead
from ..models.transformers.causal import CausalDecoder

Make = Callable[..., FeatureModel]


def as_model(
    head: PublishedHead, target: GuidedDecoder, images: Images | None, ids: Tensor, make: Make
) -> FeatureModel:
    """The head's draft model as it is."""
    return make(head, target, images)


def unnormed(norm: nn.Module) -> Callable[[CausalDecoder], AbstractContextManager[None]]:
    """Surround a generation: the last hidden state that a head reads is in front of `norm`."""

    @contextmanager
    def around(target: CausalDecoder) -> Iterator[None]:
        seen: list[Tensor] = []

        def keep(module: nn.Module, args: tuple[Any, ...]) -> None:
            seen[:] = [args[0]]

        usual = target.states
        handle = norm.register_forward_pre_hook(keep)
        vars(target)["states"] = lambda hidden: usual(seen[0])
        try:
            yield
        finally:
            del vars(target)["states"]
            handle.remove()

    return around


def normed_output(norm: nn.Module) -> Callable[..., FeatureModel]:
    """Draft models whose output layer reads what `norm` makes of the head's states."""

    def made(
        head: PublishedHead, target: GuidedDecoder, images: Images | None, ids: Tensor, make: Make
    ) -> FeatureModel:
        decoder = _decoder(head, target)
        usual = decoder.logits
        vars(decoder)["logits"] = lambda hidden: usual(norm(hidden))
        return make(decoder, target, images)

    return made


def placeholders(token: int) -> Callable[..., FeatureModel]:
    """Draft models that see the embedding of `token` where pictures stand."""

    def made(
        head: PublishedHead, target: GuidedDecoder, images: Images | None, ids: Tensor, make: Make
    ) -> FeatureModel:
        decoder = _decoder(head, target)
        usual = decoder.read

        def read(prefix: Tensor, before: Tensor) -> tuple[Tensor, Tensor | None]:
            if images is not None:
                visual = images.visual(torch.zeros_like(prefix[..., 0], dtype=torch.bool))
                one = decoder.embed(torch.tensor(token, device=prefix.device))
                prefix = torch.where(visual[..., None], one.to(prefix), prefix)
            return usual(prefix, before)

        vars(decoder)["read"] = read
        return make(decoder, target, images)

    return made


def lagged(
    head: PublishedHead, target: GuidedDecoder, images: Images | None, ids: Tensor, make: Make
) -> FeatureModel:
    """The draft model whose every input is a hidden state and its own token's embedding."""
    decoder = _decoder(head, target)
    usual = decoder.seen

    def seen(
        prefix: Tensor, before: Tensor, mask: Tensor, images: Images | None, text: Tensor | None
    ) -> Columns:
        own = None if text is None else F.pad(text[:, :-1], (1, 0), value=-1)
        return usual(F.pad(prefix[:, :-1], (0, 0, 1, 0)), before, mask, images, own)

    vars(decoder)["seen"] = seen
    return _LaggedModel(decoder, target, images, ids[:, -1:])


class _LaggedModel(EagleModel):
    """An EAGLE head that reads every token a place later; for chains.

    Args:
        head, target, images: see `EagleModel`.
        last: the prompts' last tokens `[R, 1]`.
    """

    def __init__(
        self,
        head: PublishedEagleDecoder,
        target: GuidedDecoder,
        images: Images | None,
        last: Tensor,
    ) -> None:
        super().__init__(head, target, images)
        self._last = self._held = last

    def _read(self, context: Context | None, tokens: Tensor, start: list[int]) -> Tensor:
        assert context is not None
        before = torch.cat([self._last, context.tokens[:, :-1]], dim=1)
        begun = context.lengths[:, None] > 0
        self._held = torch.where(begun, context.last, self._last)
        return super()._read(replace(context, tokens=before), tokens, start)

    def _next(self, tokens: Tensor, start: list[int]) -> Tensor:
        held, self._held = self._held, tokens
        return super()._next(held, start)


def _decoder(head: PublishedHead, target: GuidedDecoder) -> PublishedEagleDecoder:
    assert isinstance(target.decoder, CausalDecoder)
    decoder = published_decoder(head, target.decoder)
    if not isinstance(decoder, PublishedEagleDecoder):
        raise InputError(f"a head of {head.method} has no such inputs")
    return decoder
