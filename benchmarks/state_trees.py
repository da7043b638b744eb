"""Trees over state-space models: one scan of the tree against a run for each of its branches."""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from transformers import Mamba2Config, Mamba2ForCausalLM

from mmspec.engine.draft import Draft
from mmspec.engine.laws import OneHot
from mmspec.engine.warp import Warp
from mmspec.eval.measure.bootstrap import ratio_interval
from mmspec.eval.measure.ideal_speedup import call_seconds
from mmspec.models.guided import GuidedDecoder
from mmspec.models.setting import Setting
from mmspec.models.transformers.mamba2 import TreeMixer
from mmspec.models.transformers.probe import probed

SIZES = dict(hidden_size=512, num_heads=16, head_dim=64, state_size=64, num_hidden_layers=8)
VOCAB, TEXT = 2048, 256
# parents of nodes: a chain, a tree of the same depth, and a wide one
SHAPES = {
    "chain of 8": [-1, *range(7)],
    "tree of 16, 4 deep": [-1, -1, 0, 0, 1, 1, 2, 2, 3, 4, 5, 6, 7, 8, 9, 10],
    "tree of 48, 3 deep": [-1] * 12 + [n // 3 for n in range(36)],
}


def state_trees(pipe: Any = None, samples: int = 10) -> dict[str, Any]:
    """Milliseconds of a call of a Mamba-2 with random weights, by shape of the draft; paired.

    `branches_over_scan` is what running every branch by itself costs in calls of one scan, and
    `over_one_token` what the scan costs in calls of one token.
    """
    torch.manual_seed(0)
    model = Mamba2ForCausalLM(
        Mamba2Config(vocab_size=VOCAB, n_groups=1, pad_token_id=0, eos_token_id=0, **SIZES)
    )
    scan = _decoder(model)
    with patch.object(TreeMixer, "of", lambda *_: None):
        branches = _decoder(model)
    one = [call_seconds(partial(_call, scan, []), 3) for _ in range(samples)]
    single = statistics.median(map(statistics.median, one))
    found: dict[str, Any] = {"one_token_ms": 1000 * single}
    for name, parents in SHAPES.items():
        pairs = []
        for _ in range(samples):
            pair = (call_seconds(partial(_call, way, parents), 3) for way in (scan, branches))
            pairs.append([statistics.median(seconds) for seconds in pair])
        ratio, spread = ratio_interval([slow / fast for fast, slow in pairs])
        fast = statistics.median(pair[0] for pair in pairs)
        found[name] = {
            "scan_ms": 1000 * fast,
            "over_one_token": fast / single,
            "branches_over_scan": ratio,
            "branches_over_scan_ci95": spread,
        }
    return found


@torch.inference_mode()
def _decoder(model: Mamba2ForCausalLM) -> GuidedDecoder:
    """The model behind a text."""
    decoder = probed(model)
    ids = torch.randint(1, VOCAB, (1, TEXT), generator=torch.Generator().manual_seed(1))
    prompt = decoder.prompt(ids, ids >= 0, limit=64)
    decoder.place(prompt)
    guided = GuidedDecoder(decoder, Setting(prompt.embedded, prompt.mask, None, Warp(), 64, 0, 64))
    guided.start(1)
    for place in range(8):  # what was uncertain of the text goes into states
        guided.extend(torch.full((1, 1), place + 1), [place])
    return guided


@torch.inference_mode()
def _call(guided: GuidedDecoder, parents: list[int]) -> None:
    """A call for a root and the nodes of a draft, in the same place every time."""
    inputs = torch.arange(len(parents) + 1)[None]
    draft = Draft(inputs[:, 1:], torch.tensor([len(parents)]), OneHot(), torch.tensor([parents]))
    guided.extend(inputs, [8], draft)
