"""`enable_speculation()` without a word: the modality's own method, by the parts that are there."""

from __future__ import annotations

import pytest
from answering import model, processor
from mars import captioned_pipeline
from wans import tiny_pipeline

from mmspec import ContinuousImagePipeline, ImagePipeline, VlmPipeline
from mmspec.errors import InputError
from mmspec.pipelines.base import PLAIN


def default(pipe) -> str:
    """The method that a pipeline speculates by, of those who ask for none."""
    pipe.enable_speculation()
    chosen: str = pipe.speculation.method
    pipe.disable_speculation()
    return chosen


def test_image(tiny_folder):
    assert default(ImagePipeline.from_pretrained(tiny_folder)) == "scd"


def test_vlm():
    assert default(VlmPipeline(model(3, 0), processor(), drafter=model(1, 1))) == "draft"
    assert default(VlmPipeline(model(3, 0), processor())) == "prompt-lookup"


def test_continuous():
    pipe = captioned_pipeline()
    assert default(pipe) == "reflection"
    alone = ContinuousImagePipeline(pipe.transformer, pipe.vae, pipe.text_encoder, pipe.tokenizer)
    assert default(alone) == "reflection"


def test_video():
    assert default(tiny_pipeline()) == "sdvg"
    alone = tiny_pipeline(drafter=False)
    with pytest.raises(InputError, match="method 'sdvg' needs the component 'drafter'"):
        alone.enable_speculation()
    assert alone.speculation == PLAIN
