"""Questions that would end a run are named before it starts; transparent pictures have a ground."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from processors import Reader, processor

from mmspec.cli.main import main
from mmspec.cli.options import add_background
from mmspec.errors import InputError
from mmspec.eval.data.picture_questions import PictureQuestion, read_picture_questions
from mmspec.eval.modalities.vlm.bench import VlmBench
from mmspec.eval.modalities.vlm.inputs import check_questions
from mmspec.eval.run.job import Job, Unit
from mmspec.eval.suite import load_suite
from mmspec.eval.sweeps import parse_methods
from mmspec.picture import BACKGROUND


def pipe_of(family: str, drafter: str | None = None) -> SimpleNamespace:
    """The parts of a pipeline that are looked at."""
    config = SimpleNamespace(vision_config=SimpleNamespace(image_size=32))
    model = Reader()
    model.config = config
    own = None if drafter is None else processor(drafter)
    return SimpleNamespace(processor=processor(family), drafter_processor=own, model=model)


@pytest.fixture
def shown(tmp_path) -> list[PictureQuestion]:
    """Questions about a picture of common sides and about one that Qwen's processor refuses."""
    Image.new("RGB", (24, 20)).save(tmp_path / "a.png")
    Image.new("RGB", (2000, 9)).save(tmp_path / "thin.png")
    return [PictureQuestion("what?", path=str(tmp_path / name)) for name in ("a.png", "thin.png")]


def test_what_a_processor_refuses_is_named(shown, items):
    check_questions(pipe_of("llava"), shown, drafts=True)
    taken = [*items, shown[0], PictureQuestion("<|image_pad|>", path=shown[0].path)]
    check_questions(pipe_of("qwen2_vl"), taken, True)
    said = r"question 2, about .*thin.png: Qwen2VLProcessor refuses a picture of 2000×9 pixels: .*"
    with pytest.raises(InputError, match=said) as caught:
        check_questions(pipe_of("qwen2_vl"), shown, drafts=False)
    assert "\n" not in str(caught.value)
    check_questions(pipe_of("llava", "qwen2_vl"), shown, drafts=False)
    with pytest.raises(InputError, match=said):
        check_questions(pipe_of("llava", "qwen2_vl"), shown, drafts=True)


def test_a_damaged_picture_is_named_before_the_run_starts(shown, folder, tmp_path, capsys):
    whole = (tmp_path / "a.png").read_bytes()
    (tmp_path / "a.png").write_bytes(whole[:-20])
    rows = [{"image": name, "question": "what is red"} for name in ("thin.png", "a.png")]
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, rows)))
    command = ["eval", "run", "--suite", "vlm", "--model", str(folder), "--methods", "plain"]
    command += ["--prompts", str(tmp_path / "own.jsonl"), "-o", str(tmp_path / "out")]
    assert main(command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "question 2, about" in line
    assert "a.png: can't read" in line
    assert not (tmp_path / "out").exists()
    assert main([*command, "--background", "glass"]) == 2
    assert "no background 'glass'" in capsys.readouterr().err


def test_a_run_that_is_refused_later_names_the_sample(pipe, tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    asked = PictureQuestion("what is red", path=str(tmp_path / "a.png"))
    job = Job(load_suite("vlm"), (asked,) * 3, parse_methods(("plain",)), {})
    (tmp_path / "a.png").unlink()
    with pytest.raises(InputError, match=r"samples 1 to 2: no picture .*a\.png"):
        VlmBench(job, pipe).run(Unit("quality", 1, 2, "plain@greedy"))


def test_the_background_is_the_calls(pipe, tmp_path):
    Image.new("RGBA", (8, 8)).save(tmp_path / "clear.png")
    (tmp_path / "own.jsonl").write_text('\ufeff{"image": "clear.png", "question": "what?"}')
    (item,) = read_picture_questions(tmp_path / "own.jsonl")
    job = Job(load_suite("vlm"), (item,), {}, {})
    for call, level in (({}, 255), ({"background": "#101010"}, 16)):
        batch = VlmBench(replace(job, call=call), pipe).inputs(range(1))
        assert np.unique(batch.pictures[0]).tolist() == [level]


def test_the_option_is_white_as_the_reader_is():
    import argparse

    parser = argparse.ArgumentParser()
    add_background(parser)
    assert parser.parse_args([]).background == BACKGROUND
