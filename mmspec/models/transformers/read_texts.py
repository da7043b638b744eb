"""Texts in front of a draft's laws, for what was written to read one text at a time.

Logits processors and stopping criteria of transformers take ids `[N, T]`: all rows of a batch, all
of one length. Rows of a speculative batch stand at different places, and a draft has many texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import torch
from torch import Tensor

from ...engine.draft import Context, Draft


@dataclass(frozen=True)
class Place:
    """A law of a draft: behind the last token of `row` (0), or behind its node `law - 1`.

    Attributes:
        row, sample: where it is in the running batch, and in the whole one.
        law: its number.
        tail: nodes on the way to it, first to last.
        above: the law that its last node was drawn by; None: it has no node.
    """

    row: int
    sample: int
    law: int
    tail: tuple[int, ...] = ()
    above: int | None = None


class ReadTexts:
    """Texts of a round: the prompt, the output of each row, and what may be read behind it.

    Args:
        prompt: ids `[N, T]` in front of every sample's output.
        context: where rows stand.
        ends: ids of tokens behind which nothing is read.
    """

    def __init__(
        self, prompt: Tensor, context: Context, ends: AbstractSet[int] = frozenset()
    ) -> None:
        self.prompt, self.context, self.ends = prompt, context, ends
        samples = range(context.rows) if context.samples is None else context.samples
        self.samples = list(samples)
        self._known: dict[int, Tensor] = {}

    def known(self, row: int) -> Tensor:
        """Ids `[T + n]` of a row's prompt and output."""
        if row not in self._known:
            written = self.context.tokens[row, : self.context.base[row]]
            self._known[row] = torch.cat([self.prompt[self.samples[row]], written])
        return self._known[row]

    def behind(self, row: int, tail: Sequence[int]) -> Tensor:
        """Ids of a row's text and more tokens."""
        known = self.known(row)
        return torch.cat([known, known.new_tensor(tail)]) if tail else known

    def levels(self, draft: Draft) -> Iterator[list[Place]]:
        """The laws of rows that are not over, by depth: those behind the last tokens first."""
        rows = [row for row, over in enumerate(self.context.finished) if not over]
        places = [[Place(row, self.samples[row], 0)] for row in rows]
        yield [first for (first,) in places]
        if not draft.nodes:
            return
        tokens, lengths = draft.tokens.tolist(), draft.lengths.tolist()
        parents = None if draft.parents is None else draft.parents.tolist()
        deeper: dict[int, list[Place]] = {}
        for row, own in zip(rows, places, strict=True):
            for node in range(lengths[row]):
                above = node if parents is None else parents[row][node] + 1
                tail = (*own[above].tail, tokens[row][node])
                own.append(Place(row, self.samples[row], node + 1, tail, above))
                deeper.setdefault(len(tail), []).append(own[-1])
        for depth in sorted(deeper):
            yield [place for place in deeper[depth] if self.ends.isdisjoint(place.tail)]

    def alike(self, places: Sequence[Place]) -> Iterator[tuple[list[Place], Tensor]]:
        """Places whose texts are of one length, and their texts `[n, T']`."""
        lengths: dict[int, list[Place]] = {}
        for place in places:
            length = self.context.base[place.row] + len(place.tail)
            lengths.setdefault(length, []).append(place)
        for some in lengths.values():
            yield some, torch.stack([self.behind(p.row, p.tail) for p in some])

    def whole(self, ids: Tensor, sample: int) -> Tensor:
        """A batch `[N, T']` of all samples in which one has the text `ids [T']`.

        The others have texts of their own of this length: cut behind, or with their first column
        repeated in front, as padding on the left is. What is said of them does not matter.
        """
        lines = []
        rows = {held: row for row, held in enumerate(self.samples)}
        for other in range(len(self.prompt)):
            known = self.known(rows[other]) if other in rows else self.prompt[other]
            missing = len(ids) - len(known)
            if missing > 0:
                front = known[:1] if len(known) else ids[:1]
                known = torch.cat([front.repeat(missing), known])
            lines.append(ids if other == sample else known[: len(ids)])
        return torch.stack(lines)


def of_one_row(
    texts: ReadTexts, ids: Tensor, sample: int, read: Callable[[Tensor], Tensor]
) -> Tensor:
    """Give the entry of one sample of what `read` says of a whole batch `[N, T']`."""
    said = read(texts.whole(ids, sample))
    if not said.ndim:
        return said
    return said[sample if len(said) > 1 else 0]
