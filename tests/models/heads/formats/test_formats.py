"""Every published layout loads strictly, and computes what its slow twin does."""

import json

import folders
import naive
import pytest
import torch
from folders import H, V, rand
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from mmspec.errors import InputError
from mmspec.models.decoders import UNNORMED
from mmspec.models.heads.formats.files import HeadFiles
from mmspec.models.heads.formats.registry import read_head
from mmspec.models.heads.published.attention import masked_attention

N = 5


def loaded(folder):
    return read_head(HeadFiles.read(folder)).double()


def causal():
    return masked_attention(torch.full((N, N), -torch.inf, dtype=torch.float64).triu(1)[None, None])


def same(fast, slow):
    torch.testing.assert_close(fast, torch.stack(list(slow)), rtol=0, atol=1e-9)


def outputs_of(layers):
    """A list that receives the output of every layer as it runs."""
    seen = []
    for one in layers:
        one.register_forward_hook(lambda _, __, out: seen.append(out))
    return seen


def up_to(tensors, number):
    """The tensors without the layers behind layer `number`."""
    layers = {name: int(name.split(".")[1]) for name in tensors if name.startswith("layers.")}
    return {name: value for name, value in tensors.items() if layers.get(name, 0) <= number}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize(
    "layout",
    [{}, {"bias": False}, {"qkv_bias": True}, {"embeds": True}, {"layers": 2}],
    ids=lambda layout: "-".join(layout) or "plain",
)
def test_eagle1(tmp_path, layout):
    folder, config, tensors = folders.eagle1(tmp_path / "head", **layout)
    head = loaded(folder)
    assert head.format == "eagle"
    assert head.reads == ()
    embedded, hidden = rand(N, H), rand(N, H)
    turns = head.rotary(torch.arange(N)[None], torch.float64)
    net = head.network
    seen = outputs_of(net.layers)
    fast = net(net.joined(embedded[None], hidden[None]), turns, causal())[0]
    same(fast, naive.eagle1(tensors, config, embedded, hidden, range(N)))
    assert len(seen) == layout.get("layers", 1)
    for number, out in enumerate(seen):
        same(out[0], naive.eagle1(up_to(tensors, number), config, embedded, hidden, range(N)))


@pytest.mark.parametrize(
    "layout",
    [
        {},
        {"fc_norm": True},
        {"input_norm": True},
        {"norm_before_residual": True},
        {"target": 20},
        {"rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 0]}},
        {
            "rope_scaling": {
                "rope_type": "default",
                "mrope_section": [1, 1, 0],
                "mrope_interleaved": True,
            }
        },
    ],
    ids=["plain", "fc_norm", "input_norm", "residual", "target", "mrope", "interleaved"],
)
def test_eagle3(tmp_path, layout):
    folder, config, tensors = folders.eagle3(tmp_path / "head", **layout)
    head = loaded(folder)
    width = layout.get("target", H)
    embedded, states = rand(N, H), rand(N, 3, width)
    rope = layout.get("rope_scaling", {})
    sections, interleaved = rope.get("mrope_section"), rope.get("mrope_interleaved", False)
    positions, places = torch.arange(N)[None], list(range(N))
    if sections:
        positions = torch.tensor([[0, 1, 1, 1, 4], [0, 1, 2, 2, 4], [0, 1, 1, 2, 4]])[:, None]
        places = positions[:, 0].T.tolist()
    turns = head.rotary(positions, torch.float64)
    net = head.network
    x = net.joined(embedded[None], net.fuse(states.flatten(1)[None]))
    fast = net(x, turns, causal())[0]
    same(fast, naive.eagle3(tensors, config, embedded, states, places, sections, interleaved))


def test_eagle3_logits_go_to_the_targets_tokens(tmp_path):
    folder, config, tensors = folders.eagle3(tmp_path / "head")
    head = loaded(folder)
    hidden = rand(H)
    own = head.network.lm_head(head.network.before_output(hidden))
    normed = naive.rms_norm(hidden, tensors["norm.weight"], config["rms_norm_eps"])
    for n, logit in enumerate(tensors["lm_head.weight"] @ normed):
        torch.testing.assert_close(own[n], logit, rtol=0, atol=1e-9)
        assert head.vocabulary.scatter(own)[n + tensors["d2t"][n]] == own[n]
    law = head.vocabulary.scatter(own).softmax(-1)
    assert int((law > 0).sum()) == folders.VD
    guided = torch.lerp(*head.vocabulary.scatter(torch.stack([own, own + 1])), 3.0)
    torch.testing.assert_close(guided.softmax(-1), law)  # also where nothing is drafted


@pytest.mark.parametrize("writer", [folders.eagle3, folders.speculators_eagle3])
@pytest.mark.parametrize("given", [True, False, None])
def test_norm_output_means_what_its_writer_means(tmp_path, writer, given):
    settings = {} if given is None else {"norm_output": given}
    head = loaded(writer(tmp_path / "head", **settings)[0])
    # of SpecForge's earlier files true is said of EAGLE-3 too, which has no norms in front of fc
    fed = bool(given) and writer is folders.speculators_eagle3
    assert (head.network.feed_normed, head.network.norm_logits) == (fed, True)


@pytest.mark.parametrize("writer", ["LlamaForCausalLMEagle3", "LlamaEagle3DraftModel"])
def test_eagle31_feeds_the_normed_output_whoever_wrote_it(tmp_path, writer):
    made = folders.eagle3(tmp_path / "a", fc_norm=True, norm_output=True, architectures=[writer])
    assert loaded(made[0]).network.feed_normed


def test_speculators_say_layers_and_length(tmp_path):
    folder, _, _ = folders.speculators_eagle3(tmp_path / "head")
    head = loaded(folder)
    assert (head.format, head.reads, head.length) == ("speculators eagle3", (1, 2, 3), 3)


def test_dflash(tmp_path):
    folder, config, tensors = folders.dflash(tmp_path / "head")
    head = loaded(folder)
    assert head.reads == (1, 3)
    assert head.length == 3
    net, first = head.network, N
    states, block = rand(N, 2 * H), rand(4, H)
    before = head.rotary(torch.arange(N)[None], torch.float64)
    context = net.context(net.fuse(states[None]), before)

    def attend(layer, q, k, v):
        keys, values = (torch.cat(pair, 2) for pair in zip(context[layer], (k, v), strict=True))
        return torch.nn.functional.scaled_dot_product_attention(q, keys, values, enable_gqa=True)

    turns = head.rotary(torch.arange(first, first + 4)[None], torch.float64)
    seen = outputs_of(net.layers)
    same(
        net(block[None], turns, attend)[0],
        naive.dflash(tensors, config, states, block, range(N), first),
    )
    assert len(seen) == 2
    for number, out in enumerate(seen):
        part = up_to(tensors, number)
        same(net.norm(out)[0], naive.dflash(part, config, states, block, range(N), first))


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("file", ["medusa_lm_head.pt", "medusa_lm_head.safetensors"])
def test_medusa(tmp_path, blocks, file):
    folder, _, tensors = folders.medusa(tmp_path / "head", blocks=blocks, file=file)
    head = loaded(folder)
    hidden = rand(H)
    assert head.length == 3  # as many as are stored, whatever the configuration says
    same(torch.stack(head.network(hidden)), naive.medusa(tensors, hidden))


def test_medusa_in_a_full_checkpoint_and_under_vllms_names(tmp_path):
    _, config, tensors = folders.medusa(tmp_path / "head")
    full = {f"medusa_head.{name}": value for name, value in tensors.items()}
    full["model.embed_tokens.weight"] = rand(V, H)
    folders.write(tmp_path / "full", config, full)
    served = {}
    for k in range(3):
        for what in ("weight", "bias"):
            served[f"blocks.{k}.layers.0.{what}"] = tensors[f"{k}.0.linear.{what}"]
        served[f"lm_heads.{k}.weight"] = tensors[f"{k}.1.weight"]
    folders.write(tmp_path / "served", config, served)
    hidden = rand(H)
    for name in ("full", "served"):
        same(torch.stack(loaded(tmp_path / name).network(hidden)), naive.medusa(tensors, hidden))


def test_medusa_drafts_some_tokens_by_vllms_map(tmp_path):
    _, config, tensors = folders.medusa(tmp_path / "head")
    chosen = torch.tensor([9, 2, 5])
    served = {"token_map": chosen}
    for k in range(3):
        served[f"blocks.{k}.layers.0.weight"] = tensors[f"{k}.0.linear.weight"]
        served[f"lm_heads.{k}.weight"] = tensors[f"{k}.1.weight"][chosen]
    folders.write(tmp_path / "served", {**config, "vocab_size": V}, served)
    head = loaded(tmp_path / "served")
    assert (head.vocab_size, head.vocabulary.ids.tolist()) == (V, chosen.tolist())
    law = head.vocabulary.scatter(head.network(rand(H))[0]).softmax(-1)
    assert law.nonzero()[:, 0].tolist() == sorted(chosen.tolist())
    head.save_pretrained(tmp_path / "made")  # as vLLM reads it
    assert load_file(tmp_path / "made/model.safetensors").keys() == served.keys()
    again = loaded(tmp_path / "made")
    assert (again.vocab_size, again.vocabulary.ids.tolist()) == (V, chosen.tolist())
    config = json.loads((tmp_path / "made/config.json").read_text())
    assert (config["vocab_size"], config["truncated_vocab_size"]) == (V, 3)
    assert (config["num_heads"], config["num_hidden_layers"]) == (3, 1)
    assert config["medusa_fc_bias"] is False
    hidden = rand(H)
    same(torch.stack(again.network(hidden)), torch.stack(head.network(hidden)))
    folders.write(tmp_path / "served", {"num_heads": 3}, served)
    with pytest.raises(InputError, match="token_map names 3 tokens"):
        loaded(tmp_path / "served")


def test_hydra(tmp_path):
    folder, _, tensors = folders.hydra(tmp_path / "head")
    head = loaded(folder)
    hidden, path = rand(H), rand(3, H)
    for k in range(3):
        fast = head.network(hidden, path[: k + 1])
        slow = naive.hydra(tensors, k, hidden, path[: k + 1])
        torch.testing.assert_close(fast, slow, rtol=0, atol=1e-9)


def test_hydra_behind_a_prefix_layer(tmp_path):
    folder, config, tensors = folders.prefix_hydra(tmp_path / "head", sized=True)
    head = loaded(folder)
    assert (head.format, head.method, head.length, head.sized) == (
        "hydra prefix-mlp",
        "hydra",
        3,
        True,
    )
    states, path = rand(N, H), rand(3, H)
    turns = head.rotary(torch.arange(N)[None], torch.float64)
    fast = head.network.prefixed(states[None], turns, causal())[0]
    same(fast, naive.prefixed(tensors, config, states))
    logits = head.network(fast[-1], path)
    slow = naive.hydra(tensors, 2, fast[-1], path)
    torch.testing.assert_close(logits, slow, rtol=0, atol=1e-9)


UNSIZED = {"prefix-mlp": folders.prefix_hydra, "eagle-attn": folders.eagle_attn}


@pytest.mark.parametrize("arch", UNSIZED)
def test_sizes_that_files_leave_out_are_the_targets(tmp_path, arch):
    rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}
    sizes = {**folders.SIZES, "rms_norm_eps": 0.01, "num_hidden_layers": 1}
    target = LlamaForCausalLM(LlamaConfig(**{**sizes, "rope_theta": None}, rope_parameters=rope))
    head = loaded(UNSIZED[arch](tmp_path / "head", sized=False)[0])
    assert (head.sized, head.rotary) == (False, None)
    head.meet(target)
    attention = head.network.layers[0].self_attn.sizes
    found = attention.num_attention_heads, attention.num_key_value_heads, attention.head_dim
    assert found == (folders.HEADS, folders.KV, folders.DIM)
    norms = [module for module in head.modules() if isinstance(module, torch.nn.RMSNorm)]
    assert norms
    assert all(norm.eps == 0.01 for norm in norms)
    places = torch.arange(N)[None]
    theirs = target.model.rotary_emb(torch.zeros(1, dtype=torch.float64), places)
    for mine, other in zip(head.rotary(places, torch.float64), theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-6)
    head.save_pretrained(tmp_path / "saved")  # now its files say them
    assert loaded(tmp_path / "saved").sized


@pytest.mark.parametrize("arch", UNSIZED)
def test_a_target_with_other_heads_is_refused(tmp_path, arch):
    sizes = {**folders.SIZES, "head_dim": 6, "num_attention_heads": 2, "num_key_value_heads": 1}
    head = loaded(UNSIZED[arch](tmp_path / "head", sized=False)[0])
    with pytest.raises(InputError, match=r"queries of 16 numbers and keys of 8.*heads of 6"):
        head.meet(LlamaForCausalLM(LlamaConfig(**sizes)))


def test_hydras_files_may_hold_copies_of_the_targets_weights(tmp_path):
    folder, config, _ = folders.eagle_attn(tmp_path / "head")
    tensors = torch.load(folder / "hydra_lm_head.pt")
    tensors |= {"input_embed_fn.weight": rand(V, H), "lm_head.weight": rand(V, H)}
    tensors["attn.self_attn.rotary_emb.inv_freq"] = rand(2)
    folders.write(folder, config, tensors, "hydra_lm_head.pt")
    assert loaded(folder).embeddings is None
    tensors["attn.extra.weight"] = rand(2)
    folders.write(folder, config, tensors, "hydra_lm_head.pt")
    with pytest.raises(InputError, match="unexpected tensor"):
        loaded(folder)


def test_hydra_of_an_earlier_hidden_state_is_refused(tmp_path):
    folder, config, tensors = folders.hydra(tmp_path / "head")
    folders.write(folder, {**config, "hidden_state_offset": 1}, tensors, "hydra_lm_head.pt")
    with pytest.raises(InputError, match="hidden_state_offset 1"):
        loaded(folder)


def test_vispec(tmp_path):
    folder, _, tensors = folders.vispec(tmp_path / "head")
    net = loaded(folder).network
    pictures = rand(2, N, H)
    real = torch.ones(2, N, dtype=torch.bool)
    real[1, 3:] = False
    out = net.imadpt(pictures, real)
    same(out[0], naive.adapter(tensors, pictures[0]))
    same(out[1], naive.adapter(tensors, pictures[1, :3]))


def test_layers_of_eagle3_are_named_by_what_goes_in_or_comes_out(tmp_path):
    """SpecForge and ModelOpt hook what layers give; a key outside of theirs names what they read.

    ModelOpt's ids are by default 1, L // 2 - 1 and L - 4, those of the authors 2, L // 2 and L - 3.
    """
    told = {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": [1, 46, 90]}

    def reads(name, **config):
        return loaded(folders.eagle3(tmp_path / name, **config)[0]).reads

    assert reads("specforge", eagle_config=told) == (2, 47, 91)
    assert reads("modelopt", eagle_config={**told, "use_last_layernorm": True}) == (2, 47, 91)
    both = {"eagle_config": told, "eagle_aux_hidden_state_layer_ids": [2, 47, 91]}
    assert reads("both", **both) == (2, 47, 91)
    assert reads("silent", eagle_config={"use_aux_hidden_state": True}) is None


def test_eagle3_takes_the_last_state_in_front_of_the_final_norm(tmp_path):
    """As vLLM and SGLang hand it over; DFlash's authors take transformers' own, behind it."""
    told = {"eagle_aux_hidden_state_layer_ids": [1, 2, 4]}
    head = loaded(folders.eagle3(tmp_path / "eagle3", **told)[0])
    assert (head.reads_of(4), head.taken_of(4)) == ((1, 2, 4), (1, 2, UNNORMED))
    assert head.taken_of(5) == (1, 2, 4)
    block = loaded(folders.dflash(tmp_path / "dflash")[0])
    last = max(block.reads)
    assert block.taken_of(last) == block.reads


def test_a_map_of_the_targets_first_tokens_is_a_map(tmp_path):
    """Their offsets are zeros, as those of a map that nobody filled."""
    first = torch.arange(V) < folders.VD
    folder, config, tensors = folders.eagle3(tmp_path / "head")
    folders.write(folder, config, {**tensors, "d2t": torch.zeros(folders.VD).long(), "t2d": first})
    assert loaded(folder).vocabulary.ids.tolist() == [*range(folders.VD)]
    tensors = {"token_map": torch.arange(4), "blocks.0.layers.0.weight": rand(H, H)}
    tensors |= {"lm_heads.0.weight": rand(4, H)}
    folders.write(tmp_path / "medusa", {"num_heads": 1, "vocab_size": V}, tensors)
    assert loaded(tmp_path / "medusa").vocabulary.ids.tolist() == [0, 1, 2, 3]


def test_what_is_wrong_with_a_file_is_said_in_one_line(tmp_path):
    folder, config, tensors = folders.eagle3(tmp_path / "head")

    def refused(changes, settings=None):
        new = {name: v for name, v in {**tensors, **changes}.items() if v is not None}
        folders.write(folder, {**config, **(settings or {})}, new)
        with pytest.raises(InputError) as error:
            loaded(folder)
        assert "\n" not in str(error.value)
        return str(error.value)

    assert "missing tensor norm.weight" in refused({"norm.weight": None})
    assert "unexpected tensor extra" in refused({"extra": rand(2)})
    assert "has shape" in refused({"norm.weight": rand(H + 1)})
    assert "NaN" in refused({"norm.weight": torch.full((H,), torch.nan, dtype=torch.float64)})
    assert "unfilled" in refused({"d2t": torch.zeros(folders.VD, dtype=torch.long)})
    assert "different tokens" in refused({"t2d": torch.ones(V, dtype=torch.bool)})
    assert "no map d2t" in refused({"d2t": None, "t2d": None})
    assert "no multiple" in refused({}, {"target_hidden_size": 7})
    assert "names [1, 2]" in refused({}, {"eagle_aux_hidden_state_layer_ids": [1, 2]})
    assert "hidden_size" in refused({}, {"hidden_size": None})
    assert "DFly" in refused({}, {"model_arch": "dfly"})


def test_files_that_hold_no_head_are_refused(tmp_path):
    folder = tmp_path / "head"
    with pytest.raises(InputError, match=r"config\.json"):
        HeadFiles.read(folder)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(folders.SIZES))
    with pytest.raises(InputError, match="no weights"):
        HeadFiles.read(folder)
    torch.save({"fc.weight": print}, folder / "pytorch_model.bin")
    with pytest.raises(InputError, match="code"):
        HeadFiles.read(folder)
    folders.write(folder, folders.SIZES, {"a": rand(1)})
    with pytest.raises(InputError, match="no draft head that is known"):
        loaded(folder)
