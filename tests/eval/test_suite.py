"""Suites and their prompts: the shipped ones are valid, wrong ones are named."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

from mmspec.errors import InputError
from mmspec.eval.data.prompts import load_prompts, read_prompts
from mmspec.eval.modalities.base import MODALITIES, modality
from mmspec.eval.suite import load_suite, suite_names
from mmspec.worlds.shapes.vocabulary import TASKS


def test_shipped_suites():
    names = suite_names()
    assert {"speed", "geneval-shapes", "shapes-full", "geneval", "dpg-bench"} <= set(names)
    assert {"image-folders", "vqav2", "textvqa", "chartqa", "docvqa", "mmmu", "video"} <= set(names)
    for name in names:
        suite = load_suite(name)
        assert suite.name == name
        assert suite.summary
    full = load_suite("shapes-full")
    assert (full.speed, full.quality) == (50, 600)
    prompts = load_prompts(full, None)
    assert len(prompts) >= 600  # 100 of each task
    assert [p.tag for p in prompts[:6]] == list(TASKS)


GOOD = "summary: s\nsource: prompts\nprompts: shapes-held-out.jsonl\nspeed: 3\n"
CONTINUOUS = GOOD + "pipeline: continuous\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no fields"),
        ("a: [", "can't read suite"),
        ("speed: 3\n", "mine.yaml: summary: field required"),
        ("summary: s\n", "mine.yaml: source: field required"),
        (
            GOOD.replace("prompts\n", "promts\n", 1),
            "'prompts', 'images', 'answers' or 'videos', not 'promts'",
        ),
        (GOOD + "sped: 3\n", "did you mean 'speed'"),
        (GOOD.replace("shapes-held", "shapes-hold"), "no prompts shapes-hold-out.jsonl"),
        (GOOD.replace("speed: 3", "speed: 0"), "nothing to measure"),
        (GOOD.replace("speed: 3", "speed: -1"), "speed must be 0 or more, not -1"),
        (
            GOOD.replace("speed: 3", "speed: yes"),
            "speed: input should be a valid integer, not True",
        ),
        (GOOD + "quality: 5\n", "quality without metrics"),
        (GOOD + "metrics: geneval\n", "metrics: input should be a valid array, not 'geneval'"),
        (GOOD + "metrics: [genval]\n", "did you mean 'geneval'"),
        (GOOD + "metrics: [lpips]\n", "unknown suite mine: metric 'lpips'"),
        (GOOD + "call: {gidance_scale: 2}\n", "did you mean 'guidance_scale'"),
        (GOOD + "call: {generator: 2}\n", "call argument 'generator'"),
        (GOOD + "call: {negative_prompt: x}\n", "call argument 'negative_prompt'"),
        (GOOD + "reference: shape\n", "reference: input should be 'shapes', not 'shape'"),
        (GOOD + "margin: 2%\n", "margin: input should be a valid number, not '2%'"),
        (GOOD + "margin: .inf\n", "margin: "),
        (GOOD + "margin: 1\n", "first metric of single pictures"),
        (GOOD + "metrics: [fid, geneval]\nmargin: 1\n", "first metric of single pictures"),
        (GOOD + "judge: me\n", "judge 'me'"),
        (GOOD + "batches: [0, 4]\n", "batches must be 1 or more, not [0, 4]"),
        (GOOD + "margin: -1\n", "margin must be above 0"),
        (GOOD + "pipeline: imag\n", "did you mean 'image'"),
        (GOOD + "peers: true\n", "peers is not for pipeline image"),
        (GOOD + "calls: {greedy: {temperature: 0}}\n", "calls is not for pipeline image"),
        (GOOD + "sceptics: {a: {top_k: 1}}\n", "sceptics is not for pipeline image"),
        (GOOD + "again: 1\n", "again: input should be a valid boolean, not 1"),
        (GOOD + "pipeline: vlm\nagain: true\n", "again is not for pipeline vlm"),
        (CONTINUOUS + "sceptics: [a]\n", "sceptics: input should be an object, not ['a']"),
        (CONTINUOUS + "sceptics: {a: 3}\n", "sceptics.a: input should be an object, not 3"),
        (CONTINUOUS + "sceptics: {A b: {}}\n", "has a name of a-z, 0-9, -, not 'A b'"),
        (CONTINUOUS + "sceptics: {1.5: {}}\n", "has a name of a-z, 0-9, -, not '1.5'"),
        (GOOD + "call: {2026-01-01: 3}\n", "call argument '2026-01-01'"),
        (CONTINUOUS + "sceptics: {again: {}}\n", "say again: true"),
        (CONTINUOUS + "sceptics: {a: {iterations: 3}}\n", "call argument 'iterations'"),
        (GOOD + "verdict: true\n", "verdict is not for pipeline image"),
        (GOOD + "pipeline: vlm\nverdict: 1\n", "verdict: input should be a valid boolean, not 1"),
    ],
)
def test_suites_refused(tmp_path, text, said):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        load_suite(str(path))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", MODALITIES)
def test_arguments_of_calls_are_the_pipelines(name):
    """Declared beside the signature, so that a suite is checked without torch."""
    pipeline = modality(name).pipeline
    taken = set(inspect.signature(pipeline.__call__).parameters)
    if name == "image":
        taken &= set(inspect.signature(pipeline.token_laws).parameters)
    declared = set(MODALITIES[name].arguments)
    assert declared <= taken
    own = {"self", "prompt", "image", "class_labels", "generator", "output_type", "return_dict"}
    own |= {"window", "resume", "streamer", "memory", "batch_size"}
    left = {one for one in taken - declared - own if not one.startswith(("num_", "callback_"))}
    assert not left


def test_validating_loads_no_torch():
    code = (
        "import sys; from mmspec.cli.main import main; code = main(['eval', 'validate']);"
        "sys.exit(code or 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == len(suite_names())


def test_own_suite(tmp_path):
    (tmp_path / "mine.yaml").write_text(GOOD)
    assert load_suite(str(tmp_path / "mine.yaml")).speed == 3
    with pytest.raises(InputError, match=r"can't read .*other"):
        load_suite(str(tmp_path / "other.yaml"))
    with pytest.raises(InputError, match="did you mean 'speed'"):
        load_suite("spead")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", r"prompts\.jsonl"),
        ("[1]", r"prompts\.jsonl"),
        ('{"promt": "a"}', "no 'prompt'"),
        ('{"prompt": " "}', "prompt is empty"),
        ('{"prompt": 3}', "must be text"),
        ("", r"prompts\.jsonl"),
        (None, r"prompts\.jsonl"),
    ],
)
def test_unreadable_prompts(tmp_path, text, said):
    path = tmp_path / "prompts.jsonl"
    if text is not None:
        path.write_text('{"prompt": "ok"}\n' * bool(text) + text)
    with pytest.raises(InputError, match=said):
        read_prompts(path)


@pytest.mark.parametrize("suite", ["geneval-shapes", "shapes-full"])
def test_what_must_be_in_the_picture_has_to_be_said(tmp_path, suite):
    """Else every picture would be right."""
    path = tmp_path / "prompts.jsonl"
    good = '{"prompt": "p", "tag": "colors", "include": [{"class": "ring", "count": 1}]}\n'
    path.write_text(good)
    assert load_prompts(load_suite(suite), path)[0].tag == "colors"
    for bad in (
        '{"prompt": "p"}\n',
        '{"prompt": "p", "tag": "colors", "include": []}\n',
        good.replace("ring", "dog"),
    ):
        path.write_text(good + bad)
        with pytest.raises(InputError, match=r"prompts\.jsonl:2"):
            load_prompts(load_suite(suite), path)
    (tmp_path / "prompts.txt").write_text("a cat\n")
    with pytest.raises(InputError, match=r"prompts\.txt:1"):
        load_prompts(load_suite(suite), tmp_path / "prompts.txt")


def test_prompts_as_text(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("a cat\n\n two dogs \n")
    assert [p.prompt for p in read_prompts(path)] == ["a cat", "two dogs"]
    with pytest.raises(InputError, match="--prompts FILE"):
        load_prompts(load_suite("geneval"), None)


def test_official_prompts_are_read_strictly(tmp_path):
    path = tmp_path / "evaluation_metadata.jsonl"
    line = '{"tag": "colors", "include": [{"class": "%s", "count": 1}], "prompt": "p"}\n'
    path.write_text(line % "dog")
    assert load_prompts(load_suite("geneval"), path)[0].include == [{"class": "dog", "count": 1}]
    path.write_text(line % "dog" + line % "circle")
    with pytest.raises(InputError, match=r"jsonl:2: .*'circle'"):
        load_prompts(load_suite("geneval"), path)
