"""A draft model of other words: it reads the target's tokens in its own, and says them in theirs.

Timor et al. 2025, "Accelerating LLM Inference with Lossless Speculative Decoding Algorithms for
Heterogeneous Vocabularies" (TLI; in transformers `UniversalSpeculativeDecodingGenerator`). What it
drafts is drawn from its law over the tokens that both vocabularies have, so drafts stay exact by
the usual rules. What the target says otherwise, the draft model reads spelled in its own tokens,
which changes how good its drafts are and not what comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..engine.accept.chain import pick
from ..engine.draft import Context, Draft
from ..models.token_model import TokenModel


class TranslatedModel:
    """A draft model as one of the target's vocabulary.

    Every call asks the host for the tokens, since one of them may be several of the draft model's.

    Args:
        model: the draft model. It reads its own tokens, and its laws are over the target's.
        spelled: one of the target's tokens in the draft model's, at least one.
        room: tokens that the draft model has room for behind the prompt.

    Attributes:
        full: rows in which it has no room for what was said; their laws tell nothing.
    """

    def __init__(
        self, model: TokenModel, spelled: Callable[[int], Sequence[int]], room: int
    ) -> None:
        self.model, self.spelled, self.room = model, spelled, room
        self.full: list[bool] = []
        self._read: list[list[int]] = []  # its own tokens, by row
        self._ends: list[list[int]] = []  # how many of these the target's tokens so far are

    def start(self, rows: int) -> None:
        self.model.start(rows)
        self._read, self._ends = [[] for _ in range(rows)], [[] for _ in range(rows)]
        self.full = [False] * rows

    def seat(self, context: Context, rows: list[int]) -> None:
        self.model.seat(context, rows)
        for row in rows:
            self._read[row], self._ends[row], self.full[row] = [], [], False

    def extend(self, tokens: Tensor, start: list[int], draft: Draft | None = None) -> Tensor:
        """Laws `[B, n, V]` after each of the target's `tokens [B, n]`, see `TokenModel`."""
        tree = draft is not None and draft.parents is not None and draft.nodes > 0
        given = tokens.tolist()
        first, chains, places = [], [], []
        for row, (new, begin) in enumerate(zip(given, start, strict=True)):
            # of a tree the root alone; its nodes are tokens that both have
            behind = len(new) - 1 if tree else 0
            one = self._spell(row, new[: len(new) - behind], begin, behind)
            first.append(one[0])
            chains.append(one[1])
            places.append(one[2])
        if tree:
            assert draft is not None
            return self._tree(given, first, chains, draft, tokens.device)
        laws, shifts = self._extend(first, chains, tokens.device)
        at = torch.tensor(places) + torch.tensor(shifts)[:, None]
        return pick(laws, at.to(laws.device))

    def join(self, row: int, position: int, count: int) -> None:
        """Take `count` tokens that a row has read from a position on for one of the target's."""
        del self._ends[row][position : position + count - 1]

    def _spell(
        self, row: int, new: list[int], begin: int, behind: int
    ) -> tuple[int, list[int], list[int]]:
        """Take in a row's tokens from position `begin` on, and forget what stood there.

        `behind` more are to come. Returns the position of the first of its own tokens; these; and
        where the target's end in them.
        """
        read, ends = self._read[row], self._ends[row]
        del ends[max(0, begin) :]
        del read[ends[-1] if ends else 0 :]
        first = len(read) if begin >= 0 else -1
        own, places = [] if begin >= 0 else [0], [] if begin >= 0 else [0]
        for token in new if begin >= 0 else new[1:]:
            pieces = self.spelled(token)
            own += pieces
            read += pieces
            ends.append(len(read))
            places.append(len(own) - 1)
        self.full[row] |= first + len(own) + behind > self.room
        if self.full[row]:
            return 0, [0], [0] * len(new)
        return first, own, places

    def _extend(
        self, first: list[int], chains: list[list[int]], device: torch.device
    ) -> tuple[Tensor, list[int]]:
        """Laws behind its own tokens `[B, m, V]`, and where in them each row's chain begins.

        Rows with fewer tokens than others read some in front of them once more.
        """
        width, inputs, starts, shifts = max(map(len, chains)), [], [], []
        for row, (begin, chain) in enumerate(zip(first, chains, strict=True)):
            start = max(-1, begin - (width - len(chain)))
            again = [0] if start < 0 <= begin else []  # the condition's own last input
            own = again + self._read[row][max(0, start) : max(0, begin)] + chain
            inputs.append(own + [0] * (width - len(own)))
            starts.append(start)
            shifts.append(max(0, begin - start))
        return self.model.extend(torch.tensor(inputs, device=device), starts), shifts

    def _tree(
        self,
        given: list[list[int]],
        first: list[int],
        chains: list[list[int]],
        draft: Draft,
        device: torch.device,
    ) -> Tensor:
        """Laws behind the root and the nodes; what of the root stands before its last token is read
        in a call of its own."""
        if any(len(chain) > 1 for chain in chains):
            self._extend(first, chains, device)
        roots = [f + len(chain) - 1 for f, chain in zip(first, chains, strict=True)]
        own = [
            [chain[-1], *(self.spelled(token)[0] for token in row[1:])]
            for chain, row in zip(chains, given, strict=True)
        ]
        return self.model.extend(torch.tensor(own, device=device), roots, draft)
