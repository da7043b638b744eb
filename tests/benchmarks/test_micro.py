"""The benchmarks run, and measure what they say; their figures are not tested, time is not."""

from __future__ import annotations

import json
from unittest.mock import patch

import pytest
import torch

from benchmarks import micro, throughput
from benchmarks.__main__ import main
from benchmarks.overhead import Passes, overhead
from mmspec import ImagePipeline, SpecConfig
from mmspec.errors import InputError
from mmspec.models.llamagen.decoder import LlamaGenDecoder


@pytest.fixture
def pipe(tiny_folder) -> ImagePipeline:
    pipe = ImagePipeline.from_pretrained(tiny_folder)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def draw(pipe) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return pipe("a photo of a red circle", generator=generator, output_type="tokens").images


@pytest.mark.parametrize("method", ["plain", "sjd", "scd"])
def test_recorded_passes_replay_the_generation(pipe, method):
    """Nothing of the loop is left out: the same tokens come of the same logits."""
    pipe.enable_speculation(SpecConfig(method=method))
    expected = draw(pipe)
    decoder = pipe.decoder(pipe.transformer)
    passes = Passes(decoder)
    with patch.object(decoder, "forward", passes.record):
        assert torch.equal(draw(pipe), expected)
    count = len(passes.seconds)
    with torch.no_grad():
        pipe.transformer.output.weight.data.zero_()  # not looked at again
    with patch.object(decoder, "forward", passes.replay):
        assert torch.equal(draw(pipe), expected)
    assert len(passes.seconds) == count > 1
    assert decoder.forward.__func__ is LlamaGenDecoder.forward


def test_overhead_is_less_than_the_whole(pipe):
    figures = overhead(pipe, 2)
    assert list(figures) == ["plain", "sjd", "scd"]
    for figure in figures.values():
        assert figure["milliseconds_beside_the_network"] > 0
        assert figure["milliseconds_alone"] > 0


def test_throughput_by_batch(pipe):
    figures = throughput.throughput(pipe, 1, batches=(1, 3))
    assert list(figures) == list(throughput.COMPARED)
    for by_batch in figures.values():
        assert list(by_batch) == [1, 3]
        assert min(by_batch.values()) > 0


def test_the_useless_drafter_is_useless(pipe, monkeypatch):
    """Nearly nothing of it stands, and the pipeline's own drafter stays as it was."""
    before = pipe.drafter.output.weight.clone()
    seen = []

    def watched(wrong, methods, prompts, seed, call):
        wrong.enable_speculation(SpecConfig(method="draft"))
        own = [pipe, wrong]
        for one in own:
            one.enable_speculation(SpecConfig(method="draft"))
        generators = [torch.Generator().manual_seed(n) for n in range(4)]
        seen.extend(
            one(["a photo of a ring"] * 4, generator=generators, output_type="tokens").stats
            for one in own
        )
        return paired(wrong, methods, prompts, seed, call)

    paired = throughput.paired_runs
    monkeypatch.setattr(throughput, "paired_runs", watched)
    figures = throughput.useless_drafter(pipe, 2)
    assert 0 <= figures["calls_without_a_draft"] <= 1
    assert torch.equal(pipe.drafter.output.weight, before)
    honest, wrong = (sum(stats.accepted) for stats in seen)
    assert wrong < honest / 2


def test_only_some(tiny_folder, capfd):
    options = ["--model", str(tiny_folder), "--samples", "1", "--only", "verification_cost"]
    assert main(["micro", *options]) == 0
    figures = json.loads(capfd.readouterr().out)
    assert list(figures) == ["environment", "verification_cost"]
    assert figures["verification_cost"]["relative"]["1"] == 1


@pytest.mark.parametrize(
    ("options", "said"), [(["--samples", "0"], "--samples"), (["--only", "start"], "'start_up'")]
)
def test_bad_options(tiny_folder, capfd, options, said):
    assert main(["micro", "--model", str(tiny_folder), *options]) == 2
    line = capfd.readouterr().err.strip().splitlines()[-1]
    assert line.startswith("python -m benchmarks: error: ")
    assert said in line


def test_unknown_benchmark(pipe):
    with pytest.raises(InputError, match="did you mean 'throughput'"):
        micro.run_micro(pipe, 1, ["throughputs"])


def test_memory_bound_counts_every_weight(pipe):
    """Bytes of all matrices that a token meets, and half of the full cache."""
    figures = micro.memory_bound(pipe, 1)
    network = pipe.transformer
    matrices = [p for n, p in network.named_parameters() if p.ndim == 2 and "embed" not in n]
    config, slots = network.config, network.prefix_length + network.grid**2
    cache = 2 * 2 * config.n_layer * config.dim * slots  # two rows, keys and values
    assert figures["bytes_per_call"] == 4 * (sum(p.numel() for p in matrices) + cache / 2)
    assert figures["over_bound"] > 0
