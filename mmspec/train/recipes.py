"""The recipes by name, with default lengths; a model's card says what it was trained with."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch

from ..errors import InputError
from ..files import locked
from ..models.eight_bit import is_packed
from ..registry import check_name, resolve
from .card import read_record
from .parallel import Processes
from .trainer import Recipe, TrainConfig, Trainer


@dataclass(frozen=True)
class Stage:
    """How a component is trained.

    Attributes:
        recipe: its class as `"module:Class"`, called with a `TrainConfig`, the pipeline's folder
            and arguments by name.
        config: fields of `TrainConfig` whose defaults are its own.
        options: what a user may give, and the recipe's arguments that take it.
        arguments: others of the recipe's arguments, or what one is where a user gives nothing.
        parallel: whether several processes may train it together: whatever it learns, it learns
            from gradients.
    """

    recipe: str
    config: Mapping[str, Any]
    options: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    parallel: bool = False


def _drawing(name: str, **config: Any) -> Stage:
    """Of a text-to-image transformer; a large one goes on from the small one's weights."""
    arguments = {"name": name} | ({} if name == "sibling" else {"init": "sibling"})
    options = {"init": "init", "size": "resolution"}
    reference = "mmspec.train.image.target:ImageTargetRecipe"
    return Stage(reference, {"ema": 0.99, **config}, options, arguments)


def _moving(name: str) -> Stage:
    """Of a block-causal video model."""
    config = {"steps": 4000, "batch_size": 4, "ema": 0.995}
    options = {"init": "init", "rate": "rate"}
    reference = "mmspec.train.video.model:VideoModelRecipe"
    return Stage(reference, config, options, {"name": name}, parallel=True)


def _answering(name: str, arguments: Mapping[str, Any] | None = None, **config: Any) -> Stage:
    """Of a vision-language model."""
    reference = "mmspec.train.vlm.target:VlmTargetRecipe"
    config = {"batch_size": 16, "ema": 0.995, "workers": 1, **config}
    options = {"init": "init", "rate": "rate", "keep": "keep"}
    return Stage(reference, config, options, {"stage": name, **(arguments or {})}, parallel=True)


def _head(method: str, **config: Any) -> Stage:
    """Of a draft head over a vision-language model."""
    options = ("init", "data", "settings", "rate", "max_new_tokens")
    config = {"steps": 4000, "batch_size": 16, "ema": 0.99, "evaluate_every": 250, **config}
    reference = "mmspec.train.vlm.head:VlmHeadRecipe"
    return Stage(reference, config, {o: o for o in options}, {"method": method}, parallel=True)


# stages in the order in which they build on each other, by recipe
STAGES: dict[str, dict[str, Stage]] = {
    "image-tokenizer": {
        "vq_model": Stage(
            "mmspec.train.image.tokenizer:ImageTokenizerRecipe",
            {"steps": 1600, "batch_size": 16, "ema": 0.995},
        )
    },
    "image-target": {
        "sibling": _drawing("sibling", steps=3800, batch_size=64),
        "transformer": _drawing("transformer", steps=3000, batch_size=24),
    },
    "image-drafter": {
        "drafter": Stage(
            "mmspec.train.image.drafter:ImageDrafterRecipe",
            {"steps": 6000, "batch_size": 16, "ema": 0.99},
        )
    },
    "image-upsampler": {
        "upsampler": Stage(
            "mmspec.train.image.upsampler:ImageUpsamplerRecipe",
            {"steps": 3000, "batch_size": 32, "ema": 0.99},
            {"init": "init", "size": "resolution"},
        )
    },
    "image-spatial": {
        "spatial": Stage(
            "mmspec.train.image.spatial_heads:ImageSpatialRecipe",
            {"steps": 4000, "batch_size": 16, "ema": 0.99},
            {"init": "init"},
        )
    },
    "image-head": {
        "eagle": Stage(
            "mmspec.train.image.eagle_head:EagleRecipe",
            {"steps": 6000, "batch_size": 8, "ema": 0.99},
        )
    },
    "kl-autoencoder": {
        "vae": Stage(
            "mmspec.train.continuous.autoencoder:KlAutoencoderRecipe",
            {"steps": 2500, "batch_size": 32, "ema": 0.995},
            {"init": "init", "rate": "rate"},
            parallel=True,
        )
    },
    "mar": {
        "target": Stage(
            "mmspec.train.continuous.target:MarTargetRecipe",
            {"steps": 4000, "batch_size": 64, "ema": 0.995},
            {"init": "init", "rate": "rate"},
            parallel=True,
        ),
        "drafter": Stage(
            "mmspec.train.continuous.drafter:MarDrafterRecipe",
            {"steps": 6000, "batch_size": 32, "ema": 0.995},
            {"init": "init", "rate": "rate"},
            parallel=True,
        ),
    },
    "video-autoencoder": {
        "vae": Stage(
            "mmspec.train.video.autoencoder:VideoAutoencoderRecipe",
            {"steps": 12000, "batch_size": 3, "ema": 0.995},
            {"init": "init", "rate": "rate"},
            # a number tells of 64, not of 12 as those of `kl-autoencoder`
            {"divergence": 2e-4, "squared": 8.0},
            parallel=True,
        )
    },
    "video": {
        "target": _moving("transformer"),
        "drafter": _moving("drafter"),
        "router": Stage(
            "mmspec.train.video.router:VideoRouterRecipe",
            {"steps": 800, "batch_size": 4, "ema": 0.99},
            {"init": "init", "rate": "rate"},
        ),
    },
    "clip": {
        "clip": Stage(
            "mmspec.train.clip:ClipRecipe",
            {"steps": 1400, "batch_size": 256, "ema": 0.99, "workers": 1},
        )
    },
    "vlm": {
        "tower": Stage(
            "mmspec.train.vlm.tower:VlmTowerRecipe",
            {"steps": 1500, "batch_size": 32, "ema": 0.99, "workers": 1},
            parallel=True,
        ),
        "sibling": _answering("sibling", steps=8000),
        "target": _answering("target", steps=6000),
        "scenes": _answering("scenes", {"charts": 0.0}, steps=2000),
        "charts": _answering("charts", {"charts": 1.0}, steps=2000),
    },
    "vlm-head": {
        "eagle": _head("eagle"),
        "vispec": _head("vispec"),
        "specvlm": _head("specvlm"),
        "msd": _head("msd"),
        "flash": _head("flash"),
        "dflash": _head("dflash"),
        "hydra": _head("hydra"),
    },
}
OPTIONS = {
    "init": "a component to start from (init)",
    "size": "a size",
    "data": "data of one's own",
    "settings": "settings of a head",
    "rate": "a learning rate",
    "keep": "a share of the first weights to keep",
    "max_new_tokens": "a length of answers (max_new_tokens)",
}
_FIELDS = {field.name for field in fields(TrainConfig)} - {"out"}


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
    check_name("recipe", name, STAGES)
    if is_packed(pipeline):
        raise InputError(
            f"{pipeline} rests in eight bits; train in a copy made by "
            f"`python -m mmspec.models.eight_bit unpack {pipeline} OUT`"
        )
    stages = STAGES[name]
    if stage is not None:
        check_name("stage", stage, stages)
        stages = {stage: stages[stage]}
    given = {key: value for key, value in given.items() if value is not None}
    changes = {key: given.pop(key) for key in [*given] if key in _FIELDS}
    for option in given:
        _check_option(option, stages.values())
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


def _train(
    component: str,
    how: Stage,
    pipeline: Path,
    changes: Mapping[str, Any],
    given: Mapping[str, Any],
    processes: Processes,
) -> dict[str, Any]:
    """Run one stage; returns its record."""
    config = TrainConfig(out=pipeline / "training" / component, **{**how.config, **changes})
    torch.manual_seed(config.seed)  # of the first weights; batches have seeds of their own
    own = replace(config, seed=processes.seed(config.seed), device=processes.device)
    options = {how.options[option]: value for option, value in given.items()}
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
    chosen = list(stages)
    if len(chosen) > 1 or option not in chosen[0].options:
        takers = [
            f"{', '.join(stage for stage in known if option in known[stage].options)} of {name}"
            for name, known in STAGES.items()
            if any(option in stage.options for stage in known.values())
        ]
        raise InputError(f"{OPTIONS[option]} is for one stage: {'; '.join(takers)}")
