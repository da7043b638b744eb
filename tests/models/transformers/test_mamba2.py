"""Mamba-2's layers over trees, as transformers' own modules say of every path by itself."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from toys import distance, whole_loop
from watched_drafts import joint

from mmspec.draft.tree.fixed_tree import TreeDrafter
from mmspec.engine.accept.recursive import RecursiveRule
from mmspec.engine.draft import Draft
from mmspec.engine.laws import OneHot
from mmspec.engine.warp import Warp
from mmspec.models.guided import GuidedDecoder
from mmspec.models.setting import Setting
from mmspec.models.target import TokenTarget
from mmspec.models.transformers.mamba2 import TreeMixer
from mmspec.models.transformers.probe import probed
from mmspec.models.transformers.tiny import tiny

KINDS = ["bamba", "falcon_h1", "granitemoehybrid", "mamba2", "nemotron_h", "zamba2"]
OTHERS = ["jamba", "mamba", "qwen3_next"]
CLOSE = {"rtol": 1e-5, "atol": 1e-5}  # transformers' scans and norms are in float32 throughout


def mixers(model) -> Iterator[TreeMixer | None]:
    like = model.get_input_embeddings().weight
    for module in model.modules():
        if hasattr(module, "A_log"):
            yield TreeMixer.of(module, like)


def random_tree(nodes: int, seed: int) -> list[int]:
    rng = np.random.default_rng(seed)
    return [int(rng.integers(max(-1, n - 4), n)) for n in range(nodes)]


@torch.inference_mode()
@pytest.mark.parametrize("kind", KINDS)
def test_a_layers_tree_is_every_path_by_itself(kind):
    """Behind a prefix that is longer than a chunk, in two rows."""
    model = tiny(kind, torch.float64)
    mixer = next(mixers(model))
    assert mixer is not None
    generator = torch.Generator().manual_seed(0)
    text = torch.randn(2, 70 + 8, model.config.hidden_size, generator=generator).double()
    entries, gate = mixer.read(text)
    states = [state.expand(2, *state.shape[1:]) for state in mixer.states(text)]
    first, states = mixer.chains(entries[:, :70], states)
    parents = random_tree(8, seed=1)
    family = torch.eye(8, dtype=torch.bool)
    for n, parent in enumerate(parents):
        family[n] |= family[parent] if parent >= 0 else False
    tree = mixer.trees(entries[:, 70:], family.expand(2, -1, -1), states)
    ours = mixer.write([torch.cat([first, tree], dim=1)], gate)
    torch.testing.assert_close(ours[:, :70], mixer.module(text[:, :70]), **CLOSE)
    for n in range(8):
        path = [*range(70), *(70 + family[n].nonzero()[:, 0]).tolist()]
        torch.testing.assert_close(ours[:, 70 + n], mixer.module(text[:, path])[:, -1], **CLOSE)


@pytest.mark.parametrize("kind", OTHERS)
def test_other_layers_are_left_to_themselves(kind):
    found = list(mixers(tiny(kind)))
    assert found
    assert not any(found)


def test_a_layer_that_does_something_else_is_known_by_what_it_says():
    model = tiny("mamba2")
    layer = model.backbone.layers[0].mixer
    like = model.get_input_embeddings().weight
    assert TreeMixer.of(layer, like) is not None
    own = layer.forward
    layer.forward = lambda *args, **named: 1.1 * own(*args, **named)
    assert TreeMixer.of(layer, like) is None


def guided(model, ids: torch.Tensor, mask: torch.Tensor, limit: int, scratch: int):
    decoder = probed(model)
    prompt = decoder.prompt(ids, mask, limit=limit)
    decoder.place(prompt)
    setting = Setting(prompt.embedded, prompt.mask, None, Warp(), limit, 0, scratch)
    return GuidedDecoder(decoder, setting)


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["mamba2", "zamba2"])
def test_a_draft_tree_is_one_scan_a_layer(kind, monkeypatch):
    """Ragged rows, tree after tree; a path of each is kept, and replayed by the next call."""
    sizes: list[int] = []
    scan = TreeMixer.trees

    def told(self, entries, family, states):
        sizes.append(entries.shape[1])
        return scan(self, entries, family, states)

    model = tiny(kind, torch.float64)
    texts = [[3, 11, 4, 11, 5, 9, 12], [6, 5, 3]]
    ids = torch.tensor([[0] * (7 - len(text)) + text for text in texts])
    target = guided(model, ids, torch.arange(7) >= torch.tensor([[0], [4]]), 24, 12)
    target.start(2)
    monkeypatch.setattr(TreeMixer, "trees", told)
    layers, nodes, starts = sum(1 for _ in mixers(model)), 9, [-1, -1]
    for step in range(4):
        parents = [random_tree(nodes, seed=10 * step + row) for row in range(2)]
        generator = torch.Generator().manual_seed(step)
        tokens = torch.randint(3, 40, (2, nodes), generator=generator)
        draft = Draft(tokens, torch.tensor([nodes] * 2), OneHot(), torch.tensor(parents))
        sizes.clear()
        root = torch.tensor([[text[-1]] for text in texts])
        laws = target.extend(torch.cat([root, tokens], dim=1), starts, draft)
        # one scan a layer, of the nodes and of what is not in the state yet: no branch twice
        assert len(sizes) == layers
        assert max(sizes) <= nodes + 1 + 15
        kept = []
        for row, text in enumerate(texts):
            paths = [[]]
            for n, parent in enumerate(parents[row]):
                paths.append([*paths[parent + 1], n])
            for n, path in enumerate(paths):
                line = [*text, *tokens[row, path].tolist()]
                law = model(torch.tensor([line])).logits[0, -1].softmax(-1)
                torch.testing.assert_close(laws[row, n], law, rtol=1e-4, atol=1e-5)
            kept.append(max(paths, key=len)[: 3 - row])
        width = max(map(len, kept))
        path = [line + list(range(len(line), width)) for line in kept]
        target.keep(starts, torch.tensor(path))
        for row, line in enumerate(kept):
            texts[row] = texts[row] + tokens[row, line].tolist()
            starts[row] += len(line)


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["mamba2", "bamba"])
def test_outputs_have_the_models_own_law(kind):
    """Enumerated: a tree of drafts by another such model, judged by sibling after sibling."""
    model, other = (tiny(kind, torch.float64, vocab_size=2) for _ in range(2))
    for weight in other.parameters():
        weight.mul_(0.8)
    ids = torch.tensor([[1, 0, 1, 1]])
    target, drafts = (guided(m, ids, ids >= 0, 3, 8) for m in (model, other))
    drafts.drafts = True

    def law(text: list[int]) -> torch.Tensor:
        return model(torch.cat([ids, torch.tensor([text]).long()], dim=1)).logits[0, -1].softmax(-1)

    drafter = TreeDrafter(drafts, (2, 1))
    found = whole_loop(3, TokenTarget(target), lambda: drafter, RecursiveRule(), at_once=1)
    assert distance(found, joint(3, 2, law)) < 1e-6  # transformers scans states in float32
