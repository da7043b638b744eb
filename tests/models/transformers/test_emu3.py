"""Emu3 through the pipeline: token by token what transformers' own `generate` draws."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from knobs import with_knobs
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    Emu3Config,
    Emu3ForConditionalGeneration,
    Emu3ImageProcessor,
    Emu3Processor,
    GenerationConfig,
    PreTrainedTokenizerFast,
)

from mmspec import ImagePipeline, SpecConfig
from mmspec.errors import InputError
from mmspec.eval.measure.speed import bare_costs
from mmspec.models.token_grid import TokenGrid
from mmspec.pipelines.image.transformers_pipeline import TransformersImagePipeline

CODES, FACTOR = 20, 8
ROWS, COLUMNS = 3, 4
SIZE = dict(height=ROWS * FACTOR, width=COLUMNS * FACTOR)
PROMPTS = ["a red fox", "a very small blue bird on an old red roof", "fox"]
NEGATIVE = "a blue roof"
WORDS = ["a", "an", "on", "very", "small", "old", "red", "blue", "fox", "bird", "roof"]
MARKS = ["<|image start|>", "<|image end|>", "<|image token|>", "<image>", "<unk>", "*"]
MARKS += ["<|endoftext|>", *(f"<|extra_{n}|>" for n in (200, 201, 203, 204))]
VISUAL = [f"<|visual token {n:06d}|>" for n in range(CODES)]
# the codes' words are out of order, and not the last ones
VOCABULARY = {
    word: i
    for i, word in enumerate(
        [*MARKS[:5], *VISUAL[::-2], *WORDS, *VISUAL[-2::-2], *MARKS[5:], *map(str, range(10))]
    )
}
METHODS = ["sjd", "scd", "scd-gumbel", "token-recycling", "prompt-lookup", "early-exit"]
METHODS += ["layer-skip"]


def tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel(VOCABULARY, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Digits(True),
            pre_tokenizers.Split("*", "isolated"),
        ]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        bos_token="<|extra_203|>",
        eos_token="<|extra_204|>",
        pad_token="<|endoftext|>",
        unk_token="<unk>",
        extra_special_tokens={
            "image_token": "<image>",
            "boi_token": "<|image start|>",
            "eoi_token": "<|image end|>",
            "image_wrapper_token": "<|image token|>",
            "eof_token": "<|extra_201|>",
        },
    )


def tiny_model(layers: int = 2) -> Emu3ForConditionalGeneration:
    config = Emu3Config(
        text_config=dict(
            vocab_size=len(VOCABULARY),
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            pad_token_id=VOCABULARY["<|endoftext|>"],
            bos_token_id=VOCABULARY["<|extra_203|>"],
            eos_token_id=VOCABULARY["<|extra_204|>"],
        ),
        vq_config=dict(
            codebook_size=CODES,
            embed_dim=4,
            latent_channels=4,
            base_channels=32,
            channel_multiplier=[1, 1, 1, 1],
            num_res_blocks=1,
            attn_resolutions=[],
            hidden_size=32,
        ),
        vocabulary_map=VOCABULARY,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng():
        torch.manual_seed(layers)
        model = Emu3ForConditionalGeneration(config).eval()
        for name, weight in model.named_parameters():
            if "vqmodel" not in name:
                torch.nn.init.normal_(weight, mean=float(weight.ndim == 1), std=0.3)
        # laws that lean on the place more than on the last token: drafts have a chance
        codes = [VOCABULARY[word] for word in VISUAL]
        table = model.get_input_embeddings().weight.data
        table[codes] = table[codes[:1]] + 0.1 * table[codes]
        model.model.vqmodel.quantize.embedding.weight.data.normal_()
    ends = {f"{n}_token_id": getattr(config.text_config, f"{n}_token_id") for n in ("pad", "eos")}
    model.generation_config = GenerationConfig(**ends)
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkpoint as `save_pretrained` publishes it."""
    out = tmp_path_factory.mktemp("emu3")
    tiny_model().save_pretrained(out)
    Emu3Processor(Emu3ImageProcessor(), tokenizer(), "{{ messages }}").save_pretrained(out)
    return out


@pytest.fixture(scope="module")
def pipe(folder):
    made = ImagePipeline.from_pretrained(folder)
    made.set_progress_bar_config(disable=True)
    return made


def draw(pipe, prompts=PROMPTS, **arguments):
    call = dict(temperature=0, output_type="tokens", generator=torch.Generator().manual_seed(0))
    return pipe(prompts, **{**call, **SIZE, **arguments})


def theirs(folder, scale: float, prompts=PROMPTS, negative=NEGATIVE) -> torch.Tensor:
    """Output of transformers' own loop, in its words, as its documentation draws pictures.

    The negative prompt ends with the picture's size, as in the authors' `image_generation.py`.
    """
    model = Emu3ForConditionalGeneration.from_pretrained(folder).eval()
    processor = Emu3Processor.from_pretrained(folder)
    how = dict(
        return_for_image_generation=True,
        ratio=f"{COLUMNS}:{ROWS}",
        image_area=SIZE["height"] * SIZE["width"],
        padding=True,
        padding_side="left",
        return_tensors="pt",
    )
    inputs = processor(text=prompts, **how)
    without = processor(text=[negative] * len(prompts), **how)
    assert inputs.pop("image_sizes") == [[ROWS, COLUMNS]] * len(prompts)
    visual = model.vocabulary_mapping.image_tokens
    before = inputs["input_ids"].shape[1]
    forced = {ROWS * (COLUMNS + 1) + n: VOCABULARY[word] for n, word in enumerate(TAIL)}

    def allowed(row, ids):
        place = len(ids) - before
        if place in forced:
            return [forced[place]]
        return [VOCABULARY["<|extra_200|>"]] if (place + 1) % (COLUMNS + 1) == 0 else visual

    guidance = {}
    if scale != 1:
        guidance = dict(
            guidance_scale=scale,
            negative_prompt_ids=without["input_ids"],
            negative_prompt_attention_mask=without["attention_mask"],
        )
    out = model.generate(
        **inputs,
        **guidance,
        prefix_allowed_tokens_fn=allowed,
        do_sample=False,
        max_new_tokens=60,
    )
    return out[:, before:]


TAIL = ["<|extra_201|>", "<|image end|>", "<|extra_204|>"]


def as_words(pipe, codes: torch.Tensor) -> torch.Tensor:
    """The words of whole pictures, written out from the vocabulary."""
    out = []
    for row in codes.view(-1, ROWS, COLUMNS).tolist():
        words = []
        for line in row:
            words += [VOCABULARY[VISUAL[code]] for code in line] + [VOCABULARY["<|extra_200|>"]]
        out.append(words + [VOCABULARY[word] for word in TAIL])
    return torch.tensor(out)


@pytest.mark.parametrize("scale", [1, 3.0, 1.5])
def test_plain_equals_generate(pipe, folder, scale):
    expected = theirs(folder, scale)
    out = draw(pipe, guidance_scale=scale, negative_prompt=NEGATIVE)
    assert torch.equal(as_words(pipe, out.images), expected)
    assert len({tuple(row) for row in expected.tolist()}) == 3
    assert out.stats.nfe == ROWS * (COLUMNS + 1) + 3


def test_no_negative_prompt_is_an_empty_one(pipe, folder):
    expected = theirs(folder, 3.0, negative="")
    assert torch.equal(as_words(pipe, draw(pipe).images), expected)


def test_rows_do_not_depend_on_their_neighbours(pipe):
    alone = torch.cat([draw(pipe, [prompt]).images for prompt in PROMPTS])
    assert torch.equal(alone, draw(pipe).images)


@pytest.mark.parametrize("method", METHODS)
def test_speculation_equals_plain(pipe, method):
    plain = draw(pipe).images
    pipe.enable_speculation(with_knobs(method, "image", window=6))
    try:
        out = draw(pipe)
    finally:
        pipe.disable_speculation()
    assert torch.equal(out.images, plain)
    assert out.stats.fault is None
    if method in ("sjd", "scd"):
        assert out.stats.nfe < ROWS * COLUMNS  # more than the forced tokens stood


def test_prompts_are_the_authors(pipe):
    """`processing_emu3.py`, mode G: start, text, start of image, height*width, start of codes."""
    image_model = pipe.image_model(pipe.model)
    grid = image_model.grid(*SIZE.values())
    ids, mask = image_model.condition(PROMPTS[:2], [NEGATIVE, "fox"], True, grid)
    shown = [ids[row][mask[row]].tolist() for row in range(4)]
    for row, prompt in enumerate([*PROMPTS[:2], NEGATIVE, "fox"]):
        size = [str(ROWS), "*", str(COLUMNS)]
        words = ["<|extra_203|>", *prompt.split(), "<|image start|>", *size, "<|image token|>"]
        assert shown[row] == [VOCABULARY[word] for word in words]
    assert mask[:, -1].all()
    assert not mask[0].all()


def test_pixels_are_the_models_own(pipe, folder):
    codes = draw(pipe).images
    model = Emu3ForConditionalGeneration.from_pretrained(folder).eval()
    words = as_words(pipe, codes)
    decoded = model.decode_image_tokens(image_tokens=words, height=ROWS, width=COLUMNS)
    shown = pipe.processor.postprocess(list(decoded), return_tensors="PIL.Image.Image")
    theirs = torch.from_numpy(np.stack(shown["pixel_values"])).permute(0, 3, 1, 2)
    pixels = draw(pipe, output_type="pt").images
    assert pixels.shape == (3, 3, ROWS * FACTOR, COLUMNS * FACTOR)
    assert pixels.min() >= 0
    assert pixels.max() <= 1
    assert pixels.std() > 0.05
    # the processor goes on to bytes, rounded down; a value on the edge may fall to either side
    rest = pixels * 255 - theirs
    assert rest.min() > -1e-2
    assert rest.max() < 1 + 1e-2


def test_sampling_keeps_the_layout(pipe):
    """At a temperature, with a window: only codes are drawn, and laws know the forced tokens."""
    pipe.enable_speculation(SpecConfig(method="scd", window=6))
    try:
        codes = draw(pipe, temperature=1.0, guidance_scale=1.0).images
    finally:
        pipe.disable_speculation()
    assert codes.shape == (3, ROWS * COLUMNS)
    assert codes.max() < CODES
    laws = pipe.token_laws(PROMPTS, codes, guidance_scale=1.0, **SIZE)
    assert laws.shape == (3, ROWS * COLUMNS, CODES + 4)
    assert (laws.gather(2, codes[..., None]) > 0).all()
    assert (laws[..., CODES:] == 0).all()
    assert torch.allclose(laws.sum(-1), torch.ones(3, ROWS * COLUMNS), atol=1e-5)


def test_groups_of_near_codes(pipe):
    """Tokens that the layout forces are no codes, and near to none."""
    pipe.enable_speculation(SpecConfig("gsd", window=6, group_distance=0.5))
    try:
        codes = draw(pipe, temperature=1.0).images
    finally:
        pipe.disable_speculation()
    assert codes.shape == (len(PROMPTS), ROWS * COLUMNS)
    assert int(codes.max()) < CODES


@pytest.mark.parametrize("method", ["draft", "tree", "dynamic-tree"])
def test_a_drafter_of_the_family(pipe, tmp_path, method):
    """A smaller model drafts; both are saved and loaded again."""
    larger = TransformersImagePipeline(pipe.model, pipe.processor, tiny_model(layers=1))
    larger.save_pretrained(tmp_path)
    loaded = ImagePipeline.from_pretrained(tmp_path)
    loaded.set_progress_bar_config(disable=True)
    for name in ("model", "drafter"):
        one, other = (p.components[name].state_dict() for p in (larger, loaded))
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)
    loaded.enable_speculation(SpecConfig(method=method))
    out = draw(loaded)
    assert torch.equal(out.images, draw(pipe).images)
    assert out.stats.fault is None
    assert sum(out.stats.accepted) > 0


@pytest.mark.parametrize("size", [(20, 32), (0, 8), (8, -8)])
def test_sizes_that_are_no_grid(pipe, size):
    with pytest.raises(InputError, match="multiples of 8 px"):
        draw(pipe, height=size[0], width=size[1])


def test_sizes(pipe):
    image_model = pipe.image_model(pipe.model)
    assert image_model.default_size == (720, 720)
    ends = tuple(range(CODES + 1, CODES + 4))
    assert pipe.network(24, None)[1] == TokenGrid(3, 3, CODES, ends)
    assert pipe.network(None, 16)[1] == TokenGrid(2, 2, CODES, ends)
    with pytest.raises(InputError, match="it has 64 positions"):
        draw(pipe, height=64, width=64)


def test_greedy_laws_are_the_tokens(pipe):
    """Scored in one pass, the greedy picture is the likeliest code everywhere."""
    codes = draw(pipe, guidance_scale=3.0).images
    laws = pipe.token_laws(PROMPTS, codes, guidance_scale=3.0, temperature=0, **SIZE)
    assert torch.equal(laws.argmax(-1), codes)


def test_bare_costs(pipe):
    """What the evaluation's ideal is measured with."""
    costs = bare_costs(pipe, SIZE)
    assert costs.keys() == {"target"}
    assert costs["target"](3) > 0


def test_codebook(pipe):
    image_model = pipe.image_model(pipe.model)
    assert torch.equal(image_model.codebook(), pipe.model.model.vqmodel.quantize.embedding.weight)


# --- folders --------------------------------------------------------------------------------------


def edited(folder, tmp_path, **changes):
    out = tmp_path / "edited"
    shutil.copytree(folder, out)
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps({**config, **changes}))
    return out


def test_vocabularies_without_the_picture(folder, tmp_path):
    words = {word: i for word, i in VOCABULARY.items() if word != VISUAL[3]}
    with pytest.raises(InputError, match="lacks visual tokens"):
        ImagePipeline.from_pretrained(edited(folder, tmp_path, vocabulary_map=words))


def test_missing_tensors_are_named(folder, tmp_path):
    out, name = edited(folder, tmp_path), "vqmodel.post_quant_conv.conv.weight"
    weights = load_file(out / "model.safetensors")
    del weights[name]
    save_file(weights, out / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=f"missing tensor model.{name}"):
        ImagePipeline.from_pretrained(out)


# --- the published layout -------------------------------------------------------------------------


def as_published(name: str) -> str:
    """A tensor's name in the published files, which an earlier transformers wrote."""
    for now, before in (
        ("model.text_model.", "text_model.model."),
        ("model.vqmodel.", "vqmodel."),
        ("lm_head.", "text_model.lm_head."),
    ):
        if name.startswith(now):
            return before + name.removeprefix(now)
    raise AssertionError(name)


def published() -> dict[str, tuple[int, ...]]:
    """Tensors of Emu3-Gen-hf that drawing needs.

    Sizes: the authors' `configuration_emu3.py` and `configuration_emu3visionvq.py`
    (baaivision/Emu3); names: the table of `convert_emu3_weights_to_hf.py` in transformers, applied
    to the modules of the authors' `modeling_emu3.py` and `modeling_emu3visionvq.py`.
    """
    d, mlp, kv, words = 4096, 14336, 1024, 184622
    out: dict[str, tuple[int, ...]] = {
        "text_model.lm_head.weight": (words, d),
        "text_model.model.embed_tokens.weight": (words, d),
        "text_model.model.norm.weight": (d,),
        "vqmodel.quantize.embedding.weight": (32768, 4),
        "vqmodel.post_quant_conv.conv.weight": (4, 4, 3, 1, 1),
        "vqmodel.post_quant_conv.conv.bias": (4,),
    }
    for n in range(32):
        layer = f"text_model.model.layers.{n}"
        for name, width in (("q", d), ("k", kv), ("v", kv), ("o", d)):
            out[f"{layer}.self_attn.{name}_proj.weight"] = (width, d)
        out |= {f"{layer}.mlp.{name}_proj.weight": (mlp, d) for name in ("gate", "up")}
        out[f"{layer}.mlp.down_proj.weight"] = (d, mlp)
        for norm in ("input", "post_attention"):
            out[f"{layer}.{norm}_layernorm.weight"] = (d,)

    def layer(name: str, *shape: int) -> None:
        out.update({f"{name}.weight": shape, f"{name}.bias": shape[:1]})

    def spatial_norm(name: str, width: int) -> None:
        layer(f"{name}.norm_layer", width)
        layer(f"{name}.conv_y", width, 4, 1, 1)
        layer(f"{name}.conv_b", width, 4, 1, 1)

    def block(name: str, into: int, of: int) -> None:
        spatial_norm(f"{name}.norm1", of)
        layer(f"{name}.conv1", into, of, 3, 3)
        spatial_norm(f"{name}.norm2", into)
        layer(f"{name}.conv2", into, into, 3, 3)
        if into != of:
            layer(f"{name}.nin_shortcut", into, of, 1, 1)

    def attention(name: str, norm: str) -> None:
        for part in ("q", "k", "v", "out"):
            layer(f"{name}.{part}_proj", 1024, 1024)
        spatial_norm(norm, 1024)

    decoder = "vqmodel.decoder"
    for n in range(2):
        for half in (1, 2):
            layer(f"{decoder}.time_res_stack.{n}.conv{half}.conv", 4, 4, 3, 3, 3)
            norm = f"{decoder}.time_res_stack.{n}.norm{half}"
            layer(norm, 4)
            out |= {f"{norm}.running_mean": (4,), f"{norm}.running_var": (4,)}
            out[f"{norm}.num_batches_tracked"] = ()
        layer(f"{decoder}.time_conv.{n}.conv.conv", 4, 4, 3, 3, 3)
    layer(f"{decoder}.conv_in", 1024, 4, 3, 3)
    for n in (1, 2):
        block(f"{decoder}.middle_block.block_{n}", 1024, 1024)
    attention(f"{decoder}.middle_block.attn_1", f"{decoder}.middle_block.attn_norm")
    before = 1024
    for level, width in ((3, 1024), (2, 512), (1, 512), (0, 256)):
        up = f"{decoder}.up_block.up.{level}"
        for n in range(3):
            block(f"{up}.block.{n}", width, before)
            before = width
            if level == 3:
                attention(f"{up}.attn.{n}", f"{up}.attn_norms.{n}")
        if level:
            layer(f"{up}.upsample.conv", width, width, 3, 3)
    spatial_norm(f"{decoder}.norm_out", 256)
    layer(f"{decoder}.conv_out", 3, 256, 3, 3)
    return out


def test_full_size_layout():
    with torch.device("meta"):
        model = Emu3ForConditionalGeneration(Emu3Config(vocabulary_map={}))
    shapes = {as_published(n): tuple(value.shape) for n, value in model.state_dict().items()}
    unused = ("vqmodel.encoder", "vqmodel.quant_conv")  # they read pictures
    assert {n: s for n, s in shapes.items() if not n.startswith(unused)} == published()


def test_saved_names_are_the_published_ones(pipe, folder):
    saved = load_file(folder / "model.safetensors")
    assert saved.keys() == {as_published(name) for name in pipe.model.state_dict()}
