"""Memory of a conversation: the target's cache outlives an answer, and the next turn goes on."""

from __future__ import annotations

from torch import Tensor

from ...engine.cache import KVCache
from ...engine.draft import Context
from ...models.guided import GuidedDecoder


class Memory:
    """The cache of one conversation's last answer.

    A prompt that begins as the last one and its answer did is read from where they part: of a
    further turn, the new words alone. Keys and values are those of the calls that wrote them, which
    may round otherwise than a prefill of the whole.

    Attributes:
        reused: tokens of the last prompt that were in the cache already.
    """

    def __init__(self) -> None:
        self.reused = 0
        self.forget()

    def forget(self) -> None:
        """Begin anew."""
        self._tokens: list[int] = []  # whose keys and values the cache has
        self._cache: KVCache | None = None
        self._room: tuple[object, ...] = ()

    def recall(self, target: GuidedDecoder, prompt: Tensor) -> None:
        """Give a target that has not started what is known of its prompt `[1, T]`."""
        self.reused = 0
        whole = target.offset == prompt.shape[1] and not (target.watched or target.compact)
        if self._cache is None or not whole or self._room != _room(target):
            return
        known = 0
        for mine, theirs in zip(self._tokens, prompt[0].tolist(), strict=False):
            if mine != theirs:
                break
            known += 1
        # what layers with a window keep no more is read again, and with it all there is
        self.reused = self._cache.knows(min(known, target.offset - 1))
        if self.reused:
            target.earlier = self._cache, self.reused

    def keep(self, target: GuidedDecoder, prompt: Tensor, context: Context) -> None:
        """Keep the cache of a generation that is over; the last token of it was never read."""
        self.forget()
        if target.offset != prompt.shape[1] or target.compact:
            return
        whole = prompt[0].tolist() + context.tokens[0, : context.base[0]].tolist()
        self._tokens = whole[: prompt.shape[1] + target.held(context.base)[0]]
        self._cache, self._room = target.cache, _room(target)


def _room(target: GuidedDecoder) -> tuple[object, ...]:
    """All that a cache must share with another one to be taken over."""
    weight, paired = target.decoder.embeddings, getattr(target.decoder, "paired", False)
    return id(target.decoder), paired, weight.data_ptr(), weight.dtype, weight.device
