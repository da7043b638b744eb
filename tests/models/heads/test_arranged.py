"""Published heads over joined, packed weights: the same function in fewer operators."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM

from mmspec.models.heads.published.decoder import published_decoder
from mmspec.models.heads.published.eagle1 import EagleNetwork, MsdNetwork
from mmspec.models.heads.published.eagle3 import Eagle3Network
from mmspec.models.heads.published.flash import FlashNetwork
from mmspec.models.heads.published.head import PublishedHead
from mmspec.models.heads.published.rotary import HeadRotary
from mmspec.models.heads.published.sizes import HeadSizes
from mmspec.models.transformers.causal import CausalDecoder

SIZES = {
    "hidden_size": 24,
    "intermediate_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
}
SLOTS, ROWS = 12, 2


class Operators(TorchDispatchMode):
    """Counts operators; of torch's own norm, which runs eight, it would see one."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def decoder_of(kind=EagleNetwork, **options):
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=16, num_hidden_layers=1, **SIZES)
    target = CausalDecoder(LlamaForCausalLM(config).eval())
    own = {name: options.pop(name) for name in ("qk_norm", "gated") if name in options}
    sizes = HeadSizes(**SIZES, **own)
    if kind is Eagle3Network:
        network = kind(sizes, 1, SIZES["hidden_size"], None, None, **options).eval()
    else:
        network = kind(sizes, None, **options).eval()
    with torch.no_grad():
        for weight in network.parameters():
            weight.normal_(std=0.3)
    rotary = HeadRotary({"rope_theta": 100.0}, SIZES["head_dim"])
    head = PublishedHead(network, "eagle", dict(SIZES), SIZES["hidden_size"], rotary=rotary)
    return published_decoder(head, target)


@torch.inference_mode()
def passed(decoder):
    """Logits of a prefix and of two steps, and the operators of the last."""
    positions = torch.arange(SLOTS).expand(ROWS, -1)
    decoder.place(positions + torch.tensor([[0], [3]]))
    cache = decoder.cache(ROWS, SLOTS)
    ids = torch.arange(ROWS * 8).view(ROWS, 8)
    x = decoder.joined(decoder.embed(ids), decoder.embed(ids.flip(1)))
    mask = torch.full((6, 6), -torch.inf).triu(1)
    columns = decoder.rotary()
    out = [decoder.forward(x[:, :6], columns[:6], cache, 0, 6, mask)]
    each = columns[6:7].expand(ROWS, 1)
    out.append(decoder.forward(x[:, 6:7], each, cache, each, 7, None))
    with Operators() as operators:
        out.append(decoder.forward(x[:, 7:], columns[7:8], cache, 7, 8, None))
    return torch.cat(out, 1), operators.count


KINDS = [
    (EagleNetwork, {}),
    (EagleNetwork, {"layers": 2, "first_norm": True, "bias": False}),
    (EagleNetwork, {"qk_norm": True}),
    (MsdNetwork, {}),
    (FlashNetwork, {"block": 3, "latents": 4}),
    (Eagle3Network, {}),
    (Eagle3Network, {"norm_before_residual": True, "feed_normed": True}),
    (Eagle3Network, {"layers": 2, "fc_norm": True, "qk_norm": True}),
]


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_it_is_the_same_function_in_fewer_operators(kind, options):
    decoder = decoder_of(kind, **options)
    own, count = passed(decoder)
    with decoder.repacked():
        arranged, fewer = passed(decoder)
    torch.testing.assert_close(arranged, own, rtol=1e-4, atol=1e-5)
    assert fewer <= 0.8 * count
    again, same = passed(decoder)  # and nothing stays behind
    assert torch.equal(again, own)
    assert same == count


def test_a_layer_takes_few_operators():
    decoder = decoder_of()
    with decoder.repacked():
        assert passed(decoder)[1] <= 38


def test_changed_weights_are_arranged_anew():
    decoder = decoder_of()
    with decoder.repacked():
        before, _ = passed(decoder)
    with torch.no_grad():
        decoder.network.layers[0].mlp.down_proj.weight.mul_(2)
    with decoder.repacked():
        after, _ = passed(decoder)
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, passed(decoder)[0], rtol=1e-4, atol=1e-5)


def test_what_looks_into_a_layer_is_still_called():
    decoder, told = decoder_of(), []
    attention = decoder.layers[0].self_attn
    attention.register_forward_hook(lambda *args: told.append(args))
    with decoder.repacked():
        passed(decoder)
    assert len(told) == 3


@pytest.mark.parametrize("options", [{"gated": True}])
def test_other_layers_run_as_they_are_written(options):
    decoder = decoder_of(**options)
    own, _ = passed(decoder)
    with decoder.repacked():
        torch.testing.assert_close(passed(decoder)[0], own, rtol=1e-4, atol=1e-5)
