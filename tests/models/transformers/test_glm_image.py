"""GLM-Image under speculation: transformers' own `generate`, and diffusers' own pipeline call.

The checkpoint is tiny and random, in the published layout (`model_index.json` and a folder per
component); its oracle is the unpatched model, in float32.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from diffusers import GlmImagePipeline
from glm_images import END, PAD, PLACEHOLDER, START, glm_image, tokenizer
from knobs import with_knobs
from PIL import Image
from transformers import GlmImageForConditionalGeneration, GlmImageProcessor

import mmspec
from mmspec import SpecConfig
from mmspec.errors import InputError
from mmspec.models.transformers.glm_image import GlmImageDecoder

METHODS = ["plain", "sjd", "scd", "prompt-lookup", "token-recycling", "early-exit"]
GRIDS = [[1, 4, 5], [1, 2, 3]]  # the large picture, and the small one that is drawn first
LENGTH = 4 * 5 + 2 * 3 + 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The whole pipeline in diffusers' layout."""
    path = tmp_path_factory.mktemp("glm") / "GLM-Image"
    glm_image().save_pretrained(path)
    return path


@pytest.fixture
def pipe(folder):
    pipe = GlmImagePipeline.from_pretrained(folder)
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.fixture
def model(folder):
    return GlmImageForConditionalGeneration.from_pretrained(folder / "vision_language_encoder")


def test_the_whole_pipeline_is_told_which_of_its_parts_speculates(pipe):
    said = "not a GlmImagePipeline; its (text_encoder or )?vision_language_encoder is one"
    for function in (mmspec.enable_speculation, mmspec.disable_speculation):
        with pytest.raises(InputError, match=said):
            function(pipe)
    mmspec.enable_speculation(pipe.vision_language_encoder)


def request(rows: int = 2, **more) -> dict:
    """What the processor gives for captions of several lengths, with smaller grids."""
    words = tokenizer()
    captions = ["A cat", "A red square on grass", "It"][:rows]
    asked = words(
        [c + f"<sop>4 5<eop><sop>2 3<eop><|dit_{START}|>" for c in captions], padding=True
    )
    return {
        "input_ids": torch.tensor(asked["input_ids"]),
        "attention_mask": torch.tensor(asked["attention_mask"]),
        "image_grid_thw": torch.tensor(GRIDS * rows),
        "images_per_sample": torch.tensor([2] * rows),
        "max_new_tokens": LENGTH,
        "do_sample": False,
        **more,
    }


def drafter_of(model) -> GlmImageForConditionalGeneration:
    """The same without its last layer."""
    config = copy.deepcopy(model.config)
    config.text_config.num_hidden_layers = 1
    out = GlmImageForConditionalGeneration(config)
    out.load_state_dict({name: model.state_dict()[name] for name in out.state_dict()})
    return out.eval()


def compare(model, method: str, asked: dict) -> torch.Tensor:
    """The tokens, after a check that speculation gives the same."""
    theirs = model.generate(**asked)
    config = with_knobs(method, "vlm", window=8)
    mmspec.enable_speculation(
        model, config, drafter_of(model) if "drafter" in config.resolve("vlm").needs else None
    )
    ours = model.generate(**asked)
    assert model.speculation_stats.fault is None
    mmspec.disable_speculation(model)
    assert torch.equal(theirs, ours)
    return ours[:, asked["input_ids"].shape[1] :]


@pytest.mark.parametrize("method", [*METHODS, "scd-gumbel", "draft", "dynamic-tree"])
@pytest.mark.parametrize("rows", [1, 3])
def test_pictures_of_text(model, method, rows):
    tokens = compare(model, method, request(rows))
    assert tokens.shape == (rows, LENGTH)
    assert len(set(tokens.flatten().tolist())) >= 8  # no model that draws one thing only


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("count", [1, 2])
def test_pictures_of_pictures(folder, model, method, count):
    """Source pictures take part as tokens, with rows and columns of their own."""
    processor = GlmImageProcessor.from_pretrained(folder / "processor")
    rng = np.random.default_rng(0)
    pictures = [Image.fromarray(rng.integers(0, 255, (64, 64, 3), np.uint8)) for _ in range(count)]
    talks = [
        [{"role": "user", "content": [{"type": "image", "image": p}, {"type": "text", "text": t}]}]
        for p, t in zip(pictures, ["By night", "As a drawing of ink"], strict=False)
    ]
    asked = processor.apply_chat_template(
        talks,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
        processor_kwargs={"padding": True, "target_h": 128, "target_w": 96},
    )
    assert (asked["input_ids"] == PLACEHOLDER).any()
    compare(model, method, {**asked, "max_new_tokens": 4 * 3 + 1, "do_sample": False})


def test_an_end_in_the_middle(model):
    whole = compare(model, "sjd", request())
    eos = int(whole[0, LENGTH // 2])
    asked = request(eos_token_id=[eos, END], pad_token_id=PAD)
    for method in METHODS:
        tokens = compare(model, method, asked)
        assert (tokens == PAD).any()


@pytest.mark.parametrize("method", METHODS)
def test_diffusers_own_call(pipe, method):
    """64×96 px: 13×19 and 2×3 tokens. One of the largest k = 1 is what `do_sample` draws."""
    model = pipe.vision_language_encoder
    model.generation_config.top_k = 1

    def draw():
        return pipe(
            prompt=["A cat", "A red square"],
            height=64,
            width=96,
            num_inference_steps=1,
            guidance_scale=1.0,
            output_type="pt",
            generator=torch.Generator().manual_seed(0),
        ).images

    theirs = draw()
    mmspec.enable_speculation(model, SpecConfig(method))
    ours = draw()
    assert model.speculation_stats.emitted == [13 * 19 + 2 * 3 + 1] * 2
    assert model.speculation_stats.contract == "exact"
    assert torch.equal(theirs, ours)


def test_diffusers_generator_repeats_a_drawn_picture(pipe):
    mmspec.enable_speculation(pipe.vision_language_encoder, SpecConfig("sjd"))

    def draw(seed: int) -> torch.Tensor:
        rng = torch.Generator().manual_seed(seed)
        return pipe.generate_prior_tokens("A cat", 64, 96, generator=rng)[0]

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))


def test_what_suits_it_when_nobody_chooses(model):
    mmspec.enable_speculation(model)
    model.generate(**request())
    assert model.speculation_stats.method == "scd"


def test_places_matter_to_this_model(model, monkeypatch):
    """With the positions of a text it draws another picture: the tests above would notice."""
    theirs = model.generate(**request())
    read = GlmImageDecoder._positions_of

    def of_text(*args):
        positions, outputs = read(*args)
        first = positions[..., -1:] + 1
        return positions, first + torch.arange(outputs.shape[-1])

    monkeypatch.setattr(GlmImageDecoder, "_positions_of", staticmethod(of_text))
    mmspec.enable_speculation(model, SpecConfig("sjd"))
    assert not torch.equal(model.generate(**request()), theirs)


STATE = ("rope_deltas", "_cached_decode_position_ids", "_prefill_len")


def test_nothing_is_left_on_the_model_nor_taken_from_it(model):
    """transformers keeps positions on the model, from one prompt for its own outputs."""
    theirs = model.generate(**request())
    wide = {"image_grid_thw": torch.tensor([[1, 2, 9], [1, 1, 4]] * 2), "max_new_tokens": 23}
    model.generate(**request(**wide))  # other grids
    before = {name: getattr(model.model, name) for name in STATE}
    mmspec.enable_speculation(model, SpecConfig("sjd"))
    assert torch.equal(model.generate(**request()), theirs)
    for name, value in before.items():
        assert getattr(model.model, name) is value


def test_positions_have_three_axes(model):
    """Of the second row: text, then the small picture's rows and columns, the large one's, an end.

    By hand, as the report on Qwen2-VL's rotary positions (Wang et al. 2024, section 2.1) has them.
    """
    asked = request()
    mask = asked["attention_mask"].bool()
    grids = {name: asked[name] for name in ("image_grid_thw", "images_per_sample")}
    prompt = GlmImageDecoder(model).prompt(asked["input_ids"], mask, LENGTH, **grids)
    text = int(mask[1].sum())
    positions = prompt.positions[:, 1, mask.shape[1] - text :].T.tolist()
    expected = [[n] * 3 for n in range(text)]
    expected += [[text, text + r, text + c] for r in range(2) for c in range(3)]
    large = text + 3  # behind the longer side of the small picture
    expected += [[large, large + r, large + c] for r in range(4) for c in range(5)]
    expected += [[large + 5] * 3]
    assert positions == expected
    assert prompt.stride == 5


def test_more_tokens_than_the_grids_have_are_refused(model):
    mmspec.enable_speculation(model, SpecConfig("sjd"))
    with pytest.raises(InputError, match="26 tokens and an end; max_new_tokens must be at most 27"):
        model.generate(**request(max_new_tokens=LENGTH + 1))


def test_a_prompt_without_grids_is_refused(model):
    mmspec.enable_speculation(model, SpecConfig("sjd"))
    with pytest.raises(InputError, match="needs image_grid_thw"):
        model.generate(**request(image_grid_thw=None))


def test_guidance_is_refused(model):
    mmspec.enable_speculation(model, SpecConfig("sjd"))
    with pytest.raises(InputError, match="can't honour guidance_scale of GlmImage"):
        model.generate(**request(guidance_scale=2.0))
