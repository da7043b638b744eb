"""Labels of patches, which a video target learns beside its velocities.

Most of a clip follows from the frames before it, and its loss drowns what a caption decides in the
first block: which objects are there and where they move. Labels of patches teach that in minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor
from transformers import T5EncoderModel

from ...models.wan.transformer import WanTransformer
from ...worlds.video_world.patches import LABELS
from ..base import Captioned
from ..patch_reader import EMPTY, PatchReader


class WatchedVideo(Captioned):
    """The target and what reads from its last layer what patches show, and the caption encoder."""

    def __init__(self, transformer: WanTransformer, text_encoder: T5EncoderModel) -> None:
        super().__init__(transformer, text_encoder)
        self.reader = PatchReader(transformer.config.dim, LABELS, EMPTY)

    def shown(self, states: Tensor, labels: Tensor) -> Tensor:
        """The reader's loss, in nats a patch.

        Args:
            states: of the transformer before its head, `[R, F, N, D]`.
            labels: `[R, F, N, n]`, see `LABELS`.
        """
        return self.reader.loss(states, labels.to(states.device).long().flatten(0, 2))


@contextmanager
def states_before_head(model: WanTransformer) -> Iterator[list[Tensor]]:
    """Within it, calls of the model add the states `[B, F, N, D]` that its head reads to a list."""
    states: list[Tensor] = []
    hook = model.head.register_forward_pre_hook(lambda _, given: states.append(given[0]))
    try:
        yield states
    finally:
        hook.remove()
