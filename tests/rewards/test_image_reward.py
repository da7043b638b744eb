"""ImageReward: every published name and shape, the arithmetic, and strict loading.

The layout and the arithmetic are written down from the authors' repository (THUDM/ImageReward:
`ImageReward/ImageReward.py`, `train/src/models/blip_pretrain.py`, `med.py`) and BLIP's (`vit.py`),
not from our modules or transformers'.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from mmspec.errors import InputError
from mmspec.rewards.image_reward import ImageReward
from mmspec.rewards.networks import image_reward
from mmspec.rewards.networks.image_reward import build_network, published_name, unused_tensors

Layout = dict[str, tuple[int, ...]]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "##s"]
WORDS += ["a", "photo", "of", "red", "blue", "circle", "square", "and", "two"]
MED = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "model_type": "bert",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pad_token_id": 0,
    "vocab_size": 30524,
    "encoder_width": 768,
    "add_cross_attention": True,
}
TINY = {
    **MED,
    "hidden_size": 24,
    "intermediate_size": 40,
    "max_position_embeddings": 48,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "vocab_size": len(WORDS) + 2,
}

# --- the published layout -------------------------------------------------------------------------


def published_layout(width: int = 1024, depth: int = 24, med: dict = MED) -> Layout:
    layout: Layout = {}

    def both(name: str, outward: int, *inward: int) -> None:
        layout[f"{name}.weight"], layout[f"{name}.bias"] = (outward, *inward), (outward,)

    vision, text = "blip.visual_encoder", "blip.text_encoder"
    layout[f"{vision}.cls_token"] = (1, 1, width)
    layout[f"{vision}.pos_embed"] = (1, 1 + (224 // 16) ** 2, width)
    both(f"{vision}.patch_embed.proj", width, 3, 16, 16)
    for n in range(depth):
        at = f"{vision}.blocks.{n}"
        both(f"{at}.norm1", width)
        both(f"{at}.attn.qkv", 3 * width, width)
        both(f"{at}.attn.proj", width, width)
        both(f"{at}.norm2", width)
        both(f"{at}.mlp.fc1", 4 * width, width)
        both(f"{at}.mlp.fc2", width, 4 * width)
    both(f"{vision}.norm", width)
    hidden, wide = med["hidden_size"], med["intermediate_size"]
    places = med["max_position_embeddings"]
    layout[f"{text}.embeddings.position_ids"] = (1, places)
    layout[f"{text}.embeddings.word_embeddings.weight"] = (med["vocab_size"], hidden)
    layout[f"{text}.embeddings.position_embeddings.weight"] = (places, hidden)
    both(f"{text}.embeddings.LayerNorm", hidden)
    for n in range(med["num_hidden_layers"]):
        at = f"{text}.encoder.layer.{n}"
        for kind, seen in (("attention", hidden), ("crossattention", width)):
            both(f"{at}.{kind}.self.query", hidden, hidden)
            both(f"{at}.{kind}.self.key", hidden, seen)
            both(f"{at}.{kind}.self.value", hidden, seen)
            both(f"{at}.{kind}.output.dense", hidden, hidden)
            both(f"{at}.{kind}.output.LayerNorm", hidden)
        both(f"{at}.intermediate.dense", wide, hidden)
        both(f"{at}.output.dense", hidden, wide)
        both(f"{at}.output.LayerNorm", hidden)
    both("blip.vision_proj", 256, width)
    both("blip.text_proj", 256, hidden)
    sizes = [hidden, 1024, 128, 64, 16, 1]
    for at, inward, outward in zip((0, 2, 4, 6, 7), sizes[:-1], sizes[1:], strict=True):
        both(f"mlp.layers.{at}", outward, inward)
    return layout


def test_full_size_has_the_published_tensors(tmp_path):
    (tmp_path / "med_config.json").write_text(json.dumps(MED))
    with torch.device("meta"):
        network = build_network(tmp_path / "med_config.json")
    used = {published_name(name): tuple(v.shape) for name, v in network.state_dict().items()}
    unused = {name: tuple(value.shape) for name, value in unused_tensors(network).items()}
    assert len(used) == len(network.state_dict())  # no two share a name
    assert not used.keys() & unused.keys()
    assert {**used, **unused} == published_layout()


# --- the published arithmetic, plainly ------------------------------------------------------------


def random_weights(layout: Layout, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in layout.items():
        noise = torch.randn(shape, generator=generator)
        fan_in = math.prod(shape[1:]) if len(shape) > 1 else 10
        norm = "norm" in name.lower() and name.endswith("weight")
        weights[name] = noise / fan_in**0.5 + float(norm)
    ids = "blip.text_encoder.embeddings.position_ids"
    weights[ids] = torch.arange(layout[ids][1])[None]
    return weights


def linear(w, name, x):
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def norm(w, name, x, eps):
    centred = x - x.mean(-1, keepdim=True)
    scaled = centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt()
    return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]


def attention(q, k, v, heads, mask=None):
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k, v))
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(mask[:, None, None] == 0, -torch.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


def gelu(x):
    return x * 0.5 * (1 + torch.erf(x / 2**0.5))


def vit(w, pixels, heads):
    """Norms come first, eps 1e-6; queries, keys and values are one matrix."""
    at = "blip.visual_encoder"
    kernel, bias = w[f"{at}.patch_embed.proj.weight"], w[f"{at}.patch_embed.proj.bias"]
    h = F.conv2d(pixels, kernel, bias, stride=16).flatten(2).transpose(1, 2)
    h = torch.cat([w[f"{at}.cls_token"].expand(len(h), -1, -1), h], 1) + w[f"{at}.pos_embed"]
    for n in range(sum(name.endswith("attn.qkv.weight") for name in w)):
        x = linear(w, f"{at}.blocks.{n}.attn.qkv", norm(w, f"{at}.blocks.{n}.norm1", h, 1e-6))
        h = h + linear(w, f"{at}.blocks.{n}.attn.proj", attention(*x.chunk(3, -1), heads))
        x = linear(w, f"{at}.blocks.{n}.mlp.fc1", norm(w, f"{at}.blocks.{n}.norm2", h, 1e-6))
        h = h + linear(w, f"{at}.blocks.{n}.mlp.fc2", gelu(x))
    return norm(w, f"{at}.norm", h, 1e-6)


def bert(w, ids, mask, seen, heads):
    """Norms come last, eps 1e-12; cross-attention between self-attention and MLP."""
    at, eps = "blip.text_encoder.embeddings", 1e-12
    h = w[f"{at}.word_embeddings.weight"][ids]
    h = norm(w, f"{at}.LayerNorm", h + w[f"{at}.position_embeddings.weight"][: ids.shape[1]], eps)
    for n in range(sum(name.endswith(".intermediate.dense.weight") for name in w)):
        layer = f"blip.text_encoder.encoder.layer.{n}"
        for kind, keys, hidden in (("attention", None, mask), ("crossattention", seen, None)):
            source = h if keys is None else keys
            q = linear(w, f"{layer}.{kind}.self.query", h)
            k, v = (linear(w, f"{layer}.{kind}.self.{part}", source) for part in ("key", "value"))
            x = linear(w, f"{layer}.{kind}.output.dense", attention(q, k, v, heads, hidden))
            h = norm(w, f"{layer}.{kind}.output.LayerNorm", h + x, eps)
        x = linear(w, f"{layer}.output.dense", gelu(linear(w, f"{layer}.intermediate.dense", h)))
        h = norm(w, f"{layer}.output.LayerNorm", h + x, eps)
    return h


def reward(w, pixels, ids, mask, vision_heads, text_heads):
    h = bert(w, ids, mask, vit(w, pixels, vision_heads), text_heads)[:, 0]
    for n in (0, 2, 4, 6, 7):
        h = linear(w, f"mlp.layers.{n}", h)
    return h[:, 0]


def preprocess(picture: Image.Image) -> torch.Tensor:
    """Shorter side to 224, the square in the middle, CLIP's mean and deviation."""
    wide, high = picture.size
    short = min(wide, high)
    size = (int(224 * wide / short), int(224 * high / short))
    resized = picture.resize(size, Image.Resampling.BICUBIC)
    left, top = round((size[0] - 224) / 2), round((size[1] - 224) / 2)
    square = np.asarray(resized.crop((left, top, left + 224, top + 224)), np.float64) / 255
    mean, std = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
    return torch.from_numpy((square - mean) / std).permute(2, 0, 1)


def tokenize(prompt: str) -> tuple[list[int], list[int]]:
    """Word pieces of our few words, cut and padded to 35."""
    pieces = ["[CLS]"]
    for word in prompt.lower().split():
        plural = word.endswith("s") and word[:-1] in WORDS
        pieces += [word[:-1], "##s"] if plural else [word]
    ids = [WORDS.index(piece) for piece in pieces[:34]] + [WORDS.index("[SEP]")]
    return ids + [0] * (35 - len(ids)), [1] * len(ids) + [0] * (35 - len(ids))


# --- a tiny checkpoint in the published format ----------------------------------------------------


@pytest.fixture
def tiny_sizes(monkeypatch):
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    monkeypatch.setattr(image_reward, "VIT", sizes)


def write(folder: Path, change: dict | None = None, med: dict = TINY) -> dict[str, torch.Tensor]:
    """The files as they are published; returns the weights."""
    weights = {**random_weights(published_layout(32, 2, TINY)), **(change or {})}
    weights = {name: value for name, value in weights.items() if value is not None}
    torch.save(weights, folder / "ImageReward.pt")
    (folder / "med_config.json").write_text(json.dumps(med))
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return weights


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_network_computes_what_the_authors_compute(tmp_path, tiny_sizes, dtype):
    weights = {name: value.to(dtype) for name, value in write(tmp_path).items()}
    network = image_reward.load_network(tmp_path / "ImageReward.pt").to(dtype)
    generator = torch.Generator().manual_seed(1)
    pixels = torch.randn(4, 3, 224, 224, generator=generator).to(dtype)
    ids = torch.randint(5, TINY["vocab_size"], (4, 35), generator=generator)
    mask = (torch.arange(35) < torch.tensor([35, 3, 20, 1])[:, None]).long()
    with torch.no_grad():
        truth = reward(weights, pixels, ids, mask, 4, 3)
        out = network(pixels, ids, mask)
    assert truth.std() > 0.02  # pictures and prompts matter, far above the tolerance
    assert torch.allclose(out, truth, atol=1e-10 if dtype == torch.float64 else 1e-5, rtol=0)


@pytest.mark.parametrize("batch_size", [1, 2, 32])
def test_checkpoint_to_score(tmp_path, tiny_sizes, pictures, prompts, batch_size):
    weights = {name: value.double() for name, value in write(tmp_path).items()}
    scorer = ImageReward.from_pretrained(tmp_path, batch_size=batch_size)
    long = " ".join(["a photo of two red circles and"] * 9)
    prompts = [*prompts[:-1], long]
    scores = scorer.score(prompts, pictures)
    ids, mask = (torch.tensor(part) for part in zip(*map(tokenize, prompts), strict=True))
    assert mask[-1].all()
    pixels = torch.stack([preprocess(picture) for picture in pictures])
    truth = (reward(weights, pixels, ids, mask, 4, 3) - 0.16717362830052426) / 1.0333394966054072
    assert truth.std() > 0.02  # pictures and prompts matter, far above the tolerance
    assert scores.dtype == torch.float32
    assert torch.allclose(scores.double(), truth, atol=2e-5, rtol=0)
    assert not scores.is_inference()
    assert scorer.device == torch.device("cpu")


def test_file_or_folder_pixels_or_pictures(tmp_path, tiny_sizes, pictures):
    write(tmp_path)
    scorer = ImageReward.from_pretrained(tmp_path / "ImageReward.pt")
    pixels = torch.from_numpy(np.stack([np.asarray(pictures[0])] * 2)).movedim(-1, 1)
    scores = scorer.score(["red", "blue"], pixels)
    same = ImageReward.from_pretrained(tmp_path).score(["red", "blue"], [pictures[0]] * 2)
    assert torch.equal(scores, same)
    assert scores[0] != scores[1]
    assert scorer.score([], []).shape == (0,)


def test_projections_and_positions_may_be_left_out(tmp_path, tiny_sizes, pictures):
    write(tmp_path)
    before = ImageReward.from_pretrained(tmp_path).score(["red"], pictures[:1])
    unused = [name for name in published_layout(32, 2, TINY) if "_proj." in name]
    unused.append("blip.text_encoder.embeddings.position_ids")
    write(tmp_path, dict.fromkeys(unused))
    assert torch.equal(ImageReward.from_pretrained(tmp_path).score(["red"], pictures[:1]), before)


@pytest.mark.parametrize("given", [2, 4])
def test_counts_that_do_not_pair(tmp_path, tiny_sizes, pictures, given):
    write(tmp_path)
    with pytest.raises(ValueError, match=f"{given} prompts .* 3 pictures"):
        ImageReward.from_pretrained(tmp_path).score(["red"] * given, pictures[:3])
    with pytest.raises(ValueError, match="not one string"):
        ImageReward.from_pretrained(tmp_path).score("red", pictures[:3])


# --- what does not fit ----------------------------------------------------------------------------

QKV = "blip.visual_encoder.blocks.1.attn.qkv.weight"
KEY = "blip.text_encoder.encoder.layer.0.crossattention.self.key.weight"
PATCH = "blip.visual_encoder.patch_embed.proj.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({QKV: None}, f"missing tensor {QKV}"),
        ({KEY: None}, f"missing tensor {KEY}"),
        ({"mlp.layers.7.bias": None}, "missing tensor mlp.layers.7.bias"),
        ({"blip.visual_encoder.blocks.2.norm1.bias": torch.zeros(32)}, "blocks.2.norm1.bias"),
        ({"text.pooler.dense.bias": torch.zeros(2)}, "unexpected tensor text.pooler.dense.bias"),
        ({KEY: torch.zeros(24, 24)}, f"tensor {KEY} has shape (24, 24), expected (24, 32)"),
        ({"blip.text_proj.bias": torch.zeros(3)}, "tensor blip.text_proj.bias has shape (3,)"),
        ({PATCH: torch.zeros(())}, f"tensor {PATCH} has shape (), expected (32, 3, 16, 16)"),
    ],
    ids=str,
)
def test_tensors_that_do_not_fit(tmp_path, tiny_sizes, change, message):
    write(tmp_path, change)
    with pytest.raises(InputError) as caught:
        ImageReward.from_pretrained(tmp_path)
    assert message in one_line(caught)
    assert "ImageReward.pt" in str(caught.value)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("ImageReward.pt", None, "ImageReward.pt"),
        ("ImageReward.pt", "junk", "ImageReward.pt"),
        ("med_config.json", None, "med_config.json"),
        ("med_config.json", json.dumps({**TINY, "hidden_size": "x"}), "med_config.json is no BERT"),
        ("med_config.json", json.dumps({**TINY, "hidden_size": 25}), "med_config.json is no BERT"),
        ("med_config.json", json.dumps({**TINY, "hidden_act": "x"}), "med_config.json is no BERT"),
        ("med_config.json", '{"hidden_size": 24}', "med_config.json has no vocab_size"),
        ("vocab.txt", None, "no vocab.txt in"),
        ("vocab.txt", "\n".join(WORDS[:-1]), f"has {len(WORDS) + 1} words"),
        ("vocab.txt", "", "words"),
    ],
)
def test_files_that_do_not_fit(tmp_path, tiny_sizes, file, content, message):
    write(tmp_path)
    (tmp_path / file).unlink()
    if content is not None:
        (tmp_path / file).write_text(content)
    with pytest.raises(InputError) as caught:
        ImageReward.from_pretrained(tmp_path)
    assert message in one_line(caught)
    assert str(tmp_path) in str(caught.value)


def one_line(caught) -> str:
    text = str(caught.value)
    assert "\n" not in text
    return text
