"""Files whose configuration and tensors do not go together: one line that names what does not."""

from __future__ import annotations

import json

import folders
import pytest
import torch

from mmspec.errors import InputError
from mmspec.models.heads.loading import load_head


def without(*parts):
    """Drop the tensors whose names begin with one of `parts`."""

    def change(config, tensors):
        for name in [name for name in tensors if name.startswith(parts)]:
            del tensors[name]

    return change


def says(**settings):
    """Change the configuration; None takes a key away."""

    def change(config, tensors):
        config.update(settings)
        for name in [name for name, value in settings.items() if value is None]:
            del config[name]

    return change


def holds(**tensors):
    """Replace tensors; a double underscore is a point."""

    def change(config, own):
        own.update({name.replace("__", "."): value for name, value in tensors.items()})

    return change


DFLASH = {"mask_token_id": folders.MASK}
SPARK = {**DFLASH, "target_layer_ids": [0, 2], "markov_rank": 6, "projector_type": "dspark"}
CASES = {
    "half a stack": (folders.dflash, without("layers.1."), "says num_hidden_layers 2"),
    "no output layer": (folders.eagle3, without("lm_head"), "says draft_vocab_size 7"),
    "no norm of the states": (folders.eagle3, says(fc_norm=True), "says fc_norm True"),
    "no norm in front": (folders.eagle3, says(norm_before_fc=True), "says norm_before_fc True"),
    "a tensor less": (
        folders.eagle3,
        without("midlayer.hidden_norm"),
        r"layers\.0\.hidden_norm\.weight",
    ),
    "no correction": (folders.dspark, without("markov_head"), "tensors of its markov_head"),
    "no network over the prefix": (folders.domino, without("prefix_gru"), "of its prefix_gru"),
    "no confidence": (
        folders.dspark,
        lambda config, tensors: (
            without("confidence_head")(config, tensors),
            says(dflash_config={**SPARK, "enable_confidence_head": True})(config, tensors),
        ),
        "says enable_confidence_head True",
    ),
    "windows in EAGLE-3": (
        folders.eagle3,
        says(layer_types=["sliding_attention"]),
        "layers of 'sliding_attention' are not supported",
    ),
    "neighbours that turn together": (
        folders.dflash,
        says(rope_is_neox_style=False),
        "positions turn neighbours",
    ),
    "names that are none": (
        folders.eagle3,
        says(architectures=3),
        "do not go together as a head of",
    ),
    "windows": (
        folders.dflash,
        says(layer_types=["full_attention", "sliding_attention"]),
        "layers of 'sliding_attention' are not supported",
    ),
    "another activation": (folders.eagle3, says(hidden_act="gelu"), "'gelu' are not supported"),
    "one state": (
        folders.eagle3,
        holds(fc__weight=torch.randn(folders.H, folders.H)),
        "fc joins 1 hidden states, and config.json does not say which",
    ),
    "a row for a matrix": (
        folders.eagle3,
        holds(fc__weight=torch.randn(folders.H)),
        "do not go together as a head of EAGLE-3",
    ),
    "queries in a row": (
        folders.vispec,
        holds(imadpt__q=torch.randn(2, folders.H)),
        "do not go together as a head of ViSpec",
    ),
    "ids that are none": (
        folders.dflash,
        says(dflash_config={**DFLASH, "target_layer_ids": "x"}),
        "do not go together as a head of DFlash",
    ),
    "nobody's norm_output": (
        folders.eagle3,
        says(norm_output=True, architectures=["SomeoneElses"]),
        r"norm_output has two meanings, and architectures \['SomeoneElses'\]",
    ),
    "an anchor that is not said": (
        lambda folder: folders.speculators_blocks(folder, kind="dspark"),
        says(sample_from_anchor=None),
        "does not say sample_from_anchor",
    ),
    "half a scaling": (
        folders.eagle3,
        says(rope_scaling={"type": "linear"}),
        "do not go together as a head of EAGLE-3",
    ),
    "no size of the vocabulary": (
        folders.eagle3,
        lambda config, tensors: (
            without("t2d")(config, tensors),
            says(vocab_size=None)(config, tensors),
        ),
        "do not go together as a head of EAGLE-3",
    ),
    "far too large": (
        folders.eagle3,
        says(intermediate_size=10**9),
        # whether so much memory is given at all, is the system's choice
        "far larger than its weights|do not go together .*allocate",
    ),
    "far too deep": (folders.dflash, says(num_hidden_layers=10**9), "far larger than its weights"),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_refused_in_one_line(tmp_path, case):
    make, change, message = CASES[case]
    folder, config, tensors = make(tmp_path / "head")
    load_head(folder)
    change(config, tensors)
    folders.write(tmp_path / "other", config, tensors)
    with pytest.raises(InputError, match=message) as caught:
        load_head(tmp_path / "other")
    assert "\n" not in str(caught.value)
    assert str(tmp_path / "other") in str(caught.value)


def test_a_head_may_read_out_by_its_embeddings(tmp_path):
    """`tie_word_embeddings`, over the whole vocabulary."""
    _, config, tensors = folders.eagle3(tmp_path / "head", embeds=True)
    without("lm_head", "d2t", "t2d")(config, tensors)
    says(tie_word_embeddings=True, draft_vocab_size=folders.V)(config, tensors)
    head = load_head(folders.write(tmp_path / "tied", config, tensors), torch.float64)
    assert torch.equal(head.network.lm_head.weight, head.network.embed_tokens.weight)
    head.save_pretrained(tmp_path / "saved")
    assert load_head(tmp_path / "saved").method == "eagle3"


def test_vispec_without_biases(tmp_path):
    _, config, tensors = folders.vispec(tmp_path / "head")
    without("fc.bias", "img_fc.bias")(config, tensors)
    says(bias=False)(config, tensors)
    network = load_head(folders.write(tmp_path / "plain", config, tensors)).network
    assert network.fc.bias is None
    assert network.img_fc.bias is None


def test_pickles_in_shards(tmp_path):
    folder, config, tensors = folders.eagle3(tmp_path / "head")
    whole = load_head(folder)
    parts = tmp_path / "parts"
    folders.write(parts, config, {}, "none.pt")
    names = sorted(tensors)
    shards = {"a.bin": names[::2], "b.bin": names[1::2]}
    for file, own in shards.items():
        torch.save({name: tensors[name] for name in own}, parts / file)
    index = {"weight_map": {name: file for file, own in shards.items() for name in own}}
    (parts / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    found = load_head(parts).state_dict()
    assert all(torch.equal(found[name], value) for name, value in whole.state_dict().items())
