"""Falcon: blocks of two in chains and trees, calls, what released code does, refusals."""

from __future__ import annotations

import folders
import pytest
import torch
from toy_vlm import guided_vlm, tiny_head, tiny_llava
from toys import EXACT
from watched_drafts import inner

from mmspec import SpecConfig
from mmspec.draft.feature.feature_model import EagleDrafter
from mmspec.draft.feature.head_model import head_model
from mmspec.draft.tree.fixed_tree import TreeDrafter
from mmspec.engine.accept.recursive import RecursiveRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.loop import run
from mmspec.engine.protocols import Engine
from mmspec.engine.stats import SpecStats
from mmspec.engine.warp import Warp
from mmspec.errors import InputError
from mmspec.methods.resolved import resolve
from mmspec.models.heads.formats.files import HeadFiles
from mmspec.models.heads.formats.registry import read_head
from mmspec.models.target import TokenTarget

WORDS = [[2, 1, 2], [1, 3, 2, 2, 1]]


def generated(model, head, kind="block", *, rows=WORDS, widths=(), depth=4, limit=12, warp=None):
    """Counters of a generation, its drafts, and what the head read in each round's calls."""
    target, _, images = guided_vlm(model, rows, limit=limit, warp=warp or Warp(), scratch=40)
    drafts = head_model(head, target, images)
    drafter, rule = inner(kind, drafts)
    if widths:
        drafter, rule = TreeDrafter(drafts, widths), RecursiveRule()
    seen, calls = [], []
    propose, read = drafter.propose, drafts.decoder.run

    def watched(*args):
        calls.append([])
        seen.append(propose(*args))
        return seen[-1]

    def counted(x, *args):
        if calls:
            calls[-1].append(x.shape[1])
        return read(x, *args)

    drafter.propose, drafts.decoder.run = watched, counted
    coins = ProductionCoins([3 + n for n in range(len(rows))])
    stats = SpecStats()
    wrapped = EagleDrafter(drafts, drafter)
    with torch.no_grad():
        run(Engine(TokenTarget(target), wrapped, rule, ConstantLength(depth), coins),
            len(rows), limit, stats)  # fmt: skip
    return stats, seen, calls


@torch.no_grad()
def copied():
    """A target that says one law, which is not even, wherever it is, and a head that says it too.

    The target's layers add nothing and its words are all embedded alike.
    """
    model = tiny_llava()
    body = model.model.language_model
    for layer in body.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    body.embed_tokens.weight.copy_(body.embed_tokens.weight[:1].clone().expand(12, -1))
    body.norm.weight.fill_(0.2)
    model.lm_head.weight *= 10
    state = body.norm(body.embed_tokens.weight[0])
    head = tiny_head("falcon", model)
    for weight in head.network.parameters():
        weight.zero_()
    lstm, goal = head.network.lstm, state.atanh().atanh()
    for layer, cell in enumerate((goal, goal)):
        inputs, _, cells, outputs = lstm.get_parameter(f"bias_ih_l{layer}").chunk(4)
        inputs.fill_(50.0)
        outputs.fill_(50.0)
        cells.copy_(cell)
    assert float((lstm(torch.zeros(1, 32).double())[0] - state).abs().max()) < 1e-9
    law = model.lm_head(state).softmax(-1)
    assert 0.2 < float(law.max()) < 0.95
    return model, head


@pytest.mark.parametrize("kind", ["block", "chain"])
def test_a_perfect_copy_is_always_taken(kind):
    stats, _, _ = generated(*copied(), kind)
    assert min(stats.drafted) > 0
    assert sum(stats.accepted) == sum(stats.drafted)


def test_levels_of_a_group_share_their_laws():
    """The second level's laws are one for all nodes of the first; the third's are not."""
    model = tiny_llava()
    _, drafts, _ = generated(model, tiny_head("falcon", model), widths=(2, 2, 2))
    laws = drafts[0].law.probs[0]  # 2, 4 and 8 nodes
    assert float((laws[2:6] - laws[2]).abs().max()) < EXACT
    assert float((laws[0] - laws[2]).abs().max()) > 0.01
    thirds = laws[6:14:2]
    assert float((thirds[0] - thirds[2]).abs().max()) > 1e-4
    # children of siblings at the second level stand on blocks of their own
    assert len({tuple(law.tolist()) for law in thirds}) == 4


@pytest.mark.parametrize(("name", "calls"), [("falcon", 2), ("falcon-3", 2)])
def test_calls_of_a_round(name, calls):
    """Four levels are two calls: of a chain and of a tree, with the cut columns in the first."""
    model = tiny_llava()
    size = int(name.partition("-")[2] or 2)
    for widths in ((), (2, 1, 2, 1)):
        _, _, read = generated(model, tiny_head(name, model), widths=widths)
        full = [one for one in read[:-1] if len(one) > 1]
        assert full
        assert all(len(one) == calls for one in full)
        assert all(one[0] >= size and one[1] % size == 0 for one in full)


def test_the_released_lstm_runs_along_the_batch(tmp_path):
    """A text by itself reads as it does here; the second text of a batch does not."""
    *_, tensors = folders.falcon(tmp_path / "head")
    ours = read_head(HeadFiles.read(tmp_path / "head")).double().network.lstm
    theirs = torch.nn.LSTM(32, 16, num_layers=2).double()
    theirs.load_state_dict(
        {n.removeprefix("lstm."): x for n, x in tensors.items() if n.startswith("lstm.")}
    )
    x = torch.randn(2, 5, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert float((theirs(x[:1])[0] - ours(x[:1])).abs().max()) < EXACT
        assert float((theirs(x)[0] - ours(x))[1].abs().max()) > 0.01


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"k_mask": None}, "says k_mask, the tokens of a call, from 1 to 1024, and not None"),
        ({"k_mask": 0}, "and not 0"),
        ({"k_mask": True}, "and not True"),
        ({"k_mask": 10**9}, "and not 1000000000"),
        ({"layers": 2}, "has one decoder layer, not 2"),
    ],
)
def test_folders_that_are_refused(tmp_path, own, said):
    folders.falcon(tmp_path / "head", **own)
    with pytest.raises(InputError, match=said) as error:
        read_head(HeadFiles.read(tmp_path / "head"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("drafter", ["tree", "dynamic-tree"])
def test_trees_take_it_and_no_other_head_of_blocks(drafter):
    own = {"drafter": drafter, "rule": "recursive"}
    assert resolve(SpecConfig("falcon", **own), "vlm").head.name == "falcon"
    with pytest.raises(InputError, match="has no use for head 'flash'"):
        resolve(SpecConfig("flash", **own), "vlm")
