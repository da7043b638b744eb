"""Growth of calls with the side: known powers are found, and sides without a network are said."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.growth import Growth, GrowthRecord, exponent, measure_growth
from benchmarks.growth_page import growth_figure, growth_markdown, growth_table
from mmspec import ImagePipeline, SpecConfig
from mmspec.errors import InputError
from mmspec.eval.files import write_measured
from mmspec.eval.measure.bootstrap import FEWEST_PAIRS

PROMPTS = ["a photo of a red circle", "a photo of two blue stars", "a photo of a ring"] * 3
METHODS = {name: SpecConfig(method=name) for name in ("plain", "sjd", "draft")}


@pytest.fixture(scope="module")
def pipe(tiny_folder) -> ImagePipeline:
    pipe = ImagePipeline.from_pretrained(tiny_folder)
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.fixture(scope="module")
def record(pipe):
    return measure_growth([pipe], METHODS, PROMPTS, seed=5, sides=(2, 4, 8))


@pytest.mark.parametrize("power", [0.0, 1.0, 1.5, 2.0])
def test_an_exact_power_is_found(power):
    calls = {side: np.full(9, 3.0 * side**power) for side in (8, 16, 32)}
    found, spread = exponent(calls)
    assert found == pytest.approx(power, abs=1e-12)
    assert spread == pytest.approx((power, power), abs=1e-12)


def test_the_fit_is_least_squares_on_the_logarithms_of_means():
    rng = np.random.default_rng(3)
    calls = {side: rng.uniform(1, 2, 50) * side**1.3 for side in (8, 16, 24, 32)}
    found, (low, high) = exponent(calls)
    means = [calls[side].mean() for side in calls]
    assert found == pytest.approx(np.polyfit(np.log(list(calls)), np.log(means), 1)[0], abs=1e-9)
    assert low < 1.3 < high
    assert high - low < 0.4
    few, none = exponent({side: counts[: FEWEST_PAIRS - 1] for side, counts in calls.items()})
    assert few > 0
    assert none is None


def test_prompts_are_resampled_together():
    """Calls that rise and fall together at every side leave the exponent as it is."""
    easy = np.random.default_rng(0).uniform(1, 5, 30)
    _, spread = exponent({side: easy * side for side in (8, 16)})
    assert spread == pytest.approx((1, 1), abs=1e-9)


def test_calls_are_those_of_single_generations(pipe, record):
    import torch

    assert record.methods["plain"].nfe == {2: 4, 4: 16}
    assert record.methods["plain"].exponent == pytest.approx(2, abs=1e-12)
    assert record.methods["plain"].exponent_ci95 == pytest.approx((2, 2), abs=1e-12)
    assert record.methods["plain"].pixels == {2: 16, 4: 32}
    pipe.enable_speculation(METHODS["sjd"])
    for side, px in ((2, 16), (4, 32)):
        calls, tokens = [], []
        for i, prompt in enumerate(PROMPTS):
            generator = torch.Generator().manual_seed(5 + i)
            stats = pipe(prompt, generator=generator, height=px, output_type="tokens").stats
            calls += stats.calls
            tokens += stats.target_tokens
        row = record.methods["sjd"]
        assert row.nfe[side] == pytest.approx(np.mean(calls))
        assert row.target_tokens[side] == pytest.approx(np.mean(tokens))
        low, high = row.nfe_ci95[side]
        assert low <= row.nfe[side] <= high
    pipe.disable_speculation()


def test_the_pipeline_is_left_as_it_was(pipe):
    pipe.enable_speculation(METHODS["sjd"])
    measure_growth([pipe], {"plain": METHODS["plain"]}, PROMPTS[:1], sides=(2,))
    assert pipe.speculation == METHODS["sjd"]
    pipe.disable_speculation()


def test_a_side_without_a_network_is_left_out_and_said(record):
    assert record.notes == [
        "side 8 is left out: this model draws 16×16 or 32×32 px, not 64×64",
    ]


def test_a_method_that_can_not_draw_is_left_out_and_said(tiny_folder):
    alone = ImagePipeline.from_pretrained(tiny_folder)
    alone.register_modules(drafter=None)
    alone.set_progress_bar_config(disable=True)
    record = measure_growth([alone], METHODS, PROMPTS[:2], sides=(2,))
    assert list(record.methods) == ["plain", "sjd"]
    assert record.methods["sjd"].exponent is None
    (note,) = record.notes
    assert note.startswith(
        "draft is left out at side 2: method 'draft' needs the component 'drafter'"
    )


def test_a_side_is_drawn_by_the_pipeline_whose_own_size_it_is(tiny_folder):
    large, small = (ImagePipeline.from_pretrained(tiny_folder) for _ in range(2))
    small.register_modules(transformer=small.sibling, sibling=None)
    drawn = []
    for name, pipe in (("large", large), ("small", small)):
        pipe.set_progress_bar_config(disable=True)
        pipe.on_engine = lambda engine, name=name: drawn.append(name)
    plain = {"plain": METHODS["plain"]}
    record = measure_growth([large, small], plain, PROMPTS[:2], sides=(2, 4))
    assert (drawn, record.notes) == (["small", "large"], [])
    measure_growth([large], plain, PROMPTS[:2], sides=(2,))
    assert drawn == ["small", "large", "large"]


def test_calls_of_a_sibling_stand_beside_the_target_s(pipe):
    import torch

    config = SpecConfig("mulo-sd")
    record = measure_growth([pipe], {"mulo-sd": config}, PROMPTS[:6], seed=5, sides=(2, 4))
    row = record.methods["mulo-sd"]
    assert list(row.nfe) == list(row.sibling_nfe) == [4]
    assert "mulo-sd is left out at side 2" in record.notes[0]
    pipe.enable_speculation(config)
    rows = [torch.Generator().manual_seed(5 + i) for i in range(6)]
    stats = pipe(PROMPTS[:6], generator=rows, output_type="tokens").stats
    pipe.disable_speculation()
    assert row.sibling_nfe[4] == pytest.approx(np.mean(stats.sibling_calls))
    assert 0 < row.sibling_nfe[4] <= 4
    assert row.nfe[4] == pytest.approx(np.mean(stats.calls))
    assert f"and {row.sibling_nfe[4]:.1f} of the sibling" in growth_table(record).markdown()


def test_progress_comes_to_the_end(pipe):
    done = []
    measure_growth([pipe], METHODS, PROMPTS[:2], sides=(2, 8), progress=done.append)
    assert sum(done) == 2 * len(METHODS) * 2


def test_nothing_to_measure(pipe):
    with pytest.raises(InputError, match="nothing can be drawn: side 8 is left out"):
        measure_growth([pipe], METHODS, PROMPTS[:1], sides=(8,))
    with pytest.raises(InputError, match="never calls the target"):
        measure_growth([pipe], {"x": SpecConfig(method="drafter-only")}, PROMPTS[:1], sides=(2,))


def test_the_page_holds_the_record(record, tmp_path):
    page = growth_markdown(record)
    write_measured(tmp_path, "growth", record, page, growth_figure(record))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["growth.json", "growth.md", "growth.svg"]
    data = json.loads((tmp_path / "growth.json").read_text())
    assert data["methods"]["plain"]["nfe"] == {"2": 4, "4": 16}
    table = growth_table(record)
    assert table.columns == ("method", "contract", "side 2 (16 px)", "side 4 (32 px)", "exponent")
    text = (tmp_path / "growth.md").read_text()
    assert table.markdown() in text
    assert record.notes[0] in text
    sjd = next(row for row in table.rows if row.head == "sjd").cells
    assert sjd[2].text == f"{record.methods['sjd'].nfe[4]:.1f}"
    assert sjd[2].notes == (f"{16 / record.methods['sjd'].nfe[4]:.2f}×",)
    svg = (tmp_path / "growth.svg").read_text()
    assert svg.startswith("<?xml")
    legend = {"plain", "sjd", "draft", "with the side"}
    assert legend <= set(re.findall(r">([^<>]+)<", svg))


def test_on_the_command_line(tiny_folder, tmp_path, capfd):
    where = [*["--model", str(tiny_folder)] * 2, "-o", str(tmp_path / "out")]
    options = ["--methods", "sjd,sjd[window=1]", "--sides", "4,2,2", "--samples", "2"]
    assert main(["growth", *options, "--json", *where]) == 0
    data = json.loads(capfd.readouterr().out)
    assert list(data["methods"]) == ["plain", "sjd[window=1]", "sjd"]
    assert data == json.loads((tmp_path / "out/growth.json").read_text())
    assert list(data["methods"]["plain"]["nfe"]) == ["2", "4"]
    assert data["call"]["top_k"] == 100  # the suite's


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--samples", "0"], "--samples"),
        (["--sides", "0,4"], "--sides"),
        (["--sides", "x"], "'x'"),
        (["--sides", "9"], "nothing can be drawn"),
        (["--methods", "sdj"], "did you mean 'sjd'"),
        (["--methods", ","], "--methods is empty"),
    ],
)
def test_bad_options(tiny_folder, tmp_path, capfd, options, said):
    command = ["growth", "--model", str(tiny_folder), "-o", str(tmp_path / "out")]
    try:
        code = main([*command, *options])
    except SystemExit as stop:
        code = stop.code
    assert code == 2
    lines = capfd.readouterr().err.strip().splitlines()
    assert said in lines[-1]
    assert not (tmp_path / "out").exists()


def test_the_stored_record_still_draws(tmp_path):
    """The page of `assets/reports/growth` holds the table that its record draws today."""
    stored = Path(__file__).parents[2] / "assets" / "reports" / "growth"
    data = json.loads((stored / "growth.json").read_text())
    for name, row in data["methods"].items():
        by_side = {key: value for key, value in row.items() if isinstance(value, dict)}
        sides = {key: {int(n): x for n, x in value.items()} for key, value in by_side.items()}
        data["methods"][name] = Growth(**{**row, **sides})
    record = GrowthRecord(**data)
    page = growth_markdown(record)
    write_measured(tmp_path, "growth", record, page, growth_figure(record))
    assert growth_table(record).markdown() in (stored / "growth.md").read_text()
