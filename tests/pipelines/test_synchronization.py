"""The host waits for the device once a round, however many tokens the round is about."""

from __future__ import annotations

import pytest
import torch
from knobs import with_knobs
from torch.utils._python_dispatch import TorchDispatchMode

from mmspec import ImagePipeline, SpecConfig
from mmspec.methods import serving

# operators that have to know a number to go on, and methods that hand one to Python
OPERATORS = {"nonzero", "masked_select", "equal", "unique_dim", "_unique2"}
METHODS_OF_TENSORS = ("tolist", "item", "__int__", "__float__", "__bool__", "__index__")


class Waits(TorchDispatchMode):
    """Counts every time that the host has to know a number that the device computes."""

    def __init__(self, monkeypatch) -> None:
        super().__init__()
        self.count = 0
        for name in METHODS_OF_TENSORS:
            monkeypatch.setattr(torch.Tensor, name, self.counted(getattr(torch.Tensor, name)))

    def counted(self, method):
        def call(tensor):
            self.count += 1
            return method(tensor)

        return call

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.overloadpacket.__name__ in OPERATORS
        return func(*args, **(kwargs or {}))


def waits_per_round(pipe, config: SpecConfig, monkeypatch, **call) -> float:
    """Waits from the first to the last round, per round."""
    pipe.enable_speculation(config)
    marks: list[int] = []
    with monkeypatch.context() as patch, Waits(patch) as waits:
        # a processor alone leaves filling out, and there is nothing to wait for there
        patch.setattr("mmspec.models.target.counts", lambda *told: None)
        pipe(
            ["a photo of a red circle", "a photo of three stars"],
            generator=torch.Generator().manual_seed(0),
            output_type="tokens",
            callback_on_step_end=lambda *_: marks.append(waits.count),
            **call,
        )
    assert len(marks) > 2
    return (marks[-1] - marks[0]) / (len(marks) - 1)


@pytest.fixture
def pipe(tiny_folder) -> ImagePipeline:
    pipe = ImagePipeline.from_pretrained(tiny_folder)
    pipe.set_progress_bar_config(disable=True)
    return pipe


# local rules plan on the host whose turn it is, the unverified draw all in one round, rounds
# within a round end when every row has its draft, and texts are searched on the host
PREFIXED = [
    name
    for name, m in serving("image").items()
    if m.rule not in ("local", "unverified") and m.drafter not in ("nested", "trigram")
]


@pytest.mark.parametrize("method", PREFIXED)
def test_once_a_round(pipe, method, monkeypatch):
    config = with_knobs(method, "image", window=5, tree_widths=(2, 1), tree_depth=2)
    assert waits_per_round(pipe, config, monkeypatch, top_p=0.9) == 1


def test_once_more_where_the_host_reads_what_was_written(pipe, monkeypatch):
    config = SpecConfig("aded", tree_depth=2)
    assert waits_per_round(pipe, config, monkeypatch, top_p=0.9) == 2


def test_once_more_where_the_host_learns_from_laws(pipe, monkeypatch):
    """Where no token ends a picture, lengths by such ends look at none."""
    assert waits_per_round(pipe, SpecConfig("draft", length="eos-ema"), monkeypatch) == 1
    config = SpecConfig("draft", length="speckv")
    assert 1 < waits_per_round(pipe, config, monkeypatch) <= 2  # rounds without a draft have one


def test_once_more_where_the_host_prunes(pipe, monkeypatch):
    config = SpecConfig("draft", rule="restricted")
    assert 1 < waits_per_round(pipe, config, monkeypatch) <= 2


def test_once_more_a_round_within_a_round(pipe, monkeypatch):
    config = SpecConfig("ml-specqd", num_draft_tokens=3, inner="recycling", tree_widths=(2, 1))
    assert 1 < waits_per_round(pipe, config, monkeypatch, top_p=0.9) <= 1 + 3


@pytest.mark.parametrize(
    "knobs",
    [
        {"rule": "block"},
        {"rule": "recursive"},
        {"length": "heuristic"},
        {"length": "goodput"},
        {"length": "faser"},
        {"method": "tree", "rule": "k-seq", "siblings": "independent"},
        {"method": "sjd", "jacobi_init": "above"},
        {"method": "sjd", "jacobi_init": "uniform"},
        {"method": "layer-skip"},
        {"method": "merged", "merge": ("lookup", "dynamic-tree"), "siblings": "top"},
        {"method": "dynamic-tree", "tree_nodes": 5},
    ],
    ids=str,
)
def test_once_a_round_for_every_part(pipe, knobs, monkeypatch):
    assert waits_per_round(pipe, SpecConfig(**knobs), monkeypatch) == 1


def test_greedily_too(pipe, monkeypatch):
    assert waits_per_round(pipe, SpecConfig(), monkeypatch, temperature=0) == 1


def test_stopping_waits_for_every_drafted_token(pipe, monkeypatch):
    """These policies look at each token before they ask for the next: the test sees it."""
    config = SpecConfig(length="confidence", confidence=0.0, max_draft_tokens=4)
    assert waits_per_round(pipe, config, monkeypatch) > 2
