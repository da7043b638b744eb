"""Tiny random heads in their published layouts."""

import json
from typing import Any

import torch
from safetensors.torch import save_file

H, I, HEADS, KV, DIM, V, VD = 16, 24, 4, 2, 4, 12, 7  # noqa: E741
MASK = 7  # token id of masked places
SIZES = dict(
    hidden_size=H,
    intermediate_size=I,
    num_attention_heads=HEADS,
    num_key_value_heads=KV,
    head_dim=DIM,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
    vocab_size=V,
    num_hidden_layers=1,
)

LEFT_OUT = {"rms_norm_eps": 1e-6}  # of the tests' targets, where a head's files are silent


def rand(*shape):
    return torch.randn(*shape, dtype=torch.float64) * 0.3


def layer(prefix, width=None, *, norms=("input_layernorm",), qkv_bias=False, qk_norm=False):
    """Tensors of a decoder layer whose attention reads `width` numbers; None: H."""
    width = width or H
    tensors = {
        f"{prefix}self_attn.q_proj.weight": rand(HEADS * DIM, width),
        f"{prefix}self_attn.k_proj.weight": rand(KV * DIM, width),
        f"{prefix}self_attn.v_proj.weight": rand(KV * DIM, width),
        f"{prefix}self_attn.o_proj.weight": rand(H, HEADS * DIM),
        f"{prefix}mlp.gate_proj.weight": rand(I, H),
        f"{prefix}mlp.up_proj.weight": rand(I, H),
        f"{prefix}mlp.down_proj.weight": rand(H, I),
    }
    for name in (*norms, "post_attention_layernorm"):
        tensors[f"{prefix}{name}.weight"] = 1 + rand(H)
    if qkv_bias:
        sizes = {"q": HEADS * DIM, "k": KV * DIM, "v": KV * DIM}
        for which, size in sizes.items():
            tensors[f"{prefix}self_attn.{which}_proj.bias"] = rand(size)
    if qk_norm:
        for which in "qk":
            tensors[f"{prefix}self_attn.{which}_norm.weight"] = 1 + rand(DIM)
    return tensors


def write(folder, config, tensors, file="model.safetensors"):
    """A folder with `config.json` and the tensors in `file`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if file.endswith(".safetensors"):
        save_file({name: value.contiguous() for name, value in tensors.items()}, folder / file)
    else:
        torch.save(tensors, folder / file)
    return folder


def eagle1(folder, *, bias=True, qkv_bias=False, embeds=False, layers=1, **config):
    tensors = {"fc.weight": rand(H, 2 * H)}
    if bias:
        tensors["fc.bias"] = rand(H)
    if embeds:
        tensors["embed_tokens.weight"] = rand(V, H)
    for n in range(layers):
        norms = ("input_layernorm",) if n else ()
        tensors |= layer(f"layers.{n}.", norms=norms, qkv_bias=qkv_bias)
    config = {**SIZES, "architectures": ["LlamaForCausalLM"], **config}
    if not bias:
        config["bias"] = False
    if qkv_bias:
        config["qkv_bias"] = True
    return write(folder, config, tensors, "pytorch_model.bin"), config, tensors


def vocabulary():
    """`d2t` and `t2d` of VD tokens among V."""
    ids = torch.randperm(V)[:VD].sort().values
    t2d = torch.zeros(V, dtype=torch.bool)
    t2d[ids] = True
    return {"d2t": ids - torch.arange(VD), "t2d": t2d}


def eagle3(
    folder,
    *,
    fc_norm=False,
    input_norm=False,
    embeds=False,
    target=None,
    prefix="midlayer.",
    **config,
):
    target = target or H
    tensors = {
        "fc.weight": rand(H, 3 * target),
        "norm.weight": 1 + rand(H),
        "lm_head.weight": rand(VD, H),
        **layer(prefix, 2 * H, norms=("input_layernorm", "hidden_norm")),
        **vocabulary(),
    }
    if embeds:
        tensors["embed_tokens.weight"] = rand(V, H)
    if fc_norm:
        tensors |= {f"fc_norm.{n}.weight": 1 + rand(target) for n in range(3)}
        config["fc_norm"] = True
    if input_norm:
        tensors["input_norm.weight"] = 1 + rand(3 * target)
        config["norm_before_fc"] = True
    if target != H:
        config["target_hidden_size"] = target
    config = {
        **SIZES,
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": VD,
        **config,
    }
    return write(folder, config, tensors), config, tensors


def speculators_eagle3(folder, **config):
    """The same in speculators' layout: nested sizes, `layers.0.`."""
    _, flat, tensors = eagle3(folder, prefix="layers.0.")
    sizes = {name: flat[name] for name in SIZES}
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.3.0",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"name_or_path": None, "architectures": ["LlamaForCausalLM"]},
        },
        "transformer_layer_config": {"model_type": "llama", **sizes},
        "draft_vocab_size": VD,
        "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
        **config,
    }
    return write(folder, config, tensors), {**flat, **config}, tensors


def peagle(folder, *, layers=2, block=3, **config):
    """P-EAGLE's: layers behind the first are plain, embeddings are its own."""
    _, config, tensors = eagle3(folder, mask_token_id=MASK, num_depths=block, **config)
    tensors |= {"mask_hidden": rand(1, 1, 3 * H), "embed_tokens.weight": rand(V, H)}
    tensors |= {
        name.replace("midlayer.", "layers.0."): t
        for name, t in tensors.items()
        if "midlayer." in name
    }
    tensors = {name: t for name, t in tensors.items() if "midlayer." not in name}
    for n in range(1, layers):
        tensors |= layer(f"layers.{n}.")
    config |= {"num_hidden_layers": layers, "architectures": ["PEagleDraftModel"]}
    return write(folder, config, tensors), config, tensors


def dflash(folder, *, layers=2, **config):
    tensors = {"fc.weight": rand(H, 2 * H), "hidden_norm.weight": 1 + rand(H)}
    for n in range(layers):
        tensors |= layer(f"layers.{n}.", qk_norm=True)
    tensors["norm.weight"] = 1 + rand(H)
    config = {
        **SIZES,
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "num_hidden_layers": layers,
        "block_size": 4,
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": [0, 2]},
        **config,
    }
    return write(folder, config, tensors), config, tensors


def dspark(folder, *, kind="vanilla", rank=6, deepspec=False, **config):
    """DSpark's, as SpecForge or DeepSpec writes it."""
    _, settings, tensors = dflash(folder)
    tensors |= {
        "markov_head.markov_w1.weight": rand(V, rank),
        "markov_head.markov_w2.weight": rand(V, rank),
    }
    if kind == "gated":
        tensors |= {
            "markov_head.gate_proj.weight": rand(rank, H + rank),
            "markov_head.gate_proj.bias": rand(rank),
        }
    if kind == "rnn":
        tensors |= {
            "markov_head.joint_proj.weight": rand(3 * rank, 2 * rank + H),
            "markov_head.joint_proj.bias": rand(3 * rank),
        }
    tensors |= {
        "confidence_head.proj.weight": rand(1, H + rank),
        "confidence_head.proj.bias": rand(1),
    }
    inner = {
        **settings.pop("dflash_config"),
        "markov_rank": rank,
        "markov_head_type": kind,
        **config,
    }
    if deepspec:
        tensors |= {"embed_tokens.weight": rand(V, H), "lm_head.weight": rand(V, H)}
        settings |= {**inner, "architectures": ["Qwen3DSparkModel"]}
    else:
        settings |= {
            "architectures": ["DSparkDraftModel"],
            "dflash_config": {**inner, "projector_type": "dspark"},
        }
    return write(folder, settings, tensors), {**settings, **inner}, tensors


def speculators_blocks(folder, *, kind="dflash", anchor=None, ids=(1, 3), rank=6):
    """DFlash's and DSpark's in speculators' layout, which draft some of the tokens alone.

    Args:
        anchor: `sample_from_anchor`; None: what is usual for the kind.
        ids: hidden states that are joined.
    """
    _, flat, tensors = dflash(folder)
    tensors |= {"lm_head.weight": rand(VD, H), **vocabulary()}
    layers = {name: flat[name] for name in (*SIZES, "model_type")}
    config = {
        "architectures": [{"dflash": "DFlashSpeculator", "dspark": "DSparkSpeculator"}[kind]],
        "speculators_model_type": kind,
        "speculators_version": "0.3.0",
        "speculators_config": {"algorithm": kind, "proposal_methods": [], "verifier": {}},
        "transformer_layer_config": layers,
        "draft_vocab_size": VD,
        "block_size": 4,
        "aux_hidden_state_layer_ids": list(ids),
        "mask_token_id": MASK,
        "sample_from_anchor": kind == "dspark" if anchor is None else anchor,
    }
    if kind == "dspark":
        tensors |= {
            "markov_head.markov_w1.weight": rand(V, rank),
            "markov_head.markov_w2.weight": rand(VD, rank),
        }
        config |= {"markov_rank": rank, "markov_head_type": "vanilla"}
        config |= {"enable_confidence_head": False}
    return write(folder, config, tensors), {**layers, **config}, tensors


def speculators_peagle(folder, *, layers=2, block=3, **config):
    """P-EAGLE's in speculators' layout."""
    _, flat, tensors = peagle(folder, layers=layers, block=block)
    nested = {name: flat[name] for name in SIZES}
    config = {
        "architectures": ["PEagleSpeculator"],
        "speculators_model_type": "peagle",
        "speculators_config": {
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": block}]
        },
        "transformer_layer_config": nested,
        "draft_vocab_size": VD,
        "mask_token_id": MASK,
        **config,
    }
    return write(folder, config, tensors), {**nested, **config}, tensors


def domino(folder, *, state=5, inner=7, **config):
    """Domino's."""
    _, settings, tensors = dflash(folder)
    tensors |= {
        "prefix_gru.weight_ih_l0": rand(3 * state, H),
        "prefix_gru.weight_hh_l0": rand(3 * state, state),
        "embed_proj.0.weight": rand(inner, H + state),
        "embed_proj.2.weight": rand(V, inner),
    }
    extra = {**settings["dflash_config"], "projector_type": "domino", **config}
    settings |= {"architectures": ["DominoDraftModel"], "dflash_config": extra}
    return write(folder, settings, tensors), {**settings, **extra}, tensors


def longspec(folder, *, qkv_bias=False, **config):
    """The authors' files hold projections that nothing reads, too."""
    tensors = layer("", qkv_bias=qkv_bias)
    own = {name: x for name, x in layer("", qkv_bias=qkv_bias).items() if "self_attn" in name}
    tensors |= {name.replace("self_attn", "cross_attn"): x for name, x in own.items()}
    for which in ("self", "cross"):
        tensors[f"post_{which}_attention_layernorm.weight"] = 1 + rand(H)
    del tensors["post_attention_layernorm.weight"]
    config = {**SIZES, **config}
    return write(folder, config, tensors), config, tensors


def falcon(folder, *, block=2, bias=True, embeds=False, layers=1, **config):
    """Falcon's, the LSTM under the names that torch has for it."""
    tensors = {}
    for n, inputs in enumerate((2 * H, H)):
        tensors[f"lstm.weight_ih_l{n}"] = 3 * rand(4 * H, inputs)
        tensors[f"lstm.weight_hh_l{n}"] = rand(4 * H, H)
        if bias:
            tensors |= {f"lstm.bias_{kind}_l{n}": rand(4 * H) for kind in ("ih", "hh")}
    if embeds:
        tensors["embed_tokens.weight"] = rand(V, H)
    for n in range(layers):
        tensors |= layer(f"layers.{n}.", norms=("input_layernorm",) if n else ())
    config = {**SIZES, "architectures": ["LlamaForCausalLM"], "k_mask": block, **config}
    return write(folder, config, tensors), config, tensors


def medusa(folder, *, heads=3, blocks=1, file="medusa_lm_head.pt"):
    tensors = {}
    for k in range(heads):
        for j in range(blocks):
            tensors |= {f"{k}.{j}.linear.weight": rand(H, H), f"{k}.{j}.linear.bias": rand(H)}
        tensors[f"{k}.{blocks}.weight"] = rand(V, H)
    config = {"medusa_num_heads": 2, "medusa_num_layers": blocks, "base_model_name_or_path": "x"}
    return write(folder, config, tensors, file), config, tensors


def hydra(folder, *, heads=3, blocks=2):
    tensors = {}
    for k in range(heads):
        for j in range(blocks):
            inputs = H if j else (k + 2) * H
            name = f"hydra_mlp.{k}.{j}."
            tensors |= {f"{name}linear.weight": rand(H, inputs), f"{name}linear.bias": rand(H)}
            if inputs != H:
                tensors[f"{name}res_connection.weight"] = rand(H, inputs)
                tensors[f"{name}res_connection.bias"] = rand(H)
        tensors |= {f"hydra_lm_head.{k}.weight": rand(V, H), f"hydra_lm_head.{k}.bias": rand(V)}
    config = {
        "hydra_num_heads": heads,
        "hydra_num_layers": blocks,
        "hydra_head_arch": "mlp",
        "grounded_heads": True,
    }
    return write(folder, config, tensors, "hydra_lm_head.pt"), config, tensors


def vispec(folder, queries=3):
    _, config, tensors = eagle1(folder, qkv_bias=True)
    tensors |= {
        "imadpt.q": rand(queries, HEADS, DIM),
        "imadpt.k_proj.weight": rand(HEADS * DIM, H),
        "imadpt.v_proj.weight": rand(HEADS * DIM, H),
        "imadpt.o_proj.weight": rand(H, HEADS * DIM),
        "img_fc.weight": rand(H, 2 * H),
        "img_fc.bias": rand(H),
    }
    return write(folder, config, tensors, "pytorch_model.bin"), config, tensors


def eagle_attn(folder, *, sized=True):
    """Hydra's of one layer that has its first norm; the authors' files are not `sized`."""
    _, config, tensors = eagle1(folder / "eagle")
    tensors |= layer("layers.0.")
    named = {name.replace("layers.0.", "attn."): t for name, t in tensors.items()}
    told = {"hydra_num_heads": 1, "hydra_head_arch": "eagle-attn", "grounded_heads": True}
    write(folder, {**config, **told} if sized else told, named, "hydra_lm_head.pt")
    return folder, {**config, **({} if sized else LEFT_OUT), **told}, tensors


def prefix_hydra(folder, *, heads=3, blocks=2, sized=False):
    """Hydra's of arch "prefix-mlp": heads between dropouts, behind a layer of the target's sizes.

    The tensors are returned under the names of "mlp", and the layer's as `layers.0.`.
    """
    _, config, tensors = hydra(folder / "mlp", heads=heads, blocks=blocks)
    named = {}
    for name, value in tensors.items():
        part, head, *rest = name.split(".")
        rest = ["1", *rest] if part == "hydra_lm_head" else [str(2 * int(rest[0]) + 1), *rest[1:]]
        named[".".join([part, head, *rest])] = value
    own = {**layer("layers.0."), "norm.weight": 1 + rand(H)}
    named |= {f"prefix_embeding_layer.{name}": value for name, value in own.items()}
    named["prefix_embeding_layer.embed_tokens.weight"] = rand(V, H)
    config |= {"hydra_head_arch": "prefix-mlp"}
    write(folder, {**SIZES, **config} if sized else config, named, "hydra_lm_head.pt")
    return folder, {**SIZES, **({} if sized else LEFT_OUT), **config}, {**tensors, **own}


def sized_for(words: int, patch: Any) -> None:
    """Write heads of the sizes of the small models in `vlms` until `patch` is undone.

    Args:
        words: tokens of the target.
        patch: pytest's `monkeypatch`.
    """
    new = dict(H=32, I=48, HEADS=4, KV=2, DIM=8, V=words, VD=20)
    for name, value in new.items():
        patch.setattr(f"{__name__}.{name}", value)
    told = dict(hidden_size=32, intermediate_size=48, head_dim=8, vocab_size=words)
    patch.setattr(f"{__name__}.SIZES", {**SIZES, **told})
