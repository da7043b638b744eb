"""A head that is written in a format is the same head when it is read again."""

import json

import folders
import pytest
import texts
import torch

from mmspec.errors import InputError
from mmspec.models.heads.formats.files import HeadFiles
from mmspec.models.heads.formats.new import MAKERS
from mmspec.models.heads.formats.new_head import NewHead
from mmspec.models.heads.formats.registry import read_head
from mmspec.models.heads.formats.write import formats_of, write_head
from mmspec.models.heads.published.decoder import published_decoder
from mmspec.models.transformers.prompted import prompted

LAYOUTS = {
    "eagle": folders.eagle1,
    "eagle-bias": lambda folder: folders.eagle1(folder, qkv_bias=True),
    "vispec": folders.vispec,
    "eagle3": folders.eagle3,
    "eagle3-fc-norm": lambda folder: folders.eagle3(
        folder, fc_norm=True, norm_output=False, eagle_aux_hidden_state_layer_ids=[1, 2, 3]
    ),
    "speculators": lambda folder: folders.speculators_eagle3(folder, norm_output=True),
    "peagle": lambda folder: folders.peagle(folder, eagle_aux_hidden_state_layer_ids=[1, 2, 3]),
    "dflash": folders.dflash,
    "dspark": folders.dspark,
    "dspark-gated": lambda folder: folders.dspark(folder, kind="gated"),
    "domino": folders.domino,
    "falcon": folders.falcon,
    "longspec": folders.longspec,
    "medusa": folders.medusa,
    "hydra": folders.hydra,
    "hydra-attn": folders.eagle_attn,
    "hydra-attn-unsized": lambda folder: folders.eagle_attn(folder, sized=False),
    "hydra-prefix": folders.prefix_hydra,
    "hydra-prefix-sized": lambda folder: folders.prefix_hydra(folder, sized=True),
}
REFUSED = {("domino", "speculators")}


def read(folder):
    return read_head(HeadFiles.read(folder))


def forms():
    torch.manual_seed(0)
    for name in LAYOUTS:
        kinds = ["speculators"] if name.startswith(("eagle3", "spec", "peagle", "d")) else []
        yield from [(name, None), *((name, kind) for kind in kinds)]


@pytest.mark.parametrize(("name", "form"), forms())
def test_it_is_the_same_head(tmp_path, name, form):
    torch.manual_seed(0)
    head = read(LAYOUTS[name](tmp_path / "given")[0])
    if (name, form) in REFUSED:
        with pytest.raises(InputError):
            write_head(head, tmp_path / "made", form)
        return
    write_head(head, tmp_path / "made", form)
    again = read(tmp_path / "made")
    mine, theirs = head.network.state_dict(), again.network.state_dict()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[key], theirs[key]) for key in mine)
    for what in ("reads", "target_size", "vocab_size", "sized"):
        assert getattr(head, what) == getattr(again, what)
    for what in ("feed_normed", "norm_logits", "anchored", "block_size", "mask_token_id", "block"):
        assert getattr(head.network, what, None) == getattr(again.network, what, None)
    if head.vocabulary is not None:
        assert torch.equal(head.vocabulary.ids, again.vocabulary.ids)
    if head.rotary is not None:
        place = torch.arange(5)[None]
        for one, other in zip(
            *(h.rotary(place, torch.float64) for h in (head, again)), strict=True
        ):
            assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("method", "form"),
    [("eagle3", "eagle3"), ("medusa", "medusa"), ("hydra", "hydra"), ("dflash", "speculators")],
)
def test_a_head_of_some_tokens_is_written_with_its_map(tmp_path, method, form):
    """Trained heads with `vocabulary`; and it drafts what the head of all tokens would of these."""
    target = texts.model(texts.tokenizer()).float()
    size = target.config.vocab_size
    counts = torch.randint(100, (size,), generator=torch.Generator().manual_seed(0))
    heads = []
    for count in (0, 12):
        torch.manual_seed(0)
        heads.append(MAKERS[method](NewHead(target, lambda: counts), vocabulary=count))
    whole, head = heads
    ids = head.vocabulary.ids
    assert len(ids) == 12
    assert set(counts.topk(9).indices.tolist()) <= set(ids.tolist())
    assert next(iter(formats_of(head))) == form
    head.save_pretrained(tmp_path / "made")
    again = read(tmp_path / "made")
    assert (again.method, again.vocab_size) == (method, size)
    assert torch.equal(again.vocabulary.ids, ids)
    again.check(target)
    mine, theirs = head.network.state_dict(), again.network.state_dict()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[key], theirs[key]) for key in mine)
    decoder = prompted(target)
    full, some = (published_decoder(one.eval(), decoder) for one in (whole, again))
    hidden = torch.randn(3, target.config.hidden_size)
    for k in range(1, 5):
        if method in ("medusa", "hydra"):
            path = torch.randn(3, k, target.config.hidden_size)
            told, spread = full.ahead(hidden, path), some.ahead(hidden, path)
        else:
            told, spread = full.logits(hidden), some.logits(hidden)
        if method in ("medusa", "dflash"):  # weights that chance makes do not depend on the size
            torch.testing.assert_close(spread[:, ids], told[:, ids])
        law = spread.detach().softmax(-1)
        assert spread.shape == (3, size)
        assert {*law.nonzero()[:, 1].tolist()} == {*ids.tolist()}


@pytest.mark.parametrize("name", ["eagle3", "peagle", "dflash", "dspark"])
def test_speculators_folders_have_what_vllm_demands(tmp_path, name):
    torch.manual_seed(0)
    head = read(LAYOUTS[name](tmp_path / "given")[0])
    verifier = {"name_or_path": "org/model", "architectures": ["LlamaForCausalLM"]}
    write_head(head, tmp_path / "made", "speculators", verifier)
    config = json.loads((tmp_path / "made/config.json").read_text())
    inner = config["speculators_config"]
    assert inner["verifier"] == verifier
    assert inner["proposal_methods"][0]["speculative_tokens"] > 0
    assert config["speculators_model_type"] == inner["algorithm"] == name
    layers = config["transformer_layer_config"]
    for key in ("model_type", "hidden_size", "num_hidden_layers", "head_dim", "vocab_size"):
        assert layers[key]
    assert "draft_vocab_size" in config
    decides = {
        "eagle3": ("norm_before_residual", "norm_output"),
        "peagle": ("norm_before_residual", "mask_token_id"),
        "dflash": ("aux_hidden_state_layer_ids", "mask_token_id", "sample_from_anchor"),
        "dspark": ("aux_hidden_state_layer_ids", "mask_token_id", "sample_from_anchor"),
    }
    assert all(key in config for key in decides[name])
    assert "sliding_window_non_causal" not in config  # false would make vLLM's blocks causal


@pytest.mark.parametrize(
    ("kind", "anchor", "message"),
    [
        ("dflash", True, "sample_from_anchor true"),
        ("dspark", False, "sample_from_anchor false"),
        ("dflash", False, "no map of tokens"),
    ],
)
def test_what_z_labs_layout_cannot_say_is_refused(tmp_path, kind, anchor, message):
    torch.manual_seed(0)
    head = read(folders.speculators_blocks(tmp_path / "given", kind=kind, anchor=anchor)[0])
    with pytest.raises(InputError, match=message):
        write_head(head, tmp_path / "made", "dflash")
    assert not (tmp_path / "made").exists()
    write_head(head, tmp_path / "made", "speculators")
    again = read(tmp_path / "made")
    assert again.network.anchored == head.network.anchored == anchor
    assert torch.equal(again.vocabulary.ids, head.vocabulary.ids)


def test_a_format_of_another_kind_is_refused(tmp_path):
    torch.manual_seed(0)
    head = read(folders.medusa(tmp_path / "given")[0])
    assert list(formats_of(head)) == ["medusa"]
    with pytest.raises(InputError, match="can be as medusa"):
        write_head(head, tmp_path / "made", "eagle3")
    assert not (tmp_path / "made").exists()
