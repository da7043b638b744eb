"""Draft heads as networks: first weights, checkpoints, the target that they are for."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from sizes import SMALL
from toy_vlm import HEADS, TRAINED, batch_of, tiny_head, tiny_llava
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    MambaConfig,
    MambaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
)

from mmspec.errors import InputError
from mmspec.models.heads.fit import TargetFit
from mmspec.models.heads.formats.new import MAKERS
from mmspec.models.heads.formats.new_head import NewHead
from mmspec.models.heads.loading import load_head
from mmspec.models.heads.published.decoder import published_decoder
from mmspec.models.transformers.vlm import VlmDecoder
from mmspec.train.heads.head_losses import forward


@pytest.mark.parametrize("name", list(HEADS))
def test_checkpoints(name, tmp_path):
    model = tiny_llava()
    head = tiny_head(name, model)
    head.save_pretrained(tmp_path)
    again = load_head(tmp_path, torch.float64)
    assert (again.method, again.block_size) == (head.method, head.block_size)
    assert again.method == HEADS[name][0]
    assert again.reads == head.reads
    assert again.state_dict().keys() == head.state_dict().keys()
    for key, value in head.state_dict().items():
        assert torch.equal(again.state_dict()[key], value)
    assert not any("embed_tokens" in key for key in head.state_dict())
    again.check(model)
    again.check(tiny_llava().to(torch.bfloat16))  # in any dtype
    if name.startswith("specvlm-"):
        assert again.network.choose == HEADS[name][1]["choose"]


def test_every_trained_head_is_made():
    assert {kind for kind, _ in HEADS.values()} == set(TRAINED) == set(MAKERS)


@pytest.mark.parametrize("name", ["eagle3", "dflash", "longspec"])
@pytest.mark.parametrize("family", ["Llama", "Gemma"])
def test_a_new_heads_last_norm_is_the_targets(name, family):
    """Gemma's norms add 1 to their weights, so what they multiply by counts."""
    config = getattr(transformers, f"{family}Config")(**SMALL | {"vocab_size": 12, "head_dim": 8})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
        torch.nn.init.normal_(model.model.norm.weight)
    scale = model.model.norm.weight + (family == "Gemma")
    head = MAKERS[name](NewHead(model))
    torch.testing.assert_close(head.network.norm.weight, scale, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab": 14}, "vocab_size 12, and this one has 14"),
        ({"seed": 1}, "other weights in its output layer"),
    ],
)
def test_a_head_of_another_target(change, message):
    head = tiny_head("vispec", tiny_llava())
    with pytest.raises(InputError, match=message):
        published_decoder(head, VlmDecoder(tiny_llava(**change)))


def test_inputs_are_the_targets(monkeypatch):
    """Of a model that scales them, such as Gemma, scaled."""
    model = tiny_llava()
    target, ids = VlmDecoder(model), torch.tensor([[3, 5]])
    decoder = published_decoder(tiny_head("vispec", model), target)
    assert torch.equal(decoder.embed(ids), model.get_input_embeddings()(ids))
    monkeypatch.setattr(target, "embed", lambda ids: 3 * model.get_input_embeddings()(ids))
    assert torch.equal(decoder.embed(ids), 3 * model.get_input_embeddings()(ids))


def test_folders_that_hold_no_head(tmp_path):
    with pytest.raises(InputError, match="can't read"):
        load_head(tmp_path)
    (tmp_path / "config.json").write_text('{"_class_name": "EagleHead"}')
    with pytest.raises(InputError, match="EagleHead"):
        load_head(tmp_path)


@pytest.mark.parametrize(
    ("name", "key", "value", "message"),
    [
        ("vispec", "bias", False, "bias False"),
        ("vispec", "num_attention_heads", 2, r"imadpt\.q has 4 heads"),
        ("specvlm", "compressor_choice", "nothing", "choose must be one of"),
        ("eagle", "mmspec_target", {"model_type": "llava"}, "mmspec_target"),
    ],
)
def test_configurations_that_do_not_fit(name, key, value, message, tmp_path):
    tiny_head(name, tiny_llava()).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {key: value}))
    with pytest.raises(InputError, match=message):
        load_head(tmp_path).check(tiny_llava())


def test_what_cannot_be_made():
    new = NewHead(tiny_llava())
    for kind, own, message in (
        ("vispec", {"queries": 1}, "queries must be 2 or more"),
        ("specvlm", {"choose": "nothing"}, "choose must be one of"),
        ("dflash", {"block": 1}, "block must be 2 or more"),
    ):
        with pytest.raises(ValueError, match=message):
            MAKERS[kind](new, **own)


@torch.no_grad()
def test_first_weights_pass_the_hidden_state_on():
    """Before any training a head says, roughly, that nothing changes."""
    model = tiny_llava()
    batch = batch_of(model)
    for kind in ("eagle", "msd", "vispec", "flash", "specvlm"):
        head = MAKERS[kind](NewHead(model)).double()
        (hidden,), index, mask = forward(head, batch, 1)
        columns = batch.columns(batch.features)
        text = mask & ~columns.images.visual(columns.mask).gather(1, index)
        before = columns.before.gather(1, index[..., None].expand(-1, -1, 16))
        known = text & before.any(-1)
        off = (hidden - before)[known].square().mean() / before[known].square().mean()
        assert off < 0.1


def test_fit_names_the_target():
    fit = TargetFit.of(tiny_llava())
    assert (fit.model_type, fit.hidden_size, fit.vocab_size, fit.num_layers) == ("llava", 16, 12, 2)


def test_sizes_by_other_names():
    """GPT-2 and OPT have no `intermediate_size`; Mamba has no heads."""
    gpt2 = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=20))
    sizes = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, vocab_size=20)
    opt = OPTForCausalLM(OPTConfig(**sizes, ffn_dim=24, word_embed_proj_dim=16))
    for target, inner in ((gpt2, 64), (opt, 24)):
        assert NewHead(target).config["intermediate_size"] == inner
        assert MAKERS["medusa"](NewHead(target)).method == "medusa"
    mamba = MambaForCausalLM(MambaConfig(hidden_size=16, num_hidden_layers=2, vocab_size=20))
    with pytest.raises(InputError, match="MambaForCausalLM has no attention heads"):
        NewHead(mamba)
