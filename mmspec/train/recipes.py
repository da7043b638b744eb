"""The recipes by name, with default lengths; a model's card says what it was trained with."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..errors import InputError
from ..files import locked
from ..methods import parts
from ..models.eight_bit import is_packed
from ..registry import check_name, resolve
from .card import read_record
from .kept import check_keep
from .parallel import Processes
from .trainer import Recipe, TrainConfig, Trainer


@dataclass(frozen=True)
class Stage:
    """A training of one component.

    Attributes:
        recipe: its class as `"module:Class"`, called with a `TrainConfig`, the pipeline's folder
            and arguments by name.
        config: fields of `TrainConfig` whose defaults are its own.
        options: what a user may give, and the recipe's arguments that take it; `keep` is a field of
            `TrainConfig` that few take.
        arguments: others of the recipe's arguments, or what one is where a user gives nothing.
        behind: a component that the next stages are built on: without it a run of all stages does
            not begin.
        parallel: whether several processes may train it together: whatever it learns, it learns
            from gradients.
    """

    recipe: str
    config: Mapping[str, Any]
    options: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    parallel: bool = False
    behind: str | None = None


_FIELDS = {field.name for field in fields(TrainConfig)} - {"out", "keep"}


def _stage(
    recipe: str, steps: int, batch: int, ema: float = 0.99, options: str = "", **others: Any
) -> Stage:
    """A stage of the recipe "module:Class" of `mmspec.train`.

    Args:
        options: what a user may give, such as "init size:resolution": where the recipe's argument
            has another name it stands behind the colon.
        others: `parallel`, `behind`, fields of `TrainConfig`, or arguments of the recipe.
    """
    named = (option.partition(":") for option in options.split())
    taken = {option: argument or option for option, _, argument in named}
    config = {"steps": steps, "batch_size": batch, "ema": ema}
    config |= {key: others.pop(key) for key in [*others] if key in _FIELDS}
    parallel, behind = others.pop("parallel", False), others.pop("behind", None)
    return Stage(f"mmspec.train.{recipe}", config, taken, others, parallel, behind)


_captions = partial(_stage, "caption_encoder:CaptionEncoderRecipe", 800, 128, options="init rate")
_SIZED = "init size:resolution"
_HEAD = "init data settings rate max_new_tokens objective reference keep"
# any number of processes train them
_shared = partial(_stage, parallel=True)
_drawing = partial(_shared, "image.target:ImageTargetRecipe", options=_SIZED)
_learned = partial(_shared, ema=0.995, options="init rate")
_video = partial(_learned, "video.model:VideoModelRecipe", 4000, 4)
_vlm = partial(_shared, "vlm.target:VlmTargetRecipe", batch=16, ema=0.995, workers=1)
_answering = partial(_vlm, options="init rate keep")
_head = partial(_shared, steps=4000, batch=16, options=_HEAD, evaluate_every=250)
_vlm_head = partial(_head, "vlm.head:VlmHeadRecipe")
_text_head = partial(_head, "text.head:TextHeadRecipe")
_SMALL = "init data settings rate max_new_tokens"
_ALIGNED = f"{_SMALL} objective reference"
_text_drafter = partial(_shared, steps=4000, batch=16, evaluate_every=250)
_routing = partial(_stage, steps=1000, batch=256, options="settings rate", evaluate_every=100)
_HEADS = {name: part for name, part in parts("head").items() if part.trained}
_UPSAMPLER = "image.upsampler:ImageUpsamplerRecipe"
_SPATIAL = "image.spatial_heads:ImageSpatialRecipe"
_DFLASH = "image.dflash_head:DFlashRecipe"
_ADAPTER = "vlm.adapter:VlmAdapterRecipe"
_MAR_DRAFTER = "continuous.drafter:MarDrafterRecipe"
_VIDEO_ADVANTAGE = "video.advantage:VideoAdvantageRecipe"
_VIDEO_VAE = "video.autoencoder:VideoAutoencoderRecipe"
# stages in the order in which they build on each other, by recipe
STAGES: dict[str, dict[str, Stage]] = {
    "image-tokenizer": {
        "vq_model": _stage("image.tokenizer:ImageTokenizerRecipe", 1600, 16, 0.995, "init rate")
    },
    "image-target": {
        "captions": _captions(behind="vq_model"),
        "sibling": _drawing(3800, 64, name="sibling"),
        "transformer": _drawing(3000, 24, name="transformer", init="sibling"),
    },
    "image-drafter": {"drafter": _stage("image.drafter:ImageDrafterRecipe", 6000, 16)},
    "image-rows": {"row_drafter": _stage("image.row_drafter:ImageRowDrafterRecipe", 6000, 16)},
    "image-upsampler": {"upsampler": _stage(_UPSAMPLER, 3000, 32, options=_SIZED)},
    "image-spatial": {"spatial": _stage(_SPATIAL, 4000, 16, options="init")},
    "image-judge": {
        "judge": _stage("image.judge:ImageJudgeRecipe", 1500, 512, options="settings rate")
    },
    "image-head": {
        "eagle": _stage("image.eagle_head:EagleRecipe", 6000, 8),
        "dflash": _stage(_DFLASH, 6000, 8, options="init rate objective settings"),
    },
    "kl-autoencoder": {"vae": _learned("continuous.autoencoder:KlAutoencoderRecipe", 2500, 32)},
    "mar": {
        "captions": _captions(kind="ContinuousImagePipeline", behind="vae"),
        "target": _learned("continuous.target:MarTargetRecipe", 4000, 64),
        "drafter": _learned(_MAR_DRAFTER, 6000, 32, options="init rate objective"),
    },
    # a number tells of 64, not of 12 as those of `kl-autoencoder`
    "video-autoencoder": {"vae": _learned(_VIDEO_VAE, 12000, 3, divergence=2e-4, squared=8.0)},
    "video": {
        "captions": _captions(world="clips", kind="VideoPipeline", behind="vae"),
        "target": _video(name="transformer"),
        "drafter": _video(name="drafter"),
        "router": _stage("video.router:VideoRouterRecipe", 800, 4, options="init rate"),
        "advantage": _stage(_VIDEO_ADVANTAGE, 800, 4, options="init rate", evaluate_every=100),
    },
    "clip": {"clip": _stage("clip:ClipRecipe", 1400, 256, workers=1)},
    "vlm": {
        "tower": _shared("vlm.tower:VlmTowerRecipe", 1500, 32, workers=1),
        "sibling": _answering(8000, stage="sibling"),
        "target": _answering(6000, stage="target"),
        "scenes": _answering(2000, stage="scenes", charts=0.0),
        "charts": _answering(2000, stage="charts", charts=1.0),
    },
    "vlm-adapter": {"adapter": _shared(_ADAPTER, 3000, 4, options="language rate", workers=1)},
    "vlm-judge": {"judge": _stage("vlm.judge:VlmJudgeRecipe", 1500, 512, options="settings rate")},
    "vlm-router": {
        "router": _routing("vlm.step_router:VlmRouterRecipe"),
        "advantage_router": _routing("vlm.step_router:VlmAdvantageRecipe"),
    },
    "vlm-head": {name: _vlm_head(method=name) for name in _HEADS},
    "text-head": {name: _text_head(method=name) for name, part in _HEADS.items() if not part.sees},
    "text-drafter": {
        "pretrain": _text_drafter("text.drafter:TextPretrainRecipe", options=_SMALL),
        "align": _text_drafter("text.drafter:TextAlignRecipe", options=_ALIGNED),
    },
    "text-masked": {
        "masked": _text_drafter("text.block_diffusion:TextBlockDiffusionRecipe", options=_SMALL)
    },
    "text-masked-drafter": {
        "denoise": _text_drafter("text.masked:TextDenoiseRecipe", options=_SMALL),
        "refine": _text_drafter("text.masked:TextRefineRecipe", options=_SMALL),
    },
}
OPTIONS = {
    "init": "a component to start from (init)",
    "size": "a size",
    "data": "data of one's own",
    "language": "a language model (language)",
    "settings": "settings of a head, a drafter, a judge or a router",
    "rate": "a learning rate",
    "keep": "a share of the first weights to keep",
    "max_new_tokens": "a length of answers (max_new_tokens)",
    "objective": "a loss on laws (objective)",
    "reference": "a head or a drafter to choose places by (reference)",
}


def train(
    name: str, pipeline: Path, *, stage: str | None = None, **given: Any
) -> list[dict[str, Any]]:
    """Run a recipe, stage by stage; every stage adds its component to the `pipeline` folder.

    Args:
        name: one of `STAGES`.
        pipeline: folder that holds what the recipe builds on; checkpoints and logs go to its
            `training` folder, and a stage that has a checkpoint there is resumed.
        stage: the one stage to run; None: all of them.
        given: fields of `TrainConfig`, or options of the stage. None keeps the default. Options are
            `init`: component of the folder whose weights it starts from, such as its own, to train
            it further; `keep`: their share in the average that is exported; `size`: side in pixels
            of the pictures that it is trained on; and others that are arguments of the stage's
            recipe.

    Returns:
        The record of every stage; of several processes only the first has any.

    Raises:
        InputError: a name is unknown, a stage does not take an option, the folder's weights are
            packed, another run writes there, or a checkpoint in it is of other settings.
    """
    given = {key: value for key, value in given.items() if value is not None}
    changes = {key: given.pop(key) for key in [*given] if key in _FIELDS}
    stages = chosen(name, stage, given)
    if is_packed(pipeline):
        raise InputError(
            f"{pipeline} rests in eight bits; train in a copy made by "
            f"`python -m mmspec.models.eight_bit unpack {pipeline} OUT`"
        )
    if stage is None:
        for behind in filter(None, (how.behind for how in stages.values())):
            if not (pipeline / behind).is_dir():
                raise InputError(f"{pipeline} holds no {behind}, which {name} is built on")
    processes = Processes.launched(changes.get("device", TrainConfig.device))
    for component, how in stages.items():
        if processes.count > 1 and not how.parallel:
            raise InputError(f"{component} is trained by one process, not {processes.count}")
    with locked(pipeline) if processes.first else nullcontext():
        records = [
            _train(component, how, pipeline, changes, given, processes)
            for component, how in stages.items()
        ]
    return records if processes.first else []


def chosen(name: str, stage: str | None, options: Iterable[str]) -> dict[str, Stage]:
    """The stages that a run trains, by component.

    Args:
        name, stage: see `train`.
        options: names of what is given beside fields of `TrainConfig`.

    Raises:
        InputError: a name is unknown, or they do not take an option.
    """
    check_name("recipe", name, STAGES)
    stages = STAGES[name]
    if stage is not None:
        check_name("stage", stage, stages)
        stages = {stage: stages[stage]}
    for option in options:
        if option not in _FIELDS:
            _check_option(option, stages.values())
    return stages


def _train(
    component: str,
    how: Stage,
    pipeline: Path,
    changes: Mapping[str, Any],
    given: Mapping[str, Any],
    processes: Processes,
) -> dict[str, Any]:
    """Run one stage; returns its record."""
    keep = given.get("keep", 0.0)
    check_keep(keep, given.get("init"), component)
    out = pipeline / "training" / component
    config = TrainConfig(out=out, keep=keep, **{**how.config, **changes})
    torch.manual_seed(config.seed)  # of the first weights; batches have seeds of their own
    own = replace(config, seed=processes.seed(config.seed), device=processes.device)
    options = {how.options[name]: value for name, value in given.items() if name != "keep"}
    kind = resolve(how.recipe)
    call = inspect.signature(kind).bind(own, pipeline, **{**how.arguments, **options})
    recipe: Recipe = kind(*call.args, **call.kwargs)
    call.apply_defaults()
    _, _, *named = call.arguments.items()  # but for the configuration and the folder
    # a path in full, wherever a run is started
    arguments = {n: str(v.resolve()) if isinstance(v, Path) else v for n, v in named}
    origin: Path | None = getattr(recipe, "origin", None)  # of weights that it starts from
    before = None if origin is None else read_record(origin)
    return Trainer(recipe, own, before, processes, arguments).run()


def _check_option(option: str, stages: Iterable[Stage]) -> None:
    """Raise an `InputError` unless there is one stage, and it takes the option."""
    check_name("option", option, OPTIONS)
    found = list(stages)
    if len(found) > 1 or option not in found[0].options:
        takers = [
            f"{', '.join(stage for stage in known if option in known[stage].options)} of {name}"
            for name, known in STAGES.items()
            if any(option in stage.options for stage in known.values())
        ]
        raise InputError(f"{OPTIONS[option]} is for one stage: {'; '.join(takers)}")
