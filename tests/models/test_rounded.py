"""Rounded weights: the stated arithmetic, a row alone as beside others, and models that run so."""

from __future__ import annotations

import copy

import pytest
import torch
from sizes import SMALL
from transformers import (
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)

import mmspec
from mmspec.cli.main import main
from mmspec.errors import InputError
from mmspec.methods import SpecConfig
from mmspec.methods.registry import parts
from mmspec.models import rounded
from mmspec.models.guided import GuidedDecoder
from mmspec.models.linear import RowLinear
from mmspec.models.rounded import check_rounding, linear
from mmspec.models.setting import Setting
from mmspec.models.transformers.causal import CausalDecoder

ROUNDED = sorted(parts("weights"))


@pytest.fixture
def rng():
    return torch.Generator().manual_seed(0)


def slow(weights: str, weight, x):
    """The arithmetic of `rounded`, a number at a time where it matters, in float64."""
    if weights == "float16":
        return x.double() @ weight.half().double().T
    out = torch.zeros(len(x), len(weight), dtype=torch.float64)
    for r, row in enumerate(x):
        for o, of in enumerate(weight):
            unit, step = row.abs().max(), of.abs().max() / 63
            whole = (of / step).round().double()
            if weights == "int8-high4":
                whole = (whole / 8).floor() * 8 + 4
            read = (row / unit * 127).round().double()
            out[r, o] = (whole * read).sum() * step.double() * unit.double() / 127
    return out


@pytest.mark.parametrize("weights", ROUNDED)
def test_arithmetic(weights, rng):
    weight, x = torch.randn(24, 40, generator=rng), torch.randn(5, 40, generator=rng)
    x[1] *= 1e4
    x[2, 3] = 50  # an outlier
    made = linear(weight, weights)(x)
    expected = slow(weights, weight, x)
    # where a number lies in the middle of two whole ones, either may be taken
    assert ((made - expected).abs().amax(1) <= 5e-3 * expected.abs().amax(1)).all()
    assert ((made - expected).norm(dim=1) <= 2e-3 * expected.norm(dim=1)).all()
    truth = x @ weight.T
    off = ((made - truth).norm(dim=1) / truth.norm(dim=1)).max()
    assert 1e-6 < off < {"float16": 1e-3, "int8": 0.06, "int8-high4": 0.15}[weights]


@pytest.mark.parametrize("weights", ROUNDED)
def test_a_row_does_not_depend_on_its_neighbours(weights, rng):
    """Nor do its largest numbers overflow in sixteen bits."""
    weight = torch.randn(16, 64, generator=rng)
    weight[3], weight[4] = 1.0, -1.0
    x = torch.randn(4, 64, generator=rng)
    x[1] = 1000.0
    x[2] = 0.0
    made = linear(weight, weights)
    alone = torch.cat([made(row[None]) for row in x])
    assert torch.allclose(made(x), alone, rtol=1e-5, atol=1e-5)
    largest = 64_000.0 * (60 / 63 if weights == "int8-high4" else 1)
    assert torch.allclose(alone[1, 3:5], torch.tensor([largest, -largest]), rtol=1e-3)
    assert torch.equal(alone[2], torch.zeros(16))
    assert made(x[None]).shape == (1, 4, 16)


def test_float16_changes_nothing_of_what_is_stored_so(rng):
    weight, x = torch.randn(24, 40, generator=rng).half().float(), torch.randn(3, 40, generator=rng)
    assert torch.allclose(linear(weight, "float16")(x), RowLinear(weight)(x), atol=1e-5)


def test_what_can_not_be_rounded(rng, monkeypatch):
    weight = torch.randn(4, 8, generator=rng)
    with pytest.raises(InputError, match="float32 on the processor, and this one is in bfloat16"):
        check_rounding("int8", weight.bfloat16())
    with pytest.raises(InputError, match="too large for float16"):
        linear(weight * 1e6, "float16")
    with pytest.raises(InputError, match="weights 'int4'"):
        SpecConfig("plain", target_weights="int4")
    monkeypatch.setattr(rounded, "_engines", list)
    with pytest.raises(InputError, match="FBGEMM"):
        check_rounding("int8", weight)


def llama(**more):
    return filled(LlamaForCausalLM(LlamaConfig(**SMALL | dict(vocab_size=32) | more)))


def filled(model):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for weight in model.parameters():
            torch.nn.init.normal_(weight, mean=float(weight.ndim == 1), std=0.2)
    return model.eval()


def by_hand(model, weights):
    """The model with its linear layers in the rounded arithmetic, and none of our decoders."""
    twin = copy.deepcopy(model)
    for layer in twin.modules():
        if isinstance(layer, torch.nn.Linear):
            packed = linear(layer.weight.detach(), weights)
            layer.forward = lambda x, f=packed, b=layer.bias: f(x) if b is None else f(x) + b
    return twin


NEOX = GPTNeoXConfig(**{n: v for n, v in SMALL.items() if "key_value" not in n}, vocab_size=32)
IDS = torch.tensor([[3, 7, 1, 3, 7, 1, 3], [0, 0, 9, 8, 9, 8, 9]])
MASK = (IDS > 0).long()


@pytest.mark.parametrize("weights", ROUNDED)
@pytest.mark.parametrize("make", [llama, lambda: filled(GPTNeoXForCausalLM(NEOX))])
@torch.inference_mode()
def test_a_rounded_target_speaks_as_its_rounded_layers_do(make, weights):
    model = make()
    expected = by_hand(model, weights)(IDS, attention_mask=MASK).logits[:, -1].softmax(-1)
    plain = model(IDS, attention_mask=MASK).logits[:, -1].softmax(-1)
    decoder = CausalDecoder(model)
    decoder.round_weights(weights)
    prefix = decoder.embeddings[IDS], MASK.bool()
    guided = GuidedDecoder(
        decoder, Setting(*prefix, None, lambda logits: logits.softmax(-1), 4, 0, 1)
    )
    with decoder.repacked():
        guided.start(2)
        law = guided.extend(IDS[:, -1:], [-1, -1])[:, 0]
    off = (law - expected).abs().sum(-1).max()
    assert off < {"float16": 1e-5, "int8": 1e-3, "int8-high4": 1e-3}[weights]
    assert (law - plain).abs().sum(-1).max() > 1e-6
    assert torch.equal(model(IDS, attention_mask=MASK).logits[:, -1].softmax(-1), plain)


@pytest.mark.parametrize("weights", ROUNDED)
@torch.inference_mode()
def test_speculation_over_a_rounded_target_is_its_plain_decoding(weights):
    """Greedy text over rounded weights, drafted or not; and a rounded drafter changes nothing."""
    model, drafter = llama(), llama(num_hidden_layers=1)
    call = dict(attention_mask=MASK, max_new_tokens=24, do_sample=False, pad_token_id=0)
    truth = model.generate(IDS, **call)

    def text(config, drafter=None):
        mmspec.enable_speculation(model, config, drafter=drafter)
        out = model.generate(IDS, **call)
        return out, model.speculation_stats

    plain, _ = text(SpecConfig("plain", target_weights=weights))
    drafted, stats = text(SpecConfig("prompt-lookup", target_weights=weights))
    assert torch.equal(plain, drafted)
    assert stats.mean_acceptance_length > 1
    both, stats = text(SpecConfig("draft", draft_weights=weights), drafter)
    assert stats.contract == "exact-greedy"
    assert torch.equal(both, truth)
    both, stats = text(SpecConfig("draft", draft_weights=weights), copy.deepcopy(model))
    assert torch.equal(both, truth)
    least = 2 if weights == "int8-high4" else 3
    assert stats.mean_acceptance_length > least  # its own rounded copy says nearly the same


def test_who_may_be_rounded():
    assert SpecConfig("plain", target_weights="int8").resolve("vlm").contract == "exact-rounded"
    lossy = SpecConfig("gsd", target_weights="float16").resolve("vlm")
    assert lossy.contract == "lossy"
    with pytest.raises(InputError, match="draft_weights rounds the weights of what drafts, and"):
        SpecConfig("prompt-lookup", draft_weights="int8")
    with pytest.raises(InputError, match="target_weights rounds the target where it answers"):
        SpecConfig("drafter-only", target_weights="int8")
    for modality in ("continuous", "video"):
        assert SpecConfig("plain", target_weights="int8").resolve(modality).weights == "int8"
    with pytest.raises(InputError, match="no fewer bytes than target_weights 'int8'"):
        SpecConfig("specqd", target_weights="int8")
    assert SpecConfig("specqd", target_weights="float16", draft_weights="int8")
    assert SpecConfig("specqd", target_weights="int8", draft_weights="int8-high4")
    model = llama().bfloat16()
    with pytest.raises(InputError, match="float32 on the processor"):
        mmspec.enable_speculation(model, SpecConfig("plain", target_weights="int8"))


@pytest.mark.parametrize("weights", ROUNDED)
def test_pictures_are_drawn_from_the_rounded_network(tiny_folder, weights):
    """The target's, the draft model's where that answers; a rounded drafter leaves them alone."""
    pipe = mmspec.ImagePipeline.from_pretrained(tiny_folder, dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    seen = []
    pipe.on_engine = lambda engine: seen.append(engine.target.model.decoder)

    def drawn(config):
        pipe.enable_speculation(config)
        call = dict(temperature=0, output_type="tokens")
        return pipe("a photo of a ring", **call).images, seen[-1]

    truth, decoder = drawn(SpecConfig("plain"))
    assert decoder is pipe.decoder(pipe.transformer)
    _, decoder = drawn(SpecConfig("plain", target_weights=weights))
    assert (decoder.model, decoder.weights) == (pipe.transformer, weights)
    _, decoder = drawn(SpecConfig("drafter-only", draft_weights=weights))
    assert (decoder.model, decoder.weights) == (pipe.drafter, weights)
    both, decoder = drawn(SpecConfig("draft", draft_weights=weights))
    assert decoder is pipe.decoder(pipe.transformer)
    assert torch.equal(both, truth)


def test_commands_offer_what_their_models_take(capsys):
    """Weights for all, heads and compressors for text."""
    flags = ("--target-weights", "--draft-weights", "--head", "--target-compressor")
    for command, offered in (("generate", flags[:2]), ("ask", flags), ("video", flags[:2])):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        told = capsys.readouterr().out
        assert tuple(flag for flag in flags if f"{flag} " in told) == offered
