"""The cached decoder against the training forward, which has no cache; trees against chains."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from mmspec.engine.draft import Context, Draft, Scores, Verdict
from mmspec.engine.laws import OneHot
from mmspec.engine.warp import Warp
from mmspec.models.linear import RowLinear
from mmspec.models.target import TokenTarget

VOCAB = 16
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}


def random_tokens(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, VOCAB, (rows, length), generator=torch.Generator().manual_seed(seed))


def training_laws(model, prefix, mask, tokens, scale, warp=None) -> torch.Tensor:
    """Laws `[B, S + 1, V]` from `LlamaGenTransformer.forward`, one full pass."""
    rows = len(tokens)
    logits = model(tokens if scale is None else torch.cat([tokens, tokens]), prefix, mask)
    if scale is not None:
        logits = logits[rows:] + scale * (logits[:rows] - logits[rows:])
    return (warp or Warp())(logits)


def close(ours: torch.Tensor, theirs: torch.Tensor, tolerance: float = 1e-10) -> bool:
    return ours.shape == theirs.shape and torch.allclose(ours, theirs, atol=tolerance, rtol=0)


# --- cached = uncached ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("scale", [None, 0.5, 3.0])
@pytest.mark.parametrize("pads", [[0, 0, 0], [2, 2, 2], [0, 3, 1]], ids=str)
@pytest.mark.parametrize("n_kv_head", [None, 2])
@pytest.mark.parametrize("rotary_prefix", ["zero", "identity"])
def test_chunks_equal_training_forward(
    tiny_llamagen, guided_rows, rotary_prefix, n_kv_head, pads, scale, dtype
):
    model = tiny_llamagen(n_kv_head=n_kv_head, rotary_prefix=rotary_prefix, dtype=dtype)
    tokens, tolerance = random_tokens(3, 15), TOLERANCE[dtype]
    with torch.inference_mode():
        guided, prefix, mask = guided_rows(model, pads, scale=scale)
        truth = training_laws(model, prefix, mask, tokens, scale)
        guided.start(3)
        # position -1 is the prefix's own last column: its token id is ignored
        first = guided.extend(torch.cat([tokens[:, -1:], tokens[:, :4]], 1), [-1] * 3)
        assert close(first, truth[:, :5], tolerance)
        assert close(guided.extend(tokens[:, 4:5], [4] * 3), truth[:, 5:6], tolerance)
        assert close(guided.extend(tokens[:, 5:11], [5] * 3), truth[:, 6:12], tolerance)
        # going back overwrites
        guided.extend(random_tokens(3, 4, 9), [7] * 3)
        assert close(guided.extend(tokens[:, 7:15], [7] * 3), truth[:, 8:16], tolerance)


@pytest.mark.parametrize("scale", [None, 2.0])
@pytest.mark.parametrize("pads", [[0, 0, 0], [0, 3, 1]], ids=str)
def test_ragged_chunks_equal_training_forward(tiny_llamagen, guided_rows, pads, scale):
    model, tokens = tiny_llamagen(n_kv_head=2), random_tokens(3, 15)
    with torch.inference_mode():
        guided, prefix, mask = guided_rows(model, pads, scale=scale)
        truth = training_laws(model, prefix, mask, tokens, scale)
        guided.start(3)
        guided.extend(tokens[:, :11], [-1] * 3)  # what it leaves in the cache is overwritten
        for start in ([-1, -1, -1], [2, 0, 3], [4, 1, 6], [6, -1, 9], [3, 2, 9]):
            n = 4
            chunk = torch.stack(
                [tokens.roll(1, 1)[b, s + 1 : s + 1 + n] for b, s in enumerate(start)]
            )
            laws = guided.extend(chunk, start)
            wanted = torch.stack([truth[b, s + 1 : s + 1 + n] for b, s in enumerate(start)])
            assert close(laws, wanted)


@pytest.mark.parametrize("start", [[0, 0], [0, 3]], ids=["even", "ragged"])
def test_prefix_of_one_column(tiny_llamagen, guided_rows, start):
    """As with a class label: there is nothing to prefill."""
    model, tokens = tiny_llamagen(prefix=1), random_tokens(2, 15)
    with torch.inference_mode():
        guided, prefix, mask = guided_rows(model, [0, 0])
        truth = training_laws(model, prefix, mask, tokens, 2.0)
        guided.start(2)
        assert close(guided.extend(tokens.roll(1, 1)[:, :4], [-1, -1]), truth[:, :4])
        chunk = torch.stack([tokens[b, s : s + 5] for b, s in enumerate(start)])
        wanted = torch.stack([truth[b, s + 1 : s + 6] for b, s in enumerate(start)])
        assert close(guided.extend(chunk, start), wanted)


def test_twin_rows_may_be_padded_differently(tiny_llamagen, guided_rows):
    """The unconditional prefix is as long as it likes."""
    model, tokens = tiny_llamagen(), random_tokens(2, 15)
    with torch.inference_mode():
        guided, prefix, mask = guided_rows(model, [3, 1], uncond_pads=[0, 4])
        truth = training_laws(model, prefix, mask, tokens, 2.0)
        guided.start(2)
        assert close(guided.extend(tokens.roll(1, 1)[:, :9], [-1] * 2), truth[:, :9])


def test_warpers_come_after_guidance(tiny_llamagen, guided_rows):
    model, tokens, warp = tiny_llamagen(), random_tokens(2, 15), Warp(0.7, 9, 0.9)
    with torch.inference_mode():
        guided, prefix, mask = guided_rows(model, [0, 1], warp=warp)
        truth = training_laws(model, prefix, mask, tokens, 2.0, warp)
        guided.start(2)
        laws = guided.extend(tokens.roll(1, 1)[:, :9], [-1] * 2)
    assert close(laws, truth[:, :9])
    assert (laws == 0).any()


@pytest.mark.parametrize("limit", [15, 10, 4, 1])
def test_fewer_tokens_than_the_grid(tiny_llamagen, guided_rows, limit):
    """A smaller limit needs a smaller cache, and changes nothing else."""
    model, tokens = tiny_llamagen(), random_tokens(2, 15)
    with torch.inference_mode():
        guided, prefix, mask = guided_rows(model, [0, 2], limit=limit, scratch=2)
        truth = training_laws(model, prefix, mask, tokens, 2.0)
        guided.start(2)
        assert close(guided.extend(tokens.roll(1, 1)[:, :limit], [-1] * 2), truth[:, :limit])


def test_start_anew(tiny_llamagen, guided_rows):
    model, tokens = tiny_llamagen(), random_tokens(2, 15)
    with torch.inference_mode():
        guided = guided_rows(model, [0, 2])[0]
        guided.start(2)
        first = guided.extend(tokens[:, :8], [-1, -1])
        guided.extend(tokens, [0, 0])
        guided.start(2)
        assert torch.equal(guided.extend(tokens[:, :8], [-1, -1]), first)


def test_wrong_number_of_rows(tiny_llamagen, guided_rows):
    guided = guided_rows(tiny_llamagen(), [0, 0])[0]
    with pytest.raises(ValueError, match="rows"):
        guided.start(3)


def test_weights_are_folded_not_lost(tiny_llamagen, guided_rows):
    """The comparison above can fail: every weight of the network matters to it."""
    tokens = random_tokens(2, 15)
    with torch.inference_mode():
        plain = tiny_llamagen()
        guided, *_ = guided_rows(plain, [0, 1])
        guided.start(2)
        before = guided.extend(tokens[:, :6], [-1, -1])
        skipped = {"cls_embedding"}  # the prefix comes in embedded
        for name, _ in plain.named_parameters():
            if name.split(".")[0] in skipped:
                continue
            changed = tiny_llamagen()
            weight = changed.get_parameter(name)
            weight.copy_(weight.roll(1, -1))
            guided, *_ = guided_rows(changed, [0, 1])
            guided.start(2)
            after = guided.extend(tokens[:, :6], [-1, -1])
            assert not close(before, after, 1e-6), name


# --- trees ----------------------------------------------------------------------------------------


@st.composite
def parent_lists(draw, most: int = 8) -> list[int]:
    """Parents of up to `most` nodes; a parent stands before its children."""
    return [draw(st.integers(-1, n - 1)) for n in range(draw(st.integers(1, most)))]


def path_to(parents: list[int], node: int) -> list[int]:
    """The nodes from the root's child down to `node`."""
    path = [node]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    return path


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(parent_lists(), min_size=1, max_size=3))
def test_depths_and_ancestors(trees):
    """Against walking up from every node. Rows are padded with children of the root."""
    width = max(map(len, trees))
    parents = [tree + [-1] * (width - len(tree)) for tree in trees]
    lengths = torch.tensor([len(tree) for tree in trees])
    draft = Draft(torch.zeros(len(trees), width).long(), lengths, OneHot(), torch.tensor(parents))
    for row, tree in enumerate(parents):
        for node in range(width):
            path = path_to(tree, node)
            assert draft.depths()[row, node] == len(path) - 1
            assert draft.ancestors()[row, node].nonzero().flatten().tolist() == path
    laws = torch.rand(len(trees), width + 1, 3)
    for row, tree in enumerate(parents):
        for node, parent in enumerate(tree):
            judged = Scores(laws).at_nodes(draft)[row, node]
            assert torch.equal(judged, laws[row, parent + 1])


def test_chain_is_a_tree_of_single_children():
    tokens, lengths = torch.zeros(2, 5).long(), torch.tensor([5, 3])
    chain = Draft(tokens, lengths, OneHot())
    tree = Draft(tokens, lengths, OneHot(), torch.arange(-1, 4).expand(2, -1))
    assert torch.equal(chain.depths(), tree.depths())
    assert torch.equal(chain.ancestors(), tree.ancestors())
    laws = Scores(torch.rand(2, 6, 3))
    assert torch.equal(laws.at_nodes(chain), laws.at_nodes(tree))
    assert chain.live().tolist() == [[True] * 5, [True] * 3 + [False] * 2]
    empty = Draft(tokens[:, :0], lengths * 0, OneHot())
    assert empty.depths().shape == (2, 0)
    assert empty.ancestors().shape == (2, 0, 0)


TREES = torch.tensor([[-1, -1, 0, 0, 1, 3, 5], [-1, 0, 1, 1, 1, 0, -1], [-1, 0, 1, 2, 3, 4, 5]])
BASES = {"even": [4, 4, 4], "ragged": [5, 1, 3], "first": [0, 0, 0]}


def at(tokens: torch.Tensor, base: list[int]) -> Context:
    """A context in which row b has emitted `base[b]` of `tokens`."""
    lengths = torch.tensor(base)
    last = tokens.gather(1, (lengths - 1).clamp_min(0)[:, None])
    return Context(tokens.clone(), lengths, last, list(base), 16, [False] * len(base))


def prepared(guided, tokens: torch.Tensor, base: list[int]) -> TokenTarget:
    """A target that has scored everything before the last committed token."""
    target, rows = TokenTarget(guided), len(base)
    target.start(rows)
    if max(base):
        guided.extend(tokens.roll(1, 1)[:, : max(base)], [-1] * rows)
    return target


def chain_of(tokens: torch.Tensor) -> Draft:
    return Draft(tokens, torch.full((len(tokens),), tokens.shape[1]), OneHot())


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("scale", [None, 2.0])
@pytest.mark.parametrize("pads", [[0, 0, 0], [0, 3, 1]], ids=str)
def test_tree_laws_equal_those_of_its_paths(tiny_llamagen, guided_rows, pads, scale, base):
    model, base = tiny_llamagen(n_kv_head=2), BASES[base]
    tokens, nodes = random_tokens(3, 16), random_tokens(3, 7, 5)
    draft = Draft(nodes, torch.tensor([7, 7, 7]), OneHot(), TREES)
    with torch.inference_mode():
        guided = guided_rows(model, pads, scale=scale)[0]
        target = prepared(guided, tokens, base)
        tree = target.score(at(tokens, base), draft).probs
        for node in range(7):
            paths = [path_to(parents, node) for parents in TREES.tolist()]
            width = max(map(len, paths))
            padded = torch.tensor([path + path[-1:] * (width - len(path)) for path in paths])
            other = prepared(guided_rows(model, pads, scale=scale)[0], tokens, base)
            chain = other.score(at(tokens, base), chain_of(nodes.gather(1, padded))).probs
            assert close(tree[:, 0], chain[:, 0])
            for row, path in enumerate(paths):
                for depth, above in enumerate(path):
                    assert close(tree[row, above + 1], chain[row, depth + 1])


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("pads", [[0, 0, 0], [0, 3, 1]], ids=str)
def test_continuing_a_kept_branch_equals_the_chain(tiny_llamagen, guided_rows, pads, base):
    """Rows keep 4, 1 and 0 nodes: `path` is padded by repeating, and the next chunk is ragged."""
    model, base = tiny_llamagen(), BASES[base]
    tokens, nodes, more = random_tokens(3, 16), random_tokens(3, 7, 5), random_tokens(3, 3, 6)
    draft = Draft(nodes, torch.tensor([7, 7, 7]), OneHot(), TREES)
    kept = [[0, 3, 5, 6], [6], []]
    path = torch.tensor([[0, 3, 5, 6], [6, 6, 6, 6], [0, 0, 0, 0]])
    with torch.inference_mode():
        target = prepared(guided_rows(model, pads)[0], tokens, base)
        context = at(tokens, base)
        target.score(context, draft)
        accepted = torch.tensor([4, 1, 0])
        keep = torch.zeros(3, 7, dtype=torch.bool)
        for row, nodes_kept in enumerate(kept):
            keep[row, nodes_kept] = True
        emitted = F.pad(nodes.gather(1, path), (0, 4))
        target.commit(
            context, draft, Verdict(accepted, emitted, emitted[:, -1:], accepted + 1, keep, path)
        )

        history = tokens.clone()
        for row, nodes_kept in enumerate(kept):  # kept nodes, then one token of the target's own
            new = [*nodes[row, nodes_kept].tolist(), 7]
            history[row, base[row] : base[row] + len(new)] = torch.tensor(new)
        after = [b + len(k) + 1 for b, k in zip(base, kept, strict=True)]
        ours = target.score(at(history, after), chain_of(more)).probs
        fresh = prepared(guided_rows(model, pads)[0], history, after)
        assert close(ours, fresh.score(at(history, after), chain_of(more)).probs)


def test_tree_without_nodes(tiny_llamagen, guided_rows):
    """A tree drafter that has no room left drafts nothing; the root is scored all the same."""
    tokens, none = random_tokens(2, 16), torch.zeros(2, 0).long()
    draft = Draft(none, torch.zeros(2).long(), OneHot(), none)
    with torch.inference_mode():
        target = prepared(guided_rows(tiny_llamagen(), [0, 1])[0], tokens, [4, 4])
        truth = target.score(at(tokens, [4, 4]), chain_of(none)).probs
        assert close(target.score(at(tokens, [4, 4]), draft).probs, truth)


# --- RowLinear ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(24, 16), (24, 400), (160, 512), (1100, 512)], ids=str)
def test_row_linear_equals_linear(shape, dtype):
    generator = torch.Generator().manual_seed(0)
    exact = torch.randn(shape, generator=generator) / shape[1] ** 0.5
    weight = exact.to(dtype).requires_grad_()
    linear = RowLinear(weight)
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 3e-2}[dtype]
    for rows in (0, 1, 2, 3, 16, 64):
        x = torch.randn(rows, shape[1], generator=generator).to(dtype)
        truth = F.linear(x.double(), weight.detach().double())
        out = linear(x)
        assert out.dtype == dtype
        assert out.shape == (rows, shape[0])
        assert not out.requires_grad
        assert close(out.double(), truth, tolerance)


def test_row_linear_takes_rows_that_are_not_contiguous():
    weight, x = torch.randn(24, 512), torch.randn(512, 8).T
    assert close(RowLinear(weight)(x), F.linear(x, weight), 1e-4)
