"""A draft model that is left after some of its layers, and gone on with from there if need be."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...errors import InputError
from ..guided import GuidedDecoder
from .causal import CausalDecoder

EXITS = "exits"  # in a draft model's configuration: after how many layers it was taught to speak


class ExitModel(GuidedDecoder):
    """A network whose layers run a part at a time, from one exit to the next.

    Each exit speaks through the model's last norm and its output layer. What stands between two
    exits is kept for every token of the output, so that a later call goes on from there.

    Args:
        model: the draft model, which has not started.
        exits: layers in front of each exit, ascending; None: those it was trained with, see
            `EXITS`, or one behind every layer.

    Raises:
        InputError: there are no such exits, or the model can't be gone on with.
    """

    drafts = watched = ranked = True
    returns = True  # an exit that was not asked for long catches up
    decoder: CausalDecoder

    def __init__(self, model: object, exits: Sequence[int] | None = None) -> None:
        if not isinstance(model, GuidedDecoder) or not isinstance(model.decoder, CausalDecoder):
            raise InputError(
                "drafts from exits need a language model of transformers, of the target's words; "
                "use method 'draft'"
            )
        super().__init__(*model.again())
        layers, config = self.layers, model.decoder.config
        given = exits or getattr(config, EXITS, None) or range(1, layers + 1)
        self.exits = tuple(given)
        rising = sorted(set(self.exits)) == [*self.exits]
        if not rising or self.exits[0] < 1 or self.exits[-1] > layers:
            raise InputError(
                f"exits must rise, and lie from 1 to the draft model's {layers} layers, not "
                f"{','.join(map(str, self.exits))}"
            )
        self._states: list[Tensor] = []  # behind each exit but the last [R, room + 1, D]

    def start(self, rows: int) -> None:
        super().start(rows)
        width = self.prefix.shape[-1]
        shape = len(self.prefix), self.room + 1, width
        self._states = [self.prefix.new_zeros(shape) for _ in self.exits[1:]]
        x = self._embedded(torch.zeros(rows, 1, dtype=torch.long, device=self.keys.device), None)
        self._run(x, [0] * rows, 0, 0)
        assert self.hidden is not None
        if self._states and not torch.equal(self.hidden.to(x), x):
            raise InputError(
                f"{type(self.decoder.model).__name__} does more with its inputs than its layers "
                "do, so that it can't go on behind an exit; use method 'draft'"
            )

    def read(self, number: int, tokens: Tensor, start: list[int]) -> Tensor:
        """Laws `[B, n, V]` of an exit behind each of `tokens [B, n]`, which stand at `start`.

        What the exit in front of it made of them must be there. Positions are those of `extend`.
        """
        if number:
            x = self._states[number - 1].gather(1, self._index(start, tokens.shape[1]))
        else:
            condition = torch.zeros_like(tokens, dtype=torch.bool)
            condition[:, 0] = torch.tensor([s < 0 for s in start], device=tokens.device)
            x = self._embedded(tokens, condition)
        laws = self._run(x, start, self.exits[number - 1] if number else 0, self.exits[number])
        if number < len(self._states):
            assert self.hidden is not None
            index = self._index(start, tokens.shape[1])
            self._states[number].scatter_(1, index, self.hidden.to(self._states[number]))
        return laws

    def _index(self, start: list[int], count: int) -> Tensor:
        """Places `[R, count, D]` of what is kept of `count` tokens at `start`."""
        first = torch.tensor(start, device=self.keys.device).repeat(self.copies)[:, None] + 1
        return (first + self.keys[:count])[..., None].expand(-1, -1, self.prefix.shape[-1])

    def _run(self, x: Tensor, start: list[int], first: int, last: int) -> Tensor:
        """Laws behind the layers from `first` on that stand before `last`; see `hidden`."""
        self.decoder.reads = (last,) if last < self.layers else ()
        try:
            use: list[Tensor | bool] = [first <= n < last for n in range(self.layers)]
            return self._laws(self._forward(x, start, None, use))
        finally:
            self.decoder.reads = ()
