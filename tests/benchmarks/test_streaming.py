"""Memory of streamed clips: what caches really hold, block by block, and when a clip grows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from wans import tiny_pipeline

from benchmarks.__main__ import main
from benchmarks.streaming import Stream, StreamGrowth, measure_streams, stream
from mmspec import SpecConfig, VideoPipeline
from mmspec.models.wan.transformer import WanTransformer
from mmspec.models.wan.window import ContextWindow

STEP = {"num_inference_steps": 1}
METHODS = {"plain": SpecConfig("plain"), "half": SpecConfig("random-routing", draft_share=0.5)}
WINDOW = ContextWindow(2, sink=1)


@pytest.fixture(scope="module")
def pipe() -> VideoPipeline:
    return tiny_pipeline()


def block_bytes(pipe: VideoPipeline, drafts: bool) -> int:
    """Keys and values of a block's 12 tokens, of every layer, in float32."""
    models = [pipe.transformer, pipe.drafter] if drafts else [pipe.transformer]
    return sum(2 * 12 * m.config.dim * m.config.num_layers * 4 for m in models)


def test_a_rolling_window_holds_the_memory(pipe):
    told = []
    record = measure_streams(pipe, METHODS, "a red circle", 3, WINDOW, 5, STEP, told.append)
    assert record.blocks == (3, 9)
    assert sum(told) == len(METHODS) * (3 + 9 + 1 + 2)
    assert pipe.speculation.method == "plain"  # as it was
    for name, row in record.methods.items():
        assert [len(clip.held) for clip in (row.short, row.long)] == [3, 9]
        assert row.held_growth == 0
        assert len(set(row.long.held[2:])) == 1
        assert row.kept == 6 * block_bytes(pipe, drafts=name == "half")
        assert min(row.short.peak + row.long.peak) > 0
        assert (len(row.long.seconds), min(row.long.seconds) > 0) == (9, True)
    pipe.enable_speculation(METHODS["half"])
    out = pipe(
        "a red circle",
        num_frames=69,
        generator=torch.Generator().manual_seed(5),
        window=WINDOW,
        output_type="none",
        **STEP,
    )
    pipe.disable_speculation()
    half = record.methods["half"].long
    assert half.held[-1] == pipe.nbytes
    assert half.drafted == out.made_by[0].count("drafter") > 0


def test_a_clip_that_keeps_all_grows(pipe):
    clips = [stream(pipe, "x", frames, 0, ContextWindow(), STEP) for frames in (21, 69)]
    found = StreamGrowth(*clips, kept=6 * block_bytes(pipe, drafts=False))
    assert found.held_growth == found.kept > 0
    assert found.grows


@pytest.mark.parametrize(
    ("peaks", "grows"), [((1000, 1009), False), ((1000, 1011), True), ((1000, 900), False)]
)
def test_the_peak_may_move_by_its_noise(peaks, grows):
    """1 % of it, or 5 % of what would have been kept."""
    before, after = peaks
    short, long = Stream([8, 9], [before, 7]), Stream([8, 9, 9, 9], [9999, 9999, 7, after])
    found = StreamGrowth(short, long, kept=100)
    assert (found.peak_growth, found.grows) == (after - before, grows)
    assert not StreamGrowth(short, long, kept=1000).grows
    assert StreamGrowth(Stream([9]), Stream([9, 9]), kept=9).peak_growth is None


def test_the_command(tmp_path: Path, capsys):
    tiny_pipeline().save_pretrained(tmp_path / "model")
    words = ["stream", "--model", str(tmp_path / "model"), "-o", str(tmp_path / "out")]
    given = ["--times", "2", "--window", "2", "--steps", "1", "--methods", "random-routing"]
    assert main([*words, *given]) == 0
    told = capsys.readouterr().out
    record = json.loads((tmp_path / "out" / "stream.json").read_text())
    assert list(record["methods"]) == ["plain", "random-routing"]
    assert record["blocks"] == [3, 6]
    assert record["window"] == {"blocks": 2, "sink": 1}
    assert "held, 6 blocks" in told
    page = (tmp_path / "out" / "stream.md").read_text()
    assert "a block reads the last 2 blocks and the first 1" in page
    assert "| random-routing |" in page
    assert "<svg" in (tmp_path / "out" / "stream.svg").read_text()


def test_steps_and_window_are_the_models_own(tmp_path, capsys, monkeypatch):
    pipe, asked = tiny_pipeline(), set()
    pipe.transformer.register_to_config(sample_steps=1, window=3, sink=2)
    pipe.save_pretrained(tmp_path / "model")
    denoise = WanTransformer.denoise

    def watched(self, noisy, timestep, *rest):
        asked.add(timestep)
        return denoise(self, noisy, timestep, *rest)

    monkeypatch.setattr(WanTransformer, "denoise", watched)
    words = ["stream", "--model", str(tmp_path / "model"), "-o", str(tmp_path / "out")]
    assert main([*words, "--times", "2", "--methods", "plain", "--json"]) == 0
    assert asked == {1000.0}
    record = json.loads(capsys.readouterr().out)
    assert record["window"] == {"blocks": 3, "sink": 2}
    assert record["call"] == {"num_inference_steps": None}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--times", "1"], "--times must be at least 2, not 1"),
        (["--window", "0"], "a window has at least 1 block, not 0"),
        (["--steps", "0"], "a whole number from 1, not 0"),
        (["--methods", "sjd"], "sjd"),
        (["--prompt", " "], "the prompt is empty"),
        (["--model", "missing"], "no model folder at missing"),
    ],
)
def test_refused_in_one_line(tmp_path, capsys, more, said):
    tiny_pipeline().save_pretrained(tmp_path / "model")
    words = ["stream", "--model", str(tmp_path / "model"), "-o", str(tmp_path / "out")]
    assert main([*words, *more]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert not (tmp_path / "out").exists()
