"""Heads that are written for speculators, read and run by the `speculators` package itself."""

from __future__ import annotations

import json

import folders
import mtp_folders
import pytest
import torch
from folders import SIZES, H, V
from safetensors.torch import load_file
from toy_vlm import HeadBatch
from transformers import LlamaConfig, LlamaForCausalLM

from mmspec.models.heads.loading import load_head
from mmspec.train.heads.head_losses import forward

pytestmark = pytest.mark.speculators

LAYERS = {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}
LAYOUTS = {
    "eagle3": lambda folder: folders.eagle3(folder, **LAYERS),
    "eagle3 fc_norm": lambda folder: folders.eagle3(folder, fc_norm=True, **LAYERS),
    "eagle3 residual": lambda folder: folders.eagle3(folder, norm_before_residual=True, **LAYERS),
    "eagle3 norm_output": lambda folder: folders.speculators_eagle3(
        folder, norm_output=True, **LAYERS
    ),
    "peagle": lambda folder: folders.peagle(folder, **LAYERS),
    "dflash": lambda folder: folders.dflash(folder),
    "dspark": lambda folder: folders.dspark(folder),
    "mtp": mtp_folders.speculators,
    "mtp experts": lambda folder: mtp_folders.qwen(folder, experts=4),
}


@pytest.fixture(scope="module")
def verifier(tmp_path_factory):
    """Folder of a tiny target."""
    folder = tmp_path_factory.mktemp("verifier")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sizes = {**SIZES, "num_hidden_layers": 4, "tie_word_embeddings": False}
        LlamaForCausalLM(LlamaConfig(**sizes)).save_pretrained(folder)
    return folder


@pytest.fixture
def read(verifier, tmp_path):
    """A head that was written for speculators, and what the package makes of it."""
    from speculators import SpeculatorModel

    def both(name):
        torch.manual_seed(1)
        LAYOUTS[name](tmp_path / "head")
        head = load_head(tmp_path / "head", torch.float64).eval()
        told = {"name_or_path": str(verifier), "architectures": ["LlamaForCausalLM"]}
        folder = tmp_path / "speculators"
        head.save_pretrained(folder, "speculators", **told)
        config = json.loads((folder / "config.json").read_text())
        config["transformer_layer_config"]["_attn_implementation"] = "eager"
        (folder / "config.json").write_text(json.dumps(config))
        head.written = folder
        return head, SpeculatorModel.from_pretrained(folder, dtype=torch.float64).eval()

    return both


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_package_reads_every_tensor(read, name):
    head, theirs = read(name)
    weights = theirs.state_dict()
    written = load_file(head.written / "model.safetensors")
    assert len(written) >= len(head.network.state_dict())
    for key, weight in written.items():
        assert torch.equal(weights[key], weight), key
    assert not any(weight.isnan().any() for weight in weights.values())
    if head.vocabulary is not None:
        ids = torch.arange(len(head.vocabulary.ids)) + theirs.d2t
        assert torch.equal(ids, head.vocabulary.ids)


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name.startswith("eagle3")])
@torch.no_grad()
def test_the_package_drafts_the_same(read, name):
    """Logits of three steps of a draft at every place, the head's own states fed back."""
    head, theirs = read(name)
    network, length, steps = head.network, 9, 3
    # from_pretrained leaves a table that the file lacks as memory happened to be, and the package
    # takes the target's in place of NaN alone
    table = theirs.embed_tokens.weight.fill_(torch.nan)
    theirs.load_verifier_weights()
    tokens = torch.randint(V, (1, length))
    states = torch.randn(1, length, 3 * H, dtype=torch.float64)
    said = []
    theirs.lm_head.register_forward_hook(lambda *call: said.append(call[-1]))
    documents = torch.zeros(1, length - 1, dtype=torch.long)
    theirs(states[:, :-1], tokens[:, 1:], documents, ttt_steps=steps)
    mask = torch.ones(1, length, dtype=torch.bool)
    batch = HeadBatch(
        table[tokens],
        states,
        states,
        mask,
        mask & False,
        None,
        torch.nn.Identity(),
        table.__getitem__,
    )
    levels, index, _ = forward(head, batch, steps)
    assert index[0].tolist() == [*range(1, length)]
    for step, (mine, own) in enumerate(zip(levels, said, strict=True)):
        logits = network.lm_head(network.before_output(mine))
        # a step later the package's places still count from where their draft began; its norms and
        # positions are float32
        near = {"rtol": 1e-4, "atol": 1e-5}
        torch.testing.assert_close(logits[:, step:], own[:, : length - 1 - step], **near)
