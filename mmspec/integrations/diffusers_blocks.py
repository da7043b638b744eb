"""Blocks for diffusers' modular pipelines: pictures by our pipelines, and GLM-Image's tokens."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, ClassVar

import torch
from diffusers import GlmImagePipeline, ModelMixin
from diffusers.modular_pipelines import (
    ComponentSpec,
    InputParam,
    ModularPipeline,
    ModularPipelineBlocks,
    OutputParam,
    PipelineState,
)
from torch import nn
from transformers import GlmImageForConditionalGeneration, GlmImageProcessor

from .. import __version__
from ..errors import InputError
from ..files import to_json
from ..methods import SpecConfig, config_of
from ..pipelines.base import SpeculativePipeline
from ..pipelines.continuous.pipeline import ContinuousImagePipeline
from ..pipelines.image.pipeline import ImagePipeline
from ..pipelines.vlm.generate import enable_speculation, speculation_of
from ..registry import check_name
from .exported import REQUIRED, write_folder

GLM_IMAGE = "zai-org/GLM-Image"  # the published weights
_RESULT = ("return_dict", "callback_on_step_end", "callback_on_step_end_tensor_inputs")
_SPECULATION = InputParam(
    "speculation",
    SpecConfig | str | None,
    description="how to speculate, such as 'scd' or 'gsd[window=48]'; None: by the default method",
)
_STATS = OutputParam("speculation_stats", description="what the calls took, and what they promise")


class PictureModel(ModelMixin):
    """A pipeline of ours as one component, whose weights diffusers moves and casts.

    Args:
        pipeline: that draws.
    """

    opens: ClassVar[type[SpeculativePipeline]]

    def __init__(self, pipeline: SpeculativePipeline) -> None:
        super().__init__()
        self.pipeline = pipeline
        named = pipeline.components.items()
        self.networks = nn.ModuleDict({n: c for n, c in named if isinstance(c, nn.Module)})

    @classmethod
    def from_pretrained(cls, path: str, **options: Any) -> PictureModel:
        """Load a folder, a hub id or a model that ships, see `SpeculativePipeline`.

        Raises:
            InputError: it can't be loaded.
        """
        idle = {"subfolder": "", "variant": None, "revision": None}  # diffusers' "nothing"
        given = {n: v for n, v in options.items() if n not in idle or v not in (None, "")}
        return cls(cls.opens.from_pretrained(path, **given))

    def save_pretrained(
        self, save_directory: str | Path, max_shard_size: str | None = None, **options: Any
    ) -> None:
        """Write the pipeline's folder, see `SpeculativePipeline`.

        Raises:
            InputError: it can't be written, or not as safetensors or in a variant.
        """
        if options.pop("safe_serialization", True) is not True or options.pop("variant", None):
            raise InputError("weights are written as safetensors alone, and in no variant")
        sharded = {} if max_shard_size is None else {"max_shard_size": max_shard_size}
        self.pipeline.save_pretrained(save_directory, **sharded)

    def to(self, *args: Any, **kwargs: Any) -> PictureModel:
        """Move or cast the pipeline."""
        self.pipeline.to(*args, **kwargs)
        return self

    def forward(self, speculation: SpecConfig | str | None, **call: Any) -> Any:
        """Draw, see the pipeline's `__call__`.

        Raises:
            InputError: an argument is out of range, or the model can't speculate in this way.
        """
        self.pipeline.enable_speculation(speculation)
        return self.pipeline(**call)


class ImageModel(PictureModel):
    """LlamaGen, and image models of transformers: `ImagePipeline`."""

    opens = ImagePipeline


class ContinuousImageModel(PictureModel):
    """MAR: `ContinuousImagePipeline`."""

    opens = ContinuousImagePipeline


def _loaded(components: Any, name: str) -> Any:
    """A component of a modular pipeline; an `InputError` if there is none."""
    found = getattr(components, name, None)
    if found is None:
        raise InputError(f"the component {name} is not loaded; call load_components() first")
    return found


class _PictureStep(ModularPipelineBlocks):
    """Draw pictures; inputs are the arguments of the pipeline's `__call__`."""

    model: ClassVar[type[PictureModel]]

    @property
    def description(self) -> str:
        return f"Draws pictures by speculative decoding, see mmspec.{self.model.opens.__name__}"

    @property
    def expected_components(self) -> list[ComponentSpec]:
        ships = f"embedded-{self.model.opens.embedded}"
        return [ComponentSpec("model", self.model, pretrained_model_name_or_path=ships)]

    @property
    def inputs(self) -> list[InputParam]:
        taken = list(inspect.signature(self.model.opens.__call__).parameters.values())[1:]
        own = [
            InputParam(one.name, one.annotation, one.default)
            for one in taken
            if one.name not in _RESULT
        ]
        return [*own, _SPECULATION]

    @property
    def intermediate_outputs(self) -> list[OutputParam]:
        return [OutputParam("images", list, "the pictures, as output_type says"), _STATS]

    def __call__(self, components: Any, state: PipelineState) -> tuple[Any, PipelineState]:
        block = self.get_block_state(state)
        given = {one.name: getattr(block, one.name) for one in self.inputs}
        out = _loaded(components, "model")(**given)
        block.images, block.speculation_stats = out.images, out.stats
        self.set_block_state(state, block)
        return components, state


class SpeculativeImageStep(_PictureStep):
    """Draw pictures of tokens."""

    model = ImageModel


class SpeculativeContinuousImageStep(_PictureStep):
    """Draw pictures of continuous tokens."""

    model = ContinuousImageModel


class SpeculativeGlmImagePriorStep(ModularPipelineBlocks):
    """Draw the tokens of a picture by GLM-Image's language model; its diffusion model follows.

    What it gives, `GlmImagePipeline` takes by the same names.
    """

    model_name = "glm-image"
    _asked: Any = None  # what a caller had it speculate by, not what the model did before

    @property
    def description(self) -> str:
        return "Draws GLM-Image's prior tokens by speculative decoding"

    @property
    def expected_components(self) -> list[ComponentSpec]:
        kinds = {
            "vision_language_encoder": GlmImageForConditionalGeneration,
            "processor": GlmImageProcessor,
        }
        return [
            ComponentSpec(n, kind, pretrained_model_name_or_path=GLM_IMAGE, subfolder=n)
            for n, kind in kinds.items()
        ]

    @property
    def inputs(self) -> list[InputParam]:
        return [
            InputParam("prompt", str | list[str], required=True, description="one or several"),
            InputParam("image", list, description="pictures to go by, as GlmImagePipeline's"),
            InputParam("height", int, 1024, description="of the picture in pixels"),
            InputParam("width", int, 1024, description="of the picture in pixels"),
            InputParam("generator", torch.Generator, description="whose seed the tokens follow"),
            _SPECULATION,
        ]

    @property
    def intermediate_outputs(self) -> list[OutputParam]:
        return [
            OutputParam("prior_token_ids", torch.Tensor, "tokens [B, N], scaled up"),
            OutputParam("prior_token_image_ids", list, "tokens of the pictures to go by"),
            OutputParam("source_image_grid_thw", list, "and their grids"),
            _STATS,
        ]

    def __call__(self, components: Any, state: PipelineState) -> tuple[Any, PipelineState]:
        block = self.get_block_state(state)
        model = _loaded(components, "vision_language_encoder")
        _loaded(components, "processor")
        now, asked = speculation_of(model), block.speculation
        if asked is None:
            other = now is self._asked
        else:
            other = now is None or now.config.config != config_of(asked)
        if now is None or other:
            enable_speculation(model, asked)
            self._asked = None if asked is None else speculation_of(model)
        glm = GlmImagePipeline(None, components.processor, None, model, None, None, None)
        count = 1 if isinstance(block.prompt, str) else len(block.prompt)
        made = glm.generate_prior_tokens(
            block.prompt,
            block.height,
            block.width,
            glm._validate_and_normalize_images(block.image, count),
            components._execution_device,
            block.generator,
        )
        block.prior_token_ids, block.prior_token_image_ids, block.source_image_grid_thw = made
        block.speculation_stats = model.speculation_stats
        self.set_block_state(state, block)
        return components, state


BLOCKS: dict[str, type[ModularPipelineBlocks]] = {
    "image": SpeculativeImageStep,
    "continuous": SpeculativeContinuousImageStep,
    "glm-image": SpeculativeGlmImagePriorStep,
}

CODE = '''"""A block by mmspec, which this only names."""

from mmspec.integrations.diffusers_blocks import {name}

__all__ = ["{name}"]
'''

CARD = """---
library_name: diffusers
tags:
  - modular-diffusers
  - speculative-decoding
license: apache-2.0
---

# {name}: speculative decoding by mmspec

{description}.

```sh
pip install "mmspec>={version}"
```

```python
{example}
```

`trust_remote_code` is diffusers' word for code that lies in a repository. Here it is two lines that
import the installed package.
"""

PICTURES = """from diffusers import ModularPipeline

pipe = ModularPipeline.from_pretrained("FOLDER_OR_REPOSITORY", trust_remote_code=True)
pipe.load_components()  # the model that ships, or pretrained_model_name_or_path="YOUR_MODEL"
drawn = pipe(prompt={prompt}, output=["images", "speculation_stats"])"""

TOKENS = """from diffusers import GlmImagePipeline, ModularPipeline

glm = GlmImagePipeline.from_pretrained("zai-org/GLM-Image")
prior = ModularPipeline.from_pretrained("FOLDER_OR_REPOSITORY", trust_remote_code=True)
prior.update_components(
    vision_language_encoder=glm.vision_language_encoder, processor=glm.processor
)  # or prior.load_components(), which reads them anew
tokens = prior(prompt="a red fox in the snow", output=["prior_token_ids", "speculation_stats"])
image = glm("a red fox in the snow", prior_token_ids=tokens["prior_token_ids"]).images[0]"""


def write_block(name: str, folder: Path) -> None:
    """Write a repository of the Hub's layout that holds a block.

    Args:
        name: in `BLOCKS`.
        folder: that is made.

    Raises:
        InputError: there is no such block, or the folder holds something.
    """
    check_name("block", name, BLOCKS)
    kind, at_least = BLOCKS[name], f">={__version__}"
    config = {
        "_class_name": kind.__name__,
        "auto_map": {ModularPipelineBlocks.__name__: f"block.{kind.__name__}"},
        "requirements": {"mmspec": at_least},
    }
    prompt = '"a red circle left of a blue square"'
    example = TOKENS if name == "glm-image" else PICTURES.format(prompt=prompt)
    told = {"name": kind.__name__, "description": kind().description, "example": example}
    files = {
        ModularPipelineBlocks.config_name: to_json(config, indent=2) + "\n",
        ModularPipeline.config_name: kind().init_pipeline().to_json_string(),
        "block.py": CODE.format(name=kind.__name__),
        "requirements.txt": REQUIRED,
        "README.md": CARD.format(version=__version__, **told),
    }
    write_folder(folder, files)
