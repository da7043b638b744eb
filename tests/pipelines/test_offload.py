"""Diffusers' offloading, which speculation would read past, is refused in one line."""

from __future__ import annotations

import pytest
from mars import captioned_pipeline
from wans import tiny_pipeline

from mmspec import ImagePipeline
from mmspec.errors import InputError


@pytest.mark.parametrize("how", ["model_cpu", "sequential_cpu", "group"])
def test_offloading_is_refused(how, tiny_folder):
    for pipe in (tiny_pipeline(), captioned_pipeline(), ImagePipeline.from_pretrained(tiny_folder)):
        with pytest.raises(InputError, match=f"{type(pipe).__name__} can't offload its parts"):
            getattr(pipe, f"enable_{how}_offload")("cpu")
