"""Anole and Lumina-mGPT: published files, layout, and pictures as a slow loop draws them.

Names and shapes are written down from transformers' conversion script
(`convert_chameleon_weights_to_hf.py`), and for Lumina-mGPT from the authors' copy of it; prompts
and the places of forced tokens from their scripts (GAIR-NLP/anole: `text2image.py`;
Alpha-VLLM/Lumina-mGPT: `inference_solver.py`, `data/item_processor.py`), not from our modules.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from zlib import crc32

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    ChameleonConfig,
    ChameleonForConditionalGeneration,
    PreTrainedTokenizerFast,
)

from mmspec import ImagePipeline, SpecConfig
from mmspec.errors import InputError
from mmspec.models.loading import load_component
from mmspec.models.transformers.chameleon import ChameleonForImageGeneration
from mmspec.models.transformers.chameleon_image import ChameleonImageModel

from .test_chameleon_vq import vqgan_layout

Layout = dict[str, tuple[int, ...]]


# --- the published layout -------------------------------------------------------------------------


def language_layout(
    dim: int = 4096,
    heads: int = 32,
    kv_heads: int = 32,
    hidden: int = 11008,
    layers: int = 32,
    vocab: int = 65536,
    norms: tuple[int, int] = (32, 32),
) -> Layout:
    """Chameleon-7B without its image tokenizer; `norms` rows of query and key norms a layer."""
    head_dim = dim // heads
    layout: Layout = {
        "model.embed_tokens.weight": (vocab, dim),
        "model.norm.weight": (dim,),
        "lm_head.weight": (vocab, dim),
    }
    for n in range(layers):
        at = f"model.layers.{n}"
        layout |= {
            f"{at}.input_layernorm.weight": (dim,),
            f"{at}.post_attention_layernorm.weight": (dim,),
            f"{at}.self_attn.q_proj.weight": (dim, dim),
            f"{at}.self_attn.k_proj.weight": (kv_heads * head_dim, dim),
            f"{at}.self_attn.v_proj.weight": (kv_heads * head_dim, dim),
            f"{at}.self_attn.o_proj.weight": (dim, dim),
            f"{at}.mlp.gate_proj.weight": (hidden, dim),
            f"{at}.mlp.up_proj.weight": (hidden, dim),
            f"{at}.mlp.down_proj.weight": (dim, hidden),
        }
        for part, rows in zip("qk", norms, strict=True):
            for kind in ("weight", "bias"):
                layout[f"{at}.self_attn.{part}_norm.{kind}"] = (rows, head_dim)
    return layout


def index_size(names: list[str], shards: int, total: int) -> int:
    """Bytes of the `model.safetensors.index.json` that transformers writes."""
    weight_map = dict.fromkeys(sorted(names), f"model-00001-of-{shards:05d}.safetensors")
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    return len(json.dumps(index, indent=2)) + 1


def test_full_size_has_the_published_tensors():
    """The hub lists the index of Anole-7b-v0.1-hf with 60.7 kB, Lumina-mGPT's with 34.4."""
    with torch.device("meta"):
        model = ChameleonForImageGeneration(ChameleonConfig(vocabulary_map={"<image>": 8711}))
    found = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    language = language_layout()
    tokenizer = {f"model.vqmodel.{name}": shape for name, shape in vqgan_layout().items()}
    assert found == language | tokenizer
    assert index_size(list(found), 3, 14 * 10**9) == pytest.approx(60_700, abs=50)
    assert index_size(list(language), 2, 14 * 10**9) == pytest.approx(34_400, abs=50)
    parameters = sum(math.prod(shape) for shape in language.values())
    assert parameters / 1e9 == pytest.approx(7.01, abs=0.05)  # as the hub counts Lumina-mGPT's


# --- tiny checkpoints in the published forms ------------------------------------------------------

CODES, DIM, HEADS, KV_HEADS, FACTOR = 24, 32, 4, 2, 2
WORDS = "a red blue circle two squares left of star nothing Generate an image according to the "
WORDS += "following prompt : 8x8 12x8 8x12"
SPECIAL = [
    "<s>",
    "<pad>",
    "</s>",
    "<unk>",
    "<racm3:break>",
    "<eoss>",
    "<image>",
    "<reserved08706>",
    *(f"<reserved{n:05d}>" for n in range(8799, 8805)),
]


def image_name(code: int) -> str:
    """Digits as letters: code 12 is IMGIMGBCZ."""
    return "IMGIMG" + "".join(chr(ord("A") + int(digit)) for digit in str(code)) + "Z"


def vocabulary() -> dict[str, int]:
    """Words of all kinds; the codes' ids are in another order than the codes."""
    order = torch.randperm(CODES, generator=torch.Generator().manual_seed(5)).tolist()
    names = [*SPECIAL[:4], *map(image_name, order), *SPECIAL[4:], *dict.fromkeys(WORDS.split())]
    return {name: number for number, name in enumerate(names)}


def text_tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel(vocabulary(), unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )


def random_weights(layout: Layout) -> dict[str, torch.Tensor]:
    weights = {}
    for name, shape in layout.items():
        generator = torch.Generator().manual_seed(crc32(name.encode()))
        noise = torch.randn(shape, generator=generator)
        matrix = len(shape) > 1 and "_norm" not in name
        scale = math.prod(shape[1:]) ** -0.5 if matrix else 0.3
        weights[name] = noise * scale + float("norm" in name and name.endswith("weight"))
    weights["lm_head.weight"] = weights["lm_head.weight"] * 4
    weights["model.embed_tokens.weight"] = weights["model.embed_tokens.weight"] * 6
    return weights


def tiny_weights(norms: tuple[int, int] = (HEADS, KV_HEADS)) -> dict[str, torch.Tensor]:
    """The language model and, under `model.vqmodel.`, the image tokenizer."""
    language = language_layout(DIM, HEADS, KV_HEADS, 48, 2, len(vocabulary()), norms)
    tokenizer = vqgan_layout((32, 32), blocks=1, z=32, dim=8, codes=CODES)
    return random_weights(
        language | {f"model.vqmodel.{name}": shape for name, shape in tokenizer.items()}
    )


def write(folder: Path, weights: dict[str, torch.Tensor], **options: object) -> Path:
    """A folder as it is published: configuration, weights, tokenizer."""
    folder.mkdir(exist_ok=True)
    config = {
        "architectures": ["ChameleonForConditionalGeneration"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": DIM,
        "intermediate_size": 48,
        "max_position_embeddings": 128,
        "mlp_bias": False,
        "model_parallel_size": 1,
        "model_type": "chameleon",
        "num_attention_heads": HEADS,
        "num_hidden_layers": 2,
        "num_key_value_heads": KV_HEADS,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "swin_norm": False,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.43.3",
        "vocab_size": len(vocabulary()),
        "vocabulary_map": vocabulary(),
        "vq_config": {
            "attn_resolutions": [],
            "base_channels": 32,
            "ch": 32,
            "ch_mult": [1, 1],
            "channel_multiplier": [1, 1],
            "embed_dim": 8,
            "latent_channels": 32,
            "model_type": "chameleon_vqgan",
            "n_embed": CODES,
            "num_embeddings": CODES,
            "num_res_blocks": 1,
            "out_ch": 3,
            "out_channels": 3,
            "resolution": 8,
        },
    } | options
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    text_tokenizer().save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    path.write_text(
        json.dumps(json.loads(path.read_text()) | {"tokenizer_class": "LlamaTokenizer"})
    )
    return folder


def anole(folder: Path, **options: object) -> Path:
    """Everything in one file, as leloy/Anole-7b-v0.1-hf."""
    return write(folder, tiny_weights(), **options)


def lumina(folder: Path, **options: object) -> Path:
    """Query and key norms per shard, the image tokenizer in Meta's file."""
    mine = "model.vqmodel."
    weights = tiny_weights(norms=(1, 1))
    vqgan = {n.removeprefix(mine): w for n, w in weights.items() if n.startswith(mine)}
    weights = {name: w for name, w in weights.items() if not name.startswith(mine)}
    write(folder, weights, mask_image_logits=False, dropout=0.05, **options)
    (folder / "tokenizer").mkdir()
    loss = {"loss.discriminator.main.0.weight": torch.zeros(3)}
    torch.save({"state_dict": vqgan | loss}, folder / "tokenizer" / "vqgan.ckpt")
    return folder


FORMS = {"anole": anole, "lumina-mgpt": lumina}


# --- pictures, slowly -----------------------------------------------------------------------------


class Slow:
    """transformers' own class, one row at a time, everything computed again for every token."""

    def __init__(self, form: str, **options: object) -> None:
        weights = tiny_weights((1, 1) if form == "lumina-mgpt" else (HEADS, KV_HEADS))
        for name, value in weights.items():
            if "q_norm" in name or "k_norm" in name:
                weights[name] = value.expand(HEADS if "q_norm" in name else KV_HEADS, -1)
        config = ChameleonConfig(
            vocab_size=len(vocabulary()),
            hidden_size=DIM,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=HEADS,
            num_key_value_heads=KV_HEADS,
            max_position_embeddings=128,
            vocabulary_map=vocabulary(),
            vq_config={
                "embed_dim": 8,
                "num_embeddings": CODES,
                "latent_channels": 32,
                "base_channels": 32,
                "channel_multiplier": [1, 1],
                "num_res_blocks": 1,
            },
            **options,
        )
        self.model = ChameleonForConditionalGeneration(config).eval()
        here = {n: w for n, w in weights.items() if not n.startswith("model.vqmodel.decoder.")}
        self.model.load_state_dict(here)
        self.form, self.vocab = form, vocabulary()

    def words(self, text: str) -> list[int]:
        text = text.replace(":", " : ")
        return [self.vocab["<s>"], *(self.vocab[w] for w in text.split()), self.vocab[SPECIAL[7]]]

    def logits(self, ids: list[int]) -> torch.Tensor:
        """Of the next token, before the image tokens are masked."""
        hidden = self.model.model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1]
        return self.model.lm_head.weight @ hidden

    @torch.no_grad()
    def draw(
        self, prompt: str, negative: str | None, scale: float, height: int, width: int
    ) -> tuple[list[int], torch.Tensor]:
        """The codes of a picture, greedily, and the laws `[N, V]` that they were drawn from."""
        vocab, (rows, columns) = self.vocab, (height // FACTOR, width // FACTOR)
        picture = [vocab["<racm3:break>"]]
        if self.form == "lumina-mgpt":
            says = f"Generate an image of {width}x{height} according to the following prompt:\n"
            prompt, told = says + prompt, None if negative is None else says + negative
            picture += [vocab[f"<reserved{8800 + n // 2:05d}>"] for n in (rows, columns)]
            alone: list[int] = []
        else:
            told, alone = negative, [vocab["<s>"]]
        with_prompt = self.words(prompt) + picture
        without = (alone if told is None else self.words(told)) + picture
        codes = {vocab[image_name(code)]: code for code in range(CODES)}
        allowed = torch.full((len(vocab),), -torch.inf)
        allowed[list(codes)] = 0
        drawn: list[int] = []
        laws = []
        lines = self.form == "lumina-mgpt"
        while len(drawn) < rows * (columns + lines):
            if lines and (len(drawn) + 1) % (columns + 1) == 0:
                drawn.append(vocab["<reserved08799>"])
                continue
            conditional = self.logits(with_prompt + drawn)
            unconditional = self.logits(without + drawn) if scale != 1 else conditional
            law = (scale * (conditional - unconditional) + unconditional + allowed).softmax(-1)
            laws.append(law[[vocab[image_name(code)] for code in range(CODES)]])
            drawn.append(int(law.argmax()))
        return [codes[token] for token in drawn if token in codes], torch.stack(laws)


PROMPTS = ["a red circle", "two blue squares left of a star"]
METHODS = ["plain", "sjd", "scd", "token-recycling", "prompt-lookup"]


@pytest.mark.parametrize(
    ("form", "size", "scale", "negative"),
    [
        ("anole", (8, 8), 3.0, None),
        ("anole", (8, 8), 2.0, "nothing of blue"),
        ("anole", (8, 8), 1.0, None),
        ("lumina-mgpt", (8, 12), 4.0, None),
        ("lumina-mgpt", (12, 8), 2.0, "nothing"),
    ],
)
def test_pictures_are_the_slow_loops(tmp_path, form, size, scale, negative):
    """Greedy float32, prompts of different lengths in one batch, with every method."""
    pipe = ImagePipeline.from_pretrained(FORMS[form](tmp_path / "model"))
    pipe.set_progress_bar_config(disable=True)
    slow = Slow(form)
    drawn = [slow.draw(prompt, negative, scale, *size) for prompt in PROMPTS]
    truth = torch.tensor([codes for codes, _ in drawn])
    assert truth.shape == (2, math.prod(size) // FACTOR**2)
    assert len(truth.unique()) > 5
    assert not torch.equal(truth[0], truth[1])
    forced = size[0] // FACTOR + 1 if form == "lumina-mgpt" else 0
    for method in METHODS:
        pipe.enable_speculation(SpecConfig(method=method))
        out = pipe(
            PROMPTS,
            negative,
            *size,
            guidance_scale=scale,
            temperature=0,
            output_type="tokens",
        )
        assert torch.equal(out.images, truth), method
        assert out.stats.fault is None
        assert out.stats.emitted == [truth.shape[1] + forced] * 2
    if negative is None:
        free = pipe.token_laws(PROMPTS, truth, scale, 1.0, 0, 1.0, *size)
        assert torch.allclose(free[..., :CODES], torch.stack([law for _, law in drawn]), atol=1e-5)
        assert not free[..., CODES:].any()


def test_swin_norm(tmp_path):
    """The 34B models' norms behind attention and feed-forward layers."""
    pipe = ImagePipeline.from_pretrained(anole(tmp_path / "model", swin_norm=True))
    pipe.set_progress_bar_config(disable=True)
    truth, _ = Slow("anole", swin_norm=True).draw(PROMPTS[0], None, 3.0, 8, 8)
    assert truth != Slow("anole").draw(PROMPTS[0], None, 3.0, 8, 8)[0]
    drawn = pipe(PROMPTS[0], temperature=0, output_type="tokens").images
    assert drawn[0].tolist() == truth


@pytest.mark.parametrize(("form", "size"), [("anole", (8, 8)), ("lumina-mgpt", (8, 12))])
def test_pixels(tmp_path, form, size):
    """The codes' vectors through Meta's decoder, [-1, 1] to [0, 1]."""
    pipe = ImagePipeline.from_pretrained(FORMS[form](tmp_path / "model"))
    pipe.set_progress_bar_config(disable=True)
    codes, images = (
        pipe(PROMPTS, None, *size, temperature=0, output_type=kind).images
        for kind in ("tokens", "pt")
    )
    assert images.shape == (2, 3, *size)
    weights = {n.removeprefix("model.vqmodel."): w for n, w in tiny_weights().items()}
    z = weights["quantize.embedding.weight"][codes]
    z = z.view(2, size[0] // FACTOR, size[1] // FACTOR, -1).permute(0, 3, 1, 2)
    z = torch.nn.functional.conv2d(
        z, weights["post_quant_conv.weight"], weights["post_quant_conv.bias"]
    )
    with torch.no_grad():
        truth = pipe.model.model.vqmodel.decoder(z).clamp(-1, 1) / 2 + 0.5
    assert torch.allclose(images, truth, atol=1e-5)
    assert torch.equal(
        pipe.image_model(pipe.model).codebook(), weights["quantize.embedding.weight"]
    )


@pytest.mark.parametrize("form", FORMS)
def test_saved_and_loaded_again(tmp_path, form):
    """In one folder and in transformers' names, whatever it was read from."""
    pipe = ImagePipeline.from_pretrained(FORMS[form](tmp_path / "model"))
    pipe.save_pretrained(tmp_path / "again")
    again = ImagePipeline.from_pretrained(tmp_path / "again")
    assert again.model.config.image_layout == form
    stored = load_file(tmp_path / "again" / "model.safetensors")
    expected = tiny_weights()
    assert {n: w.shape for n, w in stored.items()} == {n: w.shape for n, w in expected.items()}
    for part in (pipe, again):
        part.set_progress_bar_config(disable=True)
        part.enable_speculation(SpecConfig(method="scd"))
    first, second = (
        part(PROMPTS, generator=torch.Generator().manual_seed(0), output_type="tokens")
        for part in (pipe, again)
    )
    assert torch.equal(first.images, second.images)
    assert first.stats.contract == "exact"


def test_what_the_authors_draw_with(tmp_path):
    for form, expected in (("anole", (3.0, 0)), ("lumina-mgpt", (4.0, 2000))):
        folder = FORMS[form](tmp_path / form)
        model = load_component(ChameleonForImageGeneration, folder, torch.float32)
        family = ChameleonImageModel(model, text_tokenizer())
        assert (family.guidance_scale, family.top_k) == expected
        assert family.default_size == (8, 8)


# --- what does not fit ----------------------------------------------------------------------------


def refused(folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        ImagePipeline.from_pretrained(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model.vqmodel.decoder.conv_out.bias": None},
            "missing tensor model.vqmodel.decoder.conv",
        ),
        ({"lm_head.weight": None}, "missing tensor lm_head.weight"),
        ({"model.vqmodel.odd": torch.zeros(3)}, "unexpected tensor model.vqmodel.odd"),
        (
            {"model.layers.1.self_attn.q_norm.bias": torch.zeros(3, 8)},
            "tensor model.layers.1.self_attn.q_norm.bias has shape (3, 8), expected (4, 8)",
        ),
    ],
    ids=["no bias", "no head", "odd", "norms"],
)
def test_tensors_that_do_not_fit(tmp_path, change, message):
    weights = {n: w for n, w in (tiny_weights() | change).items() if w is not None}
    assert message in refused(write(tmp_path / "model", weights))


def test_no_image_decoder(tmp_path):
    folder = lumina(tmp_path / "model")
    (folder / "tokenizer" / "vqgan.ckpt").rename(folder / "vqgan.ckpt")
    ImagePipeline.from_pretrained(folder)  # also found there
    (folder / "vqgan.ckpt").unlink()
    assert "copy tokenizer/vqgan.ckpt" in refused(folder)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_layout": "emu3"}, "image_layout must be anole or lumina-mgpt, not 'emu3'"),
        ({"num_attention_heads": "four"}, "num_attention_heads"),
        ({"vocabulary_map": None}, "no vocabulary_map"),
        ({"vq_config": {"attn_resolutions": [16]}}, "attn_resolutions"),
    ],
    ids=["layout", "heads", "words", "attention"],
)
def test_configurations_that_do_not_fit(tmp_path, options, message):
    assert message in refused(anole(tmp_path / "model", **options))


def test_words_that_are_missing(tmp_path):
    names = vocabulary()
    del names["<eoss>"]
    with pytest.raises(InputError, match="vocabulary_map has no <eoss>"):
        ImagePipeline.from_pretrained(lumina(tmp_path / "one", vocabulary_map=names))
    names = vocabulary()
    del names[image_name(7)]
    with pytest.raises(InputError, match="no token for code 7"):
        ImagePipeline.from_pretrained(anole(tmp_path / "two", vocabulary_map=names))


def test_sizes_that_are_not_drawn(tmp_path):
    pipe = ImagePipeline.from_pretrained(anole(tmp_path / "anole"))
    with pytest.raises(InputError, match="draws 8×8 px, not 8×12"):
        pipe(PROMPTS, height=8, width=12)
    pipe = ImagePipeline.from_pretrained(lumina(tmp_path / "lumina"))
    for height, width in ((8, 10), (0, 8), (-4, 8)):
        with pytest.raises(InputError, match="multiples of 4 px"):
            pipe(PROMPTS, height=height, width=width)
    with pytest.raises(InputError, match="<reserved08805>"):
        pipe(PROMPTS, height=20, width=4)
    pipe = ImagePipeline.from_pretrained(lumina(tmp_path / "short", max_position_embeddings=64))
    with pytest.raises(InputError, match="64 positions"):
        pipe(PROMPTS, height=16, width=16)
