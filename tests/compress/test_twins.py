"""Every compressor equals its slow obvious twin: plain lists, one image, the formula as it stands.

On random inputs in float64 and on inputs of small integers, which tie in many places.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from mmspec.compress.divprune import divprune
from mmspec.compress.fastv import fastv, last_token_attention
from mmspec.compress.prumerge import outliers, prumerge
from mmspec.compress.tome import tome
from mmspec.compress.visionzip import visionzip

CASES = [(seed, tokens) for seed in range(4) for tokens in (1, 2, 5, 12, 23)]


def inputs(seed, tokens, kind):
    random = torch.Generator().manual_seed(seed)

    def make(*shape):
        if kind == "ties":  # ±1: norms are equal and cosines exact fractions
            return torch.randint(0, 2, shape, generator=random).double() * 2 - 1
        return torch.randn(shape, generator=random, dtype=torch.float64)

    attention = make(2, tokens)
    attention = (attention + 2) / 64 if kind == "ties" else (3 * attention).softmax(1)
    return make(2, tokens, 4), attention, make(2, tokens, 4)


def keeps(tokens):
    return sorted({1, 2, tokens // 3, tokens // 2, tokens - 1, tokens} & set(range(1, tokens + 1)))


def compare(made, row, features, index):
    """Of one row, with what the twin made of it."""
    real = made.mask[row]
    assert made.index[row][real].tolist() == index
    want = torch.tensor(np.array(features))
    torch.testing.assert_close(made.features[row][real], want, rtol=0, atol=1e-12)
    assert not made.features[row][~real].any()


def cosine(a, b):
    norms = math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(x * x for x in b))
    # neither twin nor test shall depend on the last bit where cosines tie
    return round(sum(x * y for x, y in zip(a, b, strict=True)) / norms, 12)


def best(scores, count):
    """Places of the highest scores, of equal ones the first."""
    return sorted(range(len(scores)), key=lambda n: (-scores[n], n))[:count]


# --- twins ----------------------------------------------------------------------------------------


def slow_visionzip(x, a, k, keep, contextual):
    dominant = sorted(best(a, keep - contextual))
    tokens = {n: x[n] for n in dominant}
    rest = [n for n in range(len(x)) if n not in dominant]
    if contextual:
        step = len(rest) // contextual
        targets = [rest[i * step] for i in range(contextual)]
        joined = {t: [] for t in targets}
        for n in rest:
            if n not in targets:
                alike = [cosine(k[n], k[t]) for t in targets]
                joined[targets[best(alike, 1)[0]]].append(x[n])
        for t in targets:
            tokens[t] = x[t] + (sum(joined[t]) / len(joined[t]) if joined[t] else 0)
    index = sorted(tokens)
    return [tokens[n] for n in index], index


def slow_divprune(x, keep):
    n = len(x)
    far = [[1 - cosine(x[i], x[j]) for j in range(n)] for i in range(n)]
    lonely = [min((far[i][j] for j in range(n) if j != i), default=0) for i in range(n)]
    chosen = best(lonely, 1)
    while len(chosen) < keep:
        others = [i for i in range(n) if i not in chosen]
        distance = [min(far[i][j] for j in chosen) for i in others]
        chosen.append(others[best(distance, 1)[0]])
    chosen = sorted(chosen)
    return [x[i] for i in chosen], chosen


def slow_tome(x, k, keep):
    # (place, members) of every group, in order; a group's feature is the mean of its members
    groups = [(n, [n]) for n in range(len(x))]

    def mean(of, members):
        return sum(of[m] for m in members) / len(members)

    while len(groups) > keep:
        a, b = groups[0::2], groups[1::2]
        links = []
        for source in a:
            alike = [cosine(mean(k, source[1]), mean(k, target[1])) for target in b]
            target = best(alike, 1)[0]
            links.append((alike[target], target))
        count = min(len(groups) - keep, len(groups) // 2)
        gone = best([similarity for similarity, _ in links], count)
        members = [list(target[1]) for target in b]
        for source in gone:
            members[links[source][1]] += a[source][1]
        left = [group for i, group in enumerate(a) if i not in gone]
        left += [(target[0], m) for target, m in zip(b, members, strict=True)]
        groups = sorted(left)
    return [mean(x, m) for _, m in groups], [n for n, _ in groups], [len(m) for _, m in groups]


def slow_prumerge(x, a, k, keep, neighbours):
    n = len(x)
    if keep is None:
        q1, q3 = np.percentile(a, 25), np.percentile(a, 75)
        keep = max(1, sum(v > q3 + 1.5 * (q3 - q1) for v in a))
    elif keep == n:
        return list(x), list(range(n))
    index = sorted(best(a, keep))
    merged = []
    for i in index:
        others = [j for j in range(n) if j != i]
        near = best([cosine(k[i], k[j]) for j in others], neighbours)
        merged.append(x[i] + sum(a[others[j]] * x[others[j]] for j in near))
    return merged, index


# --- comparisons ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["random", "ties"])
@pytest.mark.parametrize(("seed", "tokens"), CASES)
def test_fastv(seed, tokens, kind):
    x, a, _ = inputs(seed, tokens, kind)
    for keep in keeps(tokens):
        made = fastv(x, keep, a)
        for row in range(2):
            index = sorted(best(a[row].tolist(), keep))
            compare(made, row, [x[row, n].numpy() for n in index], index)


@pytest.mark.parametrize("kind", ["random", "ties"])
@pytest.mark.parametrize(("seed", "tokens"), CASES)
def test_visionzip(seed, tokens, kind):
    x, a, k = inputs(seed, tokens, kind)
    for keep in keeps(tokens):
        for contextual in {0, round(keep * 0.15625), keep // 2, keep}:
            made = visionzip(x, keep, a, k, contextual)
            for row in range(2):
                cues = a[row].tolist(), k[row].tolist()
                want = slow_visionzip(x[row].numpy(), *cues, keep, contextual)
                compare(made, row, *want)


def test_visionzip_default_shares():
    """The published budgets: 54 + 10, 108 + 20, 162 + 30."""
    chance = torch.Generator().manual_seed(0)
    x, k = torch.randn(2, 1, 576, 2, generator=chance)
    a = torch.rand(1, 576, generator=chance)
    for keep, contextual in ((64, 10), (128, 20), (192, 30)):
        made, want = visionzip(x, keep, a, k), visionzip(x, keep, a, k, contextual)
        assert torch.equal(made.features, want.features)
        untouched = (made.features == x.gather(1, made.index[..., None].expand(-1, -1, 2))).all(-1)
        dominant = set(a[0].topk(keep - contextual).indices.tolist())
        assert dominant <= set(made.index[0][untouched[0]].tolist())
        assert not dominant & set(made.index[0][~untouched[0]].tolist())
        assert 0 < (~untouched).sum() <= contextual  # those that nobody joined are as they were


@pytest.mark.parametrize("kind", ["random", "ties"])
@pytest.mark.parametrize(("seed", "tokens"), CASES)
def test_divprune(seed, tokens, kind):
    x, _, _ = inputs(seed, tokens, kind)
    for keep in keeps(tokens):
        made = divprune(x, keep)
        for row in range(2):
            compare(made, row, *slow_divprune(x[row].numpy(), keep))


@pytest.mark.parametrize("kind", ["random", "ties"])
@pytest.mark.parametrize(("seed", "tokens"), CASES)
def test_tome(seed, tokens, kind):
    x, _, k = inputs(seed, tokens, kind)
    for keep in keeps(tokens):
        if kind == "ties" and keep < tokens - tokens // 2:
            continue  # merged keys are no longer exact, and ties would hang on the last bit
        for keys in (None, k):
            made = tome(x, keep, keys)
            for row in range(2):
                metric = (x if keys is None else keys)[row].numpy()
                features, index, sizes = slow_tome(x[row].numpy(), metric, keep)
                compare(made, row, features, index)
                assert made.sizes[row].tolist() == sizes
        total = (made.features * made.sizes[..., None]).sum(1)
        torch.testing.assert_close(total, x.sum(1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["random", "ties"])
@pytest.mark.parametrize("neighbours", [3, 32])
@pytest.mark.parametrize(("seed", "tokens"), CASES)
def test_prumerge(seed, tokens, neighbours, kind):
    x, a, k = inputs(seed, tokens, kind)
    for keep in [*keeps(tokens), None]:
        made = prumerge(x, keep, a, k, neighbours)
        for row in range(2):
            args = (x[row].numpy(), a[row].tolist(), k[row].tolist(), keep, neighbours)
            compare(made, row, *slow_prumerge(*args))


def test_prumerge_chooses_the_outliers():
    """Rows with two, none and one outlier: the second keeps its best token, filling is zero."""
    a = torch.full((3, 40), 0.01)
    a[0, [7, 31]] = 0.2
    a[2, 11] = 0.3
    a[1, 5] = 0.01
    assert outliers(a).sum(1).tolist() == [2, 0, 1]
    x = torch.randn(3, 40, 4)
    made = prumerge(x, None, a, x)
    assert made.mask.tolist() == [[True, True], [True, False], [True, False]]
    assert made.index.tolist() == [[7, 31], [0, 0], [11, 0]]
    assert not made.features[1:, 1].any()


def test_last_token_attention():
    """Mean over heads of the last query's weights, at the visual columns of each row."""
    weights = torch.rand(2, 3, 5, 9).softmax(-1)
    columns = torch.tensor([[1, 2, 3], [4, 5, 6]])
    made = last_token_attention(weights, columns)
    for row in range(2):
        for n in range(3):
            want = sum(weights[row, h, 4, columns[row, n]] for h in range(3)) / 3
            assert made[row, n].item() == pytest.approx(want.item(), abs=1e-7)
