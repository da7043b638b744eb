"""Timing of blocks: the frames that belong to a block of latent frames."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """A causal video autoencoder's first latent frame is one frame, every later one is `factor`.

    Attributes:
        latents: latent frames a block.
        factor: frames a latent frame.
    """

    latents: int = 3
    factor: int = 4

    def frames(self, blocks: int) -> int:
        """Frames that the first `blocks` blocks have together: 9, 21, 33 and so on."""
        return 1 + self.factor * (self.latents * blocks - 1) if blocks else 0

    def span(self, block: int) -> range:
        """The frames of a block, both counted from 0."""
        return range(self.frames(block), self.frames(block + 1))

    def block_of(self, frame: int) -> int:
        """The block that a frame belongs to, both counted from 0."""
        return -(-frame // self.factor) // self.latents


TIMING = Timing()
