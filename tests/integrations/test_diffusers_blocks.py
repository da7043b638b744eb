"""Blocks that diffusers' modular pipelines load, against our pipelines and diffusers' own."""

from __future__ import annotations

import json

import pytest
import torch
from diffusers import GlmImagePipeline
from diffusers.modular_pipelines import (
    InputParam,
    ModularPipeline,
    ModularPipelineBlocks,
    OutputParam,
    SequentialPipelineBlocks,
)
from glm_images import glm_image
from PIL import ImageChops

import mmspec
from mmspec import ContinuousImagePipeline, ImagePipeline, SpecConfig
from mmspec.cli.main import main
from mmspec.errors import InputError
from mmspec.integrations.diffusers_blocks import ImageModel

PROMPT = "a red circle left of a blue square"


@pytest.fixture(scope="module")
def repositories(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub")
    for name in ("image", "continuous", "glm-image"):
        assert main(["export", "diffusers", name, str(folder / name)]) == 0
    return folder


@pytest.fixture(scope="module")
def drawing(repositories):
    pipe = ModularPipeline.from_pretrained(repositories / "image", trust_remote_code=True)
    pipe.load_components()
    pipe.model.pipeline.set_progress_bar_config(disable=True)
    return pipe


@pytest.fixture(scope="module")
def glm_folder(tmp_path_factory):
    """A tiny GLM-Image whose tokens chance does not choose."""
    pipe = glm_image()
    pipe.vision_language_encoder.generation_config.update(do_sample=True, top_k=1)
    path = tmp_path_factory.mktemp("glm") / "GLM-Image"
    pipe.save_pretrained(path)
    return path


def test_the_repository_is_what_the_hub_wants(repositories, capsys):
    folder = repositories / "glm-image"
    names = ["README.md", "block.py", "modular_config.json", "modular_model_index.json"]
    assert sorted(f.name for f in folder.iterdir()) == [*names, "requirements.txt"]
    config = json.loads((folder / "modular_config.json").read_text())
    assert config["auto_map"] == {"ModularPipelineBlocks": "block.SpeculativeGlmImagePriorStep"}
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: diffusers\ntags:\n  - modular-diffusers\n")
    assert main(["export", "diffusers", "image", str(folder)]) == 2
    assert "holds files already; name another folder" in capsys.readouterr().err
    assert main(["export", "diffusers", "glm_image", str(folder / "new")]) == 2
    assert "did you mean 'glm-image'?" in capsys.readouterr().err
    assert not (folder / "new").exists()


def test_code_is_run_for_those_who_trust_it_alone(repositories):
    with pytest.raises(ValueError, match="trust_remote_code"):
        ModularPipeline.from_pretrained(repositories / "image")


@pytest.mark.slow
def test_pictures_are_the_pipelines(drawing):
    own = ImagePipeline.from_pretrained()
    own.set_progress_bar_config(disable=True)
    asked = {"prompt": [PROMPT, "two red squares"], "height": 64, "guidance_scale": 2.0}
    for method in (None, "gsd[window=8]", SpecConfig("draft")):
        own.enable_speculation(method)
        theirs = own(**asked, generator=torch.Generator().manual_seed(3))
        ours = drawing(**asked, speculation=method, generator=torch.Generator().manual_seed(3))
        assert ours.get("speculation_stats").method == theirs.stats.method
        for mine, other in zip(ours.get("images"), theirs.images, strict=True):
            assert ImageChops.difference(mine, other).getbbox() is None


def test_diffusers_moves_and_casts_the_weights(drawing):
    drawing.to(torch.float64)
    assert drawing.dtype == drawing.model.pipeline.transformer.dtype == torch.float64
    assert drawing.to("cpu", torch.float32).device == torch.device("cpu")
    assert drawing.dtype == torch.float32


def test_diffusers_saves_and_reads_it(drawing, tmp_path):
    drawing.save_pretrained(str(tmp_path / "saved"), overwrite_modular_index=True)
    assert (tmp_path / "saved/model/model_index.json").exists()
    again = ModularPipelineBlocks.init_pipeline(drawing.blocks, str(tmp_path / "saved"))
    again.load_components()
    asked = {"prompt": PROMPT, "height": 64, "output": "images"}
    both = [p(**asked, generator=torch.Generator().manual_seed(1))[0] for p in (drawing, again)]
    assert ImageChops.difference(*both).getbbox() is None
    with pytest.raises(InputError, match="as safetensors alone"):
        drawing.model.save_pretrained(tmp_path / "other", safe_serialization=False)


def test_components_that_are_not_loaded(repositories):
    pipe = ModularPipeline.from_pretrained(repositories / "image", trust_remote_code=True)
    with pytest.raises(InputError, match="the component model is not loaded"):
        pipe(prompt=PROMPT)


def test_options_reach_the_pipeline():
    with pytest.raises(InputError, match="a pipeline can't do without its transformer"):
        ImageModel.from_pretrained("embedded-image", subfolder="", transformer=None)
    made = ImageModel.from_pretrained("embedded-image", variant=None, eagle=None)
    assert made.pipeline.components["eagle"] is None


def test_bad_arguments_are_told_in_a_line(drawing):
    with pytest.raises(InputError, match="temperature must be 0 or from"):
        drawing(prompt=PROMPT, temperature=-1.0)
    with pytest.raises(InputError, match="unknown method"):
        drawing(prompt=PROMPT, speculation="nonsense")


class Widths(ModularPipelineBlocks):
    """A block that reads pictures."""

    @property
    def inputs(self):
        return [InputParam("images", required=True)]

    @property
    def intermediate_outputs(self):
        return [OutputParam("widths", list)]

    def __call__(self, components, state):
        block = self.get_block_state(state)
        block.widths = [image.width for image in block.images]
        self.set_block_state(state, block)
        return components, state


def test_it_stands_among_other_blocks(repositories):
    block = ModularPipelineBlocks.from_pretrained(
        repositories / "continuous", trust_remote_code=True
    )
    both = SequentialPipelineBlocks.from_blocks_dict({"draw": block, "measure": Widths()})
    pipe = both.init_pipeline()
    pipe.load_components()
    assert isinstance(pipe.model.pipeline, ContinuousImagePipeline)
    pipe.model.pipeline.set_progress_bar_config(disable=True)
    asked = {"num_iterations": 4, "diffusion_steps": 4, "num_images_per_prompt": 2}
    assert pipe(prompt=PROMPT, **asked, output="widths") == [64, 64]


@pytest.mark.slow
@pytest.mark.parametrize("loaded", [False, True])
def test_tokens_are_glm_images_own(repositories, glm_folder, loaded):
    """By components that are shared with diffusers' pipeline, or read by diffusers."""
    glm = GlmImagePipeline.from_pretrained(glm_folder)
    glm.set_progress_bar_config(disable=True)
    asked = {"height": 128, "width": 160}
    prompts = ["A cat", "A red square on grass"]
    theirs, _, _ = glm.generate_prior_tokens(prompts, **asked)
    prior = ModularPipeline.from_pretrained(repositories / "glm-image", trust_remote_code=True)
    if loaded:
        prior.load_components(pretrained_model_name_or_path=str(glm_folder))
    else:
        prior.update_components(
            vision_language_encoder=glm.vision_language_encoder, processor=glm.processor
        )
    for method in ("scd", "scd", "prompt-lookup"):
        made = prior(prompt=prompts, **asked, speculation=method)
        assert torch.equal(made.get("prior_token_ids"), theirs)
        assert made.get("speculation_stats").method == method
    assert made.get("prior_token_image_ids") is None
    model = prior.vision_language_encoder
    other = ModularPipeline.from_pretrained(repositories / "glm-image", trust_remote_code=True)
    other.update_components(vision_language_encoder=model, processor=prior.processor)
    for pipe, method in ((other, "scd"), (prior, "prompt-lookup"), (other, "scd")):
        made = pipe(prompt=prompts, **asked, speculation=method)
        assert made.get("speculation_stats").method == method
    assert prior(prompt=prompts, **asked).get("speculation_stats").method == "scd"  # as it is
    for more, method in (({"speculation": "prompt-lookup"}, "prompt-lookup"), ({}, "scd")):
        made = other(prompt=prompts, **asked, **more)  # what it asked for was for that call
        assert made.get("speculation_stats").method == method
    mmspec.disable_speculation(model)
    made = prior(prompt=prompts, **asked, speculation="scd")
    assert made.get("speculation_stats").method == "scd"
    drawn = glm(
        prompts, prior_token_ids=theirs, **asked, num_inference_steps=1, output_type="latent"
    )
    assert len(drawn.images) == 2
