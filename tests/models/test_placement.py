"""Layers on several devices: where each tensor is, and that nothing else changes.

torch's fake tensors know their device, of any kind and number: GPUs are needed for numbers alone.
Those are compared between "cpu" and "cpu:0", one device under two names, between which everything
is handed over all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mmspec.engine.draft import Draft
from mmspec.engine.laws import OneHot
from mmspec.errors import InputError
from mmspec.models.llamagen.decoder import LlamaGenDecoder
from mmspec.models.llamagen.transformer import LlamaGenTransformer
from mmspec.models.placement import Placement, device_of, infer_device_map

CPU, TWIN = torch.device("cpu"), torch.device("cpu:0")
GPUS = [torch.device("cuda", n) for n in range(4)]


def network(layers: int, **sizes) -> LlamaGenTransformer:
    sizes = dict(vocab_size=16, dim=32, n_head=4, multiple_of=16, caption_dim=8) | sizes
    return LlamaGenTransformer(n_layer=layers, block_size=16, cls_token_num=5, **sizes)


# --- where tensors are ----------------------------------------------------------------------------


class Watch(TorchDispatchMode):
    """Notes the devices of matrix products, in order; refuses operations over two devices.

    Indices count: torch itself takes those from the CPU, and waits for them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.products: list[torch.device] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        inputs = [a for a in tree_leaves((args, kwargs)) if isinstance(a, torch.Tensor)]
        if name != "_to_copy" and len({a.device for a in inputs}) > 1:
            raise AssertionError(f"{name} over {[a.device for a in inputs]}")
        out = func(*args, **(kwargs or {}))
        if name == "mm":
            self.products.append(out.device)
        return out


@pytest.fixture
def fake() -> Iterator[FakeTensorMode]:
    torch.set_default_dtype(torch.float64)  # fake weights can't be packed for a CPU's float32
    try:
        with FakeTensorMode() as mode:
            yield mode
    finally:
        torch.set_default_dtype(torch.float32)


PLACES = [
    Placement(GPUS[0], (GPUS[0], GPUS[1], GPUS[1], GPUS[2]), GPUS[2]),
    Placement(GPUS[0], (GPUS[0],) * 4, GPUS[1]),
    Placement(GPUS[3], (GPUS[1], CPU, GPUS[1], GPUS[0]), GPUS[3]),
    Placement(GPUS[1], (GPUS[1],) * 4, GPUS[1]),
]


@pytest.mark.parametrize("place", PLACES, ids=range(len(PLACES)))
def test_every_layer_runs_where_it_is_placed(fake, place):
    decoder = LlamaGenDecoder(network(4), place)
    assert decoder.embeddings.device == place.main
    for layer, device in zip(decoder.layers, place.layers, strict=True):
        assert {linear.weight.device for linear in layer.maps} == {device}
    assert decoder.head.weight.device == place.head

    cache = decoder.cache(rows=2, slots=12)
    x, rotary = torch.zeros(2, 3, 32, device=place.main), decoder.rotary(4)
    mask = torch.zeros(2, 1, 3, 10, device=place.main)
    slots = torch.zeros(2, 3, dtype=torch.long, device=place.main)
    counts = torch.ones(2, 1, 1, dtype=torch.bool, device=place.main)
    calls = [
        dict(rotary=rotary[:3], slots=2, mask=None),
        dict(rotary=rotary[:3], slots=2, mask=mask[0, 0]),
        dict(rotary=rotary[slots], slots=slots, mask=mask),
        dict(rotary=rotary[slots], slots=slots, mask=mask, use=[counts, True, False, counts]),
    ]
    for call in calls:
        use = call.get("use", [True] * 4)
        with Watch() as watch:
            logits = decoder.forward(x, cache=cache, length=10, **call)
        ran = [d for d, runs in zip(place.layers, use, strict=True) if runs is not False]
        assert watch.products == [d for d in ran for _ in range(4)] + [place.head]
        assert (logits.device, logits.shape) == (place.main, (2, 3, 16))
        hidden = decoder.forward(x, cache=cache, length=10, head=False, **call)
        assert (hidden.device, hidden.shape) == (place.main, (2, 3, 32))
        for layer, device in enumerate(place.layers):
            assert {kept.device for kept in cache.read(layer, 10)} == {device}
    with Watch():
        cache.gather(slots, slots)
        cache.select([1], 10)
        cache.gather(slots[:1], slots[:1])


def test_operations_over_two_devices_are_noticed(fake):
    """The test above can fail."""
    near, far = (torch.zeros(2, dtype=torch.long, device=device) for device in GPUS[:2])
    for mix in (lambda: near + far, lambda: near[far]):
        with Watch(), pytest.raises(AssertionError, match="over"):
            mix()


def test_one_device_moves_nothing():
    place = Placement.on(CPU, 3)
    assert place == Placement(CPU, (CPU,) * 3, CPU)
    assert place.moves == {}
    assert place.runs == [(CPU, 3)]


# --- what comes out -------------------------------------------------------------------------------


@torch.inference_mode()
def laws(guided) -> list[torch.Tensor]:
    """Laws of everything that a decoder is asked for: even, ragged, by part, of trees, kept."""
    tokens = torch.randint(0, 16, (2, 15), generator=torch.Generator().manual_seed(3))
    guided.start(2)
    found = [
        guided.extend(tokens[:, :4], [-1, -1]),
        guided.extend(tokens[:, 4:8], [3, 1]),
        guided.extend(tokens[:, 8:9], [7, 2], use=[[0], [0, 1]]),
    ]
    parents = torch.tensor([[-1, -1, 1]] * 2)
    draft = Draft(tokens[:, 9:12], torch.tensor([3, 3]), OneHot(), parents)
    found.append(guided.extend(tokens[:, 8:12], [7, 2], draft))
    guided.keep([7, 2], torch.tensor([[1, 2], [0, 0]]))
    return [*found, guided.extend(tokens[:, 12:14], [9, 4])]


@pytest.mark.parametrize(
    "place",
    [
        Placement(CPU, (CPU, TWIN), TWIN),
        Placement(CPU, (TWIN, CPU), CPU),
        Placement(TWIN, (CPU, CPU), CPU),
    ],
    ids=["last", "first", "all"],
)
@pytest.mark.parametrize("pads", [[0, 0], [0, 3]], ids=["even", "padded"])
def test_handing_over_changes_nothing(tiny_llamagen, guided_rows, place, pads):
    model = tiny_llamagen(n_kv_head=2)
    whole, *_ = guided_rows(model, pads)
    spread, *_ = guided_rows(model, pads)
    spread.decoder = LlamaGenDecoder(model, place)
    for ours, theirs in zip(laws(spread), laws(whole), strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-12)


# --- the map --------------------------------------------------------------------------------------


def test_inferred_map_keeps_to_the_room():
    """LlamaGen-XL, 3.1 GB in float32, over two devices and the host."""
    with torch.device("meta"):
        model = LlamaGenTransformer()
    room = {0: 10**9, 1: 10**9, "cpu": 4 * 10**9}
    found = infer_device_map(model, room)
    devices = [device_of(found, f"layers.{n}") for n in range(36)]
    assert [device for device, _ in groupby(devices)] == [GPUS[0], GPUS[1], CPU]
    assert all(name.count(".") <= 1 for name in found if name.startswith("layers"))  # whole blocks
    used = dict.fromkeys((GPUS[0], GPUS[1], CPU), 0)
    for name, weight in model.named_parameters():
        used[device_of(found, name)] += weight.nbytes
    for (_, most), weights in zip(room.items(), used.values(), strict=True):
        assert 0 < weights <= most


def test_a_network_too_large_for_all_devices():
    with torch.device("meta"):
        model = network(4, dim=256)
    size = sum(p.nbytes for p in model.parameters())
    assert set(infer_device_map(model, {"cpu": 2 * size}).values()) == {CPU}
    with pytest.raises(InputError, match="too large for the memory of all devices") as caught:
        infer_device_map(model, {"cpu": size // 2})
    assert "\n" not in str(caught.value)


def test_the_innermost_name_counts():
    found = {"": CPU, "layers": GPUS[0], "layers.1": GPUS[1]}
    names = ["layers.1.attention.wo", "layers.10", "layers", "output", ""]
    assert [device_of(found, n) for n in names] == [GPUS[1], GPUS[0], GPUS[0], CPU, CPU]
    with pytest.raises(InputError, match=r"says nothing of layers\.2"):
        device_of({"layers.1": CPU}, "layers.2")
