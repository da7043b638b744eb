"""DFlash's head over pictures: its laws without a cache, exactness by enumeration, its window."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from toys import EXACT, distance, outputs, whole_loop
from watched_drafts import Watched, joint

from mmspec.draft.feature.block import BlockDrafter
from mmspec.draft.feature.dflash import DFlashModel
from mmspec.draft.feature.feature_model import EagleDrafter
from mmspec.draft.jacobi.coupled import CoupledJacobiDrafter
from mmspec.draft.jacobi.foreseen import ForeseenJacobiDrafter
from mmspec.draft.masked import CartesianDrafter
from mmspec.engine.accept.block import BlockRule
from mmspec.engine.accept.recursive import RecursiveRule
from mmspec.engine.accept.token import TokenRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.draft import Scores
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.loop import run
from mmspec.engine.protocols import Engine
from mmspec.engine.stats import SpecStats
from mmspec.engine.warp import Warp
from mmspec.models.llamagen.dflash_head import DFlashDecoder, DFlashHead, known_above
from mmspec.models.llamagen.transformer import causal_mask
from mmspec.models.loading import cast
from mmspec.models.target import TokenTarget

PADS = [0, 3, 1]


def tiny_head(model, seed: int = 3, **sizes) -> DFlashHead:
    """A head that is neither good nor useless: what it says leans on all its inputs."""
    config = model.config
    own = {"hidden_dim": 48, "n_layer": 2, "block": 3, "reads": (1, len(model.layers)), **sizes}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        head = DFlashHead(config.dim, config.n_head, config.n_kv_head, **own)
        for weight in head.parameters():
            torch.nn.init.normal_(weight, mean=float(weight.ndim == 1), std=0.25)
        torch.nn.init.normal_(head.mask)
    return cast(head, model.output.weight.dtype).eval()


class Oracle:
    """The head's laws from passes without a cache, one row and one block at a time."""

    def __init__(self, model, head, prefix, mask, scale, warp) -> None:
        self.model, self.head, self.scale, self.warp = model, head, scale, warp
        self.prefix, self.mask = prefix, mask

    def states(self, tokens: list[int], row: int) -> torch.Tensor:
        """Hidden states `[T + n, A · D]` that the head reads of a row of the network."""
        model, prefix, mask = self.model, self.prefix[row : row + 1], self.mask[row : row + 1]
        h = torch.cat([prefix, model.tok_embeddings(torch.tensor([tokens], dtype=torch.long))], 1)
        rotary, seen, found = model.rotary()[: h.shape[1]], causal_mask(mask, h.shape[1]), []
        for layer in model.layers:
            found.append(h)
            h = layer(h, rotary, seen)
        found.append(F.rms_norm(h, h.shape[-1:], eps=model.config.norm_eps))
        return torch.cat([found[number] for number in self.head.config.reads], dim=-1)[0]

    def logits(self, committed: list[int], row: int) -> torch.Tensor:
        """Logits `[K, V]` of the block behind what is committed, of a row of the network."""
        model, head, width = self.model, self.head, self.prefix.shape[1]
        n, side, reach = len(committed), model.grid, head.config.reach
        embedded = model.tok_embeddings.weight
        first = self.prefix[row, -1] if not n else embedded[committed[-1]]
        above = torch.zeros(head.most, 2 * reach + 1, model.config.dim, dtype=embedded.dtype)
        known = torch.zeros(above.shape[:2], dtype=torch.bool)
        for k in range(head.most):
            r, c = divmod(n + k, side)
            for i, column in enumerate(range(c - reach, c + reach + 1)):
                place = (r - 1) * side + column
                if r and 0 <= column < side and place < n:
                    above[k, i], known[k, i] = embedded[committed[place]], True
        x = head.blocks(first, above, known)[None]
        cos, sin = head.turns(width, side)
        last = cos.shape[1] - 1  # what stands behind the picture turns as its last cell
        block = torch.arange(width + n - 1, width + n + head.most).clamp_max(last)
        turns, before = (cos[:, block], sin[:, block]), width + n - 1
        real = self.mask[row].tolist() + [True] * n
        columns = [c for c in range(before) if real[c]]
        fused = head.fuse(self.states(committed, row)[columns])[None]
        context = head.network.context(fused, (cos[:, columns], sin[:, columns]))

        def attend(layer, q, k, v):
            keys, values = (torch.cat(pair, 2) for pair in zip(context[layer], (k, v), strict=True))
            groups = q.shape[1] // keys.shape[1]
            keys, values = (part.repeat_interleave(groups, 1) for part in (keys, values))
            scores = q @ keys.transpose(-1, -2) / keys.shape[-1] ** 0.5
            return scores.softmax(-1) @ values

        hidden = head.network(x, turns, attend)[0, 1:]
        return model.output(hidden * model.norm.weight)

    def block(self, row: int, committed: list[int]) -> torch.Tensor:
        """Laws `[K, V]` of the block, under guidance."""
        logits = self.logits(committed, row)
        if self.scale is not None:
            without = self.logits(committed, len(self.prefix) // 2 + row)
            logits = without + self.scale * (logits - without)
        return self.warp(logits)

    def law(self, row: int, committed: list[int], path: list[int]) -> torch.Tensor:
        return self.block(row, committed)[len(path)]


def drafter_of(kind: str, drafts: DFlashModel, vocab: int = 16):
    """The drafter of a kind, and the rule that judges its drafts."""
    if kind in ("jacobi", "head-first"):
        return ForeseenJacobiDrafter(drafts, vocab, int(kind != "jacobi")), TokenRule()
    if kind in ("tree", "independent"):
        how = "without-replacement" if kind == "tree" else kind
        return EagleDrafter(drafts, CartesianDrafter(drafts, (2, 1), how)), RecursiveRule()
    how = "top" if kind == "top" else "drawn"
    rule = BlockRule() if kind == "block-rule" else TokenRule()
    return EagleDrafter(drafts, BlockDrafter(drafts, how)), rule


@pytest.fixture
def generation(tiny_llamagen, guided_rows):
    """A whole generation; returns the context, the drafter that saw it and the counters."""

    def made(
        kind, rows=None, pads=PADS, scale=2.0, warp=None, depth=3, watch=True, sizes=None, **head
    ):
        rows = list(range(len(pads))) if rows is None else rows
        model = tiny_llamagen(**(sizes or {}))
        guided, prefix, mask = guided_rows(
            model, pads, rows, scale=scale, warp=warp, limit=14, scratch=24
        )
        network = tiny_head(model, **head)
        drafts = DFlashModel(DFlashDecoder(network, guided.decoder), guided)
        drafter, rule = drafter_of(kind, drafts)
        if watch:
            law = Oracle(model, network, prefix, mask, scale, warp or Warp())
            drafter = Watched(drafter, law)
        coins = ProductionCoins([10 + row for row in rows])
        engine = Engine(TokenTarget(guided), drafter, rule, ConstantLength(depth), coins)
        stats = SpecStats()
        context = run(engine, len(rows), 14, stats)
        return context, drafter, stats

    return made


# --- what the draft is made from ------------------------------------------------------------------


@torch.inference_mode()
@pytest.mark.parametrize("scale", [2.0, None])
@pytest.mark.parametrize("kind", ["drawn", "tree"])
def test_laws_are_those_of_passes_without_a_cache(generation, kind, scale):
    """Every node of every round, of rows that come differently far behind padded captions."""
    _, watched, stats = generation(kind, scale=scale)
    assert watched.worst < 1e-10
    assert set(watched.behind) == ({0, 1, 2} if kind == "drawn" else {0, 1})
    assert 0 < sum(stats.accepted) < sum(stats.drafted)


@torch.inference_mode()
@pytest.mark.parametrize(
    ("sizes", "pads", "head"),
    [
        ({"n_kv_head": 2, "rotary_prefix": "zero"}, PADS, {}),
        ({"prefix": 1}, [0, 0], {"block": 7, "reach": 0}),  # longer than a row of four
        ({}, [2, 2], {"reads": (0,), "reach": 2}),
    ],
    ids=["grouped", "one-column", "all-padded"],
)
def test_other_targets(generation, sizes, pads, head):
    settings = dict(sizes=sizes, pads=pads, warp=Warp(0.8, 9, 0.95), depth=head.get("block", 3))
    _, watched, _ = generation("drawn", **settings, **head)
    assert watched.worst < 1e-10


@torch.inference_mode()
def test_hazard_states_of_other_tokens(generation, monkeypatch):
    right = DFlashModel.observe

    def one_ahead(self, context, draft, scores, verdict):
        return right(self, context, draft, Scores(scores.probs, scores.hidden.roll(-1, 1)), verdict)

    monkeypatch.setattr(DFlashModel, "observe", one_ahead)
    _, watched, _ = generation("drawn")
    assert watched.worst > 1e-3


def test_cells_of_the_block_itself_are_unknown():
    """Of rows of four, behind two tokens and behind six: what stands above three masked cells."""
    index, known = known_above(torch.tensor([2, 6]), 3, 4, 1)
    cells = [
        [place for place, is_known in zip(*one, strict=True) if is_known]
        for one in zip(index.flatten(0, 1).tolist(), known.flatten(0, 1).tolist(), strict=True)
    ]
    assert cells == [[], [], [0, 1], [1, 2, 3], [2, 3], [4, 5]]


# --- exactness ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "vocab", "limit", "depth", "warp"),
    [
        ("drawn", 2, 3, 2, Warp()),
        ("drawn", 3, 3, 2, Warp(0.7, 2)),
        ("top", 2, 4, 3, Warp()),
        ("block-rule", 2, 3, 2, Warp()),
        ("tree", 2, 3, 2, Warp()),
        ("independent", 2, 3, 2, Warp()),
        ("jacobi", 2, 4, 2, Warp(0.7)),
        ("jacobi", 2, 3, 3, Warp()),
        ("jacobi", 3, 3, 2, Warp(0.7, 2)),
        ("head-first", 2, 4, 2, Warp()),
        ("head-first", 3, 3, 2, Warp(0.7, 2)),
    ],
    ids=str,
)
def test_joint_law_of_the_whole_loop(tiny_llamagen, guided_rows, kind, vocab, limit, depth, warp):
    """Under guidance; a window is longer than the block of two, too."""
    model = tiny_llamagen(vocab=vocab, grid=2, prefix=3)
    guided, prefix, mask = guided_rows(model, [1], limit=limit, scratch=12, warp=warp)
    head = tiny_head(model, block=2 if kind in ("jacobi", "head-first") else 3)
    drafts = DFlashModel(DFlashDecoder(head, guided.decoder), guided)
    rule = drafter_of(kind, drafts, vocab)[1]
    made = partial(drafter_of, kind, drafts, vocab)
    length = ConstantLength(depth)
    law = whole_loop(limit, TokenTarget(guided), lambda: made()[0], rule, length, at_once=1)

    def plainly(text: list[int]) -> torch.Tensor:
        tokens = torch.tensor(text, dtype=torch.long).expand(2, -1)
        logits = model(tokens, prefix, mask)[:, -1]
        return warp(logits[1] + 2.0 * (logits[0] - logits[1]))

    with torch.inference_mode():
        assert distance(law, joint(limit, vocab, plainly)) < EXACT


class Peeking(ForeseenJacobiDrafter):
    """The hazard: what enters the window is drawn by one law and said to follow another."""

    def entering(self, context, laws, new):
        return super().entering(context, laws, new).flip(-1)

    def propose(self, context, budget, coins):
        draft = super().propose(context, budget, coins)
        if not draft.nodes:
            return draft
        law = draft.law.probs.clone()
        law[:, -1] = law[:, -1].flip(-1)
        draft.law = type(draft.law)(law)
        return draft


def test_hazard_a_law_that_was_not_drawn_from(tiny_llamagen, guided_rows):
    model = tiny_llamagen(vocab=2, grid=2, prefix=3)
    guided, prefix, mask = guided_rows(model, [1], limit=3, scratch=12)
    drafts = DFlashModel(DFlashDecoder(tiny_head(model), guided.decoder), guided)
    target, length = TokenTarget(guided), ConstantLength(2)
    law = whole_loop(3, target, lambda: Peeking(drafts, 2), TokenRule(), length, at_once=1)

    def plainly(text: list[int]) -> torch.Tensor:
        logits = model(torch.tensor(text, dtype=torch.long).expand(2, -1), prefix, mask)[:, -1]
        return (logits[1] + 2.0 * (logits[0] - logits[1])).softmax(-1)

    with torch.inference_mode():
        assert distance(law, joint(3, 2, plainly)) > 1e-4


@pytest.mark.parametrize("kind", ["drawn", "tree", "jacobi", "head-first"])
def test_rows_draft_what_they_would_alone(generation, kind):
    """However far others are ahead."""
    with torch.inference_mode():
        together, _, _ = generation(kind, watch=False, depth=3)
        alone = [generation(kind, rows=[row], watch=False, depth=3)[0] for row in range(3)]
    assert outputs(together) == [outputs(one)[0] for one in alone]


# --- the window -----------------------------------------------------------------------------------


@pytest.mark.parametrize("places", [0, 1])
def test_what_enters_a_window_is_the_heads(tiny_llamagen, guided_rows, places):
    """Round by round: the head's laws where the target has scored nothing, its own elsewhere."""
    model = tiny_llamagen()
    guided, prefix, mask = guided_rows(model, [0, 2], limit=14, scratch=24)
    head = tiny_head(model)
    oracle = Oracle(model, head, prefix, mask, 2.0, Warp())
    drafts = DFlashModel(DFlashDecoder(head, guided.decoder), guided)
    seen = {"entered": 0, "stayed": 0}

    class Seen(ForeseenJacobiDrafter):
        def entering(self, context, laws, new):
            found = super().entering(context, laws, new)
            for row, base in enumerate(context.base):
                if context.finished[row]:
                    continue
                block = oracle.block(row, context.tokens[row, :base].tolist())
                for place in range(found.shape[1]):
                    entered = place < 3 and (bool(new[row, place]) or place < places)
                    wanted = block[place] if entered else laws[row, place]
                    torch.testing.assert_close(found[row, place], wanted, rtol=0, atol=1e-10)
                    seen["entered" if entered else "stayed"] += 1
            return found

    coins, rule = ProductionCoins([1, 2]), TokenRule()
    engine = Engine(TokenTarget(guided), Seen(drafts, 16, places), rule, ConstantLength(4), coins)
    with torch.inference_mode():
        run(engine, 2, 14, SpecStats())
    assert min(seen.values()) > 5


def test_a_head_that_is_the_target_makes_a_window_last(tiny_llamagen, guided_rows):
    """A head that foresees what comes next has more accepted than laws of the place before."""
    model = tiny_llamagen()

    class Knowing(DFlashModel):
        def block(self, context, drafted):
            guess = super().block(context, drafted)
            guess[:, 0] = self.known(context)
            return guess

    def known(context):
        texts = [context.tokens[row, :base].tolist() for row, base in enumerate(context.base)]
        laws = []
        for row, text in enumerate(texts):
            both = [row, len(texts) + row]
            tokens = torch.tensor([text] * 2, dtype=torch.long)
            logits = model(tokens, prefix[both], mask[both])[:, -1]
            laws.append((logits[1] + 2.0 * (logits[0] - logits[1])).softmax(-1))
        return torch.stack(laws)

    stood = {}
    for foresees in (True, False):
        guided, prefix, mask = guided_rows(model, [0] * 8, limit=16, scratch=24)
        drafts = Knowing(DFlashDecoder(tiny_head(model), guided.decoder), guided)
        drafts.known = known
        kind = ForeseenJacobiDrafter(drafts, 16) if foresees else CoupledJacobiDrafter(16)
        coins, stats = ProductionCoins([*range(8)]), SpecStats()
        engine = Engine(TokenTarget(guided), kind, TokenRule(), ConstantLength(1), coins)
        with torch.inference_mode():
            run(engine, 8, 16, stats)
        stood[foresees] = sum(stats.accepted) / sum(stats.drafted)
    assert stood[True] == 1 > stood[False]
