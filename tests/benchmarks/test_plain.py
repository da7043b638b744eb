"""Both sides of `python -m benchmarks plain` do the same; time is not tested."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.plain import measure, sizes
from benchmarks.plain.families import FAMILIES
from benchmarks.plain.llamagen import as_llama
from benchmarks.plain.sizes import MODELS, Published, fitting
from mmspec.errors import InputError

SIDE = 4
SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
ROTARY = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
TINY = {
    "llamagen": ({"dim": 32, "n_head": 4, "cls_token_num": 16, "caption_dim": 8}, 64),
    "janus": ({**SMALL, "vocab_size": 32}, 48),
    "emu3": ({**SMALL, "vocab_size": 128}, 64),
    "glm-image": (
        {**SMALL, "vocab_size": 200, "vision_vocab_size": 110, "rope_parameters": ROTARY},
        96,
    ),
}


def tiny(family: str) -> Published:
    numbers, codes = TINY[family]
    return Published(family, "nobody/tiny", 8, codes, numbers)


@pytest.mark.parametrize("family", ["janus", "emu3", "glm-image"])
def test_greedy_tokens_are_the_same(family):
    """The sides run all of the same network, guidance and forced tokens included."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = FAMILIES[family].network(tiny(family), 2, SIDE).double()
        subject = FAMILIES[family].subject(network, SIDE)
    subject.temperature = 0.0
    ours = subject.ours(2, 0)
    assert len(ours) == 2
    assert ours.shape[1] >= SIDE * SIDE
    assert torch.equal(subject.theirs(2, "dynamic"), ours)
    assert torch.equal(subject.theirs(2, "static"), ours)


def test_the_llama_has_all_weights(tiny_llamagen):
    """If queries and keys are 0, nothing asks for positions: both give the same logits."""
    model = tiny_llamagen(n_kv_head=2)
    width = model.config.dim
    with torch.no_grad():
        for layer in model.layers:
            layer.attention.wqkv.weight[: width + width // 2] = 0
    llama = as_llama(model)
    tokens = torch.arange(6)[None]
    generator = torch.Generator().manual_seed(1)
    prefix = torch.randn(1, 5, width, dtype=torch.float64, generator=generator)
    with torch.inference_mode():
        read = torch.cat([prefix, model.tok_embeddings(tokens)], dim=1)
        theirs = llama(inputs_embeds=read).logits[:, 4:]
        # their norms compute in float32, whatever the model is in
        torch.testing.assert_close(theirs, model(tokens, prefix), rtol=1e-4, atol=1e-4)


def test_what_fits_is_taken():
    """A quarter before an eighth, float32 before bfloat16."""

    def build(layers: int) -> torch.nn.Module:
        return torch.nn.Linear(1000, layers, bias=False)

    model = Published("janus", "nobody/none", 80, 16)
    found = {most: fitting("this", model, build, most) for most in (80_000, 79_999, 39_999, 20_000)}
    quarter, eighth = Fraction(1, 4), Fraction(1, 8)
    assert [(f.share, f.dtype) for f in found.values()] == [
        (quarter, torch.float32),
        (quarter, torch.bfloat16),
        (eighth, torch.bfloat16),
        (eighth, torch.bfloat16),
    ]
    assert [f.nbytes for f in found.values()] == [80_000, 40_000, 20_000, 20_000]
    with pytest.raises(InputError, match=r"this takes .* raise --memory"):
        fitting("this", model, build, 19_999)


def test_published_networks_have_their_sizes():
    """Parameters of the language models at full depth, from the published counts."""
    billions = {"llamagen": 0.775, "emu3": 8.5, "glm-image": 9.0, "janus-7b": 7.0}
    for name, count in billions.items():
        model = MODELS[name]
        with torch.device("meta"):
            network = FAMILIES[model.family].network(model, model.layers, 16)
        assert sum(w.numel() for w in network.parameters()) / 1e9 == pytest.approx(count, rel=0.1)


def test_the_command(monkeypatch, capfd):
    monkeypatch.setattr(measure, "MODELS", models := {"llamagen": tiny("llamagen")})
    monkeypatch.setattr(sizes, "MODELS", models)
    call = ["--models", "llamagen", "--rows", "1,2", "--samples", "2", "--side", "2", "--json"]
    assert main(["plain", *call]) == 0
    record = json.loads(capfd.readouterr().out)
    assert [row["rows"] for row in record["rows"]] == [1, 2]
    for row in record["rows"]:
        assert row["tokens"] == 4
        assert row["weights"].startswith("random, nobody/tiny, 2 of 8 layers (1/4")
        assert list(row["against"]) == ["dynamic", "static"]
        for found in row["against"].values():
            assert found["ratio"] > 0
            assert found["ratio_ci95"] is None  # of two pairs


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--models", "emu"], "'emu3'"),
        (["--rows", "0"], "--rows"),
        (["--samples", "0"], "--samples"),
        (["--models", "emu3", "--memory", "0.1"], "--memory"),
    ],
)
def test_bad_options(capfd, options, said):
    assert main(["plain", *options]) == 2
    line = capfd.readouterr().err.strip().splitlines()[-1]
    assert said in line
