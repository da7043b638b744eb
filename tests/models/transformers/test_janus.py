"""Janus through the pipeline: token by token what transformers' own `generate` draws."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path

import pytest
import torch
from knobs import with_knobs
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    GenerationConfig,
    JanusConfig,
    JanusForConditionalGeneration,
    JanusImageProcessor,
    JanusProcessor,
    PreTrainedTokenizerFast,
)

from mmspec import ImagePipeline, SpecConfig
from mmspec.errors import InputError
from mmspec.models.token_grid import TokenGrid
from mmspec.models.transformers.janus import JanusImageModel
from mmspec.pipelines.image.transformers_pipeline import TransformersImagePipeline

SIDE, CODES = 4, 24
PROMPTS = ["a red fox", "a very small blue bird on an old red roof", "fox"]
WORDS = ["a", "an", "on", "very", "small", "old", "red", "blue", "fox", "bird", "roof"]
SPECIAL = [
    "<pad>",
    "<bos>",
    "<eos>",
    "<unk>",
    "<image>",
    "<boi>",
    "<eoi>",
    "<|User|>:",
    "Assistant:",
]
TEMPLATE = (
    "{% for message in messages %}{{ '<|User|>: ' + message['content'][0]['text'] + ' ' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
METHODS = ["sjd", "scd", "scd-gumbel", "token-recycling", "prompt-lookup", "early-exit"]
METHODS += ["layer-skip"]


def tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {word: i for i, word in enumerate([*SPECIAL, *WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        extra_special_tokens={
            "image_token": "<image>",
            "boi_token": "<boi>",
            "eoi_token": "<eoi>",
        },
    )


def tiny_model(layers: int = 2) -> JanusForConditionalGeneration:
    vocab = len(SPECIAL) + len(WORDS)
    config = JanusConfig(
        text_config=dict(
            model_type="llama",
            vocab_size=vocab,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        ),
        vision_config=dict(
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            image_size=8 * SIDE,
            patch_size=8,
            projection_dim=32,
            num_image_tokens=SIDE**2,
        ),
        vq_config=dict(
            embed_dim=8,
            num_embeddings=CODES,
            latent_channels=32,
            base_channels=32,
            channel_multiplier=[1, 1],
            num_res_blocks=1,
            projection_dim=32,
            image_token_embed_dim=32,
        ),
        image_token_id=4,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng():
        torch.manual_seed(layers)
        model = JanusForConditionalGeneration(config).eval()
        for name, weight in model.named_parameters():
            if "vqmodel" not in name:
                torch.nn.init.normal_(weight, mean=float(weight.ndim == 1), std=0.3)
        # laws that lean on the place more than on the last token: drafts have a chance
        codes = model.model.generation_embeddings.weight.data
        codes.copy_(codes[:1] + 0.1 * codes)
    model.generation_config = GenerationConfig.from_dict(
        dict(bos_token_id=1, eos_token_id=2, pad_token_id=0, generation_kwargs={"boi_token_id": 5})
    )
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkpoint as `save_pretrained` publishes it."""
    out = tmp_path_factory.mktemp("janus")
    tiny_model().save_pretrained(out)
    images = JanusImageProcessor(
        size={"height": 8 * SIDE, "width": 8 * SIDE}, image_mean=[0.5] * 3, image_std=[0.4] * 3
    )
    JanusProcessor(images, tokenizer(), TEMPLATE, num_image_tokens=SIDE**2).save_pretrained(out)
    return out


@pytest.fixture(scope="module")
def pipe(folder):
    made = ImagePipeline.from_pretrained(folder)
    made.set_progress_bar_config(disable=True)
    return made


def draw(pipe, prompts=PROMPTS, **arguments):
    call = dict(temperature=0, output_type="tokens", generator=torch.Generator().manual_seed(0))
    return pipe(prompts, **{**call, **arguments})


def theirs(folder, prompts=PROMPTS, guidance_scale: float = 5.0) -> torch.Tensor:
    """Tokens of transformers' own loop."""
    model = JanusForConditionalGeneration.from_pretrained(folder).eval()
    processor = JanusProcessor.from_pretrained(folder)
    said = [[{"role": "user", "content": [{"type": "text", "text": p}]}] for p in prompts]
    turns = [processor.apply_chat_template(turn, add_generation_prompt=True) for turn in said]
    inputs = processor(
        text=turns,
        generation_mode="image",
        padding=True,
        padding_side="left",
        return_tensors="pt",
    )
    return model.generate(
        **inputs,
        generation_mode="image",
        do_sample=False,
        guidance_scale=guidance_scale,
        max_new_tokens=SIDE**2,
    )


@pytest.mark.parametrize("scale", [5.0, 1.5])
def test_plain_equals_generate(pipe, folder, scale):
    expected = theirs(folder, guidance_scale=scale)
    assert expected.shape == (3, SIDE**2)
    assert torch.equal(draw(pipe, guidance_scale=scale).images, expected)
    assert len({tuple(row) for row in expected.tolist()}) == 3


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
        assert sum(out.stats.accepted) > 0
        assert out.stats.nfe < SIDE**2


@pytest.mark.parametrize("start", ["", "<bos>"])
def test_a_prompt_is_text_with_one_start(pipe, monkeypatch, start):
    """As the template has it with a start token or without; a placeholder is no picture's place."""
    monkeypatch.setattr(pipe.processor, "chat_template", start + TEMPLATE)
    family = JanusImageModel(pipe.model, pipe.processor)
    grid = family.grid(*family.default_size)
    asked, bos = ["red <image> circle", "blue"], pipe.processor.tokenizer.bos_token_id
    ids, mask = family.condition(asked, None, False, grid)
    assert ((ids == bos) & mask).sum(1).tolist() == [1, 1]
    assert not (ids == pipe.processor.tokenizer.image_token_id).any()
    (alone,), _ = family.condition(asked[1:], None, False, grid)
    assert torch.equal(ids[1][mask[1]], alone)
    said = [{"role": "user", "content": [{"type": "text", "text": "blue"}]}]
    own = pipe.processor.apply_chat_template(
        said, add_generation_prompt=True, tokenize=True, return_dict=True
    )
    assert alone.tolist()[: len(own["input_ids"][0])] == list(own["input_ids"][0])


def test_one_prompt_without_guidance(pipe, folder):
    """`generate` has no such case: its steps written out, each a pass over everything."""
    model = JanusForConditionalGeneration.from_pretrained(folder).eval()
    said = [{"role": "user", "content": [{"type": "text", "text": PROMPTS[1]}]}]
    turn = pipe.processor.apply_chat_template(said, add_generation_prompt=True)
    ids = pipe.processor(text=[turn], generation_mode="image", return_tensors="pt")["input_ids"]
    x, drawn = model.get_input_embeddings()(ids), []
    with torch.no_grad():
        for _ in range(SIDE**2):
            hidden = model.model.language_model(inputs_embeds=x).last_hidden_state[:, -1]
            drawn.append(model.model.generation_head(hidden).argmax(-1))
            step = model.prepare_embeddings_for_image_generation(drawn[-1])
            x = torch.cat([x, step[:, None]], 1)
    out = draw(pipe, PROMPTS[1], guidance_scale=1)
    assert torch.equal(out.images[0], torch.cat(drawn))


def test_negative_prompt(pipe):
    """Of other lengths than the prompts; the same words twice cancel out."""
    same = draw(pipe, negative_prompt=PROMPTS, guidance_scale=7.0).images
    assert torch.equal(same, draw(pipe, guidance_scale=1).images)
    other = draw(pipe, negative_prompt="a very old blue roof").images
    assert not torch.equal(other, draw(pipe).images)


def test_pixels_are_the_models_own(pipe, folder):
    tokens = draw(pipe).images
    model = JanusForConditionalGeneration.from_pretrained(folder).eval()
    with torch.no_grad():
        decoded = list(model.decode_image_tokens(tokens).float())
    theirs = pipe.processor.postprocess(decoded, return_tensors="pt")["pixel_values"]
    pixels = draw(pipe, output_type="pt").images
    assert pixels.shape == (3, 3, 2 * SIDE, 2 * SIDE)
    assert pixels.min() >= 0
    assert pixels.max() <= 1
    assert pixels.std() > 0.05
    # the processor goes on to bytes, rounded down; a value on the edge may fall to either side
    rest = pixels * 255 - theirs
    assert theirs.dtype == torch.uint8
    assert rest.min() > -1e-3
    assert rest.max() < 1 + 1e-3
    assert draw(pipe, output_type="pil").images[0].size == (2 * SIDE, 2 * SIDE)


def test_sampling_keeps_seeds_and_laws(pipe):
    """The same seed, the same picture, alone or in a batch; laws sum to one."""
    call = dict(temperature=1.0, guidance_scale=2.0)
    rows = [torch.Generator().manual_seed(7 + i) for i in range(3)]
    out = draw(pipe, generator=rows, **call).images
    alone = draw(pipe, PROMPTS[2], generator=torch.Generator().manual_seed(9), **call).images
    assert torch.equal(out[2:], alone)
    laws = pipe.token_laws(PROMPTS, out, guidance_scale=2.0)
    assert laws.shape == (3, SIDE**2, CODES)
    assert torch.allclose(laws.sum(-1), torch.ones(3, SIDE**2), atol=1e-5)
    assert (laws.gather(2, out[..., None]) > 0).all()


@pytest.mark.parametrize("size", [(16, 16), (8, 16), (None, 9)])
def test_other_sizes_are_refused(pipe, size):
    with pytest.raises(InputError, match="draws 8×8 px"):
        draw(pipe, height=size[0], width=size[1])
    assert pipe.network(None, 8)[1] == pipe.network(8, None)[1] == TokenGrid(SIDE, SIDE)


def test_round_trip_and_drafter(pipe, folder, tmp_path):
    """A smaller model of the family drafts; both are saved and loaded again."""
    larger = TransformersImagePipeline(pipe.model, pipe.processor, tiny_model(layers=1))
    larger.set_progress_bar_config(disable=True)
    larger.save_pretrained(tmp_path, max_shard_size="40KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    loaded = ImagePipeline.from_pretrained(tmp_path)
    loaded.set_progress_bar_config(disable=True)
    for name in ("model", "drafter"):
        one, other = (p.components[name].state_dict() for p in (larger, loaded))
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)
    plain = draw(pipe).images
    for method in ("draft", "tree", "drafter-only"):
        loaded.enable_speculation(SpecConfig(method=method))
        out = draw(loaded)
        assert torch.equal(out.images, plain) == (method != "drafter-only")
        assert out.stats.fault is None


def test_a_drafter_of_other_codes_is_refused(pipe):
    config = copy.deepcopy(pipe.model.config)
    config.vq_config.num_embeddings = CODES + 1
    with torch.device("meta"):
        other = JanusForConditionalGeneration(config)
    with pytest.raises(InputError, match="has not the target's codes"):
        TransformersImagePipeline(pipe.model, pipe.processor, other)


def test_methods_without_drafter(pipe):
    with pytest.raises(InputError, match="needs the component 'drafter'"):
        pipe.enable_speculation(SpecConfig(method="draft"))


def test_edited_weights_are_used(folder):
    """The table of embedded codes is made once, and again when its weights change."""
    edited = ImagePipeline.from_pretrained(folder)
    edited.set_progress_bar_config(disable=True)
    before, decoder = draw(edited).images, edited.decoder(edited.model)
    assert edited.decoder(edited.model) is decoder
    with torch.no_grad():
        edited.model.model.generation_aligner.fc1.weight.mul_(-3)
    after = draw(edited).images
    assert not torch.equal(after, before)
    fresh = TransformersImagePipeline(edited.model, edited.processor)
    fresh.set_progress_bar_config(disable=True)
    assert torch.equal(after, draw(fresh).images)


def test_codebook(pipe):
    """Codes are compared on the unit sphere, where the model's quantizer decodes them."""
    vq = pipe.model.model.vqmodel
    codes = torch.arange(SIDE**2)[None]
    entries = vq.quantize.get_codebook_entry(codes).flatten(2)[0].T
    assert torch.equal(pipe.image_model(pipe.model).codebook()[: SIDE**2], entries)


# --- folders --------------------------------------------------------------------------------------


def spoiled(folder, tmp_path, change) -> Path:
    out = tmp_path / "spoiled"
    shutil.copytree(folder, out)
    change(out)
    return out


def edit_weights(change):
    def edit(out: Path) -> None:
        weights = load_file(out / "model.safetensors")
        change(weights)
        save_file(weights, out / "model.safetensors", {"format": "pt"})

    return edit


def edit_config(out: Path) -> None:
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps({**config, "model_type": "gpt2"}))


HEAD = "model.generation_head.vision_head.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (edit_weights(lambda weights: weights.pop(HEAD)), f"missing tensor {HEAD}"),
        (
            edit_weights(lambda weights: weights.update(extra=torch.zeros(1))),
            "unexpected tensor extra",
        ),
        (
            edit_weights(lambda weights: weights.update({HEAD: torch.zeros(3, 32)})),
            rf"{HEAD} has shape \(3, 32\), expected \({CODES}, 32\)",
        ),
        (edit_config, "'gpt2' is no model that draws here"),
        (lambda out: (out / "chat_template.jinja").unlink(), "no chat template"),
        (lambda out: (out / "tokenizer.json").unlink(), "can't load"),
    ],
    ids=["missing", "unexpected", "shape", "family", "template", "tokenizer"],
)
def test_folders_that_do_not_fit(folder, tmp_path, change, message):
    with pytest.raises(InputError, match=message) as caught:
        ImagePipeline.from_pretrained(spoiled(folder, tmp_path, change))
    assert "\n" not in str(caught.value)


def test_device_maps_are_refused(folder):
    with pytest.raises(InputError, match="device_map"):
        ImagePipeline.from_pretrained(folder, device_map="auto")


def test_dtype(folder):
    half = ImagePipeline.from_pretrained(folder, torch.bfloat16)
    half.set_progress_bar_config(disable=True)
    assert {p.dtype for p in half.model.parameters()} == {torch.bfloat16}
    assert draw(half, output_type="pt").images.isfinite().all()


# --- the published layout -------------------------------------------------------------------------


def published() -> dict[str, tuple[int, ...]]:
    """Tensors of Janus-Pro-7B that drawing needs, as its conversion for transformers names them.

    Sizes: `config.json` of deepseek-ai/Janus-Pro-7B; names: the table of
    `convert_janus_weights_to_hf.py` in transformers, applied to the modules of
    `janus/models/modeling_vlm.py` and `vq_model.py` in the authors' repository.
    """
    d, mlp, layers, text, codes = 4096, 11008, 30, 102400, 16384
    out = {
        "lm_head.weight": (text, d),
        "model.language_model.embed_tokens.weight": (text, d),
        "model.language_model.norm.weight": (d,),
        "model.generation_embeddings.weight": (codes, 8),
        "model.generation_aligner.fc1.weight": (d, 8),
        "model.generation_aligner.fc1.bias": (d,),
        "model.generation_aligner.hidden_layers.0.weight": (d, d),
        "model.generation_aligner.hidden_layers.0.bias": (d,),
        "model.generation_head.proj_out.weight": (d, d),
        "model.generation_head.proj_out.bias": (d,),
        "model.generation_head.vision_head.weight": (codes, d),
        "model.generation_head.vision_head.bias": (codes,),
        "model.vqmodel.quantize.embedding.weight": (codes, 8),
        "model.vqmodel.post_quant_conv.weight": (256, 8, 1, 1),
        "model.vqmodel.post_quant_conv.bias": (256,),
        "model.vqmodel.decoder.norm_out.weight": (128,),
        "model.vqmodel.decoder.norm_out.bias": (128,),
    }
    for n in range(layers):
        layer = f"model.language_model.layers.{n}"
        out |= {f"{layer}.self_attn.{name}_proj.weight": (d, d) for name in "qkvo"}
        out |= {f"{layer}.mlp.{name}_proj.weight": (mlp, d) for name in ("gate", "up")}
        out[f"{layer}.mlp.down_proj.weight"] = (d, mlp)
        for norm in ("input", "post_attention"):
            out[f"{layer}.{norm}_layernorm.weight"] = (d,)
    decoder = "model.vqmodel.decoder"

    def conv(name: str, into: int, of: int, size: int = 3) -> None:
        out.update({f"{name}.weight": (into, of, size, size), f"{name}.bias": (into,)})

    def norm(name: str, width: int) -> None:
        out.update({f"{name}.weight": (width,), f"{name}.bias": (width,)})

    def block(name: str, into: int, of: int) -> None:
        norm(f"{name}.norm1", of)
        conv(f"{name}.conv1", into, of)
        norm(f"{name}.norm2", into)
        conv(f"{name}.conv2", into, into)
        if into != of:
            conv(f"{name}.nin_shortcut", into, of, 1)

    def attention(name: str, width: int) -> None:
        norm(f"{name}.norm", width)
        for part in ("q", "k", "v", "proj_out"):
            conv(f"{name}.{part}", width, width, 1)

    conv(f"{decoder}.conv_in", 512, 256)
    conv(f"{decoder}.conv_out", 3, 128)
    block(f"{decoder}.mid.block_1", 512, 512)
    attention(f"{decoder}.mid.attn_1", 512)
    block(f"{decoder}.mid.block_2", 512, 512)
    before = 512
    for level, width in enumerate((512, 256, 256, 128, 128)):
        for n in range(3):
            block(f"{decoder}.up.{level}.block.{n}", width, before)
            before = width
            if level == 0:
                attention(f"{decoder}.up.0.attn.{n}", width)
        if level < 4:
            conv(f"{decoder}.up.{level}.upsample.conv", width, width)
    return out


@pytest.fixture(scope="module")
def full_size() -> JanusForConditionalGeneration:
    config = JanusConfig(
        text_config=dict(
            model_type="llama",
            vocab_size=102400,
            hidden_size=4096,
            intermediate_size=11008,
            num_hidden_layers=30,
            num_attention_heads=32,
            max_position_embeddings=16384,
        ),
        vision_config=dict(image_size=384, projection_dim=4096),
        vq_config=dict(projection_dim=4096, image_token_embed_dim=4096),
        tie_word_embeddings=False,
    )
    with torch.device("meta"):
        return JanusForConditionalGeneration(config)


def test_full_size_layout(full_size):
    shapes = {name: tuple(value.shape) for name, value in full_size.state_dict().items()}
    used = ("lm_head", "model.language_model", "model.generation_", "model.vqmodel.")
    unused = ("model.vqmodel.encoder", "model.vqmodel.quant_conv")  # they read pictures
    drawing = {n: s for n, s in shapes.items() if n.startswith(used) and not n.startswith(unused)}
    assert drawing == published()


def test_full_size_pictures(full_size, pipe):
    image_model = JanusImageModel(full_size, pipe.processor)
    assert image_model.default_size == (384, 384)
    assert image_model.grid(384, 384) == TokenGrid(24, 24)
    assert image_model.vocab_size == 16384


@pytest.mark.parametrize(
    "config", [SpecConfig("plain", target_weights="int8"), SpecConfig("specqd")], ids=str
)
def test_rounded_weights(pipe, config):
    """Its layers are rearranged, and its head is no linear layer of the language model's."""
    plain = draw(pipe).images
    pipe.enable_speculation(config)
    try:
        out = draw(pipe)
    finally:
        pipe.disable_speculation()
    assert out.images.shape == plain.shape
    if config.method == "specqd":
        assert torch.equal(out.images, plain)
