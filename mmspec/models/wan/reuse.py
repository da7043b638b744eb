"""Reuse of what layers added to the block before: cross-block caching.

Zeng et al. 2026, "X-Cache": a model of few denoising steps leaves nothing to reuse from one step to
the next, but neighbouring blocks of a clip are alike, so a layer may add much the same at the same
step of the next block. Their gate has two measures of a fingerprint of the layer's input; ours has
one, the relative distance of TeaCache (Liu et al. 2025), frame by frame over the whole input.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ...engine.coins import ACCEPT, ProductionCoins
from ...errors import InputError

Run = Callable[[range, Tensor], Tensor]
"""Runs some of the layers, by their numbers, on `[B, F, S, D]`; gives the same shape."""


class Place(NamedTuple):
    """A gate's place in a clip.

    Attributes:
        block: number of the block that is made.
        timestep: of the call.
        layer: number of the first layer behind the gate.
    """

    block: int
    timestep: float
    layer: int


class Gate(Protocol):
    """Decides whether layers add what they added to an earlier block."""

    def __call__(self, place: Place, x: Tensor, known: Tensor) -> bool:
        """True to reuse.

        Args:
            place: in the clip.
            x: input of the layers `[B, F, S, D]`, all of one clip: under guidance B is 2.
            known: their input when they ran, of the same shape.
        """


class DistanceGate:
    """Reuses where the input is near the one that the residual was computed from.

    Args:
        threshold: distances below it are near; 0: none is.
    """

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold

    def __call__(self, place: Place, x: Tensor, known: Tensor) -> bool:
        return float(distance(x, known)) < self.threshold


class ChanceGate:
    """Reuses by chance and looks at nothing: what a gate has to be better than.

    Args:
        share: of the chances to reuse.
        seed: of the clip.
    """

    def __init__(self, share: float, seed: int) -> None:
        self.share = share
        self._coins = ProductionCoins([seed])

    def __call__(self, place: Place, x: Tensor, known: Tensor) -> bool:
        index = torch.tensor([[round(1000 * place.timestep) * 1000 + place.layer]])
        return float(self._coins.picked(place.block, ACCEPT, index)) < self.share


def distance(x: Tensor, known: Tensor) -> Tensor:
    """Relative distance of inputs `[B, F, S, D]` in the frame where it is largest, a number.

    Of a frame: Σ |x − known| / Σ |known|; where `known` is 0, infinite, or 0 if `x` is 0 as well.
    """
    apart = (x - known).abs().sum((2, 3), dtype=torch.float32)
    return (apart / known.abs().sum((2, 3), dtype=torch.float32)).nan_to_num(0.0, torch.inf).max()


class _Kept(NamedTuple):
    block: int  # that it was computed for
    x: Tensor
    residual: Tensor


class BlockReuse:
    """Residuals that layers added to the last blocks of one clip, by denoising step.

    A call that writes keys and values does not come here: all layers run in it, so that the cache
    holds what the network makes of the clip's frames, and errors do not pile up in it.

    Args:
        gate: decides.
        most_blocks: blocks behind the one that a residual was computed for which may reuse it.
        group: layers behind one gate, which share a residual.

    Attributes:
        spared: layers that did not run, of all calls so far.
    """

    def __init__(self, gate: Gate, most_blocks: int = 1, group: int = 1) -> None:
        self.gate, self.most_blocks, self.group = gate, most_blocks, group
        self.spared = 0
        self._kept: dict[tuple[float, int, int], _Kept] = {}  # by timestep and layers, from, to

    @property
    def nbytes(self) -> int:
        """Bytes of what is kept."""
        return sum(kept.x.nbytes + kept.residual.nbytes for kept in self._kept.values())

    def through(self, run: Run, x: Tensor, layers: int, block: int, timestep: float) -> Tensor:
        """Output of all layers `[B, F, S, D]`, of which some add what they added before.

        Args:
            run: runs layers.
            x: input of the first, of the same shape.
            layers: number of them.
            block: number of the block that is made.
            timestep: of the call; residuals of others are not looked at.
        """
        for first in range(0, layers, self.group):
            part = range(first, min(first + self.group, layers))
            key, place = (timestep, first, part.stop), Place(block, timestep, first)
            kept = self._kept.get(key)
            if kept is not None and self._fits(kept, place, x):
                x, self.spared = x + kept.residual, self.spared + len(part)
            else:
                y = run(part, x)
                self._kept[key] = _Kept(block, x, y - x)
                x = y
        return x

    def _fits(self, kept: _Kept, place: Place, x: Tensor) -> bool:
        young = place.block - kept.block <= self.most_blocks
        return young and self.gate(place, x, kept.x)

    def snapshot(self) -> dict[str, Tensor]:
        """Everything that is kept, for `restore`, as tensors of their own."""
        if not self._kept:
            return {}
        places = [[*key, kept.block] for key, kept in self._kept.items()]
        return {
            "reuse.places": torch.tensor(places, dtype=torch.float64),
            "reuse.inputs": torch.stack([kept.x for kept in self._kept.values()]),
            "reuse.residuals": torch.stack([kept.residual for kept in self._kept.values()]),
        }

    def restore(self, snapshot: dict[str, Tensor], like: Tensor) -> None:
        """Keep what a snapshot holds, which may be nothing, on the device and in the dtype of
        `like`.

        Raises:
            InputError: the snapshot is damaged.
        """
        self._kept = {}
        if "reuse.places" not in snapshot:
            return
        try:
            parts = snapshot["reuse.inputs"], snapshot["reuse.residuals"]
            inputs, residuals = (part.to(like, copy=True).unbind() for part in parts)
            for place, x, residual in zip(
                snapshot["reuse.places"].tolist(), inputs, residuals, strict=True
            ):
                timestep, first, end, block = place
                self._kept[timestep, int(first), int(end)] = _Kept(int(block), x, residual)
        except (KeyError, RuntimeError, ValueError) as error:
            raise InputError("the snapshot's residuals are damaged") from error
