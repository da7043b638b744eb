"""Speculative decoding of images, of text about them, and of video. Public names load when used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .registry import resolve

if TYPE_CHECKING:
    from .errors import InputError
    from .methods import SpecConfig
    from .models.embedded import embedded_folder
    from .models.heads.loading import load_head, load_judge, load_router
    from .models.transformers.grammar import GrammarProcessor
    from .pipelines.continuous.pipeline import ContinuousImagePipeline
    from .pipelines.image.pipeline import ImagePipeline
    from .pipelines.text.chat import Chat
    from .pipelines.text.pipeline import TextPipeline
    from .pipelines.video.pipeline import VideoPipeline
    from .pipelines.vlm.generate import disable_speculation, enable_speculation
    from .pipelines.vlm.pipeline import VlmPipeline
    from .train.heads.online import OnlineLearner
    from .train.text.online import DrafterLearner

__version__ = "0.2.0"
__all__ = [
    "Chat",
    "ContinuousImagePipeline",
    "DrafterLearner",
    "GrammarProcessor",
    "ImagePipeline",
    "InputError",
    "OnlineLearner",
    "SpecConfig",
    "TextPipeline",
    "VideoPipeline",
    "VlmPipeline",
    "__version__",
    "disable_speculation",
    "embedded_folder",
    "enable_speculation",
    "load_head",
    "load_judge",
    "load_router",
]

_LAZY = {
    "Chat": "mmspec.pipelines.text.chat:Chat",
    "ContinuousImagePipeline": "mmspec.pipelines.continuous.pipeline:ContinuousImagePipeline",
    "DrafterLearner": "mmspec.train.text.online:DrafterLearner",
    "GrammarProcessor": "mmspec.models.transformers.grammar:GrammarProcessor",
    "ImagePipeline": "mmspec.pipelines.image.pipeline:ImagePipeline",
    "InputError": "mmspec.errors:InputError",
    "OnlineLearner": "mmspec.train.heads.online:OnlineLearner",
    "SpecConfig": "mmspec.methods.config:SpecConfig",
    "TextPipeline": "mmspec.pipelines.text.pipeline:TextPipeline",
    "VideoPipeline": "mmspec.pipelines.video.pipeline:VideoPipeline",
    "VlmPipeline": "mmspec.pipelines.vlm.pipeline:VlmPipeline",
    "disable_speculation": "mmspec.pipelines.vlm.generate:disable_speculation",
    "embedded_folder": "mmspec.models.embedded:embedded_folder",
    "enable_speculation": "mmspec.pipelines.vlm.generate:enable_speculation",
    "load_head": "mmspec.models.heads.loading:load_head",
    "load_judge": "mmspec.models.heads.loading:load_judge",
    "load_router": "mmspec.models.heads.loading:load_router",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = resolve(_LAZY[name])
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
