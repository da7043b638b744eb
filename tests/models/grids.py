"""Small pictures, with and without tokens that end their rows, and plain decoding of them.

And the methods that decode so, whatever they draft.
"""

from __future__ import annotations

import torch

from mmspec.methods import SpecConfig, serving
from mmspec.models.guided import GuidedDecoder
from mmspec.models.llamagen.decoder import LlamaGenDecoder
from mmspec.models.setting import Setting
from mmspec.models.token_grid import TokenGrid

SIDE = 4
SQUARE = TokenGrid(SIDE, SIDE)
LINES = TokenGrid(3, 4, end_of_row=18, tail=(19,))  # 16 tokens
UNORDERED = ("local", "unverified")  # rules that keep tokens scored behind others that may fall
# at temperature 0 these draw the target's greedy picture
GREEDY = [
    name
    for name, preset in serving("image").items()
    if preset.role != "sceptic"
    and preset.rule not in UNORDERED
    and not SpecConfig(name).resolve("image").rule.soft
]


def plain(guided, rows=2) -> torch.Tensor:
    """Greedy decoding, token by token."""
    guided.start(rows)
    out = [torch.zeros(rows, 1, dtype=torch.long)]
    for place in range(guided.limit):
        law = guided.extend(out[-1], [place - 1] * rows)[:, 0]
        out.append(law.argmax(-1, keepdim=True))
    return torch.cat(out[1:], 1)


def with_lines(model, prefix, mask, warp):
    """The same network on a picture of rows that end with a token of their own."""
    decoder = LlamaGenDecoder(model)
    extra = torch.randn(4, model.config.dim, generator=torch.Generator().manual_seed(5))
    decoder.embeddings = torch.cat([decoder.embeddings, extra.to(decoder.embeddings)])
    return GuidedDecoder(
        decoder, Setting(prefix, mask, 2.0, warp, LINES.length, SIDE, 4, LINES.forced)
    )
