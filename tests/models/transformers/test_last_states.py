"""The last hidden state: EAGLE-3 reads it in front of the final norm, others behind it."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from mmspec.engine.warp import Warp
from mmspec.models.decoders import UNNORMED
from mmspec.models.guided import GuidedDecoder
from mmspec.models.setting import Setting
from mmspec.models.transformers.prompted import prompted
from mmspec.models.transformers.tiny import tiny


@pytest.mark.parametrize("kind", ["llama", "qwen2", "mixtral"])
@pytest.mark.parametrize("packed", [False, True])
@torch.inference_mode()
def test_in_front_of_the_norm_and_behind_it(kind, packed):
    model = tiny(kind, torch.float32)
    decoder, ids = prompted(model), torch.arange(3, 8)[None]
    mask = torch.ones_like(ids, dtype=torch.bool)
    prompt = decoder.prompt(ids, mask, 8)
    decoder.place(prompt)
    guided = GuidedDecoder(decoder, Setting(prompt.embedded, mask, None, Warp(1.0), 8, 0, 4))
    layers = model.config.num_hidden_layers
    guided.watch((UNNORMED, layers))
    with decoder.repacked() if packed else nullcontext():
        guided.start(1)
        guided.extend(torch.tensor([[4, 9]]), [-1])
    front, behind = guided.hidden.chunk(2, dim=-1)
    seen = []
    hook = model.model.norm.register_forward_pre_hook(lambda norm, args: seen.append(args[0]))
    out = model(torch.cat([ids, torch.tensor([[9]])], 1), output_hidden_states=True)
    hook.remove()
    assert torch.allclose(front, seen[-1][:, -2:], atol=1e-4)
    assert torch.allclose(behind, out.hidden_states[-1][:, -2:], atol=1e-4)
    assert not torch.allclose(front, behind, atol=1e-2)
