"""Pipelines with a device map: what is where, and that pictures stay the same."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from mmspec import ImagePipeline, SpecConfig
from mmspec.errors import InputError
from mmspec.models.llamagen.transformer import LlamaGenTransformer

CPU, TWIN = torch.device("cpu"), torch.device("cpu:0")  # one device under two names
PROMPTS = ["a photo of a red circle", "a photo of three yellow stars"]
METHODS = ["plain", "draft", "sjd", "tree", "early-exit"]


def load(folder, device_map=None) -> ImagePipeline:
    pipe = ImagePipeline.from_pretrained(folder, torch.float64, device_map=device_map)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def draw(pipe, method, **call) -> torch.Tensor:
    pipe.enable_speculation(SpecConfig(method=method))
    generators = [torch.Generator().manual_seed(seed) for seed in (0, 1)]
    return pipe(PROMPTS, generator=generators, output_type="tokens", **call).images.cpu()


@pytest.fixture
def host_only(monkeypatch):
    """As accelerate sees a machine without GPUs."""
    monkeypatch.setattr("accelerate.utils.get_max_memory", lambda *a: {"cpu": 2**34})
    monkeypatch.setattr("accelerate.utils.modeling.get_max_memory", lambda *a: {"cpu": 2**34})


@pytest.mark.parametrize("method", METHODS)
def test_handed_over_between_layers(tiny_folder, method):
    whole = load(tiny_folder)
    spread = load(tiny_folder, {"": "cpu", "transformer.layers.1": "cpu:0", "sibling": "cpu"})
    decoder = spread.decoder(spread.transformer)
    assert decoder.placement.layers == (CPU, TWIN)
    assert draw(spread, method).equal(draw(whole, method))
    assert spread.decoder(spread.transformer) is decoder
    assert draw(spread, "plain", height=16).equal(draw(whole, "plain", height=16))


def test_map_is_complete_and_readable_again(tiny_folder):
    spread = load(
        tiny_folder, {"": CPU, "transformer.layers": "cpu:0", "transformer.layers.0": "cpu"}
    )
    expected = {"": CPU, "transformer.layers.0": CPU, "transformer.layers.1": TWIN}
    expected |= {"transformer.output": CPU, "drafter.layers.0": CPU, "drafter.output": CPU}
    expected |= {"row_drafter.layers.0": CPU, "row_drafter.output": CPU}
    expected |= {f"sibling.{part}": CPU for part in ("layers.0", "layers.1", "output")}
    assert spread.hf_device_map == expected
    assert load(tiny_folder, spread.hf_device_map).hf_device_map == expected


def test_without_its_map_nothing_is_kept_on_the_devices(tiny_folder):
    spread = load(tiny_folder, {"": "cpu", "transformer.layers.1": "cpu:0"})
    drawn = draw(spread, "plain")
    decoder = weakref.ref(spread.decoder(spread.transformer))
    spread.reset_device_map()
    gc.collect()
    assert decoder() is None
    assert spread.hf_device_map is None
    assert draw(spread, "plain").equal(drawn)


@pytest.mark.usefixtures("host_only")
def test_auto_with_one_device_is_that_device(tiny_folder):
    spread = load(tiny_folder, "auto")
    assert set(spread.hf_device_map.values()) == {CPU}
    assert spread.decoder(spread.transformer).placement.moves == {}
    assert draw(spread, "draft").equal(draw(load(tiny_folder), "draft"))


def test_auto_spreads_target_and_sibling(tiny_folder, monkeypatch):
    """Not the drafter; and each as accelerate says, the next after the one before took its room."""
    seen = []

    def infer(model):
        seen.append(model)
        near, far = ("cls_embedding", "tok_embeddings", "layers.0"), ("layers.1", "norm", "output")
        return dict.fromkeys(near, CPU) | dict.fromkeys(far, TWIN)

    monkeypatch.setattr("mmspec.pipelines.device_map.infer_device_map", infer)
    spread = load(tiny_folder, "auto")
    assert seen[-2:] == [spread.transformer, spread.sibling]
    assert spread.drafter not in seen
    for network in (spread.transformer, spread.sibling):
        placed = spread.decoder(network).placement
        assert (placed.main, placed.layers, placed.head) == (CPU, (CPU, TWIN), TWIN)
    assert spread.decoder(spread.drafter).placement.moves == {}
    assert draw(spread, "draft").equal(draw(load(tiny_folder), "draft"))


@pytest.mark.usefixtures("host_only")
def test_a_mapped_pipeline_is_not_moved_but_reset(tiny_folder):
    spread = load(tiny_folder, "auto")
    with pytest.raises(InputError, match="call reset_device_map"):
        spread.to("cpu")
    spread.reset_device_map()
    assert spread.to("cpu").decoder(spread.transformer).placement.moves == {}


@pytest.mark.usefixtures("host_only")
def test_saved_as_any_other(tiny_folder, tmp_path):
    spread = load(tiny_folder, "auto")
    spread.save_pretrained(tmp_path)
    assert draw(load(tmp_path), "draft").equal(draw(spread, "draft"))


@pytest.mark.parametrize(
    ("device_map", "message"),
    [
        ("balanced", "must be 'auto' or devices by name, or one device .*, not 'balanced'"),
        ({"transformer.layers.1": "cpu"}, r"says nothing of transformer\.tok_embeddings"),
        ({"transformer": "cpu"}, "says nothing of"),
        ({"": "cpu", "transformer.layers.2": "cpu"}, r"names 'transformer\.layers\.2'"),
        ({"": "cpu", "transformer.layers.1.attention": "cpu"}, "no part that it can place"),
        ({"": "cpu", "vq_model": "cpu:0"}, "must put vq_model on cpu"),
        ({"": "cpu", "sibling": "cpu:0"}, r"must put sibling\.cls_embedding on cpu"),
        ({"": "cpu", "transformer.norm": "cpu:0"}, r"must put transformer\.norm on cpu"),
        ({"": "cpu", "transformer.layers.1": "meta"}, "'meta' can't be used"),
        ({"": "toaster"}, "'toaster' can't be used"),
    ],
)
def test_maps_that_cannot_be_followed(tiny_folder, device_map, message):
    with pytest.raises(InputError, match=message) as caught:
        load(tiny_folder, device_map)
    assert "\n" not in str(caught.value)


@pytest.mark.gpu
@pytest.mark.parametrize("method", METHODS)
def test_two_devices(tiny_folder, method):
    """Two GPUs, or one and the CPU: the layers compute where they are, to the same laws."""
    other = torch.device("cuda:1" if torch.cuda.device_count() > 1 else "cpu")
    device_map = {"": "cuda:0", "transformer.layers.1": other, "sibling.layers.0": other}
    spread, whole = load(tiny_folder, device_map), load(tiny_folder).to("cuda:0")
    assert spread.device == torch.device("cuda:0")
    decoder = spread.decoder(spread.transformer)
    assert {linear.weight.device for linear in decoder.layers[1].maps} == {other}
    assert {kept.device for kept in decoder.cache(2, 8).read(1, 4)} == {other}
    for call in ({}, {"temperature": 0}, {"height": 16}):
        assert draw(spread, method, **call).equal(draw(whole, method, **call))
    tokens = draw(whole, "plain").to("cuda:0")
    ours, theirs = (pipe.token_laws(PROMPTS, tokens) for pipe in (spread, whole))
    assert torch.allclose(ours, theirs, atol=1e-9, rtol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["plain", "sjd"])
def test_classes_on_two_devices(tiny_folder, tmp_path, method):
    told = dict(model_type="c2i", cls_token_num=1, num_classes=10)
    captioned = load(tiny_folder)
    network = LlamaGenTransformer.from_config({**captioned.transformer.config, **told})
    torch.nn.init.normal_(network.output.weight, std=0.3)
    ImagePipeline(network.eval(), captioned.vq_model).save_pretrained(tmp_path)
    device_map = {"": "cuda:0", "transformer.layers.1": "cpu"}
    drawn = []
    for pipe in (load(tmp_path, device_map), load(tmp_path).to("cuda:0")):
        pipe.enable_speculation(SpecConfig(method=method))
        generators = [torch.Generator().manual_seed(seed) for seed in (0, 1)]
        out = pipe(class_labels=[3, 7], generator=generators, output_type="tokens")
        drawn.append(out.images.cpu())
    assert torch.equal(*drawn)
