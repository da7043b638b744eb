"""Layers of multi-token prediction: every layout computes what its slow twin does."""

import json

import folders
import mtp_folders
import pytest
import torch
from folders import H, V, rand
from mtp_naive import Mtp
from safetensors.torch import save_file

from mmspec.errors import InputError
from mmspec.models.heads.formats.files import HeadFiles
from mmspec.models.heads.formats.registry import read_head
from mmspec.models.heads.formats.write import formats_of, write_head
from mmspec.models.heads.published.attention import masked_attention
from mmspec.models.heads.published.experts import ExpertSizes, Router

N = 5
LAYOUTS = {
    "qwen": mtp_folders.qwen,
    "qwen-experts": lambda folder: mtp_folders.qwen(folder, experts=4),
    "speculators": mtp_folders.speculators,
    "speculators-qwen3": lambda folder: mtp_folders.speculators(folder, qwen3=True),
    "glm": mtp_folders.glm,
    "deepseek": mtp_folders.deepseek,
    "deepseek-experts": lambda folder: mtp_folders.deepseek(folder, experts=6, own=False),
    "deepseek-whole-queries": lambda folder: mtp_folders.deepseek(folder, q_lora_rank=None),
    "glm-experts": lambda folder: mtp_folders.glm(folder, experts=6, own=False),
}


def read(folder):
    return read_head(HeadFiles.read(folder))


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("name", LAYOUTS)
def test_it_computes_what_the_twin_does(tmp_path, name):
    folder, config, tensors = LAYOUTS[name](tmp_path / "head")
    head = read(folder).double()
    assert (head.method, head.reads) == ("mtp", ())
    embedded, hidden = rand(N, H), rand(N, H)
    mask = torch.full((N, N), -torch.inf, dtype=torch.float64).triu(1)[None, None]
    turns = head.rotary(torch.arange(N)[None], torch.float64)
    net = head.network
    fast = net(net.joined(embedded[None], hidden[None]), turns, masked_attention(mask))[0]
    twin = Mtp(name.split("-")[0], tensors, config)
    slow = [twin.step(e, h, n) for n, (e, h) in enumerate(zip(embedded, hidden, strict=True))]
    torch.testing.assert_close(fast, torch.stack(slow), rtol=0, atol=1e-9)


def test_only_the_layer_of_a_sharded_checkpoint_is_read(tmp_path):
    folder, _, tensors = mtp_folders.qwen(tmp_path / "head")
    (folder / "model.safetensors").unlink()
    parts = {"model.norm.weight": rand(H)}, tensors
    index = {}
    for n, part in enumerate(parts):
        save_file(part, folder / f"model-{n}.safetensors")
        index |= dict.fromkeys(part, f"model-{n}.safetensors")
    text = json.dumps({"weight_map": index})
    (folder / "model.safetensors.index.json").write_text(text)
    assert HeadFiles.read(folder).tensors.keys() == tensors.keys()
    assert read(folder).method == "mtp"


def test_what_is_not_understood_is_refused(tmp_path):
    folder, config, tensors = mtp_folders.glm(tmp_path / "glm")
    second = {name.replace(".4.", ".5."): value.clone() for name, value in tensors.items()}
    folders.write(folder, config, {**tensors, **second})
    with pytest.raises(InputError, match="2 layers"):
        read(folder)
    folder, config, tensors = mtp_folders.deepseek(tmp_path / "deepseek", v_head_dim=11)
    with pytest.raises(InputError, match="values of 11 numbers are longer than keys"):
        read(folder)
    folder, config, tensors = mtp_folders.deepseek(tmp_path / "rank")
    folders.write(folder, {**config, "kv_lora_rank": None}, tensors)
    with pytest.raises(InputError, match="names no kv_lora_rank"):
        read(folder)
    folder, config, tensors = mtp_folders.qwen(tmp_path / "qwen")
    folders.write(folder, {**config, "model_type": "llama"}, tensors)
    with pytest.raises(InputError, match="model_type 'llama' are not known, only of qwen3_next"):
        read(folder)
    folder, config, tensors = mtp_folders.qwen(tmp_path / "mixed", experts=3)
    del tensors["mtp.layers.0.mlp.experts.1.up_proj.weight"]
    folders.write(folder, config, tensors)
    with pytest.raises(InputError, match="mixed: an expert of the prediction layer lacks a part"):
        read(folder)


def test_a_layer_may_bring_embeddings_and_an_output_layer(tmp_path):
    head = read(mtp_folders.glm(tmp_path / "head")[0])
    assert head.embeddings.shape == head.network.lm_head.weight.shape == (V, H)


@pytest.mark.parametrize("name", LAYOUTS)
def test_it_is_written_and_the_same_head(tmp_path, name):
    head = read(LAYOUTS[name](tmp_path / "given")[0])
    forms = ["nextn"] if name.startswith(("glm", "deepseek")) else ["mtp", "speculators"]
    forms = ["speculators"] if name == "speculators-qwen3" else forms
    assert list(formats_of(head)) == forms
    for form in forms:
        write_head(head, tmp_path / form, form)
        again = read(tmp_path / form)
        assert list(formats_of(again)) == forms
        mine, theirs = head.network.state_dict(), again.network.state_dict()
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[key], theirs[key]) for key in mine)
        place, x = torch.arange(N)[None], rand(1, N, H)
        mask = torch.zeros(N, N, dtype=torch.float64)
        one, other = (
            h.double().network(x, h.rotary(place, torch.float64), masked_attention(mask))
            for h in (head, again)
        )
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_experts_are_chosen_in_float32(dtype):
    """As transformers keeps scores and the bias: rounded, they would choose others."""
    sizes = ExpertSizes(count=4, chosen=1, inner=2, sigmoid=True)
    router = Router(sizes, 8)
    with torch.no_grad():
        router.weight.zero_()
        router.e_score_correction_bias.copy_(torch.tensor([8.0, 8.0, 8.001, 8.0]))
    x = torch.ones(1, 8, dtype=dtype)
    assert router.to(dtype)(x).argmax() == 2
    with torch.no_grad():
        router.e_score_correction_bias.zero_()
        router.weight[:, 0] = torch.tensor([1.0, 1.0, 1.0, 1.0001])
    assert router(x).argmax() == 3
    assert router(x).dtype == dtype
    assert router.double().weight.dtype == torch.float64
    assert router.to("meta").weight.device.type == "meta"
