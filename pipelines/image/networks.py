"""Networks of a pipeline of image tokens at work: their inference forms and caches."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from ...errors import InputError
from ...methods import ResolvedConfig
from ...models.guided import GuidedDecoder
from ...models.image_model import ImageModel
from ...models.placement import Placement
from ...models.setting import Setting
from ...models.transformers.causal import CausalDecoder
from ..base import SpeculativePipeline
from ..output import ImageStats
from .drawing import Drawing


class TokenNetworks(SpeculativePipeline):
    """Base of the pipelines of image tokens: makes of networks what a generation runs."""

    @abstractmethod
    def image_model(self, network: Any) -> ImageModel:
        """Adapter of a network's family, for the target or the drafter."""

    def head(self, name: str, target: Any) -> Any:
        """The component "eagle", "dflash", "spatial" or "judge", on hidden states of a decoder."""
        raise InputError(f"this family has no component {name!r}")

    def scaled_up(
        self, drawing: Drawing, config: ResolvedConfig, stats: ImageStats
    ) -> Callable[[], Tensor]:
        """Function that draws small pictures, scales them up to tokens `[B, L]`, and counts."""
        raise InputError("this family has no network of smaller pictures")

    def _guided(
        self, network: nn.Module, drawing: Drawing, scratch: int, weights: str | None = None
    ) -> GuidedDecoder:
        """A network with a cache of its own, under guidance and warpers."""
        grid, family, condition = drawing.grid, self.image_model(network), drawing.condition
        if drawing.uncaptioned:
            condition = family.uncaptioned(condition)
        return GuidedDecoder(
            self.decoder(network, weights),
            Setting(
                family.embed(condition),
                drawing.mask,
                drawing.scale,
                drawing.warp,
                grid.length,
                grid.columns,
                scratch,
                grid.forced,
            ),
        )

    def decoder(self, network: nn.Module, weights: str | None = None) -> Any:
        """The network's inference form, made again if its weights were moved, cast or edited.

        Edits through `.data` go unnoticed, as in autograd. `weights`: see `rounded.linear`.
        """
        devices, family = self._placement(network), self.image_model(network)
        return self.built(network, devices, lambda: family.decoder(devices, weights), weights)

    def _rounded(self, network: nn.Module, config: ResolvedConfig) -> Any:
        """The network on rounded weights, over the caches of its decoder."""
        decoder, how = self.decoder(network, config.weights), config.draft_copy
        return self.built(network, decoder, lambda: decoder.rounded(*how), f"{how} beside")

    @contextmanager
    def _repacked(self, network: nn.Module, config: ResolvedConfig) -> Iterator[None]:
        """Surround a run: networks of transformers are repacked, see `CausalDecoder.repacked`."""
        decoders = [self.decoder(network, config.weights)]
        if "drafter" in config.needs:
            decoders.append(self.decoder(self.drafter, config.config.draft_weights))
        if config.rounds:
            decoders.append(self._rounded(network, config))
        with ExitStack() as running:
            for decoder in decoders:
                if isinstance(decoder, CausalDecoder):
                    running.enter_context(decoder.repacked())
            yield

    def _placement(self, network: Any) -> Placement | None:
        """The devices of a network's layers; None: all of it is where its weights are."""
        return None
