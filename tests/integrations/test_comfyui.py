"""Nodes for ComfyUI against its contract, and its workflows run by a small executor.

What ComfyUI asks of nodes is written from its documentation: classes with `INPUT_TYPES`,
`RETURN_TYPES`, `FUNCTION` and `CATEGORY`, inputs by name, a tuple of outputs or that as the
`result` of a dict with what it shows as `ui`. Only output nodes run, and what they read.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import types
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch

from mmspec import ImagePipeline, VlmPipeline
from mmspec.cli.main import main
from mmspec.errors import InputError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("custom_nodes") / "mmspec_nodes"
    assert main(["export", "comfyui", str(made)]) == 0
    return made


@pytest.fixture(scope="module")
def nodes(folder):
    """The folder as ComfyUI loads it."""
    spec = importlib.util.spec_from_file_location("mmspec_nodes", folder / "__init__.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.NODE_DISPLAY_NAME_MAPPINGS.keys() == module.NODE_CLASS_MAPPINGS.keys()
    return module.NODE_CLASS_MAPPINGS


class SaveImage:
    """ComfyUI's own node."""

    FUNCTION, RETURN_TYPES, CATEGORY, OUTPUT_NODE = "save", (), "image", True
    saved: ClassVar[list[torch.Tensor]] = []

    @classmethod
    def INPUT_TYPES(cls):  # noqa: N802
        return {"required": {"images": ("IMAGE",), "filename_prefix": ("STRING", {})}}

    def save(self, images, filename_prefix):
        assert images.dtype == torch.float32
        assert images.ndim == 4
        assert images.shape[-1] == 3
        assert images.min() >= 0
        assert images.max() <= 1
        self.saved.append(images)
        return ()


WIDGETS = {"STRING": str, "INT": int, "FLOAT": (int, float)}


def run(workflow: dict, classes: dict) -> dict:
    """The outputs of the nodes that ComfyUI runs, checked as it checks them."""
    done: dict[str, tuple] = {}

    def out(name: str) -> tuple:
        if name not in done:
            node = classes[workflow[name]["class_type"]]
            types_of = node.INPUT_TYPES()
            known = types_of["required"] | types_of.get("optional", {})
            given = workflow[name]["inputs"]
            assert types_of["required"].keys() <= given.keys() <= known.keys()
            values = {}
            for key, value in given.items():
                kind = known[key][0]
                if isinstance(value, list):
                    source, place = value
                    upstream = classes[workflow[source]["class_type"]]
                    assert upstream.RETURN_TYPES[place] == kind
                    values[key] = out(source)[place]
                elif isinstance(kind, list):
                    assert value in kind
                    values[key] = value
                else:
                    assert isinstance(value, WIDGETS[kind])
                    values[key] = value
            made = getattr(node(), node.FUNCTION)(**values)
            if isinstance(made, dict):
                assert node.OUTPUT_NODE
                assert all(isinstance(shown, list) for shown in made["ui"].values())
                made = made["result"]
            assert isinstance(made, tuple)
            assert len(made) == len(node.RETURN_TYPES)
            done[name] = made
        return done[name]

    for name, node in workflow.items():
        if getattr(classes[node["class_type"]], "OUTPUT_NODE", False):
            out(name)
    return done


def test_nodes_keep_the_contract(nodes):
    assert len(nodes) == 5
    for name, node in nodes.items():
        assert name.startswith("Mmspec")  # names are shared by all packages of nodes
        assert node.CATEGORY == "mmspec"
        assert callable(getattr(node, node.FUNCTION))
        assert len(node.RETURN_NAMES) == len(node.RETURN_TYPES)
        for sockets in node.INPUT_TYPES().values():
            for kind, *options in sockets.values():
                assert isinstance(kind, str | list)
                if options and "default" in options[0] and isinstance(kind, str):
                    assert isinstance(options[0]["default"], WIDGETS[kind])


@pytest.mark.slow
def test_draw_and_ask(nodes, folder):
    workflow = json.loads((folder / "workflows" / "draw_and_ask.json").read_text())
    done = run(workflow, {**nodes, "SaveImage": SaveImage})
    asked = workflow["3"]["inputs"]
    pipe = ImagePipeline.from_pretrained(None)
    pipe.enable_speculation("scd")
    chance = [torch.Generator().manual_seed(asked["seed"] + n) for n in range(2)]
    expected = pipe(
        asked["prompt"], num_images_per_prompt=2, generator=chance, output_type="np"
    ).images
    assert np.array_equal(SaveImage.saved[-1].numpy(), expected.astype(np.float32))
    assert done["2"][1] == "exact"
    assert done["3"][1].startswith("scd: ")
    vlm = VlmPipeline.from_pretrained(None)
    seen = [(one * 255).round().astype(np.uint8) for one in expected]
    answer = vlm(workflow["5"]["inputs"]["question"], seen, max_new_tokens=60)
    assert done["5"][0] == answer.text[0]


@pytest.mark.slow
def test_a_clip_is_a_batch_of_frames(nodes, folder):
    workflow = json.loads((folder / "workflows" / "clip.json").read_text())
    run(workflow, {**nodes, "SaveImage": SaveImage})
    assert len(SaveImage.saved[-1]) > 8


@pytest.mark.slow
def test_two_wires_of_one_model_speculate_each_its_own_way(nodes):
    load, choose, draw = (
        nodes[f"Mmspec{name}"]() for name in ("LoadModel", "Speculate", "DrawPicture")
    )
    (model,) = load.load("image", "", "cpu")
    one, _ = choose.choose(model, "scd", "window=8")
    other, _ = choose.choose(model, "plain")
    assert draw.draw(one, "a photo of a red circle", 1, 0)[1].startswith("scd: ")
    assert draw.draw(other, "a photo of a red circle", 1, 0)[1].startswith("plain: 256 calls")
    assert draw.draw(model, "a photo of a red circle", 1, 0)[1].startswith("scd: ")
    with pytest.raises(InputError, match="wants a model of vlm, and this one is of image"):
        nodes["MmspecAskAboutPicture"]().ask(model, torch.zeros(1, 8, 8, 3), "what?", 4)
    with pytest.raises(InputError, match="settings are of a method"):
        choose.choose(model, "its default", "window=8")


def test_pixels_beyond_the_ends_are_cut(nodes):
    """Bicubic upscales overshoot; white stays white."""
    shown = []

    def pipe(question, pictures, **how):
        shown.extend(pictures)
        stats = SimpleNamespace(calls=[1], method="plain", contract="exact")
        return SimpleNamespace(text=["it"], stats=stats)

    model = SimpleNamespace(ready=lambda kind: pipe)
    image = torch.tensor([1.01, -0.01, 0.5, 1.0]).view(1, 2, 2, 1).expand(-1, -1, -1, 3)
    nodes["MmspecAskAboutPicture"]().ask(model, image, "what?", 4)
    assert shown[0][..., 0].tolist() == [[255, 0], [128, 255]]


class StoppedError(Exception):
    pass


def test_comfyuis_button_interrupts(nodes, monkeypatch):
    calls = []

    def throw_exception_if_processing_interrupted():
        calls.append(1)
        if len(calls) == 3:
            raise StoppedError

    management = types.ModuleType("comfy.model_management")
    management.throw_exception_if_processing_interrupted = throw_exception_if_processing_interrupted
    monkeypatch.setitem(sys.modules, "comfy", types.ModuleType("comfy"))
    monkeypatch.setitem(sys.modules, "comfy.model_management", management)
    (model,) = nodes["MmspecLoadModel"]().load("image", "", "cpu")
    with pytest.raises(StoppedError):
        nodes["MmspecDrawPicture"]().draw(model, "a photo of a red circle", 1, 0)
    assert len(calls) == 3
