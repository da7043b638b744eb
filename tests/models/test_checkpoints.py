"""Published LlamaGen checkpoints: every name and shape, the arithmetic, and strict loading.

The layout and the arithmetic are written down from the authors' repository
(FoundationVision/LlamaGen: `autoregressive/models/gpt.py`, `generate.py` and
`tokenizer/tokenizer_image/vq_model.py`), not from our modules.
"""

from __future__ import annotations

import math
import os
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import T5Config, T5EncoderModel, T5ForConditionalGeneration

from mmspec import ImagePipeline, SpecConfig
from mmspec.errors import InputError
from mmspec.models.llamagen import published
from mmspec.models.llamagen.published import SIZES, load_llamagen, load_vq
from mmspec.models.llamagen.transformer import LlamaGenTransformer
from mmspec.models.llamagen.vq import VQModel
from mmspec.models.loading import load_component
from mmspec.models.text_encoder import encode_captions
from mmspec.train.tokenizers import caption_tokenizer

Layout = dict[str, tuple[int, ...]]

# --- the published layout -------------------------------------------------------------------------


def llamagen_layout(
    dim: int = 1280, layers: int = 36, vocab: int = 16384, prefix: int = 120, caption: int = 2048
) -> Layout:
    """GPT-XL for text to image; attention without grouping, SwiGLU rounded up to 256."""
    hidden = math.ceil(int(2 * 4 * dim / 3) / 256) * 256
    layout: Layout = {
        "cls_embedding.uncond_embedding": (prefix, caption),
        "cls_embedding.cap_proj.fc1.weight": (dim, caption),
        "cls_embedding.cap_proj.fc2.weight": (dim, dim),
        "tok_embeddings.weight": (vocab, dim),
        "norm.weight": (dim,),
        "output.weight": (vocab, dim),
    }
    for n in range(layers):
        layout |= {
            f"layers.{n}.attention.wqkv.weight": (3 * dim, dim),
            f"layers.{n}.attention.wo.weight": (dim, dim),
            f"layers.{n}.feed_forward.w1.weight": (hidden, dim),
            f"layers.{n}.feed_forward.w3.weight": (hidden, dim),
            f"layers.{n}.feed_forward.w2.weight": (dim, hidden),
            f"layers.{n}.attention_norm.weight": (dim,),
            f"layers.{n}.ffn_norm.weight": (dim,),
        }
    return layout


def vq_layout(
    widths: tuple[int, ...] = (128, 128, 256, 256, 512),
    blocks: int = 2,
    z: int = 256,
    codes: int = 16384,
) -> Layout:
    """VQ-16 (VQ-8 has four levels): 128 channels times 1, 1, 2, 2, 4, attention where smallest."""
    layout: Layout = {}

    def conv(name: str, outward: int, inward: int, side: int) -> None:
        layout[f"{name}.weight"] = (outward, inward, side, side)
        layout[f"{name}.bias"] = (outward,)

    def norm(name: str, width: int) -> None:
        layout[f"{name}.weight"] = layout[f"{name}.bias"] = (width,)

    def resnet(name: str, inward: int, outward: int) -> None:
        norm(f"{name}.norm1", inward)
        conv(f"{name}.conv1", outward, inward, 3)
        norm(f"{name}.norm2", outward)
        conv(f"{name}.conv2", outward, outward, 3)
        if inward != outward:
            conv(f"{name}.nin_shortcut", outward, inward, 1)

    def attention(name: str, width: int) -> None:
        norm(f"{name}.norm", width)
        for part in ("q", "k", "v", "proj_out"):
            conv(f"{name}.{part}", width, width, 1)

    def half(name: str, inward: list[int], outward: list[int], count: int, smallest: int) -> None:
        resample = "downsample" if name == "encoder" else "upsample"
        for level, (a, b) in enumerate(zip(inward, outward, strict=True)):
            at = f"{name}.conv_blocks.{level}"
            for n in range(count):
                resnet(f"{at}.res.{n}", a if n == 0 else b, b)
                if level == smallest:
                    attention(f"{at}.attn.{n}", b)
            if level < len(widths) - 1:
                conv(f"{at}.{resample}.conv", b, b, 3)
        resnet(f"{name}.mid.0", widths[-1], widths[-1])
        attention(f"{name}.mid.1", widths[-1])
        resnet(f"{name}.mid.2", widths[-1], widths[-1])
        norm(f"{name}.norm_out", outward[-1])

    down, up = list(widths), list(reversed(widths))
    half("encoder", [down[0], *down[:-1]], down, blocks, smallest=len(down) - 1)
    half("decoder", [up[0], *up[:-1]], up, blocks + 1, smallest=0)
    conv("encoder.conv_in", widths[0], 3, 3)
    conv("encoder.conv_out", z, widths[-1], 3)
    conv("decoder.conv_in", widths[-1], z, 3)
    conv("decoder.conv_out", 3, widths[0], 3)
    conv("quant_conv", 8, z, 1)
    conv("post_quant_conv", z, 8, 1)
    layout["quantize.embedding.weight"] = (codes, 8)
    layout["quantize.codebook_used"] = (65536,)
    return layout


def shapes(model: torch.nn.Module) -> Layout:
    return {name: tuple(value.shape) for name, value in model.state_dict().items()}


def millions(layout: Layout) -> float:
    return sum(math.prod(shape) for shape in layout.values()) / 1e6


def test_llamagen_xl_has_the_published_tensors():
    layout = llamagen_layout()
    with torch.device("meta"):
        model = LlamaGenTransformer(
            vocab_size=16384, block_size=256, dim=1280, caption_dim=2048, **SIZES[1280]
        )
    assert shapes(model) == layout
    assert len(layout) == 6 + 7 * 36
    assert millions(layout) == pytest.approx(775, rel=0.01)  # as the paper counts it


@pytest.mark.parametrize(
    ("mult", "widths"),
    [((1, 1, 2, 2, 4), (128, 128, 256, 256, 512)), ((1, 2, 2, 4), (128, 256, 256, 512))],
    ids=["VQ-16", "VQ-8"],
)
def test_vq_has_the_published_tensors(mult, widths):
    with torch.device("meta"):
        model = VQModel(ch_mult=mult)
    assert shapes(model) == vq_layout(widths)
    assert millions(vq_layout(widths)) == pytest.approx(72, rel=0.03)
    assert model.downsample_factor == 2 ** (len(mult) - 1)


# --- the published arithmetic, plainly ------------------------------------------------------------


def random_weights(layout: Layout, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in layout.items():
        noise = torch.randn(shape, generator=generator)
        fan_in = math.prod(shape[1:]) if len(shape) > 1 else 10
        weights[name] = noise / fan_in**0.5 + float("norm" in name and name.endswith("weight"))
    return weights


def rms_norm(x, weight):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * weight


def turn(x, table):
    """Neighbouring pairs of `x [B, S, heads, head_dim]` by (cos, sin) in `table [S, ·, 2]`."""
    pairs = x.reshape(*x.shape[:-1], -1, 2)  # the authors turn in float32, this in x's precision
    cos, sin = table[:, None, :, 0], table[:, None, :, 1]
    real = pairs[..., 0] * cos - pairs[..., 1] * sin
    imaginary = pairs[..., 1] * cos + pairs[..., 0] * sin
    return torch.stack([real, imaginary], -1).flatten(3).type_as(x)


def llamagen(weights, tokens, features, mask, heads, table):
    """Logits `[B, S + 1, V]` after a prefix of projected captions."""
    w = weights.__getitem__
    prefix = F.gelu(features @ w("cls_embedding.cap_proj.fc1.weight").T, approximate="tanh")
    prefix = prefix @ w("cls_embedding.cap_proj.fc2.weight").T
    return from_prefix(weights, tokens, prefix, mask, heads, table)


def from_prefix(weights, tokens, prefix, mask, heads, table):
    """Logits `[B, S + 1, V]`: a prefix `[B, T, D]`, then tokens, without a cache."""
    w = weights.__getitem__
    h = torch.cat([prefix, w("tok_embeddings.weight")[tokens]], 1)
    batch, length, dim = h.shape
    sight = torch.ones(length, length).tril().repeat(batch, 1, 1)
    sight[:, :, : mask.shape[1]] *= mask[:, None]  # padding is seen by nobody
    eye = torch.eye(length)
    sight = (sight * (1 - eye) + eye)[:, None] > 0  # but every place sees itself
    for n in range(sum(name.endswith("wqkv.weight") for name in weights)):
        x = rms_norm(h, w(f"layers.{n}.attention_norm.weight"))
        q, k, v = (x @ w(f"layers.{n}.attention.wqkv.weight").T).split(dim, -1)
        q, k, v = (part.view(batch, length, heads, dim // heads) for part in (q, k, v))
        q, k, v = (part.transpose(1, 2) for part in (turn(q, table), turn(k, table), v))
        scores = q @ k.transpose(2, 3) / (dim // heads) ** 0.5
        seen = scores.masked_fill(~sight, -torch.inf).softmax(-1) @ v
        h = h + seen.transpose(1, 2).reshape(batch, length, dim) @ (
            w(f"layers.{n}.attention.wo.weight").T
        )
        x = rms_norm(h, w(f"layers.{n}.ffn_norm.weight"))
        gate = F.silu(x @ w(f"layers.{n}.feed_forward.w1.weight").T)
        up = x @ w(f"layers.{n}.feed_forward.w3.weight").T
        h = h + (gate * up) @ w(f"layers.{n}.feed_forward.w2.weight").T
    logits = rms_norm(h, w("norm.weight")) @ w("output.weight").T
    return logits[:, mask.shape[1] - 1 :]


def rotary_table(grid: int, head_dim: int, prefix: int) -> torch.Tensor:
    """(cos, sin) `[prefix + grid², head_dim / 2, 2]`, zero on the prefix, entry by entry."""
    table = torch.zeros(prefix + grid * grid, head_dim // 2, 2, dtype=torch.float64)
    quarter = head_dim // 4
    for row in range(grid):
        for column in range(grid):
            for pair in range(head_dim // 2):
                place = row if pair < quarter else column
                angle = place / 10000 ** (2 * (pair % quarter) / (head_dim // 2))
                table[prefix + row * grid + column, pair, 0] = math.cos(angle)
                table[prefix + row * grid + column, pair, 1] = math.sin(angle)
    return table


TINY = dict(dim=32, layers=2, vocab=64, prefix=16, caption=32)


@pytest.fixture
def tiny_sizes(monkeypatch):
    """The loaders of released checkpoints, for checkpoints of tiny sizes."""
    monkeypatch.setitem(published.SIZES, 32, {"n_layer": 2, "n_head": 2})
    small = partial(VQModel, codebook_size=64, ch=32, z_channels=32, num_res_blocks=1)
    monkeypatch.setattr(published, "VQModel", small)


def test_rotary_positions():
    model = LlamaGenTransformer(64, 25, 32, 1, 2, cls_token_num=3, caption_dim=4)
    ours = torch.view_as_real(model.rotary()).double()
    assert torch.allclose(ours, rotary_table(5, 16, 3), atol=2e-7)
    corner = torch.view_as_real(model.rotary(2)).double()
    assert torch.allclose(corner, rotary_table(2, 16, 3), atol=2e-7)


def test_transformer_computes_what_the_authors_compute():
    """All but the precision of the table above: 1e-10."""
    layout = llamagen_layout(**TINY)
    model = LlamaGenTransformer(64, 16, 32, 2, 2, cls_token_num=16, caption_dim=32)
    model.load_state_dict(random_weights(layout))
    model.double()
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(64, (3, 15), generator=generator)
    features = torch.randn(3, 16, 32, generator=generator).double()
    mask = torch.arange(16) >= torch.tensor([[0], [5], [15]])
    table = torch.view_as_real(model.rotary())[:31]
    with torch.no_grad():
        truth = llamagen(model.state_dict(), tokens, features, mask, 2, table)
        ours = model(tokens, model.cls_embedding(features), mask)
        assert torch.allclose(ours, truth, atol=1e-10, rtol=0)
        every = torch.ones_like(mask)
        truth = llamagen(model.state_dict(), tokens, features, every, 2, table)
        assert torch.allclose(model(tokens, model.cls_embedding(features)), truth, atol=1e-10)


def resnet(w, name, x):
    h = x
    for n in ("1", "2"):
        norm = [w[f"{name}.norm{n}.{part}"] for part in ("weight", "bias")]
        h = F.group_norm(h, 32, *norm, eps=1e-6)
        h = F.conv2d(h * h.sigmoid(), w[f"{name}.conv{n}.weight"], w[f"{name}.conv{n}.bias"], 1, 1)
    if f"{name}.nin_shortcut.weight" in w:
        x = F.conv2d(x, w[f"{name}.nin_shortcut.weight"], w[f"{name}.nin_shortcut.bias"])
    return x + h


def attention(w, name, x):
    batch, width, rows, columns = x.shape
    h = F.group_norm(x, 32, w[f"{name}.norm.weight"], w[f"{name}.norm.bias"], eps=1e-6)
    q, k, v = (
        F.conv2d(h, w[f"{name}.{part}.weight"], w[f"{name}.{part}.bias"]).flatten(2)
        for part in "qkv"
    )
    weight = (torch.einsum("bci,bcj->bij", q, k) * width**-0.5).softmax(2)
    h = torch.einsum("bcj,bij->bci", v, weight).view(batch, width, rows, columns)
    return x + F.conv2d(h, w[f"{name}.proj_out.weight"], w[f"{name}.proj_out.bias"])


def levels(w, name, h):
    """The resolutions of one half: blocks, attention after each where there is one, resampling."""
    level = 0
    while f"{name}.conv_blocks.{level}.res.0.norm1.weight" in w:
        at, n = f"{name}.conv_blocks.{level}", 0
        while f"{at}.res.{n}.norm1.weight" in w:
            h = resnet(w, f"{at}.res.{n}", h)
            if f"{at}.attn.{n}.norm.weight" in w:
                h = attention(w, f"{at}.attn.{n}", h)
            n += 1
        for kind, stride in (("downsample", 2), ("upsample", 1)):
            if f"{at}.{kind}.conv.weight" in w:
                resampled = h.repeat_interleave(2, 2).repeat_interleave(2, 3)
                h = F.pad(h, (0, 1, 0, 1)) if stride == 2 else F.pad(resampled, (1, 1, 1, 1))
                h = F.conv2d(h, w[f"{at}.{kind}.conv.weight"], w[f"{at}.{kind}.conv.bias"], stride)
        level += 1
    return h


def middle(w, name, h):
    h = resnet(w, f"{name}.mid.0", h)
    return resnet(w, f"{name}.mid.2", attention(w, f"{name}.mid.1", h))


def ends(w, name, h):
    h = F.group_norm(h, 32, w[f"{name}.norm_out.weight"], w[f"{name}.norm_out.bias"], eps=1e-6)
    return F.conv2d(h * h.sigmoid(), w[f"{name}.conv_out.weight"], w[f"{name}.conv_out.bias"], 1, 1)


def vq_encode(w, pixels):
    """Unit latents `[B, h, w, 8]` and the nearest codes' ids `[B, h · w]`."""
    h = F.conv2d(pixels, w["encoder.conv_in.weight"], w["encoder.conv_in.bias"], 1, 1)
    h = ends(w, "encoder", middle(w, "encoder", levels(w, "encoder", h)))
    z = F.conv2d(h, w["quant_conv.weight"], w["quant_conv.bias"]).permute(0, 2, 3, 1)
    z = z / z.norm(dim=-1, keepdim=True)
    codes = w["quantize.embedding.weight"]
    codes = codes / codes.norm(dim=-1, keepdim=True)
    return z, (z[..., None, :] - codes).norm(dim=-1).argmin(-1).flatten(1)


def vq_decode(w, tokens, rows, columns):
    codes = w["quantize.embedding.weight"]
    codes = codes / codes.norm(dim=-1, keepdim=True)
    z = codes[tokens].view(len(tokens), rows, columns, 8).permute(0, 3, 1, 2)
    h = F.conv2d(z, w["post_quant_conv.weight"], w["post_quant_conv.bias"])
    h = F.conv2d(h, w["decoder.conv_in.weight"], w["decoder.conv_in.bias"], 1, 1)
    return ends(w, "decoder", levels(w, "decoder", middle(w, "decoder", h)))


@pytest.mark.parametrize("mult", [(1,), (1, 2)], ids=str)
def test_vq_computes_what_the_authors_compute(mult):
    layout = vq_layout(tuple(32 * m for m in mult), blocks=1, z=32, codes=64)
    weights = {name: value.double() for name, value in random_weights(layout).items()}
    model = VQModel(codebook_size=64, ch=32, ch_mult=mult, num_res_blocks=1, z_channels=32)
    model.double().load_state_dict(weights)
    pixels = torch.rand(2, 3, 8, 12, generator=torch.Generator().manual_seed(1)).double() * 2 - 1
    rows, columns = 8 // model.downsample_factor, 12 // model.downsample_factor
    with torch.no_grad():
        z, ids = vq_encode(weights, pixels)
        assert torch.allclose(model.latents(pixels).permute(0, 2, 3, 1), z, atol=1e-10)
        assert torch.equal(model.encode(pixels), ids)
        assert len(ids.unique()) > 3
        truth = vq_decode(weights, ids, rows, columns)
        assert truth.shape == pixels.shape
        assert torch.allclose(model.decode(ids, rows, columns), truth, atol=1e-10)


# --- a checkpoint in the published format, from file to picture -----------------------------------


@pytest.fixture(scope="module")
def text_folder(tmp_path_factory) -> Path:
    """A tiny flan-T5 as it is published: encoder, decoder and untied head, with its tokenizer."""
    folder, words = tmp_path_factory.mktemp("flan"), caption_tokenizer()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = T5Config(
            vocab_size=len(words),
            d_model=32,
            d_kv=8,
            d_ff=32,
            num_layers=1,
            num_heads=2,
            feed_forward_proj="gated-gelu",
            tie_word_embeddings=False,
        )
        T5ForConditionalGeneration(config).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def write(path: Path, layout: Layout, key: str = "model", **extra: object) -> Path:
    weights = random_weights(layout)
    weights["output.weight"] = weights.get("output.weight", torch.zeros(0)) * 4
    if "norm.weight" not in layout:
        del weights["output.weight"]
    torch.save({key: {**weights, **extra.pop("tensors", {})}, **extra}, path)
    return path


def vq_file(tmp_path: Path) -> Path:
    layout = vq_layout((32, 32, 64, 64, 128), blocks=1, z=32, codes=64)
    return write(tmp_path / "vq_ds16_t2i.pt", layout, steps=3)


@pytest.mark.slow
@pytest.mark.parametrize(("key", "freqs"), [("model", False), ("module", True)])
def test_checkpoint_to_picture(tmp_path, text_folder, tiny_sizes, key, freqs):
    """Greedy tokens equal a slow loop over the plain arithmetic, guidance and padding included."""
    tensors = {"freqs_cis": torch.zeros(16 + 256, 8, 2)} if freqs else {}
    path = tmp_path / "t2i_XL_stage1_256.pt"
    write(path, llamagen_layout(**TINY), key, tensors=tensors)
    told = {} if freqs else {"image_size": 256}
    pipe = ImagePipeline.from_llamagen(
        path, vq_file(tmp_path), text_folder, dtype=torch.float64, **told
    )
    pipe.set_progress_bar_config(disable=True)
    assert (pipe.default_size, pipe.transformer.grid) == (256, 16)
    prompts = ["a photo of a red circle", "a photo of a blue square left of a white ring"]
    out = pipe(prompts, guidance_scale=3.0, temperature=0, output_type="pt")
    assert out.images.shape == (2, 3, 256, 256)
    assert out.stats.emitted == [256, 256]

    steps = 40
    drawn = pipe(prompts, guidance_scale=3.0, temperature=0, output_type="tokens").images
    weights = pipe.transformer.state_dict()
    features, mask = encode_captions(pipe.tokenizer, pipe.text_encoder, prompts, 16)
    nothing = weights["cls_embedding.uncond_embedding"].expand(2, -1, -1)
    table, tokens = rotary_table(16, 16, 16).float(), torch.zeros(2, 0, dtype=torch.long)
    with torch.no_grad():
        both, masks = torch.cat([features, nothing]), mask.repeat(2, 1)
        for _ in range(steps):
            rows = tokens.repeat(2, 1)
            length = 16 + tokens.shape[1]
            logits = llamagen(weights, rows, both, masks, 2, table[:length])[:, -1]
            guided = logits[2:] + 3.0 * (logits[:2] - logits[2:])
            tokens = torch.cat([tokens, guided.argmax(-1)[:, None]], 1)
    assert torch.equal(drawn[:, :steps], tokens)
    assert len(tokens.unique()) > 3


def test_checkpoint_speculates_and_is_saved(tmp_path, text_folder, tiny_sizes):
    path = write(tmp_path / "t2i_XL_stage1_256.pt", llamagen_layout(**TINY))
    pipe = ImagePipeline.from_llamagen(path, vq_file(tmp_path), text_folder, image_size=256)
    pipe.save_pretrained(tmp_path / "folder")
    again = ImagePipeline.from_pretrained(tmp_path / "folder")
    for part in (pipe, again):
        part.set_progress_bar_config(disable=True)
        part.enable_speculation(SpecConfig(method="sjd"))
    first, second = (
        part("a red circle", generator=torch.Generator().manual_seed(0), output_type="tokens")
        for part in (pipe, again)
    )
    assert torch.equal(first.images, second.images)
    assert first.stats.contract == "exact"
    for part in (pipe, again):  # what the authors draw with stays with the checkpoint
        family = part.image_model(part.transformer)
        assert (family.guidance_scale, family.top_k) == (7.5, 1000)
        assert part.transformer.config.clean_captions


def test_arguments_beside_the_weights(tmp_path, tiny_sizes):
    """As the authors' training scripts save them: optimizer, step count, parsed arguments."""
    from argparse import Namespace

    path = write(
        tmp_path / "0100000.pt",
        llamagen_layout(**TINY),
        optimizer={"state": {}},
        args=Namespace(gpt_model="GPT-XL"),
    )
    assert load_llamagen(path, torch.bfloat16, 16).output.weight.dtype == torch.bfloat16


# --- what does not fit ----------------------------------------------------------------------------


class Code:
    """Makes a folder when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def one_line(caught) -> str:
    text = str(caught.value)
    assert "\n" not in text
    assert "\x1b" not in text
    return text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers.1.attention.wo.weight": None}, "missing tensor layers.1.attention.wo.weight"),
        ({"tok_embeddings.weight": None}, "missing tensor tok_embeddings.weight"),
        ({"layers.2.norm.bias": torch.zeros(3)}, "unexpected tensor layers.2.norm.bias"),
        (
            {"norm.weight": torch.zeros(31)},
            "tensor norm.weight has shape (31,), expected (32,)",
        ),
        ({"tok_embeddings.weight": torch.zeros(64, 48)}, "48 wide"),
        ({"tok_embeddings.weight": torch.zeros(64)}, "tok_embeddings.weight"),
        ({"layers.0.ffn_norm.weight": "text"}, "no state dict"),
        ({3: torch.zeros(2)}, "no state dict"),
    ],
    ids=str,
)
def test_transformers_that_do_not_fit(tmp_path, tiny_sizes, change, message):
    weights = {**random_weights(llamagen_layout(**TINY)), **change}
    weights = {name: value for name, value in weights.items() if value is not None}
    path = tmp_path / "weights.pt"
    torch.save({"model": weights}, path)
    with pytest.raises(InputError) as caught:
        load_llamagen(path, grid=4)
    assert message in one_line(caught)
    assert str(path) in one_line(caught)


def test_tokenizer_that_does_not_fit(tmp_path, tiny_sizes):
    layout = vq_layout((32, 32, 64, 64, 128), blocks=1, z=32, codes=64)
    del layout["quantize.codebook_used"]
    with pytest.raises(InputError, match=r"missing tensor quantize\.codebook_used"):
        load_vq(write(tmp_path / "vq.pt", layout))


def test_code_is_not_run(tmp_path):
    marker = tmp_path / "ran"
    path = tmp_path / "weights.pt"
    torch.save({"model": {"a": torch.zeros(2)}, "args": Code(marker)}, path)
    for loader in (load_llamagen, load_vq):
        with pytest.raises(InputError, match=r"holds code \(posix\.mkdir\)") as caught:
            loader(path)
        one_line(caught)
    assert not marker.exists()
    torch.load(path, weights_only=False)
    assert marker.exists()  # it would have


@pytest.mark.parametrize(
    "content", [b"", b"hello", b"PK\x03\x04 nothing", "list", "tensor", "folder", None], ids=str
)
def test_not_a_checkpoint(tmp_path, content):
    path = tmp_path / "weights.pt"
    if content == "folder":
        path.mkdir()
    elif content in ("list", "tensor"):
        torch.save([1, 2] if content == "list" else torch.zeros(3), path)
    elif content is not None:
        path.write_bytes(content)
    for loader in (load_llamagen, load_vq):
        with pytest.raises(InputError) as caught:
            loader(path)
        assert str(path) in one_line(caught)


def test_truncated_checkpoint(tmp_path):
    path = write(tmp_path / "weights.pt", llamagen_layout(**TINY))
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(InputError, match=r"weights\.pt"):
        load_llamagen(path)


TENSORS = [
    ("transformer", "layers.0.attention.wo.weight"),
    ("vq_model", "quant_conv.bias"),
    ("text_encoder", "encoder.final_layer_norm.weight"),
    ("drafter", "output.weight"),
]


@pytest.mark.parametrize(("part", "name"), TENSORS)
@pytest.mark.parametrize("change", ["missing", "unexpected", "shape"])
def test_pipeline_folders_that_do_not_fit(tiny_folder, tmp_path, part, name, change, capfd):
    folder = shutil.copytree(tiny_folder, tmp_path / "image")
    (path,) = (folder / part).glob("*.safetensors")
    weights = load_file(path)
    value = weights.pop(name)
    if change != "missing":
        weights[name] = value
        name = name if change == "shape" else "odd.weight"
        weights[name] = torch.zeros(7)
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(InputError) as caught:
        ImagePipeline.from_pretrained(folder)
    expected = f"has shape (7,), expected {tuple(value.shape)}"
    said = f"tensor {name} {expected}" if change == "shape" else f"{change} tensor {name}"
    assert said in one_line(caught)
    assert str(folder / part) in one_line(caught)
    assert "LOAD REPORT" not in capfd.readouterr().err


FILES = [
    ("transformer", "config.json"),
    ("transformer", "diffusion_pytorch_model.safetensors"),
    ("text_encoder", "config.json"),
    ("text_encoder", "model.safetensors"),
    ("tokenizer", "tokenizer.json"),
]


@pytest.mark.parametrize(("part", "file"), FILES)
@pytest.mark.parametrize("content", [b"", b"junk", b"[]", b'{"dim": "x", "d_model": "x"}', None])
def test_damaged_files(tiny_folder, tmp_path, part, file, content):
    folder = shutil.copytree(tiny_folder, tmp_path / "image")
    path = folder / part / file
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        ImagePipeline.from_pretrained(folder)
    assert str(folder / part) in one_line(caught)


@pytest.mark.parametrize("index", ["{}", '{"weight_map": {"a": 3}}', '{"weight_map": {"a": "b"}}'])
def test_damaged_shard_index(tiny_folder, tmp_path, index):
    folder = shutil.copytree(tiny_folder, tmp_path / "image")
    name = "diffusion_pytorch_model.safetensors.index.json"
    (folder / "transformer" / name).write_text(index)
    with pytest.raises(InputError, match="transformer"):
        ImagePipeline.from_pretrained(folder)


def test_flan_t5_is_read_without_its_decoder(text_folder):
    encoder = load_component(T5EncoderModel, text_folder, torch.float32)
    stored = load_file(text_folder / "model.safetensors")
    assert "decoder.final_layer_norm.weight" in stored
    name = "encoder.block.0.layer.1.DenseReluDense.wo.weight"
    assert torch.equal(encoder.state_dict()[name], stored[name])
