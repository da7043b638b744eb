"""The layout of a picture's tokens, and the laws that a decoder gives at forced positions."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaModel

from mmspec.engine.draft import Draft
from mmspec.engine.laws import OneHot
from mmspec.engine.warp import Warp
from mmspec.models.guided import GuidedDecoder
from mmspec.models.setting import Setting
from mmspec.models.token_grid import TokenGrid
from mmspec.models.transformers.causal import CausalDecoder

CODES, CLOSE = 6, 1e-5  # transformers turns positions in float32


def test_layout_by_hand():
    grid = TokenGrid(2, 3, end_of_row=7, tail=(8, 9))
    assert (grid.stride, grid.length, grid.free) == (4, 10, False)
    assert grid.forced.tolist() == [-1, -1, -1, 7, -1, -1, -1, 7, 8, 9]
    codes = torch.tensor([[0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0]])
    tokens = grid.tokens(codes)
    assert tokens.tolist() == [[0, 1, 2, 7, 3, 4, 5, 7, 8, 9], [5, 4, 3, 7, 2, 1, 0, 7, 8, 9]]
    assert torch.equal(grid.codes(tokens), codes)


def test_without_forced_tokens():
    grid = TokenGrid(2, 3)
    assert (grid.stride, grid.length, grid.free) == (3, 6, True)
    assert grid.forced.tolist() == [-1] * 6
    codes = torch.arange(6)[None]
    assert torch.equal(grid.tokens(codes), codes)
    assert torch.equal(grid.codes(codes), codes)


def test_a_tail_alone():
    grid = TokenGrid(1, 2, tail=(4,))
    assert (grid.stride, grid.length, grid.free) == (2, 3, False)
    assert grid.forced.tolist() == [-1, -1, 4]
    assert grid.codes(torch.tensor([[1, 0, 4]])).tolist() == [[1, 0]]


# --- laws -----------------------------------------------------------------------------------------

GRID = TokenGrid(2, 2, end_of_row=CODES, tail=(CODES + 1,))  # 2 · 3 + 1 tokens
FORCED = [-1, -1, CODES, -1, -1, CODES, CODES + 1]


class Reference:
    """A small backbone with a table and a head of its own, run in one pass without a cache."""

    def __init__(self) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.model = LlamaModel(
                LlamaConfig(
                    vocab_size=4,
                    hidden_size=32,
                    intermediate_size=48,
                    num_hidden_layers=2,
                    num_attention_heads=4,
                    max_position_embeddings=32,
                )
            ).eval()
            for weight in self.model.parameters():
                torch.nn.init.normal_(weight, mean=float(weight.ndim == 1), std=0.3)
            self.table = torch.randn(CODES + 2, 32)
            self.head = torch.randn(CODES, 32)
            self.prefix = torch.randn(6, 3, 32)  # three conditional rows, then their twins
        self.model = self.model.double()
        self.table, self.head, self.prefix = (
            part.double() for part in (self.table, self.head, self.prefix)
        )
        self.mask = torch.tensor([[1, 1, 1], [0, 1, 1], [1, 1, 1]] * 2).bool()

    def guided(self, scale: float | None) -> GuidedDecoder:
        rows = 3 if scale is None else 6
        return GuidedDecoder(
            CausalDecoder(self.model, self.table, lambda hidden: hidden @ self.head.T),
            Setting(
                self.prefix[:rows],
                self.mask[:rows],
                scale,
                Warp(temperature=0.7, top_k=4),
                GRID.length,
                GRID.columns,
                scratch=6,
                forced=GRID.forced,
            ),
        )

    def law(self, row: int, tokens: list[int], scale: float | None) -> torch.Tensor:
        """Of the token behind `tokens`, written out: layout, else guidance and warpers."""
        if len(tokens) < len(FORCED) and FORCED[len(tokens)] >= 0:
            return torch.eye(CODES + 2, dtype=torch.float64)[FORCED[len(tokens)]]
        logits = []
        for twin in [row] if scale is None else [row, row + 3]:
            prefix = self.prefix[twin][self.mask[twin]]
            x = torch.cat([prefix, self.table[tokens]])[None]
            logits.append(self.model(inputs_embeds=x).last_hidden_state[0, -1] @ self.head.T)
        guided = logits[0] if scale is None else logits[1] + scale * (logits[0] - logits[1])
        law = torch.zeros(CODES + 2, dtype=torch.float64)
        best = guided.topk(4)
        law[best.indices] = (best.values / 0.7).softmax(-1)
        return law


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference()


@pytest.mark.parametrize("scale", [None, 3.0])
@torch.inference_mode()
def test_laws_of_chains_in_ragged_rows(reference, scale):
    guided = reference.guided(scale)
    guided.start(3)
    tokens = GRID.tokens(torch.tensor([[0, 1, 2, 3], [4, 5, 0, 1], [3, 3, 1, 2]]))
    laws = guided.extend(torch.cat([tokens[:, :1], tokens], 1), [-1] * 3)
    for row in range(3):
        for place in range(GRID.length + 1):
            expected = reference.law(row, tokens[row, :place].tolist(), scale)
            assert torch.allclose(laws[row, place], expected, atol=CLOSE)
    start = [1, 4, 0]  # the last token of row b that stays
    inputs = torch.stack([tokens[row, at : at + 3] for row, at in enumerate(start)])
    laws = guided.extend(inputs, start)
    for row, at in enumerate(start):
        for n in range(3):
            expected = reference.law(row, tokens[row, : at + n + 1].tolist(), scale)
            assert torch.allclose(laws[row, n], expected, atol=CLOSE)


@pytest.mark.parametrize("scale", [None, 3.0])
@torch.inference_mode()
def test_laws_of_trees(reference, scale):
    """A node's place is its depth, not its slot."""
    guided = reference.guided(scale)
    guided.start(3)
    tokens = GRID.tokens(torch.tensor([[0, 1, 2, 3], [4, 5, 0, 1], [3, 3, 1, 2]]))
    guided.extend(torch.cat([tokens[:, :1], tokens[:, :4]], 1), [-1] * 3)
    start = [0, 3, 1]
    parents = torch.tensor([[-1, -1, 0, 1, 3], [-1, 0, 0, 1, 3], [-1, 0, 1, -1, 3]])
    nodes = torch.tensor([[1, 2, 3, 4, 5], [0, 1, 2, 3, 4], [5, 4, 3, 2, 1]])
    root = tokens.gather(1, torch.tensor(start)[:, None])
    draft = Draft(nodes, torch.tensor([5] * 3), OneHot(), parents)
    laws = guided.extend(torch.cat([root, nodes], 1), start, draft)
    for row, at in enumerate(start):
        for node in range(-1, 5):
            path, above = [], node
            while above >= 0:
                path.insert(0, int(nodes[row, above]))
                above = int(parents[row, above])
            behind = [*tokens[row, : at + 1].tolist(), *path]
            expected = reference.law(row, behind, scale)
            assert torch.allclose(laws[row, node + 1], expected, atol=CLOSE)
