"""What a local rule dropped is drawn again in turn, and what it left stale is read again."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy import ndimage

from mmspec.engine.accept.local import LocalRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.draft import Context, Draft, Verdict
from mmspec.engine.laws import OneHot, Opaque
from mmspec.engine.loop import advance
from mmspec.engine.stats import SpecStats
from mmspec.engine.warp import Warp
from mmspec.models.target import TokenTarget

VOCAB, SIDE, LIMIT = 16, 4, 16
NONE = Draft(torch.zeros(3, 0, dtype=torch.long), torch.zeros(3, dtype=torch.long), OneHot())


def close(ours, theirs, tolerance=1e-10) -> bool:
    return ours.shape == theirs.shape and torch.allclose(ours, theirs, atol=tolerance, rtol=0)


def full_laws(model, prefix, mask, tokens, warp=None, scale=2.0) -> torch.Tensor:
    """Laws `[B, S + 1, V]` of one full pass without a cache."""
    rows = len(tokens)
    logits = model(torch.cat([tokens, tokens]), prefix, mask)
    return (warp or Warp())(logits[rows:] + scale * (logits[:rows] - logits[rows:]))


def chain(tokens, base, lengths=None) -> Draft:
    """A draft behind `base` tokens of every row."""
    rows, nodes = tokens.shape
    lengths = torch.full((rows,), nodes) if lengths is None else torch.tensor(lengths)
    positions = torch.arange(nodes) + torch.tensor(base)[:, None]
    return Draft(tokens, lengths, Opaque(), positions=positions)


def judged(draft, keep, redrawn) -> Verdict:
    """A local verdict: what is not kept has the tokens `redrawn [B, N]` for now."""
    keep = keep & draft.live()
    tokens = torch.where(keep, draft.tokens, redrawn)
    counts = draft.lengths.clamp_min(1)
    last = tokens.gather(1, counts[:, None] - 1)
    return Verdict(keep.sum(1), torch.cat([tokens, last], 1), last, counts, keep=keep)


def step(target, context, draft, keep, redrawn, coins):
    """A round with a given verdict; returns scores, final verdict and the counters."""
    stats = SpecStats()
    stats.start(context.rows)
    scores = target.score(context, draft)
    verdict = target.sample_next(context, draft, judged(draft, keep, redrawn), coins)
    target.commit(context, draft, verdict)
    stats.observe(*advance(context, draft, scores, verdict), scores.calls, scores.reread_tokens)
    stats.observe_calls(draft, verdict, [1])
    return scores, verdict, stats


def random(rows, nodes, seed=0):
    return torch.randint(VOCAB, (rows, nodes), generator=torch.Generator().manual_seed(seed))


# --- a slow, obvious reference --------------------------------------------------------------------


def reference(
    guided, root, base, draft, keep, redrawn, coins, window
) -> tuple[list[int], int, int]:
    """One row: tokens in the draft's places, calls and tokens read.

    Every entry of the cache is written by a call of one token; which one that call reads is what is
    said here. Islands are scipy's.
    """
    tokens, nodes = list(draft), len(draft)
    guided.extend(torch.tensor([[root]]), [base - 1])
    for n, token in enumerate(draft):  # the scoring call
        guided.extend(torch.tensor([[token]]), [base + n])
    tokens = [t if k else r for t, k, r in zip(draft, keep, redrawn, strict=True)]
    canvas = np.zeros(SIDE * (SIDE + 1), dtype=bool)
    canvas[[base + n for n in range(nodes) if not keep[n]]] = True
    labels, count = ndimage.label(canvas.reshape(-1, SIDE), structure=np.ones((3, 3)))
    turns: list[list[int]] = []
    for island in range(1, count + 1):
        cells = np.argwhere(labels == island).tolist()
        fronts = sorted({c + window * r for r, c in cells})
        for t, front in enumerate(fronts):
            turns += [[]] if t == len(turns) else []
            turns[t] += [SIDE * r + c - base for r, c in cells if c + window * r == front]
    read = 0
    for before, now in itertools.pairwise(turns):
        # the new tokens of the last turn, and what stands in front of those whose turn it is
        positions = sorted({base + n for n in before} | {base + n - 1 for n in now})
        laws = {}
        for place in positions:
            token = root if place == base - 1 else tokens[place - base]
            laws[place + 1] = guided.extend(torch.tensor([[token]]), [place])[:, 0]
        read += len(positions)
        for n in now:
            tokens[n] = int(coins.draw(laws[base + n], LIMIT + n))
    return tokens, max(0, len(turns) - 1), read


@pytest.mark.parametrize("pads", [[0, 0, 0], [0, 3, 1]], ids=str)
@pytest.mark.parametrize("window", [1, 2, SIDE])
def test_islands_against_the_reference(tiny_llamagen, guided_rows, window, pads):
    """Ragged rows with several islands each, in one batch; then all that is stale is read again."""
    model, seeds = tiny_llamagen(), [5, 6, 7]
    base, lengths = [1, 3, 2], [13, 9, 14]
    draft_tokens, redrawn = random(3, 14, 1), random(3, 14, 2)
    keep = torch.rand(3, 14, generator=torch.Generator().manual_seed(3)) < 0.35
    first = random(3, 3, 4)
    with torch.inference_mode():
        guided, prefix, mask = guided_rows(model, pads, scratch=20)
        target = TokenTarget(guided, SIDE, window=window)
        target.start(3)
        context = Context.empty(3, LIMIT)
        context.tokens[:, :3] = first
        guided.extend(torch.cat([first[:, :1], first[:, :2]], 1), [-1] * 3)
        context.base, context.lengths = list(base), torch.tensor(base)
        context.last = first.gather(1, context.lengths[:, None] - 1)
        coins = ProductionCoins(seeds).round(4)[1]
        draft = chain(draft_tokens, base, lengths)
        _, verdict, stats = step(target, context, draft, keep, redrawn, coins)
        for row in range(3):
            alone = guided_rows(model, pads, rows=[row], scratch=20)[0]
            alone.start(1)
            told = first[row : row + 1]
            alone.extend(torch.cat([told[:, :1], told[:, :2]], 1), [-1])
            tokens, calls, read = reference(
                alone,
                int(first[row, base[row] - 1]),
                base[row],
                draft_tokens[row, : lengths[row]].tolist(),
                keep[row, : lengths[row]].tolist(),
                redrawn[row, : lengths[row]].tolist(),
                ProductionCoins(seeds[row : row + 1]).round(4)[1],
                window,
            )
            count = lengths[row]
            assert verdict.emitted[row, :count].tolist() == tokens
            assert int(verdict.last[row]) == tokens[-1]
            assert (verdict.calls[row], verdict.target_tokens[row]) == (calls, read)
            assert stats.calls[row] == 1 + calls
            assert stats.target_tokens[row] == count + 1 + read
        assert max(verdict.calls) >= 3
        assert context.base == [14, 12, 16]
        # row 2 has no room left; the others go on
        more = chain(random(3, 2, 8), context.base, [2, 2, 0])
        scores = target.score(context, more)
        for row in (0, 1):
            final = torch.cat([context.tokens[row, : context.base[row]], more.tokens[row]])[None]
            truth = full_laws(model, prefix[[row, 3 + row]], mask[[row, 3 + row]], final)
            assert close(scores.probs[row], truth[0, context.base[row] :])


def test_all_fallen_is_plain_greedy_decoding(tiny_llamagen, guided_rows):
    """One by one: every node is drawn behind the final tokens in front of it."""
    model, greedy = tiny_llamagen(), Warp(temperature=0)
    with torch.inference_mode():
        plain, prefix, mask = guided_rows(model, [0, 2], warp=greedy)
        plain.start(2)
        tokens, wanted = torch.zeros(2, 1, dtype=torch.long), []
        for place in range(LIMIT):
            tokens = plain.extend(tokens, [place - 1] * 2)[:, 0].argmax(-1, keepdim=True)
            wanted.append(tokens)
        # a draft that is wrong everywhere, behind its own tokens
        bad = torch.zeros(2, 0, dtype=torch.long)
        for _ in range(LIMIT):
            law = full_laws(model, prefix, mask, bad, greedy)[:, -1]
            bad = torch.cat([bad, (law.argmax(-1, keepdim=True) + 1) % VOCAB], 1)
        guided = guided_rows(model, [0, 2], warp=greedy, scratch=20)[0]
        target = TokenTarget(guided, SIDE)
        target.start(2)
        context, draft = Context.empty(2, LIMIT), chain(bad, [0, 0])
        coins = ProductionCoins([1, 2]).round(0)[1]
        verdict = LocalRule(SIDE, 1.0).verify(draft, target.score(context, draft), coins)
        assert not verdict.keep.any()
        verdict = target.sample_next(context, draft, verdict, coins)
    assert torch.equal(verdict.emitted[:, :LIMIT], torch.cat(wanted, 1))
    assert verdict.calls == verdict.target_tokens == [LIMIT - 1] * 2


def test_kept_tokens_are_not_judged_again(tiny_llamagen, guided_rows):
    """All stand: no further call, nothing stale, and the next call reads its root alone."""
    model = tiny_llamagen()
    with torch.inference_mode():
        guided, prefix, mask = guided_rows(model, [0, 0, 0])
        target = TokenTarget(guided, SIDE)
        target.start(3)
        context, draft = Context.empty(3, LIMIT), chain(random(3, 6), [0] * 3)
        keep = torch.ones(3, 6, dtype=torch.bool)
        coins = ProductionCoins([1, 2, 3]).round(0)[1]
        _, verdict, stats = step(target, context, draft, keep, draft.tokens, coins)
        assert torch.equal(verdict.emitted[:, :6], draft.tokens)
        assert (stats.calls, stats.target_tokens, stats.rounds) == ([1] * 3, [7] * 3, [6])
        scores = target.score(context, NONE)
        assert scores.reread_tokens == [0, 0, 0]
        assert close(scores.probs, full_laws(model, prefix, mask, context.tokens[:, :6])[:, -1:])


@pytest.mark.parametrize("turns", [0, 1, 3])
def test_capped_turns(tiny_llamagen, guided_rows, turns):
    """What is drawn in time is what it would be without the cap; the rest stays as it was drawn."""
    model, redrawn = tiny_llamagen(), random(3, 12, 2)
    keep = torch.zeros(3, 12, dtype=torch.bool)

    def final(turns):
        guided = guided_rows(model, [0, 0, 0], scratch=20)[0]
        target = TokenTarget(guided, SIDE, turns, window=2)
        target.start(3)
        context, draft = Context.empty(3, LIMIT), chain(random(3, 12, 1), [0] * 3)
        coins = ProductionCoins([1, 2, 3]).round(0)[1]
        return step(target, context, draft, keep, redrawn, coins)[1]

    with torch.inference_mode():
        capped, whole = final(turns), final(None)
    front = torch.arange(12) % SIDE + 2 * (torch.arange(12) // SIDE)
    expected = torch.where((front > 0) & (front <= turns), whole.emitted[:, :12], redrawn)
    assert torch.equal(capped.emitted[:, :12], expected)
    assert capped.calls == [turns] * 3
    assert whole.calls == [7] * 3  # columns + window · (rows − 1), less the first turn


def test_rows_of_very_different_lengths(tiny_llamagen, guided_rows):
    """A row has emitted less than another lacks: what is stale is read in a call of its own."""
    model = tiny_llamagen()
    with torch.inference_mode():
        guided, prefix, mask = guided_rows(model, [0, 1, 0])
        target = TokenTarget(guided, SIDE)
        target.start(3)
        context = Context.empty(3, LIMIT)
        draft = chain(random(3, 8), [0] * 3, [8, 0, 3])
        keep = torch.ones(3, 8, dtype=torch.bool)
        keep[0, 1] = keep[2, 2] = False
        coins = ProductionCoins([1, 2, 3]).round(0)[1]
        step(target, context, draft, keep, random(3, 8, 2), coins)
        assert context.base == [8, 1, 3]
        more = chain(random(3, 2, 8), context.base)
        scores = target.score(context, more)
        assert (scores.calls, scores.reread_tokens) == (2, [6, 0, 0])
        for row, base in enumerate(context.base):
            final = torch.cat([context.tokens[row, :base], more.tokens[row]])[None]
            truth = full_laws(model, prefix[[row, 3 + row]], mask[[row, 3 + row]], final)
            assert close(scores.probs[row], truth[0, base:])


def test_a_tree_behind_a_local_verdict(tiny_llamagen, guided_rows):
    model = tiny_llamagen()
    with torch.inference_mode():
        guided, prefix, mask = guided_rows(model, [0, 0, 0])
        target = TokenTarget(guided, SIDE)
        target.start(3)
        context, draft = Context.empty(3, LIMIT), chain(random(3, 6), [0] * 3)
        keep = torch.ones(3, 6, dtype=torch.bool)
        keep[:, 2] = False
        step(target, context, draft, keep, random(3, 6, 2), ProductionCoins([1, 2, 3]).round(0)[1])
        parents = torch.tensor([-1, -1, 0]).expand(3, -1)
        tree = Draft(random(3, 3, 5), torch.tensor([3] * 3), OneHot(), parents)
        scores = target.score(context, tree)
        assert scores.calls == 2
        for node, path in enumerate([[], [0], [1], [0, 2]]):
            final = torch.cat([context.tokens[:, :6], tree.tokens[:, path]], 1)
            assert close(scores.probs[:, node], full_laws(model, prefix, mask, final)[:, -1])


# --- coins ----------------------------------------------------------------------------------------


def test_an_index_tensor_is_as_good_as_a_number():
    coins = ProductionCoins([3, 4, 5])
    weights = torch.rand(3, 6, 9, generator=torch.Generator().manual_seed(0))
    for number in (0, 5, 40):
        for side in coins.round(number):
            together = side.draw(weights, 11)
            index = (torch.arange(6) + 11).expand(3, -1)
            assert torch.equal(side.draw(weights, index), together)
            order = torch.tensor([[5, 0, 3], [1, 1, 4], [2, 5, 0]])
            some = weights.gather(1, order[..., None].expand(-1, -1, 9))
            assert torch.equal(side.draw(some, index.gather(1, order)), together.gather(1, order))
            for k in range(6):
                assert torch.equal(side.draw(weights[:, k], 11 + k), together[:, k])
