"""Runs of stateful layers: each input is answered from all that it sees, in order, and no more.

The oracle is a layer whose state is the list of the entries that it has read.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mmspec.models.transformers.entry_cache import EntryCache, Folding, runs_of

ROWS, SLOTS = 3, 40


def tree(rng: np.random.Generator, nodes: int) -> torch.Tensor:
    """Which nodes a node of a random tree sees `[nodes, nodes]`; a parent stands in front."""
    sees = torch.eye(nodes, dtype=torch.bool)
    for node in range(1, nodes):
        parent = int(rng.integers(-1, node))
        if parent >= 0:
            sees[node] |= sees[parent]
    return sees


def read(runs, states: list[list[int]], rows: int, count: int) -> list[list[list[int] | None]]:
    """What every input is answered from; `states` by row move on as runs fold."""
    answers: list[list[list[int] | None]] = [[None] * count for _ in range(rows)]
    for run in runs:
        lines = [
            states[row] + slots.tolist() for row, slots in zip(run.rows, run.slots, strict=True)
        ]
        before = [len(states[row]) for row in run.rows]
        assert run.fresh == (not any(before))
        for row, number, line, place in zip(*run.inputs, *run.answers, strict=True):
            answer = lines[line][: before[line] + int(place) + 1]
            assert answers[row][number] in (None, answer)  # several branches may give it
            answers[row][number] = answer
        if run.folds:
            assert len(set(run.rows.tolist())) == len(run.rows)
            for row, line in zip(run.rows, lines, strict=True):
                states[row] = line
    return answers


@pytest.mark.parametrize("folding", [Folding(1, 1), Folding(2, 3), Folding()], ids=str)
@pytest.mark.parametrize("certain", [None, "target", "drafts"])
def test_calls_of_trees(folding, certain):
    """Rows that stand at different places behind padding, call after call; a branch is kept."""
    rng = np.random.default_rng(0)
    cache = EntryCache([], ROWS, SLOTS, 4, torch.zeros(1))
    cache.contained = certain == "drafts"
    pads, texts = [0, 2, 1], [[], [], []]  # by row: slots that nobody sees, and the others so far
    states: list[list[int]] = [[] for _ in range(ROWS)]
    first = torch.tensor(pads)
    for step in range(6):
        count = 5 if step else 9  # a prompt first
        slots = first[:, None] + torch.arange(count)
        length = int(slots.max()) + 1
        seen = torch.zeros(ROWS, count, length, dtype=torch.bool)
        for row in range(ROWS):
            own = tree(rng, count) if step else torch.ones(count, count, dtype=torch.bool).tril()
            seen[row][:, texts[row]] = True
            seen[row][:, slots[row]] = own
        cache.called(slots)
        for row in range(ROWS):
            if cache.folded[row] == 0:
                states[row] = []
        told = None if certain is None else cache.certain
        runs, folded = runs_of(seen, slots, cache.folded, told, folding, cache.contained)
        answers = read(runs, states, ROWS, count)
        for row in range(ROWS):
            for number in range(count):
                assert answers[row][number] == seen[row, number].nonzero()[:, 0].tolist()
            # nothing is lost that lies in front, and what is uncertain stays out
            assert states[row] == [
                slot for slot in texts[row] + slots[row].tolist() if slot < folded[row]
            ]
            if certain == "target" and folding.least == 1 and step:
                assert set(texts[row]) <= set(states[row])
        if certain is None:
            assert not folded.any()
        cache.folded.copy_(folded)
        kept = [1 if step else count for _ in range(ROWS)]  # a tree's first node alone stays
        kept[1] = 2 if step and bool(seen[1, 1, slots[1, 0]]) else kept[1]
        for row in range(ROWS):
            texts[row] += slots[row, : kept[row]].tolist()
        first = first + torch.tensor(kept)


def test_what_is_taken_back_is_begun_again():
    cache = EntryCache([[torch.zeros(1, 2)]], ROWS, SLOTS, 5, torch.zeros(1))
    assert cache.data.shape == (1, 2, ROWS, 1, SLOTS, 3)
    assert cache.nbytes == cache.data.nbytes + ROWS * 2 * 4
    states = cache.states[0][0]

    def fold(*slots: int) -> None:
        cache.folded.copy_(torch.tensor(slots))
        states.copy_(torch.arange(1.0, ROWS + 1)[:, None])

    fold(4, 7, 9)
    cache.called(torch.tensor([[4, 3], [7, 8], [8, 10]]))
    assert cache.folded.tolist() == [0, 7, 0]
    assert states[:, 0].tolist() == [0, 2, 0]
    assert cache.certain.tolist() == [3, 7, 8]
    fold(4, 7, 9)
    places = torch.tensor([[5, 6], [2, 8], [9, 12]])
    cache.gather(places, torch.tensor([[3, 6], [2, 7], [9, 10]]))  # what stays is not moved
    assert cache.folded.tolist() == [0, 7, 9]
    fold(4, 7, 9)
    with cache.lent(SLOTS - 2, 2):
        cache.called(torch.tensor([[1, 2]] * ROWS))
        assert cache.folded.tolist() == [0, 0, 0]
    assert cache.folded.tolist() == [4, 7, 9]
    assert states[:, 0].tolist() == [1, 2, 3]
    part = cache.lines(slice(1, 3))
    part.restart()
    assert cache.folded.tolist() == [4, 0, 0]
    assert states[:, 0].tolist() == [1, 0, 0]
    fold(4, 7, 9)
    cache.select([0, 2], SLOTS)
    assert cache.folded.tolist() == [4, 9]
    assert cache.states[0][0][:, 0].tolist() == [1, 3]
    cache.restore()
    assert cache.folded.tolist() == [0, 0, 0]
    assert not cache.states[0][0].any()


def test_what_a_draft_model_may_take_back_is_not_certain():
    """It drafts a token a call; where it goes back, what lies in front has been kept."""
    cache = EntryCache([], 1, SLOTS, 4, torch.zeros(1))
    cache.contained = True
    for first, certain in ((6, 0), (7, 0), (8, 0), (7, 7), (8, 7), (9, 7), (9, 9), (12, 9)):
        cache.called(torch.tensor([[first, first + 1]]))
        assert cache.certain.tolist() == [certain]
    cache.restart()
    assert cache.certain.tolist() == [0]


def test_padding_has_no_line():
    """Each padded query of a prompt sees itself alone."""
    count = 6
    seen = torch.ones(3, count, count, dtype=torch.bool).tril()
    for row, pads in enumerate((0, 4, 5)):
        seen[row, :, :pads] = False
        seen[row].fill_diagonal_(True)
    slots = torch.arange(count).expand(3, -1)
    nothing = torch.zeros(3, dtype=torch.long)
    runs, _ = runs_of(seen, slots, nothing, None, Folding())
    assert [run.rows.tolist() for run in runs] == [[0, 1, 2]]
    answers = read(runs, [[], [], []], 3, count)
    assert answers[0] == [list(range(n + 1)) for n in range(count)]
    assert answers[1][4:] == [[4], [4, 5]]
    assert answers[2][5:] == [[5]]  # a prompt of one token
    runs, folded = runs_of(seen, slots, nothing, nothing, Folding(1, 1))
    assert folded.tolist() == [5, 5, 0]
    assert read(runs, [[], [], []], 3, count) == [
        [list(range(n + 1)) for n in range(count)],
        [None] * 4 + [[4], [4, 5]],
        [None] * 5 + [[5]],
    ]


def test_another_caches_beginning_is_taken_with_its_state():
    one = EntryCache([[torch.zeros(1, 2)]], 1, SLOTS, 4, torch.zeros(1))
    one.data.normal_()
    one.folded.fill_(6)
    one.states[0][0].fill_(3.0)
    for count, folded in ((8, 6), (5, 0)):
        two = EntryCache([[torch.zeros(1, 2)]], 2, SLOTS, 4, torch.zeros(1))
        two.take(one, count)
        assert two.folded.tolist() == [folded] * 2
        assert two.states[0][0].tolist() == [[3.0 if folded else 0.0] * 2] * 2
        assert torch.equal(two.data[:, :, 1, :, :count], one.data[:, :, 0, :, :count])
        assert not two.data[..., count:, :].any()
